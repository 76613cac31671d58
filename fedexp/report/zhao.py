"""The figures of Zhao et al. (2018) from the folders of finished runs: `python -m fedexp.report.zhao outputs/`.

Runs that differ in their protocol (model, clients, local training, number of rounds) are never averaged:
each is a line of its own, named by what distinguishes it.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedexp.record import files

_LOCAL = ("batch_size", "epochs", "steps", "lr", "lr_decay", "momentum", "weight_decay", "optimizer")
_PROTOCOL = ["model", "clients", "clients_per_round", *_LOCAL, "rounds", "shape", "examples", "holdout"]
_NON_IID = {"iid": "IID", "shards2": "non-IID(2)", "shards1": "non-IID(1)"}
_LAYERS = "reference_divergence/"


def read_runs(folders: list[Path]) -> pd.DataFrame:
    """A row a finished run in or below `folders`: its settings, what came out, its folder."""
    found = sorted({file.parent for folder in folders for file in folder.rglob("result.json")})
    rows = [_read(folder) for folder in found]
    return pd.DataFrame([row for row in rows if row["status"] == "finished"])


def _read(folder: Path) -> dict:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    result = json.loads((folder / "result.json").read_text())
    partition, algorithm = config["partition"], config["algorithm"]
    return {
        "folder": folder, "dataset": config["dataset"]["name"], "model": config["model"]["name"],
        "algorithm": algorithm["name"], "partition": partition["name"], "clients": config["clients"],
        "clients_per_round": config["clients_per_round"], **{name: config["local"][name] for name in _LOCAL},
        "rounds": result["rounds"], "seed": config["seed"], "target": partition.get("target"),
        "distribution": partition.get("distribution"), "shape": partition.get("shape"),
        "examples": partition.get("per_client") if "target" in partition else None,
        "beta": algorithm.get("beta"), "alpha": algorithm.get("alpha"), "holdout": algorithm.get("holdout"),
        "warm_up": bool(result.get("pretraining_epochs")), "emd": round(result["emd"], 6), "status": result["status"],
        "accuracy": None if result["final_accuracy"] is None else 100 * result["final_accuracy"],
    }  # fmt: skip


def accuracy_over_rounds(runs: pd.DataFrame) -> Figure | None:
    """Figures 1 and 8: SGD, IID and the two extremes, also from a pre-trained model."""
    runs = runs[runs.partition.isin(_NON_IID) & runs.algorithm.isin(("fedavg", "centralized", "fedavg_pretrained"))]
    names = {"centralized": "SGD", "fedavg_pretrained": "pre-trained "}
    methods = [
        names.get(run.algorithm, "") + ("" if run.algorithm == "centralized" else _NON_IID[run.partition])
        for run in runs.itertuples()
    ]

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        for label, group in part.groupby(_labels(part, "method"), sort=False):
            curves = [pd.read_csv(folder / "metrics.csv").set_index("round").test_accuracy for folder in group.folder]
            mean = pd.concat(curves, axis=1).mean(axis=1)
            axes.plot(mean.index, 100 * mean, label=label)

    return _panels(runs.assign(method=methods), draw, xlabel="communication round", ylabel="test accuracy (%)")


def divergence_by_layer(runs: pd.DataFrame, synchronisation: int = 1) -> Figure | None:
    """Figure 2: divergence from SGD, layer by layer, for IID, 2-class and 1-class clients."""
    table = _divergences(runs[runs.partition.isin(_NON_IID) & (runs.algorithm == "fedavg")], synchronisation)

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        part = part.assign(label=_labels(part.assign(name=part.partition.map(_NON_IID)), "name"))
        mean = part.pivot_table(index="layer", columns="label", values="divergence", aggfunc="mean", sort=False)
        order = [name for kind in _NON_IID.values() for name in mean.columns if name.startswith(kind)]
        mean[order].plot.bar(ax=axes, rot=20)

    return _panels(table, draw, xlabel="layer", ylabel=_divergence_label(synchronisation))


def divergence_against_emd(runs: pd.DataFrame, synchronisation: int = 1) -> Figure | None:
    """Figure 4: each layer's divergence, mean and standard deviation over the distributions of an EMD."""
    table = _divergences(runs[runs.target.notna() & (runs.algorithm == "fedavg")], synchronisation)

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        _error_bars(axes, part, _labels(part, "layer"), "emd", "divergence")

    return _panels(table, draw, xlabel="EMD", ylabel=_divergence_label(synchronisation))


def accuracy_against_emd(runs: pd.DataFrame) -> Figure | None:
    """Figure 5a: final accuracy, mean and standard deviation over the distributions of an EMD."""
    runs = runs[runs.target.notna() & (runs.algorithm == "fedavg")]
    runs = runs[runs.groupby(["dataset", *_PROTOCOL], dropna=False).target.transform("nunique") > 1]

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        _error_bars(axes, part, _labels(part, "algorithm"), "emd", "accuracy")

    return _panels(runs, draw, xlabel="EMD", ylabel="test accuracy (%)")


def boxes_at_emd(runs: pd.DataFrame, target: float = 1.44) -> Figure | None:
    """Figure 5b: the accuracies of the distributions of one EMD."""
    runs = runs[(runs.target == target) & (runs.algorithm == "fedavg")]
    runs = runs[runs.groupby(["dataset", *_PROTOCOL], dropna=False).accuracy.transform("size") > 1]

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        boxes = {label: group.accuracy for label, group in part.groupby(_labels(part, "algorithm"), sort=False)}
        axes.boxplot(list(boxes.values()), tick_labels=[f"{name}\nn={len(box)}" for name, box in boxes.items()])

    return _panels(runs, draw, xlabel=f"EMD {target:g}", ylabel="test accuracy (%)")


