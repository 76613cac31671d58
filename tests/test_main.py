"""The command line: help, composed configs, and what it says about settings that cannot work."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from composing import composed
from hydra import initialize_config_dir
from program import FEW, only_folder, result, run

import fedexp
from fedexp.building import construct
from fedexp.config.checks import check
from fedexp.config.comments import comments
from fedexp.config.compose import Composer
from fedexp.config.constructors import GROUPS, PARTS
from fedexp.config.explain import exit_code
from fedexp.config.options import CONF
from fedexp.config.words import PROGRAMS
from fedexp.errors import ConfigError
from fedexp.main import main

ONE = 'table.select="mnist dir0.1 fedavg"'  # cell of a table
BAD = [
    (["algorithm=fedkat"], ["algorithm=fedkat", "did you mean fedcat?"]),
    (["clints=5"], ["clints=5", "did you mean clients?"]),
    (["algorithm=fedprox", "algorithm.muu=1"], ["algorithm.muu=1", "did you mean mu? known: _target_, mu, name"]),
    (
        ["algorithm=fedavg", "+algorithm.mu=1"],
        ["algorithm.mu=1: no such key; ", "fedprox, ", "have it\n"],
    ),
    (
        ["algorithm=fedavg", "algorithm.mu=1"],
        ["fedprox, ", "have it; known: _target_, name\n"],
    ),
    (["-m", "round=50,60"], ["round=50: no such key", "did you mean rounds?"]),
    (["-m", "rounds=abc,many"], ["rounds=abc: must be a whole number"]),
    (["-m", "algorithm=fedprox,moon", "algorithm.muu=1,2"], ["algorithm.muu=1: no such key", "did you mean mu?"]),
    (["rounds=abc"], ["rounds=abc: must be a whole number"]),
    (["local.epoch=3"], ["local.epoch=3", "did you mean epochs?"]),
    (["algoritm=fedavg"], ["algoritm=fedavg", "did you mean algorithm?"]),
    (
        ["-m", "+table=fedcat_1", ONE, "dataset.root=data"],
        ["dataset.root=data: no such key; cifar10, ", "tiny_imagenet have it; known: size, test_fraction, transform"],
    ),
    (["-m", "algorithm=fedprox,moon", "algorithm.mu=1"], ["algorithm.mu=1", "++algorithm.mu=1"]),
    (["-m", "+table=fedcat_1", ONE, "table.seeds=[]"], ["table.seeds=[]", "at least one"]),
    (["algorithm=null"], ["algorithm=null", "names no option", "fedcat"]),
    (["algorithm=3"], ["algorithm=3", "names no option", "fedcat"]),
    (["=3"], ["=3", "KEY=VALUE"]),
    (["rounds"], ["rounds: must be KEY=VALUE, or, as the first word, the name of a program; known: again, bench"]),
    (["roundss", "--help"], ["roundss: must be KEY=VALUE, or, as the first word, the name of a program; known: again"]),
    (["~local.lr"], ["local.lr=: must be given"]),
    (["dataset.root=~/pictures"], ["dataset.root=~/pictures", "$HOME/pictures", "'dataset.root=\"~/pictures\"'"]),
    (["tracking=wandb", "tracking.group=it's"], ["tracking.group=it's", "quote twice", '"it']),
    (["selection=clusam"], ["selection=clusam: no such option; did you mean clusamp?"]),
    (
        ["server_optimizer=adam", "server_optimizer.beta_1=0"],
        ["server_optimizer.beta_1=0: no such key; did you mean beta1?"],
    ),
    (["-m", "+local.epoch=1,2"], ["local.epoch=1: no such key; did you mean epochs?"]),
    (["-m", "algorithm=fedavg,fedcat", "++foo=1"], ["foo=1: no such key"]),
    (["-m", "+table=fedcat_1", ONE, "+local.epoch=1"], ["local.epoch=1: no such key; did you mean epochs?"]),
    (
        ["-m", "+table=fedcat_1", ONE, "+scale=quick", "+scale.seed=1"],
        ["scale.seed=1: no such key; did you mean seeds?"],
    ),
    (["-m", "+scale.seed=1"], ["scale.seed=1: no such key; did you mean seeds?"]),
    (["-m", "+table=fedcat_1", ONE, "+table.seed=1"], ["table.seed=1: no such key; did you mean seeds?"]),
    (["rounds=0"], ["rounds=0", "at least 1"]),
    (["partition=shards1", "clients=5"], ["clients=5", "at least 10 clients"]),
    (["algorithm._target_=os"], ["algorithm._target_=os: is a module, not a class or function"]),
    (["algorithm._target_={a:b}"], ["algorithm._target_={'a': 'b'}: must name a class or function"]),
    (
        ["tracking._target_=fedexp.selection.uniform.Uniform"],
        ["Uniform: must be, or return, a fedexp.record.tracker.Tracker"],
    ),
    (["algorithm=own", "algorithm._target_=builtins.object"], ["must be a subclass of fedexp.algorithms.fedavg."]),
    (
        ["partition=own", "partition._target_=fedexp.data.digits.digits"],
        ["must take clients, dataset, seed, which fedexp passes by these names; it lacks clients, dataset, seed"],
    ),
    (["dataset._target_=builtins.dict"], ["dataset._target_=dict: does not tell what arguments"]),
    (["paper=nan"], ["paper=nan: names no option; did you mean none? known: cadis, fedcat"]),
    (["algorithm=[a,b]"], ["algorithm=[a,b]: names no option"]),
    (["algorithm=fedprox", "algorithm.mu=inf"], ["algorithm.mu=inf: must be finite"]),
    (["local.lr=1e39"], ["local.lr=1e+39: must be at most 1e+30 in size: single precision cannot compute with more"]),
    (["algorithm=fedntd", "algorithm.temperature=1e300"], ["algorithm.temperature=1e+300: must be at most 1e+30"]),
    (["server_optimizer=adam", "server_optimizer.v_init=1e31"], ["server_optimizer.v_init=1e+31: must be at most 1e"]),
    (["algorithm=feddyn", "+algorithm.strange=nan"], ["algorithm.strange=nan"]),
    (["algorithm.name=" + "x" * 300], ["algorithm.name=xxx", "(300 characters): must be of at most 100 characters"]),
    (["seed=" + "9" * 5000], ["seed=999", "(5000 characters): holds a number of more digits"]),
    (["seed=1" + 22 * "0"], ["seed=10000000000000000000000: must be a number of at most 63 bits"]),
    (["model.hidden=1e22"], ["model.hidden=1e+22"]),
    (["model.hidden=1000000000000"], ["model=mcmahan_cnn: cannot be built from its keys"]),
    (["clients=1000000000"], ["clients=1000000000: there are only 1437 training examples"]),
    (["dataset=made", "dataset.classes=1000000000"], ["dataset.classes=1000000000: must be at most 100000"]),
    (["partition=shards2", "clients=1000000000"], ["clients=1000000000: there are only 1437 training examples"]),
    (["local.epochs=10000000000"], ["local.epochs=10000000000: must be from 1 to 1,000,000,000"]),
    (["local.epochs=1000000000", "hardware.engine=vectorized"], ["local.epochs=1000000000: must make at most 1000000"]),
    (
        ["model=lstm", "partition=${nosuch}"],
        ["partition=${nosuch}: Error resolving interpolation '${nosuch}', possible"],
    ),
    (["hydra/launcher=nosuch"], ["hydra/launcher=nosuch: no such option; known: basic"]),
    (["~dataset"], ["~dataset=: cannot be left out; choose an option: dataset=NAME"]),
    (["~hydra/launcher"], ["~hydra/launcher=: cannot be left out; choose an option: hydra/launcher=NAME"]),
    (["~measures"], ["measures=null: must be given"]),
    (["~partition.holdout"], ["partition.holdout=null: must be in [0, 1)"]),
    (["seed=interval(0,1)"], ["seed=interval(0,1)", "requires --multirun"]),
    (["-m", "seed=interval(0,1)"], ["seed=interval(0,1): must be a list, choice, range or glob of values"]),
    (["-m", "seed=range(5,1)"], ["seed=range(5,1): contains no values"]),
    (["-m", "algorithm=glob(zzz*)"], ["algorithm=glob(zzz*): contains no values"]),
    (["-m", "seed=range(0,1000000000)"], ["seed=range(0,1000000000): stands for more than 100000 values"]),
    (
        ["-m", "seed=range(0,400)", "clients=range(1,400)"],
        ["seed=range(0,400) clients=range(1,400): asks for 159600 runs; a sweep has at most 100000"],
    ),
    (["targets=['a\nb']"], ["targets=['a\\nb']: contains '\\n'; a setting cannot contain control characters"]),
    (
        ["repot", "outputs"],
        ["repot: must be KEY=VALUE, or, as the first word, the name of a program; did you mean report?"],
    ),
    (["lr=0.1"], ["lr=0.1: no such key; did you mean ", "local.lr?"]),
    (["local={lrr: 0.1}"], ["local.lrr=0.1: no such key; did you mean lr?"]),
    (["local={lr: high}"], ["local.lr=high: must be a number"]),
    (["measures.mine=x.y"], ["measures.mine=x.y: no such key; ", "for one of your own: +measures.mine=x.y"]),
    (
        ["algorithm=own", "algorithm._target_=fedexp.algorithms.fedprox.FedProx", "algorithm.pull=1"],
        ["algorithm.pull=1: no such key; known: _target_, name; for one of your own: +algorithm.pull=1"],
    ),
    (
        ["algorithm=own", "algorithm._target_=shutil.copy"],
        ["algorithm._target_=shutil.copy: is a function; an algorithm"],
    ),
    (["--nosuch"], ["unrecognized arguments: --nosuch"]),
    (["-m", "-r"], ["Only one of --run, --multirun"]),
    (["--config-dir=/nosuch"], ["'/nosuch' not found"]),
    (["+foo=1"], ["foo=1: no such key; known: algorithm, artifacts_every, checkpoint_seconds, "]),
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


@pytest.mark.parametrize("flags", [[], ["-m", "seed=0,1"], ["-m", "seed=0,1", "--dry-run"]])
def test_a_place_that_cannot_be_read_is_said(monkeypatch, capfd, tmp_path, flags):
    assert run(monkeypatch, tmp_path, *flags, "output_root=" + "x" * 300) == 2
    output = "".join(capfd.readouterr())
    assert "(300 characters): cannot be " in output and "File name too long" in output
    assert "Traceback" not in output


def test_what_a_constructor_raises_is_kept_as_the_cause():
    with pytest.raises(
        ConfigError, match=r"model=mcmahan_cnn: cannot be built .*RuntimeError.*linear\.py:\d+"
    ) as caught:
        construct(composed("model=mcmahan_cnn").model, shape=(1, 28, 28), classes=-1)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_no_gpu_is_said(monkeypatch, capfd, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert run(monkeypatch, tmp_path, "hardware=gpu") == 2
    assert "no CUDA device here" in "".join(capfd.readouterr())


@pytest.mark.parametrize("words", [["rounds=1"], ["-m", "seed=0,1"], ["report"], ["partition"]], ids=" ".join)
def test_a_working_directory_that_is_gone_is_said(monkeypatch, capfd, tmp_path, words):
    """As when a shell still stands in a folder that another one has deleted."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "argv", ["fedexp", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "fedexp: the working directory: cannot be used (No such file" in capfd.readouterr().err


def test_tf32_is_refused_where_nothing_is_computed_with_it(monkeypatch, capfd, tmp_path):
    """It would be a run in float32 under another fingerprint."""
    assert run(monkeypatch, tmp_path, "hardware=cpu", "hardware.precision=tf32") == 2
    told = "hardware.precision=tf32: needs an NVIDIA GPU of compute capability 8.0 or later; on cpu use float32"
    assert told in "".join(capfd.readouterr())


@pytest.mark.parametrize("group", [*GROUPS, *PARTS, "hardware", "tracking"])
def test_every_option_of_every_group_composes_and_fits_its_constructor(group):
    options = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    assert options
    with initialize_config_dir(str(CONF), version_base="1.3"):
        check_options(group, options, Composer())


def check_options(group, options, compose):
    for option in options:
        words = [f"{group}={option}"] + ([f"{group}.root=x"] if option == "image_folder" else [])
        if option == "own":
            with pytest.raises(ConfigError, match=rf"{group}\._target_=null: must name a class or function"):
                check(compose(words))
        elif option != "gpu":
            check(compose(words))


OWN = {
    "paper/mine.yaml": "# @package _global_\npaper: mine\nlocal: {epoch: 3}\n",
    "paper/other.yaml": "# @package _global_\npaper: other\nround: 3\n",
    "algorithm/mine.yaml": "name: mine\n_target_: fedexp.algorithms.fedprox.FedProx\nmuu: 3\n",
}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["paper=mine"], "local.epoch: no such key, in paper/mine.yaml; did you mean epochs?"),
        (["-m", "paper=mine,other"], "local.epoch: no such key, in paper/mine.yaml; did you mean epochs?"),
        (["paper=other"], "round: no such key, in paper/other.yaml; did you mean rounds?"),
        (["algorithm=mine"], "algorithm.muu=3: no such key; did you mean mu?"),
        (["algorithm=mime"], "algorithm=mime: no such option; did you mean mine?"),
    ],
)
@pytest.mark.parametrize("flag", ["--config-dir", "-cd"])
def test_unknown_keys_of_ones_own_files_are_refused(monkeypatch, capfd, tmp_path, flag, words, said):
    for name, text in OWN.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / name).write_text(text)
    assert run(monkeypatch, tmp_path / "out", flag, f"{tmp_path}/conf", *words) == 2
    assert f"fedexp: {said}" in capfd.readouterr().err


