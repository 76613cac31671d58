"""Figures of Zhao et al. (2018): what is drawn, from the folders of made runs, and what is kept apart."""

import json

import pandas as pd
import pytest
import yaml

from fedexp.report import zhao

LOCAL = {
    "batch_size": 10, "epochs": 1, "steps": None, "lr": 0.1, "lr_decay": 1.0, "momentum": 0.0, "weight_decay": 0.0,
    "optimizer": "sgd",
}  # fmt: skip


def make(root, partition, accuracy, algorithm="fedavg", divergence=None, local=None, status="finished", **more):
    """A run's folder as a run leaves it: two evaluated rounds; divergences (two layers) after the first."""
    folder = root / f"run{len(list(root.iterdir()))}"
    folder.mkdir()
    config = {
        "dataset": {"name": "mnist"}, "model": {"name": "cnn"}, "clients": 10, "clients_per_round": 10, "seed": 0,
        "partition": partition, "algorithm": {"name": algorithm, **more.get("keys", {})},
        "local": {**LOCAL, **(local or {})},
    }  # fmt: skip
    result = {
        "status": status,
        "rounds": more.get("rounds", 2),
        "final_accuracy": accuracy,
        "emd": more.get("emd", 0.0),
    }
    rows = [{"round": 1, "test_accuracy": accuracy / 2}, {"round": 2, "test_accuracy": accuracy}]
    if divergence is not None:
        rows[0] |= {
            "reference_divergence": 9.0, "reference_divergence/encoder.0.weight": divergence,
            "reference_divergence/encoder.0.bias": 7.0, "reference_divergence/head.weight": 2 * divergence,
        }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "result.json").write_text(json.dumps({**result, **more.get("result", {})}))
    pd.DataFrame(rows).to_csv(folder / "metrics.csv", index=False)


def emd(target, distribution):
    return {"name": f"emd{target}", "target": target, "distribution": distribution, "shape": "random"}


@pytest.fixture
def runs(tmp_path):
    """Two EMD values of two distributions; the extremes; SGD; data sharing."""
    for target, accuracies, divergences in ((0.0, (0.9, 0.8), (0.1, 0.3)), (1.44, (0.5, 0.7), (0.4, 0.8))):
        for number in range(2):
            make(tmp_path, emd(target, number), accuracies[number], divergence=divergences[number], emd=target)
    make(tmp_path, emd(1.44, 1), 0.1, divergence=0.8, emd=1.44, rounds=1)  # the same measure in a shorter run
    make(tmp_path, emd(1.44, 2), 0.1, divergence=50.0, emd=1.44, status="diverged")
    for name, value in (("iid", 0.9), ("shards2", 0.7), ("shards1", 0.4)):
        make(tmp_path, {"name": name}, value, divergence=1 - value)
    make(tmp_path, {"name": "iid"}, 0.95, "centralized", local={"batch_size": 100})
    for beta, value, left in ((0.1, 0.6, 0.9), (0.2, 0.8, 0.6)):
        keys = {"beta": beta, "alpha": 1.0, "holdout": 0.2}
        make(tmp_path, {"name": "shards1"}, value, "data_sharing", keys=keys, emd=left)
        for alpha in (0.5, 1.0):
            warm = {"keys": {**keys, "alpha": alpha}, "result": {"pretraining_epochs": 3}}
            make(tmp_path, {"name": "shards1"}, value + alpha / 10, "data_sharing", **warm)
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
        "IID, batch_size=10": ([1, 2], [45, 90]),
        "non-IID(2), batch_size=10": ([1, 2], [35, 70]),
        "non-IID(1), batch_size=10": ([1, 2], [20, 40]),
        "SGD, batch_size=100": ([1, 2], [47.5, 95]),
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


def test_other_protocols_are_lines_of_their_own(runs, tmp_path):
    for target in (0.0, 1.44):
        make(tmp_path, emd(target, 0), 0.2, local={"lr": 0.5}, emd=target)
    drawn = lines(zhao.accuracy_against_emd(zhao.read_runs([tmp_path])))
    assert drawn == {
        "fedavg, lr=0.1 (n=2)": ([0.0, 1.44], [85.0, 60.0]),
        "fedavg, lr=0.5 (n=1)": ([0.0, 1.44], [20.0, 20.0]),
    }


def test_the_command_writes_what_the_runs_allow(runs, tmp_path, capsys):
    assert zhao.main([str(tmp_path), "--to", str(tmp_path / "figures")]) == 0
    assert {file.stem for file in (tmp_path / "figures").glob("*.png")} == set(zhao.FIGURES)
    single = next(folder for folder in runs[runs.algorithm == "centralized"].folder)
    assert zhao.main([str(single), "--to", str(tmp_path / "few")]) == 0
    assert [file.stem for file in (tmp_path / "few").glob("*.png")] == ["accuracy_over_rounds"]
    assert "boxes_at_emd: no runs for it" in capsys.readouterr().out
    assert zhao.main([str(tmp_path / "few")]) == 2
