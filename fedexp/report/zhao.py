"""The figures of Zhao et al. (2018) from the folders of finished runs: `python -m fedexp figures`.

Only draws of one protocol (seeds, distributions) are averaged, each once. Runs that differ in any other key
that can change a result get lines of their own, named by the keys in which they differ; so do algorithms that
are not in the paper.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedexp.record.status import Status
from fedexp.report.folders import read
from fedexp.report.runs import Recorded, differing, distinct, protocol, said
from fedexp.report.style import styled

log = logging.getLogger(__name__)

_NON_IID = {"iid": "IID", "shards2": "non-IID(2)", "shards1": "non-IID(1)"}
_LAYERS = "reference_divergence/"
_BOXES_AT = 1.44  # the EMD of figure 5b
_LENGTH = ("rounds", "evaluate.every")  # without effect on measurements in a round before the end


def read_runs(folders: list[Path]) -> pd.DataFrame:
    """One row for each finished run among `folders` and the folders in them: the settings by which figures select, and
    the results. The log names the others, which figures leave out."""
    files = [file for folder in folders for name in ("", "*/") for file in folder.glob(f"{name}result.json")]
    runs = read(*sorted({file.parent for file in files}))
    for run in runs:
        if run.status != Status.FINISHED:
            log.warning("%s is left out of the figures: %s", run.path, run.why)
    return pd.DataFrame([_row(run) for run in runs if run.status == Status.FINISHED])


def _row(run: Recorded) -> dict[str, Any]:
    settings, result = run.settings, run.result
    accuracy, emd = result.get("final_accuracy"), result.get("emd")  # None in a damaged result
    return {
        "run": run, "folder": run.path, "data": run.data,
        "algorithm": run.name("algorithm"), "partition": run.name("partition"),
        "target": settings.get("partition.target"), "beta": settings.get("algorithm.beta"),
        "alpha": settings.get("algorithm.alpha"), "warm_up": bool(result.get("pretraining_epochs")),
        "shares_data": settings.get("algorithm.holdout") is not None,  # for others alpha and beta mean something else
        "communicates": any(result.get(name) for name in ("bytes_up", "bytes_down")),
        "emd": None if emd is None else round(emd, 6),
        "accuracy": None if accuracy is None else 100 * accuracy,
    }  # fmt: skip


def accuracy_over_rounds(runs: pd.DataFrame) -> Figure | None:
    """Figures 1 and 8: SGD, IID and the two extremes, also from a pre-trained model."""
    runs = _distinct(runs[runs.partition.isin(_NON_IID) & ~runs.shares_data])
    methods = [
        "pre-trained " * run.warm_up + (_NON_IID[run.partition] if run.communicates else "SGD")
        for run in runs.itertuples()
    ]

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        labels = _labels(part, "method", told=("partition.", "algorithm._target_"))
        for label, group in part.groupby(labels, sort=False):
            curves = [run.metrics.set_index("round").test_accuracy for run in group.run]
            mean = pd.concat(curves, axis=1).mean(axis=1)
            axes.plot(mean.index, 100 * mean, label=label)

    return _panels(runs.assign(method=methods), draw, xlabel="communication round", ylabel="test accuracy (%)")


def divergence_by_layer(runs: pd.DataFrame, synchronisation: int = 1) -> Figure | None:
    """Figure 2: divergence from SGD, layer by layer, for IID, 2-class and 1-class clients."""
    table = _divergences(runs[runs.partition.isin(_NON_IID)], synchronisation)

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        part = part.assign(name=part.partition.map(_NON_IID))
        part = part.assign(label=_labels(part, "name", _LENGTH, told=("partition.",)))
        mean = part.pivot_table(index="layer", columns="label", values="divergence", aggfunc="mean", sort=False)
        order = [name for kind in _NON_IID.values() for name in mean.columns if name.startswith(kind)]
        mean[order].plot.bar(ax=axes, rot=20)

    return _panels(table, draw, xlabel="layer", ylabel=_divergence_label(synchronisation))


def divergence_against_emd(runs: pd.DataFrame, synchronisation: int = 1) -> Figure | None:
    """Figure 4: each layer's divergence, mean and standard deviation over the distributions of an EMD."""
    table = _divergences(runs[runs.target.notna()], synchronisation)

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        _error_bars(axes, part, _labels(part, "layer", (*_LENGTH, "partition.target")), "emd", "divergence")

    return _panels(table, draw, xlabel="EMD", ylabel=_divergence_label(synchronisation))


def accuracy_against_emd(runs: pd.DataFrame) -> Figure | None:
    """Figure 5a: final accuracy, mean and standard deviation over the distributions of an EMD."""
    runs = _distinct(runs[runs.target.notna()])
    runs = runs[runs.groupby(["data", _protocols(runs, "partition.target")]).target.transform("nunique") > 1]

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        labels = _labels(part, "algorithm", ("partition.target",), told=("algorithm._target_",))
        _error_bars(axes, part, labels, "emd", "accuracy")

    return _panels(runs, draw, xlabel="EMD", ylabel="test accuracy (%)")


def boxes_at_emd(runs: pd.DataFrame) -> Figure | None:
    """Figure 5b: the accuracies of the distributions of one EMD (section 3.2.3; the caption has divergences)."""
    runs = _distinct(runs[runs.target == _BOXES_AT])
    runs = runs[runs.groupby(["data", _protocols(runs)]).accuracy.transform("size") > 1]

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        labels = _labels(part, "algorithm", told=("algorithm._target_",))
        boxes = {label: group.accuracy for label, group in part.groupby(labels, sort=False)}
        axes.boxplot(list(boxes.values()), tick_labels=[f"{name}\nn={len(box)}" for name, box in boxes.items()])

    return _panels(runs, draw, xlabel=f"EMD {_BOXES_AT:g}", ylabel="test accuracy (%)")


