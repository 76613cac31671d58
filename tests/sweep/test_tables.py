"""Tables as config: how rows and columns expand, what their cells are called, what is refused."""

import pytest
from omegaconf import OmegaConf

from fedexp.errors import ConfigError
from fedexp.sweep.table import Measure, Table


def table(**keys):
    node = {
        "name": "made", "rows": [{"dataset": ["mnist", "fmnist"], "partition": ["iid", "dir0.1"]}],
        "columns": [{"algorithm": ["fedavg", "fedcat"]}],
    }  # fmt: skip
    return Table.read(OmegaConf.create({**node, **keys}))


def test_rows_and_columns_are_products():
    cells = table().cells
    assert [cell.name for cell in cells] == [
        "mnist iid fedavg", "mnist iid fedcat", "mnist dir0.1 fedavg", "mnist dir0.1 fedcat",
        "fmnist iid fedavg", "fmnist iid fedcat", "fmnist dir0.1 fedavg", "fmnist dir0.1 fedcat",
    ]  # fmt: skip
    assert cells[3].overrides == {"dataset": "mnist", "partition": "dir0.1", "algorithm": "fedcat"}
    assert cells[3].published == {"dataset": "mnist", "partition": "dir0.1", "algorithm": "fedcat"}


def test_a_label_has_only_what_tells_lines_apart():
    rows = [{"dataset": "mnist", "clients": [10, 20], "local.epochs": 5}]
    assert table(rows=rows).rows == ["mnist N=10", "mnist N=20"]
    columns = [{"algorithm": "fedavg", "model": "simple_cnn"}, {"algorithm": "fedcat", "rounds": 7}]
    assert table(columns=columns).columns == ["fedavg", "fedcat"]


def test_a_row_may_have_columns_of_its_own():
    rows = [{"dataset": "mnist"}, {"dataset": "fmnist", "columns": [{"algorithm": "centralized", "rounds": 3}]}]
    made = table(rows=rows)
    assert [cell.name for cell in made.cells] == ["mnist fedavg", "mnist fedcat", "fmnist centralized"]
    assert made.cells[-1].overrides["rounds"] == 3


def test_own_words_reach_the_cell():
    rows = [{"partition": "emd", "partition.target": [0.5], "published": {"partition": "emd{partition.target}"}}]
    columns = [{"algorithm": "fedavg", "measure": {"reduction": None}, "reference": {"algorithm": "centralized"}}]
    (cell,) = table(rows=rows, columns=columns, reference={"rounds": 2}).cells
    assert cell.published == {"partition": "emd0.5", "algorithm": "fedavg"}
    assert cell.reference == {"partition": "emd", "partition.target": 0.5, "algorithm": "centralized", "rounds": 2}


def test_numbers_are_names_as_well():
    columns = [{"label": 10, "algorithm": "fedavg"}, {"label": "K={clients}", "clients": 10}, {"clients": 20}]
    made = table(rows=[{"dataset": "mnist"}], columns=columns, select=10)
    assert [cell.name for cell in made.cells] == ["mnist 10", "mnist K=10"]


def test_select_keeps_cells_by_name():
    assert [cell.name for cell in table(select="^mnist.*cat").cells] == ["mnist iid fedcat", "mnist dir0.1 fedcat"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"select": "nowhere"}, "table.select=nowhere: matches no cell's name"),
        ({"select": "("}, "is not a regular expression"),
        ({"measure": "finl"}, "did you mean final"),
        ({"measure": "rounds_to"}, "must be {rounds_to: ...}"),
        ({"measure": {"rounds_to": "80%"}}, "must be {rounds_to: ...}, with a number"),
        ({"measure": {"best": "all"}}, "must be {best: ...}, with a number"),
        ({"measure": "information"}, "must be {information: ...}, with a column of information.csv"),
        ({"colums": []}, "did you mean columns"),
        ({"rows": []}, "table.rows"),
        ({"columns": []}, "table.columns"),
        ({"rows": ["mnist"]}, "must be a mapping"),
        ({"published": 3}, "table.published=3: must be columns of the printed table's CSV"),
        ({"compare": "cells"}, "must be columns or rows"),
        ({"repeats": "local.lr"}, "table.repeats=local.lr: must be one of seed,"),
    ],
)
def test_what_cannot_be_a_table_is_said(keys, said):
    with pytest.raises(ConfigError) as error:
        table(**keys)
    assert said in str(error.value)


def test_measures_know_which_way_is_better():
    assert Measure.parse("final").higher_is_better
    assert not Measure.parse({"rounds_to": 0.8}).higher_is_better
    assert Measure.parse({"best": 500}).argument == 500
