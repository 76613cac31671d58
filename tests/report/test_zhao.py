"""Figures of Zhao et al. (2018): what is drawn, from the folders of made runs, and what is kept apart."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from matplotlib.colors import to_rgb

from fedexp.cli import carry_out
from fedexp.report import zhao

LOCAL = {
    "batch_size": 10, "epochs": 1, "steps": None, "lr": 0.1, "lr_decay": 1.0, "momentum": 0.0, "weight_decay": 0.0,
    "max_grad_norm": None, "drop_last": False, "optimizer": "sgd",
}  # fmt: skip
PARTITIONS = {
    "iid": {"name": "iid", "_target_": "fedexp.partition.iid.iid"},
    "shards1": {"name": "shards1", "_target_": "fedexp.partition.shards.shards", "per_client": 1},
    "shards2": {"name": "shards2", "_target_": "fedexp.partition.shards.shards", "per_client": 2},
}
DATASET = {"name": "mnist", "_target_": "fedexp.data.vision.mnist", "root": "data", "transform": {"mean": []}}
MODEL = {"name": "simple_cnn", "_target_": "fedexp.models.simple.simple_cnn"}
ALGORITHMS = {
    "fedavg": "fedexp.algorithms.fedavg.FedAvg",
    "fedprox": "fedexp.algorithms.fedprox.FedProx",
    "centralized": "fedexp.algorithms.centralized.Centralized",
    "data_sharing": "fedexp.algorithms.data_sharing.DataSharing",
    "fedavg_pretrained": "fedexp.algorithms.fedavg_pretrained.FedAvgPretrained",
}
PARTS = {
    "selection": {"_target_": "fedexp.selection.uniform.Uniform"},
    "server_optimizer": {"_target_": "fedexp.server_optimizer.sgd.Sgd", "lr": 1.0},
    "compression": {"_target_": "fedexp.compression.none.NoCompression"},
    "privacy": {"_target_": "fedexp.privacy.none.NoPrivacy"},
}


def make(root, partition, accuracy, algorithm="fedavg", divergence=None, local=None, status="finished", **more):
    """A run's folder as a run leaves it: two evaluated rounds; divergences (two layers) after the first.

    more: keys of the result, of groups, or run-level ones; keys: the algorithm's.
    """
    folder = root / f"run{len(list(root.iterdir()))}"
    folder.mkdir()
    config = {
        "dataset": {**DATASET, **more.get("dataset", {})}, "model": more.get("model", MODEL), "clients": 10,
        "clients_per_round": 10, "rounds": more.get("rounds", 2), "seed": more.get("seed", 0), **PARTS,
        "evaluate": {"every": 1, "clients": "none", "on": "matched"}, "partition": partition,
        "algorithm": {"name": algorithm, "_target_": ALGORITHMS.get(algorithm, "own.Mine"), **more.get("keys", {})},
        "local": {**LOCAL, **(local or {})}, "targets": [], "output_root": str(root), "paper": None,
        "hardware": {"device": "cpu", "precision": more.get("precision", "float32")},
        "measures": {}, "reference": None if divergence is None else "centralized", "reference_rounds": None,
    }  # fmt: skip
    result = {
        "status": status,
        "rounds": more.get("rounds", 2),
        "final_accuracy": accuracy,
        "emd": more.get("emd", 0.0),
        "bytes_up": 0 if algorithm == "centralized" else 10,
        "bytes_down": 0 if algorithm == "centralized" else 10,
    }
    rows = [{"round": 1, "test_accuracy": accuracy / 2}, {"round": 2, "test_accuracy": accuracy}]
    if divergence is not None:
        rows[more.get("after", 1) - 1] |= {
            "reference_divergence": 9.0, "reference_divergence/encoder.0.weight": divergence,
            "reference_divergence/encoder.0.bias": 7.0, "reference_divergence/head.weight": 2 * divergence,
        }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "result.json").write_text(json.dumps({**result, **more.get("result", {})}))
    pd.DataFrame(rows).to_csv(folder / "metrics.csv", index=False)


def emd(target, distribution):
    own = {"target": target, "distribution": distribution, "shape": "random"}
    return {"name": f"emd{target}", "_target_": "fedexp.partition.emd.emd", **own}


@pytest.fixture
def runs(tmp_path):
    """Two EMD values of two distributions; the extremes; SGD; data sharing."""
    for target, accuracies, divergences in ((0.0, (0.9, 0.8), (0.1, 0.3)), (1.44, (0.5, 0.7), (0.4, 0.8))):
        for number in range(2):
            make(tmp_path, emd(target, number), accuracies[number], divergence=divergences[number], emd=target)
    make(tmp_path, emd(1.44, 1), 0.1, divergence=0.8, emd=1.44, rounds=1)  # the same measure in a shorter run
    make(tmp_path, emd(1.44, 2), 0.1, divergence=50.0, emd=1.44, status="diverged")
    for name, value in (("iid", 0.9), ("shards2", 0.7), ("shards1", 0.4)):
        make(tmp_path, PARTITIONS[name], value, divergence=1 - value)
    make(tmp_path, PARTITIONS["iid"], 0.95, "centralized", local={"batch_size": 100})
    for beta, value, left in ((0.1, 0.6, 0.9), (0.2, 0.8, 0.6)):
        keys = {"beta": beta, "alpha": 1.0, "holdout": 0.2}
        make(tmp_path, PARTITIONS["shards1"], value, "data_sharing", keys=keys, emd=left)
        for alpha in (0.5, 1.0):
            warm = {"keys": {**keys, "alpha": alpha}, "result": {"pretraining_epochs": 3}}
            make(tmp_path, PARTITIONS["shards1"], value + alpha / 10, "data_sharing", **warm)
    return zhao.read_runs([tmp_path])


def lines(figure, axes=0):
    """{label: (x, y)} of what is drawn, error bars included."""
    held = figure.axes[axes]
    bars = {bar.get_label(): bar[0] for bar in held.containers if hasattr(bar, "has_yerr")}
    plain = {line.get_label(): line for line in held.lines if not line.get_label().startswith("_")}
    return {
        name: (line.get_xdata().tolist(), pytest.approx(line.get_ydata().tolist()))
        for name, line in {**plain, **bars}.items()
    }


def test_divergence_is_the_mean_over_distributions_and_the_bars_their_deviation(runs):
    figure = zhao.divergence_against_emd(runs)
    assert lines(figure) == {
        "encoder.0 (n=2)": ([0.0, 1.44], [0.2, 0.6]),
        "head (n=2)": ([0.0, 1.44], [0.4, 1.2]),
    }
    first = figure.axes[0].containers[0]
    (ends,) = (part.get_segments() for part in first[2])
    assert ends[0][:, 1].tolist() == pytest.approx([0.2 - 0.02**0.5, 0.2 + 0.02**0.5])
    assert zhao.divergence_against_emd(runs, synchronisation=2) is None


def test_accuracy_against_emd_and_boxes(runs):
    assert lines(zhao.accuracy_against_emd(runs)) == {"fedavg (n=2)": ([0.0, 1.44], [85.0, 60.0])}
    (label,) = zhao.boxes_at_emd(runs).axes[0].get_xticklabels()
    assert label.get_text() == "fedavg\nn=2"


def test_curves_and_layers_of_the_extremes(runs):
    assert lines(zhao.accuracy_over_rounds(runs)) == {
        "IID, local.batch_size=10": ([1, 2], [45, 90]),
        "non-IID(2), local.batch_size=10": ([1, 2], [35, 70]),
        "non-IID(1), local.batch_size=10": ([1, 2], [20, 40]),
        "SGD, local.batch_size=100": ([1, 2], [47.5, 95]),
    }
    axes = zhao.divergence_by_layer(runs).axes[0]
    bars = {group.get_label(): [bar.get_height() for bar in group] for group in axes.containers}
    assert bars == {
        "IID": pytest.approx([0.1, 0.2]), "non-IID(2)": pytest.approx([0.3, 0.6]),
        "non-IID(1)": pytest.approx([0.6, 1.2]),
    }  # fmt: skip


def test_data_sharing(runs):
    figure = zhao.accuracy_against_beta(runs)
    assert lines(figure) == {"shards1 (n=1)": ([10.0, 20.0], [60, 80])}
    assert figure.axes[1].lines[0].get_ydata().tolist() == pytest.approx([0.9, 0.6])
    assert lines(zhao.accuracy_against_alpha(runs)) == {
        "beta=0.1 (n=1)": ([50.0, 100.0], [65, 70]),
        "beta=0.2 (n=1)": ([50.0, 100.0], [85, 90]),
    }


@pytest.mark.parametrize(
    ("other", "first", "second"),
    [
        ({"local": {"lr": 0.5}}, "local.lr=0.1", "local.lr=0.5"),
        ({"local": {"max_grad_norm": 1.0}}, "local.max_grad_norm=null", "local.max_grad_norm=1.0"),
        ({"local": {"drop_last": True}}, "local.drop_last=false", "local.drop_last=true"),
        ({"precision": "bf16"}, "precision=float32", "precision=bf16"),
        (
            {"dataset": {"_target_": "fedexp.data.image_folder.image_folder"}},
            "dataset=mnist",
            f"dataset=image_folder, dataset.root={Path('data').absolute()}",
        ),
        ({"dataset": {"transform": {"mean": [0.1]}}}, "dataset.transform.mean=[]", "dataset.transform.mean=[0.1]"),
    ],
    ids=str,
)
def test_other_protocols_are_lines_of_their_own(runs, tmp_path, other, first, second):
    for target in (0.0, 1.44):
        make(tmp_path, emd(target, 0), 0.2, emd=target, divergence=0.9, **other)
    more = zhao.read_runs([tmp_path])
    assert lines(zhao.accuracy_against_emd(more)) == {
        f"fedavg, {first} (n=2)": ([0.0, 1.44], [85.0, 60.0]),
        f"fedavg, {second} (n=1)": ([0.0, 1.44], [20.0, 20.0]),
    }
    assert lines(zhao.divergence_against_emd(more)) == {
        f"encoder.0, {first} (n=2)": ([0.0, 1.44], [0.2, 0.6]),
        f"head, {first} (n=2)": ([0.0, 1.44], [0.4, 1.2]),
        f"encoder.0, {second} (n=1)": ([0.0, 1.44], [0.9, 0.9]),
        f"head, {second} (n=1)": ([0.0, 1.44], [1.8, 1.8]),
    }


def test_other_algorithms_are_lines_of_their_own(tmp_path):
    for algorithm, keys, value in (("fedavg", {}, 0.5), ("fedprox", {"mu": 0.1}, 0.6)):
        for target in (0.0, 1.44):
            for number in range(2):
                make(tmp_path, emd(target, number), value, algorithm, keys=keys, emd=target, divergence=value)
        make(tmp_path, PARTITIONS["shards1"], value, algorithm, keys=keys, divergence=value)
    runs = zhao.read_runs([tmp_path])
    assert lines(zhao.accuracy_against_emd(runs)) == {
        "fedavg (n=2)": ([0.0, 1.44], [50.0, 50.0]), "fedprox (n=2)": ([0.0, 1.44], [60.0, 60.0]),
    }  # fmt: skip
    ticks = zhao.boxes_at_emd(runs).axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["fedavg\nn=2", "fedprox\nn=2"]
    names = ("FedAvg", "FedProx, algorithm.mu=0.1")
    assert lines(zhao.divergence_against_emd(runs)) == {
        f"{layer}, algorithm={name} (n=2)": ([0.0, 1.44], [times * value, times * value])
        for layer, times in (("encoder.0", 1), ("head", 2)) for name, value in zip(names, (0.5, 0.6))
    }  # fmt: skip
    assert set(lines(zhao.accuracy_over_rounds(runs))) == {f"non-IID(1), algorithm={name}" for name in names}
    bars = zhao.divergence_by_layer(runs).axes[0].containers
    assert [group.get_label() for group in bars] == [f"non-IID(1), algorithm={name}" for name in names]


def test_runs_of_other_folders_below_are_left_out(tmp_path):
    """As in `fedexp report`: outputs holds outputs/published, whose runs are not those of one's own."""
    (tmp_path / "others").mkdir()
    make(tmp_path / "others", PARTITIONS["iid"], 0.3)
    make(tmp_path, PARTITIONS["iid"], 0.1)
    assert len(zhao.read_runs([tmp_path])) == 1


