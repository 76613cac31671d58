"""Whole runs: what they leave, idempotence, signals, resume, more and fewer rounds, divergence."""

import json
import re

import pandas as pd
import pytest
from composing import checked
from filelock import FileLock
from program import FEW, SMALL, metrics, model, only_folder, result, run, same_results

from fedexp import experiment

COLUMNS = [
    "round", "test_accuracy", "test_loss", "local_loss", "round_bytes_up", "round_bytes_down", "bytes_up",
    "bytes_down", "bytes_total", "divergence_mean", "divergence_max", "cohort_emd", "seconds",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The root of a finished run of six rounds, of which every second was evaluated, and what it returned."""
    root = tmp_path_factory.mktemp("whole")
    return root, returned(root, *EVERY_SECOND)


EVERY_SECOND = ["evaluate.every=2", "targets=[0.05,0.999]", "pictures=true"]


def returned(root, *words):
    """What the Python function returns."""
    return experiment.run(checked(*SMALL, f"output_root={root}", *words))


def test_what_a_run_leaves(whole):
    root, found = whole
    folder = only_folder(root)
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    tables = {f"{name}.{kind}" for name in ("partition", "confusion") for kind in ("csv", "png", "pdf")}
    tables |= {"class_accuracy.csv"}
    assert names == tables | {"config.yaml", "metrics.csv", "model.pt", "result.json", "checkpoint.pt"}
    table = pd.read_csv(folder / "metrics.csv")
    assert list(table)[: len(COLUMNS)] == COLUMNS
    assert table["round"].tolist() == [2, 4, 6]
    weights = sum(value.numel() for value in model(root).values())
    assert table["round_bytes_up"].tolist() == [4 * 4 * weights] * 3
    for name, factor in (("bytes_up", 1), ("bytes_down", 1), ("bytes_total", 2)):
        assert table[name].tolist() == [factor * 16 * weights * number for number in (2, 4, 6)]
    assert result(root) == found
    assert found["status"] == "finished"
    assert found["rounds"] == 6
    assert found["final_accuracy"] == table["test_accuracy"].iloc[-1]
    assert found["best_accuracy"] == table["test_accuracy"].max()
    assert found["rounds_to"] == {"0.05": 2, "0.999": None}
    assert found["bytes_up"] == 6 * 16 * weights
    assert 0 < found["emd"] < 2
    assert found["fingerprint"] in folder.name
    assert found["accuracy_last10"] == pytest.approx(table["test_accuracy"].mean())
    confusion = pd.read_csv(folder / "confusion.csv", index_col="class").to_numpy()
    assert confusion.sum() == 360
    assert confusion.trace() / 360 == pytest.approx(found["final_accuracy"])
    partition = pd.read_csv(folder / "partition.csv", index_col="client")
    assert partition.to_numpy().sum() == 1437


def test_the_last_line_says_where(monkeypatch, whole, capfd):
    root, _ = whole
    assert run(monkeypatch, root, *EVERY_SECOND) == 0
    assert capfd.readouterr().out.strip().splitlines()[-1] == str(only_folder(root))


CLOCK = ("seconds", "samples_per_second")


def test_of_a_finished_run_fewer_rounds_are_found(monkeypatch, whole, tmp_path, capfd):
    """The result of exactly these, as far as it is about them; the folder stays as it is."""
    root, _ = whole
    before = {path: path.stat().st_mtime_ns for path in only_folder(root).iterdir() if path.suffix}
    found = returned(root, *EVERY_SECOND, "rounds=4")
    assert "already finished, with 6 rounds, of which this is the result of the first 4" in capfd.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in only_folder(root).iterdir() if path.suffix}
    alone = returned(tmp_path, *EVERY_SECOND, "rounds=4")
    assert set(alone) - set(found) == {"at_chance"}
    assert {key: value for key, value in found.items() if key not in CLOCK} == {
        key: value for key, value in alone.items() if key not in (*CLOCK, "at_chance")
    }
    assert found["seconds"] == pd.read_csv(only_folder(root) / "metrics.csv")["seconds"][1]


def test_fewer_rounds_after_which_nothing_was_evaluated_are_refused(monkeypatch, whole, capfd):
    root, _ = whole
    assert run(monkeypatch, root, *EVERY_SECOND, "rounds=3") == 2
    said = capfd.readouterr().err
    assert "rounds=3: this run has been carried out before, for 6 rounds" in said
    assert "after rounds 2, 4, 6: ask for one of these, or for more" in said


def test_a_finished_run_is_found_and_not_repeated(monkeypatch, tmp_path, capfd):
    run(monkeypatch, tmp_path, *FEW, "rounds=1")
    before = (only_folder(tmp_path) / "result.json").stat().st_mtime_ns
    assert run(monkeypatch, tmp_path, *FEW, "rounds=1", "hardware.workers=2") == 0
    assert (only_folder(tmp_path) / "result.json").stat().st_mtime_ns == before
    assert "already finished" in capfd.readouterr().out


def test_seeds_differ_and_repeat(monkeypatch, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(monkeypatch, tmp_path / name, f"seed={seed}", "rounds=2", "hardware.workers=2")
    assert same_results(tmp_path / "a", tmp_path / "b")
    assert result(tmp_path / "a")["partition_hash"] != result(tmp_path / "c")["partition_hash"]


def test_a_run_whose_end_failed_is_not_finished(monkeypatch, tmp_path, capfd):
    """The model's file cannot be written: the same command tries again."""
    assert run(monkeypatch, tmp_path, *FEW, "rounds=1") == 0
    folder = only_folder(tmp_path)
    (folder / "result.json").unlink()
    (folder / "model.pt").unlink()
    (folder / "model.pt").mkdir()  # a folder in its place
    assert run(monkeypatch, tmp_path, *FEW, "rounds=1") == 1
    said = capfd.readouterr()
    assert "Is a directory" in said.out and f"could not save model.pt in {folder}" in said.err
    assert result(tmp_path)["status"] == "failed"
    assert run(monkeypatch, tmp_path, *FEW, "rounds=1", "-m") == 1
    assert f"could not save model.pt in {folder}" in (folder / "error.txt").read_text(), "a sweep leaves a trace"
    (folder / "model.pt").rmdir()
    assert run(monkeypatch, tmp_path, *FEW, "rounds=1") == 0
    assert result(tmp_path)["status"] == "finished"
    assert not (folder / "error.txt").exists()


def test_a_signal_after_the_last_round_ends_a_sweep_and_leaves_the_run_finished(monkeypatch, tmp_path):
    (tmp_path / "late.py").write_text(
        "import os, signal\n"
        "from fedexp.algorithms.fedavg import FedAvg\n"
        "class Late(FedAvg):\n"
        "    def summary(self, state, ctx):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        return super().summary(state, ctx)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["-m", "algorithm._target_=late.Late", "algorithm.name=late", "seed=0,1", "rounds=1", *FEW]
    assert run(monkeypatch, tmp_path / "out", *words) == 143
    assert result(tmp_path / "out")["status"] == "finished"


def test_two_processes_at_one_folder(monkeypatch, tmp_path, capfd):
    run(monkeypatch, tmp_path, *FEW, "rounds=1")
    folder = only_folder(tmp_path)
    (folder / "result.json").unlink()
    with FileLock(folder / ".lock"):
        assert run(monkeypatch, tmp_path, *FEW, "rounds=1") == 75
    assert "is being worked on" in capfd.readouterr().err
    assert run(monkeypatch, tmp_path, *FEW, "rounds=1") == 0


def test_divergence_ends_the_run_and_keeps_what_was_measured(monkeypatch, tmp_path):
    assert run(monkeypatch, tmp_path, "local.lr=1e18", "local.momentum=0") == 0
    found = result(tmp_path)
    assert found["status"] == "diverged"
    assert found["rounds"] < 6
    assert len(metrics(tmp_path)) == found["rounds"]
    json.loads((only_folder(tmp_path) / "result.json").read_text(), parse_constant=lambda name: pytest.fail(name))


def test_a_run_that_was_killed_after_it_had_diverged_ends_there(monkeypatch, tmp_path):
    """Between the last checkpoint and result.json: it does not train on from weights that are no numbers."""
    assert run(monkeypatch, tmp_path, *FEW, "local.lr=1e18") == 0
    first, rows = result(tmp_path), metrics(tmp_path)
    assert first["status"] == "diverged"
    (only_folder(tmp_path) / "result.json").unlink()
    assert run(monkeypatch, tmp_path, *FEW, "local.lr=1e18") == 0
    assert {**result(tmp_path), "seconds": 0} == {**first, "seconds": 0} and metrics(tmp_path).equals(rows)


def test_clustered_sampling_survives_until_a_divergence_is_seen(monkeypatch, tmp_path):
    words = ["algorithm=clusamp", "partition=iid", "local.lr=1e18", "local.momentum=0", "evaluate.every=3"]
    assert run(monkeypatch, tmp_path, *words) == 0
    assert (result(tmp_path)["status"], result(tmp_path)["rounds"]) == ("diverged", 3)


def test_what_clients_receive_is_what_all_would_use_after_the_round_before(monkeypatch, tmp_path):
    """With everyone taking part; before the first round, and for FedAvg."""
    words = ["clients=8", "clients_per_round=8", "rounds=3", "evaluate.clients=all", "evaluate.on=train"]
    assert run(monkeypatch, tmp_path, *words, "+measures.received=fedexp.measure.clients.received_accuracy") == 0
    table = metrics(tmp_path)
    received = table[["received_accuracy_mean", "received_accuracy_variance"]].to_numpy()
    used = table[["client_accuracy_mean", "client_accuracy_std"]].to_numpy() ** [1, 2]
    assert received[1:] == pytest.approx(used[:-1], abs=1e-12)
    assert received[:, 1].min() > 0


@pytest.mark.parametrize("whose", ["all", "participants"])
def test_clients_accuracies_are_left_in_a_table_and_in_the_result(monkeypatch, tmp_path, capfd, whose):
    """On examples that are held out of training: a fifth of each client's, one at least."""
    words = ["rounds=2", f"evaluate.clients={whose}", "evaluate.on=holdout", "partition.holdout=0.2"]
    assert run(monkeypatch, tmp_path / "out", *words) == 0
    said = capfd.readouterr().out
    folder = only_folder(tmp_path / "out")
    table, row = pd.read_csv(folder / "clients.csv"), metrics(tmp_path / "out").iloc[-1]
    assert table["round"].tolist() == [2] * (20 if whose == "all" else 4)
    assert row["client_accuracy_mean"] == pytest.approx(table["accuracy"].mean())
    left = {name: each for name, each in result(tmp_path / "out").items() if name.startswith("client_accuracy")}
    assert left == {name: row[name] for name in row.index if name.startswith("client_accuracy")}
    assert len(left) == 5 and f"{left['client_accuracy_worst10']:.2%}" in said
    assert re.search(rf"client accuracy mean +│ {left['client_accuracy_mean']:.2%}", said)
    weighted = (table["accuracy"] * table["examples"]).sum() / table["examples"].sum()
    assert row["client_accuracy_weighted"] == pytest.approx(weighted)
    trained = pd.read_csv(folder / "partition.csv", index_col="client").sum(axis=1)
    assert run(monkeypatch, tmp_path / "all", "rounds=1") == 0
    sizes = pd.read_csv(only_folder(tmp_path / "all") / "partition.csv", index_col="client").sum(axis=1)
    held = (sizes - trained)[table["client"]]
    assert held.tolist() == table["examples"].tolist()
    assert held.tolist() == [max(1, round(0.2 * size)) for size in sizes[table["client"]]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["algorithm=centralized", "evaluate.clients=participants"],
            "evaluate.clients=participants: this algorithm tr",
        ),
        (["evaluate.clients=all", "evaluate.on=holdout"], "evaluate.on=holdout: nothing is held out; add partition.h"),
        (["+measures.mine=no.such.function"], "measures.mine=no.such.function: cannot be imported"),
        (
            ["algorithm=fedconcat", "algorithm.encoder_rounds=6"],
            "rounds=6: must be above 6, after which the stage head",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_cannot_be_evaluated_is_refused_before_training(monkeypatch, tmp_path, capfd, words, said):
    assert run(monkeypatch, tmp_path, *words) == 2
    assert capfd.readouterr().err.startswith(f"fedexp: {said}")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


def test_a_measure_of_ones_own_is_a_word(monkeypatch, tmp_path):
    (tmp_path / "loud.py").write_text(
        "def loudest(done):\n"
        "    return {'loudest': done.loss.max(), 'cohort': len(done.ids)}\n"
    )  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    words = ["+measures.loudest=loud.loudest", "measures.divergence=null", "rounds=2"]
    assert run(monkeypatch, tmp_path / "out", *words) == 0
    table = metrics(tmp_path / "out")
    assert (table["loudest"] > table["local_loss"]).all() and table["cohort"].tolist() == [4, 4]
    assert "cohort_emd" in table and "divergence_mean" not in table


def test_parts_go_together_with_any_algorithm(monkeypatch, tmp_path):
    """Compressed uploads are fewer bytes; the server's optimizer and the selection change what comes out."""
    plain = [*FEW, "algorithm=scaffold", "rounds=2"]
    changes = {
        "none": [], "optimizer": ["server_optimizer=adam"], "compression": ["compression=top_k"],
        "selection": ["selection=clusamp"],
    }  # fmt: skip
    for name, words in changes.items():
        assert run(monkeypatch, tmp_path / name, *plain, *words) == 0
    rows = {name: metrics(tmp_path / name).iloc[-1] for name in changes}
    assert len({row["test_loss"] for row in rows.values()}) == 4
    weights = sum(value.numel() for value in model(tmp_path / "none").values())
    assert rows["none"]["round_bytes_up"] == 4 * 2 * 4 * weights  # updates and control variates
    assert rows["compression"]["round_bytes_up"] == 4 * (4 * weights + 8 * round(0.1 * weights))
    assert rows["compression"]["round_bytes_down"] == rows["none"]["round_bytes_down"]


def test_pictures_and_tables_on_the_way(monkeypatch, tmp_path):
    """artifacts_every: an algorithm's own, besides those at the end."""
    (tmp_path / "telling.py").write_text(
        "import pandas as pd\n"
        "from fedexp.algorithms.fedavg import FedAvg\n"
        "class Telling(FedAvg):\n"
        "    def artifacts(self, state, ctx):\n"
        "        return {f'round{state[\"round\"]}': pd.DataFrame({'round': [state['round']]})}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ["algorithm=own", "algorithm._target_=telling.Telling", "artifacts_every=2", "rounds=5"]
    assert run(monkeypatch, tmp_path / "out", *words) == 0
    assert {path.stem for path in only_folder(tmp_path / "out").glob("round*.csv")} == {"round2", "round4", "round5"}


def test_pictures_are_drawn_unless_they_are_not_wanted(monkeypatch, tmp_path):
    """pictures=false; a run that goes on with them draws them."""
    for rounds, pictures, expected in ((1, "false", []), (2, "true", ["confusion", "partition"])):
        assert run(monkeypatch, tmp_path, *FEW, f"rounds={rounds}", f"pictures={pictures}") == 0
        folder = only_folder(tmp_path)
        for kind in ("png", "pdf"):
            assert sorted(path.stem for path in folder.glob(f"*.{kind}")) == expected
        assert {path.stem for path in folder.glob("*.csv")} >= {"confusion", "partition", "class_accuracy"}


def test_a_model_that_has_not_learned_is_said(monkeypatch, tmp_path, capfd):
    """At 37 of 360 answers right, as by always saying the commonest digit, and two standard errors above it."""
    assert run(monkeypatch, tmp_path / "still", "local.lr=1e-12", "rounds=1") == 0
    assert result(tmp_path / "still")["at_chance"] is True
    assert "the final accuracy is no better than chance may give (always the" in capfd.readouterr().out
    words = ["local.lr=0.1", "clients=4", "clients_per_round=4", "partition=iid", "local.epochs=3", "rounds=2"]
    assert run(monkeypatch, tmp_path / "learns", *words) == 0
    assert result(tmp_path / "learns")["at_chance"] is False
    assert "chance" not in capfd.readouterr().out


def test_speed_is_examples_by_the_seconds_so_far(monkeypatch, tmp_path):
    """Also in the first row, and where rows are apart."""
    words = ["clients=4", "clients_per_round=4", "rounds=5", "evaluate.every=2", "partition=iid"]
    assert run(monkeypatch, tmp_path, *words) == 0
    table = pd.read_csv(only_folder(tmp_path) / "metrics.csv")
    examples = table["samples_per_second"] * table["seconds"]
    assert examples.tolist() == pytest.approx([1437 * number for number in (2, 4, 5)], rel=0.05)
    assert result(tmp_path)["samples_per_second"] == table["samples_per_second"].iloc[-1]


def test_a_full_disk_does_not_end_or_spoil_a_run(monkeypatch, tmp_path, capfd):
    """metrics.csv cannot be written in the middle: said, and made good by the next round."""
    import fedexp.record.folder as folder_module

    real, calls = folder_module.files.write_text, []

    def full(path, text):
        if path.name == "metrics.csv":
            calls.append(path)
            if len(calls) == 3:
                raise OSError(28, "No space left on device")
        real(path, text)

    monkeypatch.setattr(folder_module.files, "write_text", full)
    assert run(monkeypatch, tmp_path) == 0
    assert "No space left on device" in capfd.readouterr().out
    assert len(metrics(tmp_path)) == 6


def test_an_own_algorithm_by_its_name(monkeypatch, tmp_path):
    """A user's class, no registry: named in _target_."""
    (tmp_path / "still.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedexp.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Still(FedAvg):\n"
        "    share: float = 0.5\n"
        "    def aggregate(self, state, ids, uploads, ctx, gen):\n"
        "        return state\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["algorithm._target_=still.Still", "algorithm.name=still", "+algorithm.share=0.25", "rounds=2"]
    assert run(monkeypatch, tmp_path / "out", *words) == 0
    table = metrics(tmp_path / "out")
    assert table["test_loss"].nunique() == 1


def test_the_main_job_learns(monkeypatch, tmp_path):
    words = ["algorithm=fedcat", "partition=dir0.1", "model.hidden=512", "clients_per_round=4", "rounds=12"]
    assert run(monkeypatch, tmp_path, *words, "local.epochs=5", "local.batch_size=10") == 0
    assert result(tmp_path)["best_accuracy"] > 0.6
