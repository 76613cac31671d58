"""What every algorithm, partition, model and paper's protocol computes is in golden.csv, to 1e-10.

Where a change is meant to change numbers: `python -m tests.golden --write`, and say in the commit which and why.
"""

from pathlib import Path

import pytest
import torch
from golden.cases import CASES
from golden.pinned import differences, numbers, read

CONF = Path(__file__).parent.parent.parent / "conf"
PINNED = read()
_TRUNCATED = {  # those that begin with truncated normal weights, as TensorFlow's tutorials do
    "paper=zhao2018 dataset=mnist", "paper=zhao2018 dataset=mnist partition=emd algorithm=centralized",
    "paper=zhao2018 dataset=cifar10 algorithm=data_sharing",
}  # fmt: skip


def draws_as_pinned() -> bool:
    """Whether this PyTorch draws truncated normal numbers by rejection, so that the first one is an ordinary normal
    number. Older ones (2.8) compute them from uniform numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        normal = torch.randn(1)
        torch.manual_seed(0)
        return torch.equal(torch.nn.init.trunc_normal_(torch.empty(1)), normal)


@pytest.mark.parametrize("name", CASES)
def test_a_run_gives_the_pinned_numbers(name):
    if name.startswith("privacy="):
        pytest.importorskip("dp_accounting", reason="epsilon needs the extra [privacy]")
    if name in _TRUNCATED and not draws_as_pinned():
        pytest.skip("this version of PyTorch draws other truncated normal weights")
    assert differences(PINNED.get(name, {}), numbers(CASES[name])) == {}


@pytest.mark.parametrize("name", ["algorithm=scaffold", "algorithm=fedgen", "algorithm=fedconcat_ifca", "model=vgg9"])
@pytest.mark.parametrize("how", ["hardware.workers=2", "hardware.engine=vectorized"])
def test_workers_and_a_stack_give_the_pinned_numbers(name, how):
    assert differences(PINNED[name], numbers([*CASES[name], how]), tolerance=1e-9) == {}


_DEFAULTS = {  # of all other cases, and of algorithm=fedfa
    "selection=uniform", "server_optimizer=sgd", "compression=none", "privacy=none", "system=none",
    "server_optimizer=fedfa",
}  # fmt: skip


@pytest.mark.parametrize(
    "group", ["algorithm", "partition", "model", "selection", "server_optimizer", "compression", "privacy", "system"]
)
def test_every_option_has_a_case(group):
    options = {f"{group}={path.stem}" for path in (CONF / group).glob("*.yaml")} - {f"{group}=own"} - _DEFAULTS
    assert [each for each in options if not any(each in words for words in CASES.values())] == []


_AS_OTHERS = ("image_folder", "cifar10_jpeg")  # the latter's files hold nothing but those of cifar10


def test_every_paper_has_a_case_for_each_of_its_data_sets():
    papers = [path.stem for path in CONF.glob("paper/*.yaml") if path.stem != "none"]
    files = [
        (paper, path.stem)
        for paper in papers for place in (f"model/{paper}", f"paper/{paper}/dataset")
        for path in CONF.glob(f"{place}/*.yaml")
    ]  # fmt: skip
    needed = {f"paper={paper} dataset={dataset} " for paper, dataset in files if dataset not in _AS_OTHERS}
    assert len(needed) >= 15
    assert [words for words in needed if not any(name.startswith(words) for name in CASES)] == []


def test_no_case_is_pinned_that_is_not_run():
    assert PINNED.keys() == CASES.keys()


def test_a_difference_is_told_with_the_old_and_the_new_value():
    old = {"weights_sum": "2.0", "bytes_up": "1000000000000", "partition_hash": "1e5"}
    assert differences(old, {**old, "weights_sum": "2.0000000001"}) == {}
    assert differences(old, {**old, "weights_sum": "2.000000001", "clusters": "3"}) == {
        "weights_sum": "2.0 -> 2.000000001 (relative change 5.0e-10)",
        "clusters": "nothing -> 3 (relative change inf)",
    }
    assert differences(old, {"weights_sum": "2.0", "bytes_up": "1000000000001", "partition_hash": "2e5"}) == {
        "bytes_up": "1000000000000 -> 1000000000001 (relative change 1.0e-12)",
        "partition_hash": "1e5 -> 2e5 (relative change 5.0e-01)",
    }
    assert list(differences(old, {})) == list(old)