def test_models_differ_in_more_than_their_name(tmp_path):
    for hidden, accuracy in ((16, 0.5), (32, 0.6)):
        for target in (0.0, 1.44):
            model = {"_target_": "own.Net", "hidden": hidden}  # a group without a name
            make(tmp_path, emd(target, 0), accuracy, emd=target, divergence=accuracy, model=model)
    runs = zhao.read_runs([tmp_path])
    assert set(lines(zhao.accuracy_against_emd(runs))) == {
        "fedavg, model.hidden=16 (n=1)", "fedavg, model.hidden=32 (n=1)",
    }  # fmt: skip
    assert len(lines(zhao.divergence_against_emd(runs))) == 4


def test_another_source_of_the_data_is_another_panel(runs, tmp_path):
    for target in (0.0, 1.44):
        make(tmp_path, emd(target, 0), 0.2, emd=target, dataset={"source": "JPEG copy"})
    figure = zhao.accuracy_against_emd(zhao.read_runs([tmp_path]))
    assert [axes.get_title() for axes in figure.axes] == ["mnist", "mnist (JPEG copy)"]
    assert lines(figure) == {"fedavg (n=2)": ([0.0, 1.44], [85.0, 60.0])}
    assert lines(figure, axes=1) == {"fedavg (n=1)": ([0.0, 1.44], [20.0, 20.0])}