def accuracy_against_beta(runs: pd.DataFrame) -> Figure | None:
    """Figure 7a: all of G to every client, from scratch: accuracy, and the EMD that is left."""
    runs = runs[(runs.algorithm == "data_sharing") & (runs.alpha == 1) & ~runs.warm_up]

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        part = part.assign(percent=100 * part.beta)
        _error_bars(axes, part, _labels(part, "partition"), "percent", "accuracy")
        left = part.groupby("percent").emd.mean()
        other = axes.twinx()
        other.plot(left.index, left, "k--")
        other.set(ylabel="EMD (dashed)", ylim=(0, None))

    return _panels(runs, draw, xlabel="beta = |G| / |D| (%)", ylabel="test accuracy (%)")


def accuracy_against_alpha(runs: pd.DataFrame) -> Figure | None:
    """Figure 7b: a part of G to each client, from the warm-up model; a line for each beta."""
    runs = runs[(runs.algorithm == "data_sharing") & runs.warm_up]
    runs = runs.assign(percent=100 * runs.alpha.astype(float), share=[f"beta={beta:g}" for beta in runs.beta])

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        _error_bars(axes, part, _labels(part, "share"), "percent", "accuracy")

    return _panels(runs, draw, xlabel="alpha (%)", ylabel="test accuracy (%)")


FIGURES: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    "accuracy_over_rounds": accuracy_over_rounds, "divergence_by_layer": divergence_by_layer,
    "divergence_against_emd": divergence_against_emd, "accuracy_against_emd": accuracy_against_emd,
    "boxes_at_emd": boxes_at_emd, "accuracy_against_beta": accuracy_against_beta,
    "accuracy_against_alpha": accuracy_against_alpha,
}  # fmt: skip


def _divergences(runs: pd.DataFrame, synchronisation: int) -> pd.DataFrame:
    """A row a run and layer (weights without biases). Runs of other lengths measured the same: once each."""
    rows = []
    for run in runs.drop(columns="rounds").to_dict("records"):
        metrics = pd.read_csv(run["folder"] / "metrics.csv").set_index("round")
        for name in metrics.columns:
            if name.startswith(_LAYERS) and name.endswith(".weight") and synchronisation in metrics.index:
                value = metrics.loc[synchronisation, name]
                rows.append({**run, "layer": name[len(_LAYERS) : -len(".weight")], "divergence": value})
    table = pd.DataFrame(rows, columns=[*runs.columns.drop("rounds"), "layer", "divergence"]).dropna(
        subset=["divergence"]
    )
    own = [name for name in table.columns if name not in ("folder", "accuracy", "status", "divergence")]
    return table.drop_duplicates(own)


def _labels(runs: pd.DataFrame, name: str) -> pd.Series:
    """Column `name`, and what varies of the protocol: equal labels are runs of one protocol."""
    varying = [key for key in _PROTOCOL if key in runs and runs[key].nunique(dropna=False) > 1]
    words = [[run[name], *(f"{key}={run[key]}" for key in varying)] for run in runs.to_dict("records")]
    return pd.Series([", ".join(map(str, line)) for line in words], index=runs.index)


def _error_bars(axes: Axes, runs: pd.DataFrame, labels: pd.Series, x: str, y: str) -> None:
    for label, group in runs.groupby(labels, sort=False):
        over = group.groupby(x)[y]
        mean, deviation, count = over.mean(), over.std().fillna(0), over.size()
        counts = str(count.min()) if count.min() == count.max() else f"{count.min()} to {count.max()}"
        axes.errorbar(mean.index, mean, yerr=deviation, marker="o", capsize=3, label=f"{label} (n={counts})")


def _panels(runs: pd.DataFrame, draw: Callable[[Axes, pd.DataFrame], None], **labels: str) -> Figure | None:
    """One panel a data set; None without runs."""
    names = list(runs.dataset.unique())
    if not names:
        return None
    figure = Figure(figsize=(6 * len(names), 4.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
        draw(axes, runs[runs.dataset == name])
        axes.set(title=name, **labels)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=8)
    return figure


def _divergence_label(synchronisation: int) -> str:
    return f"weight divergence after {synchronisation} synchronisation" + "s" * (synchronisation > 1)


def main(words: list[str] | None = None) -> int:
    """Draw what the runs allow, and say which figures lack runs. Exit code 2 where there are none at all."""
    parser = argparse.ArgumentParser(prog="python -m fedexp.report.zhao", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="run folders, or folders that hold them")
    parser.add_argument("--to", type=Path, default=Path("outputs/reports/zhao2018"), help="where the figures go")
    chosen = parser.parse_args(words)
    runs = read_runs(chosen.folders)
    if runs.empty:
        print(f"fedexp.report.zhao: no finished runs below {', '.join(map(str, chosen.folders))}", file=sys.stderr)
        return 2
    for name, draw in FIGURES.items():
        figure = draw(runs)
        if figure is None:
            print(f"{name}: no runs for it")
            continue
        path = chosen.to / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, lambda file, figure=figure: figure.savefig(file, dpi=150, format="png"))
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
