"""The command line: help, composed configs, and what it says about settings that cannot work."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from program import only_folder, run, start

from fedexp.build import build_algorithm, construct
from fedexp.errors import ConfigError
from fedexp.main import CONF, main
from fedexp.settings import GROUPS, check, fingerprint


def composed(*words):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(words))


BAD = [
    (["algorithm=fedkat"], ["algorithm=fedkat", "did you mean fedcat?"]),
    (["clints=5"], ["clints=5", "did you mean clients?"]),
    (["algorithm=fedprox", "algorithm.muu=1"], ["algorithm.muu=1", "did you mean mu? known: _target_, mu, name"]),
    (["algorithm=fedavg", "algorithm.mu=1"], ["algorithm.mu=1", "no such key; known: _target_, name\n"]),
    (["partition._target_=fedexp.partition.natural.natural"], ["partition.alpha=0.1", "no such key; there are none\n"]),
    (["-m", "round=50,60"], ["round=50: no such key", "did you mean rounds?"]),
    (["-m", "rounds=5,abc"], ["rounds=abc", "Integer"]),
    (["-m", "algorithm=fedprox,moon", "algorithm.muu=1,2"], ["algorithm.muu=1: no such key", "did you mean mu?"]),
    (["algorithm=fedprox", "+algorithm.muu=1"], ["algorithm.muu=1", "did you mean mu?"]),
    (["algorithm=fedprox", "algorithm.mu=abc"], ["algorithm.mu=abc", "Float"]),
    (["algorithm=fedprox", "algorithm.mu=-1"], ["algorithm.mu=-1", "at least 0"]),
    (["rounds=abc"], ["rounds=abc", "Integer"]),
    (["rounds=0"], ["rounds=0", "at least 1"]),
    (["local.epoch=3"], ["local.epoch=3", "did you mean epochs?"]),
    (["local.lr=-1"], ["local.lr=-1", "above 0"]),
    (["clients_per_round=100"], ["clients_per_round=100", "at most clients=20"]),
    (["partition=dir", "partition.alpha=0"], ["partition.alpha=0", "above 0"]),
    (["partition=shards1", "clients=5"], ["clients=5", "at least 10 clients"]),
    (["clients=5000"], ["clients=5000", "only 1437 training examples"]),
    (["targets=[1.5]"], ["targets=1.5", "fractions"]),
    (["algoritm=fedavg"], ["algoritm=fedavg", "did you mean algorithm?"]),
    (["algorithm._target_=foo.Bar"], ["algorithm._target_=foo.Bar", "cannot be imported"]),
    (["dataset.test_fraction=2.0"], ["dataset.test_fraction=2.0", "(0, 1)"]),
    (["partition=natural"], ["partition=natural", "does not say whose"]),
    (["-m", "+table=fedcat_1", "dataset.root=data"], ["dataset.root=data", "++dataset.root=data"]),
    (["-m", "algorithm=fedprox,moon", "algorithm.mu=1"], ["algorithm.mu=1", "++algorithm.mu=1"]),
    (["model.hidden=-5"], ["model.hidden=-5", "at least 1"]),
    (["model.hidden=0"], ["model.hidden=0", "at least 1"]),
    (["dataset=made", "dataset.shape=[28,28]"], ["dataset.shape=[28, 28]", "[channels, height, width]"]),
    (["dataset=made", "dataset.classes=0"], ["dataset.classes=0", "at least 1"]),
    (["dataset=made", "dataset.test=0"], ["dataset.test=0", "at least 1"]),
    (["+dataset.transform.pad=4"], ["dataset.transform.pad=4", "of no effect without dataset.transform.crop"]),
    (["local.lr=inf"], ["local.lr=inf", "finite"]),
    (["local.weight_decay=inf"], ["local.weight_decay=inf", "finite"]),
    (["local.max_grad_norm=inf"], ["local.max_grad_norm=inf", "finite"]),
    (["partition=dir", "partition.alpha=inf"], ["partition.alpha=inf", "finite"]),
    (["partition=dir", "partition.quantity_alpha=inf"], ["partition.quantity_alpha=inf", "finite"]),
    (["partition=dir", "partition.tries=0"], ["partition.tries=0", "at least 1"]),
    (["partition=dir", "partition.min_size=-1"], ["partition.min_size=-1", "at least 0"]),
    (["partition=pa", "partition.log_mean=inf"], ["partition.log_mean=inf", "finite"]),
    (["partition=pa", "partition.log_mean=1000"], ["partition=pa: cannot be built", "OverflowError"]),
    (["partition=mc", "partition.smallest=0"], ["partition.smallest=0", "at least 1"]),
    (["dataset=femnist", "dataset.root=/nowhere", "dataset.writers=0"], ["dataset.writers=0", "at least 1"]),
    (["-m", "+table=fedcat_1", "table.seeds=[]"], ["table.seeds=[]", "at least one"]),
    (["hardware.convolution=fast"], ["hardware.convolution=fast", "auto or direct"]),
    (["hardware.client_memory=disk"], ["hardware.client_memory=disk", "device or cpu"]),
    (["hardware.precision=half"], ["hardware.precision=half", "float32"]),
    (["dataset=mnist", "dataset.download=false", "dataset.root=/nowhere"], ["dataset.root=/nowhere", "by hand"]),
    (["algorithm=null"], ["algorithm=null", "names no option", "fedcat"]),
    (["algorithm=3"], ["algorithm=3", "names no option", "fedcat"]),
    (["=3"], ["=3", "KEY=VALUE"]),
    (["rounds"], ["rounds", "KEY=VALUE", "EQUAL"]),
    (["dataset.root=~/pictures"], ["dataset.root=~/pictures", "$HOME/pictures", "'dataset.root=\"~/pictures\"'"]),
    (["tracking=wandb", "tracking.group=it's"], ["tracking.group=it's", "quote twice", '"it']),
    (["algorithm=fedconcat", "rounds=31"], ["rounds=31", "above algorithm.encoder_rounds=31"]),
    (["algorithm=fedconcat", "rounds=40", "algorithm.clustering=ifca"], ["algorithm@algorithm.clustering=ifca"]),
    (["algorithm=fedconcat", "rounds=40", "algorithm.clustering.clusters=30"], ["algorithm.clustering.clusters=30"]),
]


@pytest.mark.parametrize(("words", "said"), BAD, ids=lambda x: x[0] if isinstance(x, list) else "")
def test_what_cannot_work_ends_in_one_line_and_code_2(monkeypatch, capfd, tmp_path, words, said):
    assert run(monkeypatch, tmp_path, *words) == 2
    output = "".join(capfd.readouterr())
    assert all(part in output for part in said), output
    assert "Traceback" not in output
    assert not [path for path in tmp_path.glob("*") if not path.name.startswith(".")]  # nothing was begun


@pytest.mark.parametrize("flags", [[], ["-m"]])
def test_a_place_that_cannot_be_written_to_is_said(monkeypatch, capfd, tmp_path, flags):
    (tmp_path / "file").touch()
    assert run(monkeypatch, tmp_path, *flags, f"output_root={tmp_path}/file") == 2
    output = "".join(capfd.readouterr())
    assert f"output_root={tmp_path}/file: cannot be written to" in output
    assert "Traceback" not in output


def test_what_a_constructor_raises_is_kept_as_the_cause():
    with pytest.raises(
        ConfigError, match=r"model=mcmahan_cnn: cannot be built .*ValueError.*mcmahan\.py:\d+"
    ) as caught:
        construct(composed("model=mcmahan_cnn").model, shape=(64,), classes=10)
    assert isinstance(caught.value.__cause__, ValueError)


def test_no_gpu_is_said(monkeypatch, capfd, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert run(monkeypatch, tmp_path, "hardware=gpu") == 2
    assert "no CUDA device here" in "".join(capfd.readouterr())


@pytest.mark.parametrize("group", ["dataset", "partition", "model", "algorithm", "hardware", "tracking"])
def test_every_option_of_every_group_composes_and_fits_its_constructor(group):
    options = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    assert options
    for option in options:
        words = [f"{group}={option}"] + ([f"{group}.root=x"] if option == "image_folder" else [])
        if option == "own":
            with pytest.raises(ConfigError, match=rf"{group}\._target_=None: must name a class or function"):
                check(composed(*words))
        elif option != "gpu":
            check(composed(*words))


def test_own_parts_of_every_group_train_and_name_the_run(monkeypatch, tmp_path):
    (tmp_path / "own_parts.py").write_text(
        "import torch\n"
        "from fedexp.algorithms.fedavg import FedAvg\n"
        "from fedexp.data import Dataset\n"
        "from fedexp.models import Classifier\n"
        "def signals(transform, length=3):\n"
        "    y = torch.arange(40) % 2\n"
        "    x = torch.randn(40, length) + y[:, None]\n"
        "    return Dataset('signals', x, y, x, y, 2, transform)\n"
        "def halves(dataset, clients, seed):\n"
        "    return list(torch.arange(len(dataset.train_y)).chunk(clients))\n"
        "def line(shape, classes):\n"
        "    return Classifier(torch.nn.Flatten(), torch.nn.Linear(shape[0], classes))\n"
        "class Mine(FedAvg):\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [
        "algorithm=own",
        "algorithm._target_=own_parts.Mine",
        "partition=own",
        "partition._target_=own_parts.halves",
    ]
    words += ["model=own", "model._target_=own_parts.line", "dataset=own", "dataset._target_=own_parts.signals"]
    words += ["+dataset.length=5", "clients=2", "clients_per_round=2", "rounds=1", "hardware=cpu", "tracking=none"]
    monkeypatch.setattr(sys, "argv", ["fedexp", *words, f"output_root={tmp_path / 'out'}"])
    main()
    assert only_folder(tmp_path / "out").name.startswith("signals-halves-line-Mine-seed0-")


def test_every_algorithm_can_be_built():
    for path in set((CONF / "algorithm").glob("*.yaml")) - {CONF / "algorithm/own.yaml"}:
        assert build_algorithm(composed(f"algorithm={path.stem}")).clients_per_round == 4


def test_fingerprint_hashes_what_changes_results_and_nothing_else():
    base = fingerprint(composed("partition=dir0.1"))
    same = [
        ["partition=dir", "partition.alpha=0.1"], ["hardware=cpu"], ["hardware.workers=1"], ["tracking=none"],
        ["output_root=/elsewhere"], ["checkpoint_seconds=1"],
    ]  # fmt: skip
    for words in same:
        assert fingerprint(composed(*(["partition=dir0.1"] if "partition=dir" not in words else []), *words)) == base
    for words in (["seed=1"], ["rounds=61"], ["local.lr=0.1"], ["algorithm=fedprox"], ["hardware.precision=bfloat16"],
                  ["hardware.convolution=direct"]):  # fmt: skip
        assert fingerprint(composed("partition=dir0.1", *words)) != base
    assert fingerprint(composed("dataset=mnist", "dataset.root=a")) == fingerprint(
        composed("dataset=mnist", "dataset.root=b")
    )
    own = [composed("dataset=image_folder", f"dataset.root={root}") for root in ("a", "b", "./a")]
    assert fingerprint(own[0]) != fingerprint(own[1]), "the folder is the data"
    assert fingerprint(own[0]) == fingerprint(own[2])
    assert set(GROUPS) == {"dataset", "partition", "model", "algorithm"}


@pytest.mark.parametrize("word", ["--help", "--cfg=job"])
def test_hydras_own_flags_work_from_anywhere(tmp_path, word):
    done = subprocess.run(
        [sys.executable, "-m", "fedexp", *word.split("=")], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "fedcat" in done.stdout or "clients_per_round: 4" in done.stdout


@pytest.mark.parametrize(("program", "word"), [("bench", "--help"), ("partition", "-h"), ("study", "--help")])
def test_the_other_programs_say_how_they_are_used(program, word):
    done = subprocess.run(
        [sys.executable, "-m", f"fedexp.{program}", word], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python -m fedexp.{program}" in done.stdout


_COMPLETE = """
eval "$(fedexp -sc install=bash)"
complete -p fedexp
for COMP_LINE in "fedexp algorithm=fedp" "fedexp -m +table=cadis_"; do
    read -ra COMP_WORDS <<< "$COMP_LINE"
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_POINT=${#COMP_LINE} COMPREPLY=()
    hydra_bash_completion
    echo "${COMPREPLY[@]}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_the_installed_command(tmp_path):
    script = tmp_path / "fedexp"  # as pip writes it
    script.write_text(f"#!{sys.executable}\nfrom fedexp.main import main\nmain()\n")
    script.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(Path.cwd())}
    said = [
        subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300).stdout
        for command in (
            ["bash", "--norc", "-c", _COMPLETE],
            ["fedexp", "-sc", "install=bash"],
            [sys.executable, "-m", "fedexp", "-sc", "install=bash"],
        )
    ]
    installed, algorithms, tables = said[0].splitlines()
    assert installed.endswith("-F hydra_bash_completion fedexp")
    assert algorithms == "algorithm=fedprox"
    assert tables == "+table=cadis_1 +table=cadis_2 +table=cadis_3"
    assert said[1] == said[2] != ""


def test_multirun_leaves_a_folder_a_job(tmp_path):
    job = start(tmp_path, "--multirun", "algorithm=fedavg,fedcat", "rounds=2")
    output, _ = job.communicate(timeout=300)
    assert job.returncode == 0, output
    names = sorted(path.name.split("-")[3] for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert names == ["fedavg", "fedcat"]