def test_the_same_run_counts_once_whether_the_reference_was_measured_or_not(runs, tmp_path):
    for target, accuracies in ((0.0, (0.9, 0.8)), (1.44, (0.5, 0.7))):
        for number in range(2):
            make(tmp_path, emd(target, number), accuracies[number], emd=target)
    again = zhao.read_runs([tmp_path])
    assert lines(zhao.accuracy_against_emd(again)) == {"fedavg (n=2)": ([0.0, 1.44], [85.0, 60.0])}
    (label,) = zhao.boxes_at_emd(again).axes[0].get_xticklabels()
    assert label.get_text() == "fedavg\nn=2"
    assert lines(zhao.divergence_against_emd(again)) == {
        "encoder.0 (n=2)": ([0.0, 1.44], [0.2, 0.6]),
        "head (n=2)": ([0.0, 1.44], [0.4, 1.2]),
    }


@pytest.mark.parametrize("name", ["data_sharing", "own"])
def test_seeds_are_averaged(tmp_path, name):
    """Whatever a class with a hold-out is called."""
    for seed, value in ((0, 0.5), (1, 0.7)):
        keys = {"beta": 0.1, "alpha": 1.0, "holdout": 0.2}
        make(tmp_path, PARTITIONS["shards1"], value, name, seed=seed, keys=keys)
    assert lines(zhao.accuracy_against_beta(zhao.read_runs([tmp_path]))) == {"shards1 (n=2)": ([10.0], [60])}