def test_ones_own_file_may_give_keys_that_every_option_has(monkeypatch, capsys, tmp_path):
    """Even those that fedexp's own options leave as they are for all."""
    own = {"partition/mine.yaml": "defaults: [dir, _self_]\nname: mine\nholdout: 0.25\n",
           "algorithm/mine.yaml": "# @package _global_\nlocal: {momentum: 0.8}\nalgorithm: {_target_: my.Own}\n",
           "dataset/larger.yaml": "defaults: [digits, _self_]\ntransform: {crop: 6, flip: true}\n"}  # fmt: skip
    for name, text in own.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    words = [
        f"--config-dir={tmp_path}",
        "partition=mine",
        "dataset=larger",
        "algorithm=mine",
        "dataset.transform.crop=5",
        "--cfg",
        "job",
    ]
    said = said_by(monkeypatch, capsys, *words)
    assert all(f"{each}\n" in said for each in ("holdout: 0.25", "crop: 5", "flip: true", "momentum: 0.8", "lr: 0.1"))


def test_own_parts_of_every_group_train_and_name_the_run(monkeypatch, tmp_path):
    (tmp_path / "own_parts.py").write_text(
        "from dataclasses import dataclass\n"
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
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(FedAvg):\n"
        "    pull: float = 0.1\n"
        "    def summary(self, state, ctx):\n"
        "        return {'pull': self.pull}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [
        "algorithm=own",
        "algorithm._target_=own_parts.Mine",
        "partition=own",
        "partition._target_=own_parts.halves",
    ]
    words += ["model=own", "model._target_=own_parts.line", "dataset=own", "dataset._target_=own_parts.signals"]
    words += ["+dataset.length=5", "+dataset.source=invented", "+algorithm.pull=0.5"]
    words += ["clients=2", "clients_per_round=2", "rounds=1", "hardware=cpu", "tracking=none"]
    monkeypatch.setattr(sys, "argv", ["fedexp", *words, f"output_root={tmp_path / 'out'}"])
    main()
    assert only_folder(tmp_path / "out").name.startswith("signals_invented-halves-line-Mine-seed0-")
    assert result(tmp_path / "out")["pull"] == 0.5


