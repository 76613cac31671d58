"""Every algorithm on a device whose tensors are apart from the CPU's."""

from dataclasses import replace

import pytest
from composing import checked
from options import CASES, PARTS, WORDS, words_of
from program import SMALL, metrics, run
from second_device import DEVICE, second_device
from worlds import LOCAL, gap, make_context, make_model, make_world, play, rounds, run_stages

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.building import build_algorithm, build_context, build_dataset, build_measures, build_reference
from fedexp.config.schema import section
from fedexp.engine import Hardware
from fedexp.measure.evaluation import Evaluation
from fedexp.models import Model
from fedexp.round import one_round

MORE = [
    "+dataset.transform={_target_:fedexp.data.Transform,mean:[0.3],std:[0.3],crop:8,pad:1,flip:true}",
    "+measures.received=fedexp.measure.clients.received_accuracy", "evaluate.clients=all", "partition.holdout=0.1",
    "hardware.engine=vectorized", "dataset.train=150", "dataset.test=30",
]  # fmt: skip


def measured(config):
    """What a run measures, round by round, and its last State; it leaves no files."""
    ctx, algorithm, rows = build_context(config, build_dataset(config)), build_algorithm(config), []
    stages = algorithm.stages(ctx)
    reference = build_reference(config, stages[-1].context, lambda: False)
    settings, measures = section(config, "evaluate"), build_measures(config)
    evaluation = Evaluation(settings, measures, reference, stages, ctx.world, config.rounds)

    def step(stage, state, ctx):
        done = one_round(stage.algorithm, state, ctx)
        if stage.counted:
            row, _ = evaluation.row(stage, done)
            rows.append({name: value for name, value in row.items() if "seconds" not in name})
        return done

    state, done = run_stages(algorithm, ctx, step=step)
    last = done[-1][1]
    last.algorithm.summary(state, last.ctx)
    last.algorithm.artifacts(state, last.ctx)
    return rows, state


def assert_same_results_and_crossings(monkeypatch, config):
    """The CPU's results, and nothing crosses to the CPU or back in a step: with twice as many, no more crossings."""
    expected, _ = measured(config)
    assert len(expected) == config.rounds
    monkeypatch.setattr(Hardware, "torch_device", DEVICE)
    with second_device() as few:
        assert measured(config)[0] == expected
    config.local.steps = 2
    with second_device() as many:
        measured(config)
    assert not many - few


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm(monkeypatch, name):
    on = {"fedprox": ["evaluate.on=train"], "fedper": ["evaluate.on=holdout"]}.get(name, [])
    assert_same_results_and_crossings(monkeypatch, checked(*words_of(name), *MORE, *on))


@pytest.mark.parametrize("part", PARTS)
def test_every_part(monkeypatch, part):
    assert_same_results_and_crossings(monkeypatch, checked(*WORDS, *MORE, *part.split()))


_AS_SCAFFOLD = [pytest.param(name, marks=pytest.mark.slow) for name in ("clusamp", "feddyn", "moon")]


@pytest.mark.parametrize("words", ["fesem", "scaffold", "fedavg compression=top_k", *_AS_SCAFFOLD])
def test_clients_memory_on_the_cpu(monkeypatch, words):
    """hardware.client_memory=cpu: the same results, and all that is kept for every client is there."""
    config = checked(*WORDS, *MORE, *f"algorithm={words}".split(), "rounds=4")
    monkeypatch.setattr(Hardware, "torch_device", DEVICE)
    found, devices = [], []
    for place in ("device", "cpu"):
        config.hardware.client_memory = place
        with second_device():
            rows, state = measured(config)
            devices.append({leaf.device.type for leaf in rows_of_clients(state)})
            assert any(leaf.abs().sum() > 0 for leaf in rows_of_clients(state))
            found.append(rows)
    assert found[0] == found[1]
    assert devices == [{DEVICE.type}, {"cpu"}]


def rows_of_clients(state):
    """All rows that the State holds a client: what clients remember, what the server keeps of each."""
    stores = [state["memory"], *(value for value in {**state, **state["selection"]}.values() if _is_store(value))]
    return [leaf for store in stores for _, leaf in tree.leaves(store["rows"]) if leaf.numel() and leaf.dim() > 1]


def _is_store(value):
    return isinstance(value, dict) and "rows" in value


def test_measures_and_options(monkeypatch, tmp_path):
    """SGD in step with the rounds, Adam and clipping: a whole run."""
    words = [*WORDS[len(SMALL) :], *MORE, "local.optimizer=adam", "local.max_grad_norm=1", "reference=centralized"]
    words += ["evaluate.clients=participants"]
    assert run(monkeypatch, tmp_path / "cpu", *words) == 0
    monkeypatch.setattr(Hardware, "torch_device", DEVICE)
    with second_device():
        assert run(monkeypatch, tmp_path / "second", *words) == 0
    assert metrics(tmp_path / "second").equals(metrics(tmp_path / "cpu"))


def test_running_statistics_and_dropout():
    """BatchNorm, Dropout and partial batches: the CPU's weights, and no crossing in a step."""
    counts, states = [], [play(FedAvg(), "norm", "vectorized", local=replace(LOCAL, epochs=1), count=1)]
    for epochs in (1, 2):
        with second_device() as crossings:
            here = make_world(shape=(3, 8, 8))
            world, model = here.to(DEVICE), Model(make_model("norm", here).net.to(DEVICE))
            ctx = make_context(model, world, replace(LOCAL, epochs=epochs), engine="vectorized")
            state = rounds(FedAvg(), ctx, 1)[-1].after
            states.append({"params": {name: leaf.cpu() for name, leaf in state["params"].items()}})
        counts.append(crossings)
    assert gap(*states[:2]) == 0
    assert not counts[1] - counts[0]