def test_data_sharing_on_other_partitions(tmp_path):
    """Each with its own line, and its own dashed one of the EMD left."""
    for number, left in ((1, 0.9), (2, 0.8)):
        partition = PARTITIONS[f"shards{number}"]
        for beta in (0.1, 0.2):
            keys = {"beta": beta, "alpha": 1.0, "holdout": 0.2}
            make(tmp_path, partition, number / 10, "data_sharing", keys=keys, emd=left - beta)
        for epochs in (3, 5):
            keys = {"beta": 0.1, "alpha": 0.5, "holdout": 0.2, "pretraining_epochs": epochs}
            warm = {"keys": keys, "result": {"pretraining_epochs": 3}}
            make(tmp_path, partition, (number + epochs) / 10, "data_sharing", **warm)
    runs = zhao.read_runs([tmp_path])
    figure = zhao.accuracy_against_beta(runs)
    assert lines(figure) == {
        "shards1 (n=1)": ([10.0, 20.0], [10, 10]),
        "shards2 (n=1)": ([10.0, 20.0], [20, 20]),
    }
    dashed = figure.axes[1].lines
    assert [line.get_ydata().tolist() for line in dashed] == [pytest.approx([0.8, 0.7]), pytest.approx([0.7, 0.6])]
    assert [to_rgb(line.get_color()) for line in dashed] == [
        to_rgb(bars[0].get_color()) for bars in figure.axes[0].containers
    ]
    assert lines(zhao.accuracy_against_alpha(runs)) == {
        f"beta=0.1, algorithm.pretraining_epochs={epochs}, partition.per_client={number} (n=1)":
            ([50.0], [10 * (number + epochs)])
        for number in (1, 2) for epochs in (3, 5)
    }  # fmt: skip


