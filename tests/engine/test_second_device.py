"""Every algorithm on a device whose tensors are apart from the CPU's."""

from dataclasses import replace

import pytest
from omegaconf import OmegaConf
from program import SMALL, metrics, run
from second_device import DEVICE, second_device
from worlds import LOCAL, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.fedavg import FedAvg
from fedexp.build import build_algorithm, build_dataset, build_model, build_world
from fedexp.engine import Engine, Hardware
from fedexp.main import CONF, composed
from fedexp.measure import accuracy
from fedexp.measure.cohort import cohort_measures
from fedexp.models import Model
from fedexp.randomness import generator
from fedexp.world import World

WORDS = [
    *SMALL, "clients=5", "clients_per_round=2", "rounds=2", "local.batch_size=8", "hardware.engine=together",
    "+dataset.transform={_target_:fedexp.data.Transform,mean:[0.3],std:[0.3],crop:8,pad:1,flip:true}",
]  # fmt: skip
MORE = {
    "fedconcat": ["algorithm.encoder_rounds=1"],
    "fedconcat_id": ["algorithm.clustering.random_inputs=200"],
    "fedgen": ["algorithm.server_steps=5"],
    "data_sharing": ["algorithm.pretraining_epochs=1", "algorithm.pretraining_batch_size=500"],
    "fedavg_pretrained": ["algorithm.pretraining_epochs=1", "algorithm.pretraining_batch_size=500"],
}
NAMES = sorted(path.stem for path in (CONF / "algorithm").glob("*.yaml") if path.stem != "own")


def measured(config):
    """What a run measures, round by round; it leaves no files."""
    algorithm = build_algorithm(config)
    world = algorithm.adapt(build_world(config, build_dataset(config)))
    model, rows = build_model(config, world), []
    engine = Engine(model, world, *(OmegaConf.to_object(config[name]) for name in ("local", "hardware")), config.seed)
    state = algorithm.prepare(algorithm.init(world, model, model.params()), world, engine)
    for round in range(config.rounds):
        state = algorithm.round(state, world, engine, generator(config.seed, "round", round))
        found = cohort_measures(
            engine.drain(), model.weights, lambda ids, now=state: algorithm.centre(now, ids), world.label_counts
        )  # fmt: skip
        score, loss = accuracy.test(*algorithm.examined(state, engine))
        seen = {name: value for name, value in algorithm.observe(state, engine).items() if "seconds" not in name}
        rows.append({**found, **seen, "score": float(score), "loss": float(loss)})
    algorithm.conclude(state, engine)
    algorithm.exhibits(state, engine)
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_results_and_crossings(monkeypatch, name):
    """The CPU's results, and nothing crosses to the CPU or back in a step: with twice as many, no more crossings."""
    more = [word for start, words in MORE.items() if name.startswith(start) for word in words]
    config = composed([*WORDS, f"algorithm={name}", *more, "local.steps=1"])
    expected = measured(config)
    monkeypatch.setattr(Hardware, "torch_device", DEVICE)
    with second_device() as few:
        assert measured(config) == expected
    config.local.steps = 2
    with second_device() as many:
        measured(config)
    assert not many - few


@pytest.mark.parametrize("name", ["clusamp", "feddyn", "fesem", "moon", "scaffold"])
def test_clients_memory_on_the_cpu(monkeypatch, name):
    """hardware.client_memory=cpu: the same results, and all that is kept for every client is there."""
    kept = []

    def noted(self, params):
        kept.append(client_memory(self, params))
        return kept[-1]

    client_memory = World.client_memory
    monkeypatch.setattr(World, "client_memory", noted)
    monkeypatch.setattr(Hardware, "torch_device", DEVICE)
    config = composed([*WORDS, f"algorithm={name}", "rounds=4", "local.steps=1"])
    with second_device():
        expected = measured(config)
        config.hardware.client_memory = "cpu"
        assert measured(config) == expected
    devices = [{leaf.device.type for leaf in memory.values()} for memory in kept]
    assert devices == [{DEVICE.type}, {"cpu"}]
    assert all(leaf.abs().sum() > 0 for leaf in kept[1].values())


def test_measures_and_options(monkeypatch, tmp_path):
    """SGD in step with the rounds, clients' accuracies, Adam and clipping."""
    words = [*WORDS[len(SMALL) :], "local.optimizer=adam", "local.max_grad_norm=1", "local.steps=1"]
    words += ["measures.reference=centralized", "evaluate_clients=participants"]
    assert run(monkeypatch, tmp_path / "cpu", *words) == 0
    monkeypatch.setattr(Hardware, "torch_device", DEVICE)
    with second_device():
        assert run(monkeypatch, tmp_path / "second", *words) == 0
    assert metrics(tmp_path / "second").equals(metrics(tmp_path / "cpu"))


def test_running_statistics_and_dropout():
    """BatchNorm, Dropout and partial batches: the CPU's weights, and no crossing in a step."""
    counts, states = [], [play(FedAvg, "norm", "together", local=replace(LOCAL, epochs=1), count=1)]
    for epochs in (1, 2):
        local = replace(LOCAL, epochs=epochs)
        with second_device() as crossings:
            here = make_world(shape=(3, 8, 8))
            world, model = here.to(DEVICE), Model(make_model("norm", here).net.to(DEVICE))
            engine, algorithm = make_engine(model, world, local, "together"), FedAvg(3, local)
            state = algorithm.init(world, model, model.params())
            state = algorithm.round(state, world, engine, generator(0, "round", 0))
            states.append({"params": {name: leaf.cpu() for name, leaf in state["params"].items()}})
        counts.append(crossings)
    assert gap(*states[:2]) == 0
    assert not counts[1] - counts[0]