def accuracy_against_beta(runs: pd.DataFrame) -> Figure | None:
    """Figure 7a: every client receives all of G, training from scratch: accuracy, and the remaining EMD."""
    runs = _distinct(runs[runs.shares_data & (runs.alpha == 1) & ~runs.warm_up])

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        part = part.assign(percent=100 * part.beta)
        labels = _labels(part, "partition", ("algorithm.beta",), told=("partition.",))
        _error_bars(axes, part, labels, "percent", "accuracy")
        other = axes.twinx()
        for number, (_, group) in enumerate(part.groupby(labels, sort=False)):
            left = group.groupby("percent").emd.mean()
            other.plot(left.index, left, "--", color=f"C{number}")  # in the colour of its error bars
        other.set(ylabel="EMD (dashed)", ylim=(0, None))

    return _panels(runs, draw, xlabel="beta = |G| / |D| (%)", ylabel="test accuracy (%)")


def accuracy_against_alpha(runs: pd.DataFrame) -> Figure | None:
    """Figure 7b: each client receives a part of G, training from the warm-up model; one line for each beta."""
    runs = _distinct(runs[runs.shares_data & runs.warm_up])
    runs = runs.assign(percent=100 * runs.alpha.astype(float), share=[f"beta={beta:g}" for beta in runs.beta])

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        labels = _labels(part, "share", ("algorithm.alpha",), told=("algorithm.beta",))
        _error_bars(axes, part, labels, "percent", "accuracy")

    return _panels(runs, draw, xlabel="alpha (%)", ylabel="test accuracy (%)")


ACCURACIES = (
    accuracy_over_rounds, accuracy_against_emd, boxes_at_emd, accuracy_against_beta, accuracy_against_alpha,
)  # fmt: skip
DIVERGENCES = (divergence_by_layer, divergence_against_emd)


def figures(synchronisation: int = 1) -> dict[str, Callable[[pd.DataFrame], Figure | None]]:
    """All figures by name; those of divergence after `synchronisation` synchronisations."""
    after = f"_{synchronisation}" if synchronisation > 1 else ""
    own = {f"{draw.__name__}{after}": partial(draw, synchronisation=synchronisation) for draw in DIVERGENCES}
    return {**{draw.__name__: draw for draw in ACCURACIES}, **own}


def _divergences(runs: pd.DataFrame, synchronisation: int) -> pd.DataFrame:
    """One row for each run and layer (weights without biases). Runs that differ only in length measured the same, and
    are taken once."""
    rows = []
    for run in runs.to_dict("records"):
        metrics = run["run"].metrics.set_index("round")
        for name in metrics.columns:
            if name.startswith(_LAYERS) and name.endswith(".weight") and synchronisation in metrics.index:
                value = metrics.loc[synchronisation, name]
                rows.append({**run, "layer": name[len(_LAYERS) : -len(".weight")], "divergence": value})
    table = pd.DataFrame(rows, columns=[*runs.columns, "layer", "divergence"])
    return _distinct(table.dropna(subset=["divergence"]), *_LENGTH)


def _distinct(runs: pd.DataFrame, *apart: str) -> pd.DataFrame:
    """The rows of different runs, each run once (see runs.distinct)."""
    return runs[runs.folder.isin([run.path for run in distinct(runs.run, *apart)])]


def _protocols(runs: pd.DataFrame, *along: str) -> pd.Series:
    """A text for each run that is equal for draws of one protocol."""
    return pd.Series([repr(sorted(protocol(run.trained, *along).items())) for run in runs.run], index=runs.index)


def _labels(runs: pd.DataFrame, name: str, along: tuple[str, ...] = (), told: tuple[str, ...] = ()) -> pd.Series:
    """A label for each run: column `name`, and the keys of the protocol that vary; draws of one protocol have equal
    labels.

    along: keys that vary along the figure's axis. told: beginnings of keys that the name implies; they are shown only
    if they vary under one name.
    """
    protocols, names = [protocol(run.trained, *along) for run in runs.run], runs[name].tolist()
    values = {key: {repr(each[key]) for each in protocols if key in each} for key in differing(protocols)}
    across = {key for key, own in values.items() if len(own) > 1 and not key.startswith(told)}
    within = {own: differing(each for each, its in zip(protocols, names) if its == own) for own in set(names)}
    labels = [
        ", ".join([own, *(said(key, each[key]) for key in each if key in across or key in within[own])])
        for each, own in zip(protocols, names)
    ]
    return pd.Series(labels, index=runs.index)


def _error_bars(axes: Axes, runs: pd.DataFrame, labels: pd.Series, x: str, y: str) -> None:
    for label, group in runs.groupby(labels, sort=False):
        over = group.groupby(x)[y]
        mean, deviation, count = over.mean(), over.std().fillna(0), over.size()
        counts = str(count.min()) if count.min() == count.max() else f"{count.min()} to {count.max()}"
        axes.errorbar(mean.index, mean, yerr=deviation, marker="o", capsize=3, label=f"{label} (n={counts})")


def _panels(runs: pd.DataFrame, draw: Callable[[Axes, pd.DataFrame], None], **labels: str) -> Figure | None:
    """One panel per data set; None without runs."""
    names = list(runs.data.unique())
    if not names:
        return None
    with styled():
        figure = Figure(figsize=(6 * len(names), 4.5), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
            draw(axes, runs[runs.data == name])
            axes.set(title=name, **labels)
            if axes.get_legend_handles_labels()[1]:
                axes.legend(fontsize=8)
        return figure


def _divergence_label(synchronisation: int) -> str:
    return f"weight divergence after {synchronisation} synchronisation" + "s" * (synchronisation > 1)