def test_what_the_name_tells_is_not_said_again(tmp_path):
    """Partitions and algorithms by their names; their keys where they differ under one name."""
    for name in ("iid", "shards1"):
        partition = PARTITIONS[name]
        make(tmp_path, partition, 0.5)
        make(tmp_path, partition, 0.9, "centralized")
        for epochs in (5, 9)[: 1 if name == "iid" else 2]:
            keys = {"pretraining_epochs": epochs}
            make(tmp_path, partition, 0.6, "fedavg_pretrained", keys=keys, result={"pretraining_epochs": epochs})
    assert set(lines(zhao.accuracy_over_rounds(zhao.read_runs([tmp_path])))) == {
        "IID", "non-IID(1)", "SGD, partition=iid", "SGD, partition=shards, partition.per_client=1",
        "pre-trained IID, algorithm.pretraining_epochs=5",
        "pre-trained non-IID(1), algorithm.pretraining_epochs=5",
        "pre-trained non-IID(1), algorithm.pretraining_epochs=9",
    }  # fmt: skip


def test_runs_that_are_left_out_are_named(tmp_path, caplog):
    make(tmp_path, PARTITIONS["iid"], 0.9)
    make(tmp_path, PARTITIONS["iid"], 0.1, seed=1, status="diverged")
    assert len(zhao.read_runs([tmp_path])) == 1
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path / 'run1'} is left out of the figures: ") and "diverged" in said


def test_a_damaged_result_ends_no_figure(tmp_path):
    for seed, emd_found in enumerate((0.0, None, "much")):
        make(tmp_path, emd(1.44, seed), 0.5, seed=seed, result={"emd": emd_found, "bytes_up": emd_found})
    found = zhao.read_runs([tmp_path])
    assert found.emd.isna().tolist() == [False, True]  # a run with a text for a number is left out
    for draw in zhao.figures().values():
        draw(found)


def test_the_command_writes_every_figure_that_the_runs_allow(runs, tmp_path):
    assert carry_out("figures", [str(tmp_path), "--to", str(tmp_path / "figures")]) == 0
    assert {file.stem for file in (tmp_path / "figures").glob("*.png")} == set(zhao.figures())
    single = next(folder for folder in runs[runs.algorithm == "centralized"].folder)
    assert carry_out("figures", [str(single), "--to", str(tmp_path / "few")]) == 0
    assert [file.stem for file in (tmp_path / "few").glob("*.png")] == ["accuracy_over_rounds"]
    assert carry_out("figures", [str(tmp_path / "few")]) == 2
