"""`python -m fedexp protocol paper=X dataset=Y`: what the card says is so, of every paper and each of its data sets."""

from functools import cache

import pytest
from composing import composed
from omegaconf import OmegaConf

from fedexp.cli import carry_out
from fedexp.cli.protocol import card
from fedexp.config.options import CONF

PAPERS = sorted(path.stem for path in (CONF / "paper").glob("*.yaml") if path.stem != "none")
DATASETS = {
    paper: sorted(
        {path.stem for group in (f"paper/{paper}/dataset", f"model/{paper}") for path in (CONF / group).glob("*.yaml")}
    )
    for paper in PAPERS
}
ALGORITHMS = {
    paper: sorted(path.stem for path in (CONF / f"paper/{paper}/algorithm").glob("*.yaml")) for paper in PAPERS
}
CARDS = [
    [f"paper={paper}", f"dataset={dataset}"] + (["dataset.root=x"] if dataset == "image_folder" else [])
    for paper in PAPERS for dataset in DATASETS[paper]
] + [
    [f"paper={paper}", f"algorithm={algorithm}"] for paper in PAPERS for algorithm in ALGORITHMS[paper]
    if (CONF / f"algorithm/{algorithm}.yaml").exists()
]  # fmt: skip
CHOSEN = "the option chosen"


@cache
def content(file):
    return OmegaConf.to_container(OmegaConf.load(CONF / file))


def found(file, key):
    """A key's value in a file by itself; of one that lies in a group's folder, the group is the file's."""
    value = content(file)
    for part in key.split(".")[file.startswith("model/") :]:
        value = value[part]
    return value


@pytest.mark.parametrize("words", CARDS, ids=" ".join)
def test_every_key_has_its_value_and_is_set_by_the_file_named(words):
    config = composed(*words)
    entries = card(config, words)
    assert {"dataset", "partition", "model", "clients", "local.epochs"} <= {entry.key for entry in entries}
    for entry in entries:
        value = OmegaConf.select(config, entry.key)
        if entry.file == "the command line":
            assert any(word.startswith(f"{entry.key}=") for word in words)
        elif entry.place == CHOSEN:
            assert entry.value == value.name
            (own,) = [each for each in content(entry.file)["defaults"] if f"override /{entry.key}" in each]
            option = own[f"override /{entry.key}"].replace("${dataset}", word_of(words, "dataset", config))
            assert (CONF / entry.key / f"{option}.yaml").exists()
        else:
            assert entry.value == value
            written = found(entry.file, entry.key)
            assert written == value or str(written).startswith("${"), entry
            assert entry.place, f"{entry.key} in {entry.file} has no comment that says where it stands"


def word_of(words, key, config):
    given = [word.partition("=")[2] for word in words if word.startswith(f"{key}=")]
    return given[0] if given else config[key].name


@pytest.mark.parametrize("paper", PAPERS)
def test_the_last_file_that_sets_a_key_is_named(paper):
    """What an algorithm's or a data set's file says wins over the paper's own, and is what is named."""
    for algorithm in ALGORITHMS[paper]:
        if not (CONF / f"algorithm/{algorithm}.yaml").exists():
            continue
        words = [f"paper={paper}", f"algorithm={algorithm}"]
        with_it = {entry.key: entry.file for entry in card(composed(*words), words)}
        for key in OmegaConf.to_container(OmegaConf.create(content(f"paper/{paper}/algorithm/{algorithm}.yaml"))):
            if key != "defaults":
                assert any(
                    name.partition(".")[0] == key and file.startswith(f"paper/{paper}/algorithm/")
                    for name, file in with_it.items()
                )


def test_what_the_command_line_says_is_no_file_s():
    words = ["paper=fedcat", "rounds=7", "local={epochs: 3}", "dataset=cifar10"]
    entries = {entry.key: entry for entry in card(composed(*words), words)}
    assert [(entries[key].value, entries[key].file) for key in ("rounds", "local.epochs", "dataset")] == [
        (7, "the command line"), (3, "the command line"), ("cifar10", "the command line"),
    ]  # fmt: skip
    assert entries["local.lr"].file == "paper/fedcat.yaml"
    assert entries["dataset.transform.mean"].file == "paper/fedcat/dataset/cifar10.yaml"


def test_the_card_is_printed_in_full(capsys):
    assert carry_out("protocol", ["paper=fedcat", "dataset=mnist", "algorithm=fedprox"]) == 0
    said = capsys.readouterr().out
    for part in ("algorithm.mu", "0.1", "paper/fedcat/algorithm/fedprox/mnist.yaml", "section 4.1", "local.momentum"):
        assert part in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "paper=null: choose one, e.g. paper=fedcat"),
        (["paper=fedcta"], "paper=fedcta: no such option; did you mean fedcat?"),
        (["paper=fedcat", "dataset=svhn"], "paper=fedcat: gives no model for svhn"),
        (["paper=fedcat", "clints=3"], "clints=3: no such key; did you mean clients"),
        (["paper=fedcat", "seed=1,2"], "seed=1,2: asks for several runs, and this program takes one"),
        (["-m", "paper=fedcat"], "-m: asks for several runs"),
        (["+table=fedcat_1"], "table=fedcat_1: asks for several runs"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_is_no_protocol_is_said(words, said, capsys):
    assert carry_out("protocol", words) == 2
    assert said in capsys.readouterr().err