@pytest.mark.parametrize("word", ["--help", "--cfg=job"])
def test_hydras_own_flags_work_from_anywhere(tmp_path, word):
    done = subprocess.run(
        [sys.executable, "-m", "fedexp", *word.split("=")], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "fedcat" in done.stdout or "clients_per_round: 4" in done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_other_programs_say_how_they_are_used(monkeypatch, capsys, program):
    monkeypatch.setattr(sys, "argv", ["fedexp", program, "--help"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert f"python -m fedexp {program}" in capsys.readouterr().out


@pytest.mark.parametrize("program", ["partition", "report"])
def test_two_programs_are_modules_too(program):
    command = [sys.executable, "-m", f"fedexp.{program}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python -m fedexp {program}" in done.stdout


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
    assert algorithms.split() == ["algorithm=fedper", "algorithm=fedprox"]
    assert tables == "+table=cadis_1 +table=cadis_2 +table=cadis_3"
    assert said[1] == said[2] != ""


def test_multirun_leaves_a_folder_a_job(monkeypatch, tmp_path, capfd):
    assert run(monkeypatch, tmp_path, *FEW, "--multirun", "algorithm=fedavg,fedcat", "rounds=2") == 0
    output = capfd.readouterr().out
    names = sorted(path.name.split("-")[3] for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert names == ["fedavg", "fedcat"]
    end = output.partition("2 done now")[2]
    assert "Test accuracy" in end and "Final accuracy minus that of fedavg" in end
    assert f"fedexp report {tmp_path}" in end


def said_by(monkeypatch, capsys, *words):
    """What the program prints in this process."""
    monkeypatch.setattr(sys, "argv", ["fedexp", *words])
    with contextlib.suppress(SystemExit):
        main()
    return capsys.readouterr().out


def test_help_within_a_protocol_tells_what_a_key_means_and_where_its_value_stands(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    said = " ".join(said_by(monkeypatch, capsys, "paper=fedcat", "--help").split())
    assert "clients=100 N, among whom the training examples are partitioned; here: section 4.1 (at least 1)" in said


def test_help_tells_each_key_its_values_and_the_commands(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    said = " ".join(said_by(monkeypatch, capsys, "algorithm=fedcat", "--help").split())
    assert "clients_per_round=4 K, the cohort that trains in a round (at least 1)" in said
    assert "local.optimizer=sgd sgd or adam; fresh every round" in said
    assert "algorithm.epsilon=0.5 probability that a group's least used device is drawn; " in said
    assert "not given in the paper (from 0 to 1) algorithm.cycles_per_grouping=1" in said  # the comment's second line
    assert "dataset.transform.pad_mode=constant how: constant (zeros), reflect, replicate, circular dataset." in said
    assert all(f"fedexp {program} " in said for program in PROGRAMS)
    assert "+table cadis_1, " in said and "+scale quick" in said and "algorithm fedcat, apfl, cadis, " in said
    assert "paper/" not in said and "model/cadis" not in said, "no groups that nobody picks from"
    said = " ".join(said_by(monkeypatch, capsys, "+table=fedcat_1", "+scale=quick", "--help").split())
    assert "table.seeds=[0, 1, 2] each cell is run once for each of these" in said and "table.rows" not in said
    assert "scale.seeds=1 how many of these are run" in said and "table.select=null a regular expression that " in said


def test_each_key_that_every_run_has_has_a_meaning():
    """What is not said beside it in conf/, nobody can know."""
    found = comments(CONF / "config.yaml", "", "")
    silent = [key for key, text in found.items() if not text and not key.endswith("_target_")]
    assert [key for key in silent if not key.startswith("hydra.")] == []
    assert len(found) > 40


@pytest.mark.parametrize("group", [*GROUPS, *PARTS, "hardware", "tracking"])
def test_each_key_of_an_option_has_a_meaning(group):
    """In its own file, in one that this takes over, or where it stands for all options."""
    files = {path.stem: path for path in CONF.glob(f"{group}/*.yaml")}
    of_all = {key.split(".")[-1] for key in comments(CONF / "config.yaml", "", "") if key.startswith(f"{group}.")}
    silent = {option: told(path) - meant(path, files) - of_all for option, path in files.items()}
    assert {option: keys for option, keys in silent.items() if keys} == {}


def told(path):
    """The last words of the keys that a file sets, without those that are no settings."""
    keys = [key.split(".") for key in comments(path, "", "")]
    return {key[-1] for key in keys if not {"name", "_target_", "source"} & {*key}}


def meant(path, files):
    """Those that have a comment, there or in a file of `files` that it names among its defaults."""
    named = re.findall(r"\w+", str((yaml.safe_load(path.read_text()) or {}).get("defaults", "")))
    others = [files[name] for name in named if name in files and name != path.stem]
    own = {key.split(".")[-1] for key, text in comments(path, "", "").items() if text}
    return own.union(*(meant(other, files) for other in others))


def test_the_version_is_fedexp_s(monkeypatch, capsys):
    assert said_by(monkeypatch, capsys, "--version") == f"fedexp {fedexp.__version__}\n"


def test_run_is_a_word_of_the_one_command(monkeypatch, capsys):
    with_word = said_by(monkeypatch, capsys, "run", "algorithm=fedcat", "--cfg", "job")
    assert "name: fedcat" in with_word
    assert with_word == said_by(monkeypatch, capsys, "algorithm=fedcat", "--cfg", "job")


@pytest.mark.parametrize("words", [["targets=0.8"], ["-m", "targets=0.7,0.8"]])
def test_one_target_needs_no_brackets(monkeypatch, tmp_path, words):
    assert run(monkeypatch, tmp_path, *words, "rounds=1", "local.steps=1", "hardware.workers=1") == 0
    for folder in tmp_path.glob("digits*"):
        assert list(json.loads((folder / "result.json").read_text())["rounds_to"]) in (["0.7"], ["0.8"])


def test_ctrl_c_between_runs_is_said_in_one_line(capsys):
    def stopped(words):
        raise KeyboardInterrupt

    assert exit_code(stopped, []) == 130
    assert capsys.readouterr().err == "fedexp: interrupted; the same command goes on from here\n"
