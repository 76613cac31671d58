"""The pictures that every run leaves: what they say, and that they can be read."""

import pytest
import torch
from matplotlib import rc_context
from matplotlib.collections import PathCollection
from program import only_folder, run

from fedexp.cli import carry_out
from fedexp.record import confusion, partition


def counts(clients, classes):
    held = torch.arange(clients * classes).view(clients, classes) % 7 * 10
    held[0, 0] = 95
    return held


def ticks(axis):
    low, high = axis.get_view_interval()
    return [place for place in axis.get_ticklocs() if low <= place <= high]


def test_a_partition_s_bubbles_have_a_legend_of_sizes_and_whole_ticks():
    figure = partition.picture(counts(4, 3), "digits, dir0.1")
    (axes,) = figure.axes
    assert axes.get_title() == "digits, dir0.1"
    assert ticks(axes.xaxis) == [0, 1, 2, 3] and ticks(axes.yaxis) == [0, 1, 2]
    legend = axes.get_legend()
    shown = [int(text.get_text().replace(",", "")) for text in legend.get_texts()]
    assert legend.get_title().get_text() == "examples" and shown == [9, 30, 90]
    bubbles = next(each for each in axes.collections if isinstance(each, PathCollection) and len(each.get_offsets()))
    assert len(bubbles.get_offsets()) == int((counts(4, 3) > 0).sum())
    largest = max(handle.get_sizes()[0] for handle in legend.legend_handles)
    assert largest / max(bubbles.get_sizes()) * 95 == 90


def test_a_partition_without_a_name_is_one_s_own(monkeypatch, tmp_path, capfd):
    assert run(monkeypatch, tmp_path, "~partition.name", "pictures=true", "rounds=1") == 0
    assert (only_folder(tmp_path) / "partition.png").exists()
    assert carry_out("partition", ["~partition.name"]) == 0
    assert "own of digits" in capfd.readouterr().out


def test_one_s_own_partition_may_have_an_alpha_that_is_no_number(monkeypatch, tmp_path):
    (tmp_path / "alphas.py").write_text(
        "import torch\n"
        "def chunks(dataset, clients, seed, alpha):\n"
        "    return list(torch.arange(len(dataset.train_y)).chunk(clients))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["partition=own", "partition._target_=alphas.chunks", "+partition.alpha=[0.1,0.5]", "pictures=true"]
    assert run(monkeypatch, tmp_path / "outputs", *words, "rounds=1") == 0
    assert (only_folder(tmp_path / "outputs") / "partition.png").exists()


def test_a_picture_that_cannot_be_drawn_does_not_end_the_run(monkeypatch, tmp_path, capfd):
    """A run of days is not lost to the title of a picture."""
    (tmp_path / "titled.py").write_text(
        "from matplotlib.figure import Figure\n"
        "import pandas as pd\n"
        "from fedexp.algorithms.fedavg import FedAvg\n"
        "class Titled(FedAvg):\n"
        "    def artifacts(self, state, ctx):\n"
        "        broken, whole = Figure(), Figure()\n"
        "        broken.suptitle(r'$\\frac{$')\n"
        "        return {'broken': broken, 'whole': whole, 'told': pd.DataFrame({'a': [1]})}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["algorithm=own", "algorithm._target_=titled.Titled", "pictures=true", "rounds=1"]
    assert run(monkeypatch, tmp_path / "outputs", *words) == 0
    folder = only_folder(tmp_path / "outputs")
    assert not list(folder.glob("broken*"))
    assert all((folder / f"{name}.{kind}").exists() for name in ("whole", "confusion") for kind in ("png", "pdf"))
    assert (folder / "told.csv").exists()
    assert "no picture of broken: it cannot be drawn (ValueError: " in "".join(capfd.readouterr())


def test_without_the_latex_that_one_asks_for_there_are_no_pictures(monkeypatch, tmp_path, capfd):
    """As on a cluster's node, with one's usual matplotlibrc; reports do not need it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with rc_context({"text.usetex": True}):
        assert run(monkeypatch, tmp_path / "outputs", "pictures=true", "rounds=1", "partition.seed=5") == 0
        folder, said = only_folder(tmp_path / "outputs"), "".join(capfd.readouterr())
        assert "no picture of partition" in said and "no picture of confusion" in said and "latex" in said
        assert carry_out("report", [str(tmp_path / "outputs")]) == 0
    assert (folder / "partition.csv").exists() and not list(folder.glob("*.p[nd][gf]"))
    assert list((tmp_path / "outputs" / "reports").glob("*/*.pdf"))


def test_the_fonts_of_a_pdf_are_those_that_journals_take(monkeypatch, tmp_path):
    assert run(monkeypatch, tmp_path, "pictures=true", "rounds=1") == 0
    assert carry_out("report", [str(tmp_path)]) == 0
    found = list(tmp_path.rglob("*.pdf"))
    assert {"partition.pdf", "confusion.pdf"} < {file.name for file in found}
    for file in found:
        content = file.read_bytes()
        assert b"/CIDFontType2" in content and b"/Type3" not in content, file


def test_a_large_partition_is_a_map():
    figure = partition.picture(counts(100, 100), "cifar100")
    axes, bar = figure.axes
    assert bar.get_ylabel() == "examples" and axes.images[0].get_array().shape == (100, 100)
    assert axes.images[0].get_array()[0, 0] == 95, "client 0, class 0"
    assert all(float(place).is_integer() for place in (*ticks(axes.xaxis), *ticks(axes.yaxis)))


@pytest.mark.parametrize("name", ["b$x_$", "$\\none$"])
def test_names_are_no_formulas(name, tmp_path):
    counts = torch.tensor([[996, 4], [300, 700]])
    for figure in (confusion.picture(counts, [name, "b"]), partition.picture(counts, name)):
        figure.savefig(tmp_path / "drawn.png")  # matplotlib refuses what begins a formula and is none


def test_a_confusion_matrix_writes_no_zeros():
    axes = confusion.picture(torch.tensor([[996, 4], [300, 700]]), ["a", "b"]).axes[0]
    assert sorted(text.get_text() for text in axes.texts) == ["0.30", "0.70", "1.00"]
