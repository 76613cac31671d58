"""Reports over a folder among good ones that anything may have happened to: it counts as it is, or is left out."""

import json
import shutil

import pytest
import yaml
from composing import asked
from damage import damage
from recorded import leave_run

from fedexp.report.any_runs import compare_runs
from fedexp.report.folders import read
from fedexp.report.writers import latex, markdown

VALUES = [None, "text", -1, 1e400, float("nan"), [], {}, [1, "a"], {"a": 1}, "${oc.env:HOME}", "${nosuch}",
          "<b>x|y*_\\$&", 10**40, True, "x" * 5000, "\x00", {"_target_": 5}, {"_target_": "os.system"}]  # fmt: skip


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_a_spoilt_folder_among_good_ones(tmp_path, draw, tally, count):
    (sweep,) = asked("algorithm=fedavg,fedcat", "seed=0,1", f"output_root={tmp_path}")
    folders = [leave_run(job, [0.1, 0.5]) for job in sweep.jobs]
    (folders[0] / "partition.csv").write_text("client,class_0,class_1\n0,7,0\n1,2,5\n")
    whole = {path: path.read_bytes() for path in folders[0].iterdir() if path.is_file() and path.name[0] != "."}
    for _ in range(count):
        path = draw.choice(sorted(whole))
        what = f"{path.name}: {spoil(path, draw)}"
        try:
            runs = read(tmp_path)
            page = compare_runs(runs)
            said = markdown(page) + latex(page) + page.records.to_csv()
            wrong = None if len(runs) >= 3 and "fedcat" in said else "lost other runs"
            for picture in page.pictures:
                picture.chart()
        except Exception as error:
            wrong = f"ended in {error!r}"
        tally("reports", what, wrong)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(whole[path])


def spoil(path, draw):
    """Do something to a file; says what."""
    kind = draw.choice(["value", "value", "damage", "folder", "no text", "gone"])
    if kind == "value" and path.suffix in (".json", ".yaml"):
        return change(path, draw)
    if kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "no text":
        path.write_bytes(path.read_bytes()[:50] + b"\xff\xfe")
    elif kind == "gone":
        path.unlink()
    else:
        return damage(path, draw)
    return kind


def change(path, draw):
    """Give a key, at any depth, a bad value."""
    load, dump = (json.loads, json.dumps) if path.suffix == ".json" else (yaml.safe_load, yaml.safe_dump)
    content = load(path.read_text())
    node, key = draw.choice([*places(content)])
    node[key] = draw.choice(VALUES)
    path.write_text(dump(content))
    return f"{key}={str(node[key])[:40]!r}"


def places(node):
    for key, value in node.items():
        yield node, key
        if isinstance(value, dict):
            yield from places(value)
