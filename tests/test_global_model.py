"""The global model of a run as a module that predicts: what it takes, and that it is the one that was evaluated."""

import warnings

import pytest
import torch
from options import words_of
from program import FEW, SMALL

import fedexp
from fedexp.building import build_dataset
from fedexp.errors import ConfigError

WORDS = " ".join([*SMALL, "rounds=2", "hardware.workers=1"])
MORE = "+dataset.transform.mean=[0.3] +dataset.transform.std=[0.4]"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One small run, trained once for all tests here."""
    return fedexp.run(WORDS, MORE, output_root=str(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_model_is_ready_to_predict_on_pictures_as_they_are_stored(done, mode):
    dataset = build_dataset(done.config)
    assert dataset.test_x.dtype == torch.uint8 and dataset.transform.mean == [0.3]
    logits = getattr(done.model, mode)()(dataset.test_x)
    assert logits.shape == (360, 10) and not logits.requires_grad
    right = (logits.argmax(1) == dataset.test_y).double().mean()
    assert float(right) == pytest.approx(done.accuracy)
    assert done.model.double()(dataset.test_x[:2]).dtype == torch.float64
    done.model.float()


def test_the_model_takes_whatever_makes_a_tensor_of_a_type_and_shape_that_pictures_have(done):
    pictures = build_dataset(done.config).test_x[:3]
    logits = done.model(pictures)
    array = pictures.numpy()
    array.setflags(write=False)
    with warnings.catch_warnings(action="error"):
        assert torch.equal(done.model(array), logits)
    torch.testing.assert_close(done.model(array / 255), logits)
    torch.testing.assert_close(done.model((array / 255).tolist()), logits)
    for wrong, said in (
        (pictures.long(), "x=torch.int64: must be uint8, from 0 to 255, or floats"),
        (array.tolist(), "x=torch.int64: must be uint8"),
        (pictures > 7, "x=torch.bool: must be uint8"),
        (pictures[0], "x=[1, 8, 8]: must have the shape [n, 1, 8, 8]: several examples like the data set's"),
        (array[:, :, :7], "x=[3, 1, 7, 8]: must have the shape [n, 1, 8, 8]"),
        ("pictures", "x=str: must be a tensor, or what makes one, such as a numpy array"),
        (None, "x=NoneType: must be a tensor"),
    ):
        with pytest.raises(ConfigError) as caught:
            done.model(wrong)
        assert said in str(caught.value)


def test_the_model_of_tokens_takes_whole_numbers_of_any_type(tmp_path):
    made = [*FEW, "dataset.shape=[5]", "dataset.tokens=9", "model=lstm", "model.hidden=6", "partition=iid"]
    run = fedexp.run(WORDS, *made, rounds=1, output_root=str(tmp_path))
    tokens = build_dataset(run.config).test_x[:3]
    logits = run.model(tokens)
    assert torch.equal(run.model(tokens.byte()), logits) and torch.equal(run.model(tokens.tolist()), logits)
    with pytest.raises(ConfigError, match=r"x=torch\.float32: must be whole numbers: .* tokens"):
        run.model(tokens.float())
    assert run.model(tokens[:, :4]).shape == logits.shape
    with pytest.raises(ConfigError, match=r"x=\[5\]: must have the shape \[n, length\]"):
        run.model(tokens[0])


def test_the_model_of_clusters_of_stages_and_of_two_iterates_is_the_one_that_was_evaluated(tmp_path):
    for algorithm in ("ifca", "fedconcat", "fedexp"):
        run = fedexp.run(*words_of(algorithm), "hardware.workers=1", output_root=str(tmp_path))
        dataset = build_dataset(run.config)
        right = (run.model(dataset.test_x).argmax(1) == dataset.test_y).double().mean()
        assert float(right) == pytest.approx(run.accuracy), algorithm
        guessed = run.model(dataset.test_x).argmax(1)
        table = torch.zeros(dataset.classes, dataset.classes, dtype=torch.int64)
        table.index_put_((dataset.test_y, guessed), torch.ones(()).long(), accumulate=True)
        assert (table.numpy() == run.confusion.to_numpy()).all(), algorithm
