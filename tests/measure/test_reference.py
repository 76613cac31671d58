"""The centralized reference: where theory says zero, where it says more, and that it disturbs nothing."""

import os
import signal
import threading
import time
from dataclasses import replace

import pandas as pd
import pytest
import torch
from composing import composed
from worlds import by_hand, gap, make_context, make_model, make_world, run_stages, start

from fedexp.algorithms.centralized import Centralized
from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.checks import check
from fedexp.config.fingerprint import fingerprint, relevant
from fedexp.data import Transform
from fedexp.data.digits import digits
from fedexp.engine import Local
from fedexp.errors import ConfigError, Interrupted
from fedexp.experiment import run
from fedexp.measure import numbers
from fedexp.measure.reference import Reference
from fedexp.partition.emd import emd
from fedexp.round import one_round
from fedexp.world import World

PLAIN = Local(epochs=1, batch_size=20, lr=0.3, momentum=0.0)


def follow(world, local, count=3, cohort=None, kind="cnn"):
    """(the global model's State, its Reference) after so many rounds of FedAvg with all clients."""
    model = make_model(kind, world, world.dtype)
    ctx = make_context(model, world, local, cohort or world.clients)
    reference = Reference(count, ctx, lambda: False)
    state = start(FedAvg(), ctx)
    reference.begin(state["params"])
    for number in range(count):
        reference.follow(number + 1)
        state = one_round(FedAvg(), state, ctx).after
    return state, reference


def divergence(world, local, count=1):
    state, reference = follow(world, local, count)
    return numbers(reference.divergence(state["params"], count))


def test_full_batches_and_one_step_a_round_give_zero():
    """The mean of the clients' gradients is the gradient of the union: equal clients, any number of rounds."""
    values = divergence(make_world([20] * 4), PLAIN, count=5)
    assert max(values.values()) < 1e-13
    assert set(values) == {"reference_divergence"} | {
        f"reference_divergence/{name}"
        for name in ("encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias")
    }  # fmt: skip


def test_its_learning_rate_decays_with_the_rounds():
    """Two rounds of one full-batch step on the union: with lr, then with half of it."""
    world, local = make_world([20] * 4), replace(PLAIN, lr_decay=0.5)
    _, reference = follow(world, local, count=2, kind="linear")
    union, model = replace(world, sizes=torch.tensor([80])), make_model("linear", world)
    expected = by_hand(model, by_hand(model, model.params(), union, 0, 0.3), union, 0, 0.15)
    for name, leaf in expected.items():
        torch.testing.assert_close(reference.state["params"][name], leaf, rtol=0, atol=1e-12)


def test_several_local_steps_do_not():
    assert divergence(make_world([20] * 4), replace(PLAIN, epochs=2))["reference_divergence"] > 1e-4


def test_divergence_by_hand():
    """||(3, 0) - (0, 4)|| / ||(0, 4)|| = 5 / 4 for one tensor; over all, sqrt(25 + 0) / sqrt(16 + 9)."""
    world = make_world([20] * 4)
    model = make_model("linear", world)
    reference = Reference(1, make_context(model, world, PLAIN, 4), lambda: False)
    zero = {name: torch.zeros_like(value) for name, value in model.params().items()}
    mine, its = ({name: value.clone() for name, value in zero.items()} for _ in range(2))
    mine["head.weight"][0, 0], its["head.weight"][0, 1] = 3, 4
    mine["head.bias"][2] = its["head.bias"][2] = 3
    reference.state = {"round": 1, "params": its}
    assert numbers(reference.divergence(mine, 1)) == pytest.approx(
        {"reference_divergence": 1.0, "reference_divergence/head.weight": 1.25, "reference_divergence/head.bias": 0}
    )


def test_it_grows_with_emd():
    """After one synchronisation, the mean over five distributions, for all weights and for each layer."""
    data = digits(Transform())
    local = Local(epochs=1, batch_size=10, lr=0.05, momentum=0.0)

    def mean(target):
        rows = []
        for number in range(5):
            parts = emd(data, 10, 0, target, number, per_client=50)
            sizes = torch.tensor([len(part) for part in parts])
            world = World(
                data.train_x, data.train_y, data.test_x, data.test_y, torch.cat(parts), sizes, 10,
                data.transform, torch.float64,
            )  # fmt: skip
            rows.append(divergence(world, local))
        return pd.DataFrame(rows).mean()

    table = pd.DataFrame([mean(target) for target in (0, 0.72, 1.44, 1.8)])
    for layer in ("reference_divergence", "reference_divergence/encoder.0.weight", "reference_divergence/head.weight"):
        assert table[layer].is_monotonic_increasing
    assert table["reference_divergence"].iloc[-1] > 1.5 * table["reference_divergence"].iloc[0]


@pytest.mark.parametrize("cohort", [6, 3])
def test_it_is_centralized_training_with_the_batch_of_the_cohort(cohort):
    """6 x 20 examples, batches of 8: 3 steps an epoch for a client, hence 2 x 3 of the cohort's batch."""
    world, local = make_world([20] * 6), Local(epochs=2, batch_size=8, lr=0.1, lr_decay=0.5)
    _, reference = follow(world, local, count=3, cohort=cohort)
    large = replace(local, batch_size=8 * cohort, steps=6)
    state, _ = run_stages(Centralized(), make_context(make_model("cnn", world), world, large, rounds=3))
    assert gap(state, reference.state) < 1e-12


def configured(tmp_path, *more):
    words = [
        "tracking=none", "hardware=cpu", "hardware.workers=1", "partition=emd", "partition.target=1.8", "clients=10",
        "clients_per_round=10", "rounds=4", "local.epochs=1", "model.hidden=16", "partition.per_client=20",
        f"output_root={tmp_path}", *more,
    ]  # fmt: skip
    return composed(*words)


def metrics(tmp_path):
    (path,) = tmp_path.glob("*/metrics.csv")
    return pd.read_csv(path).drop(columns=["seconds", "samples_per_second"])


def test_the_run_itself_is_not_changed(tmp_path, caplog):
    """Same accuracies and bytes with it as without; its columns until it stops; its cost said at the start."""
    caplog.set_level("INFO")
    plain = run(configured(tmp_path / "plain"))
    assert "reference=centralized" not in caplog.text
    measured = run(configured(tmp_path / "with", "reference=centralized", "reference_rounds=2"))
    assert "also trains 2 batches of up to 100 examples a round, for 2 rounds" in caplog.text
    for name in ("final_accuracy", "bytes_up", "bytes_down", "emd"):
        assert plain[name] == measured[name]
    before, after = metrics(tmp_path / "plain"), metrics(tmp_path / "with")
    assert after[before.columns].equals(before)
    columns = [name for name in after if name.startswith("reference_divergence")]
    assert len(columns) == 9
    assert after[columns].notna().all(axis=1).tolist() == [True, True, False, False]


def test_its_last_round_is_evaluated_whatever_evaluate_every_says(tmp_path):
    run(configured(
        tmp_path, "rounds=6", "evaluate.every=3", "reference=centralized", "reference_rounds=1"
    ))  # fmt: skip
    table = metrics(tmp_path)
    assert table["round"].tolist() == [1, 3, 6]
    assert table["reference_divergence"].notna().tolist() == [True, False, False]


@pytest.mark.parametrize("algorithm", ["ifca", "fedconcat"])
def test_an_algorithm_without_a_single_global_model_is_refused(tmp_path, algorithm):
    """Their clusters' weights have the model's names, stacked; said before any training."""
    with pytest.raises(ConfigError, match=r"reference=centralized: .* no single global model"):
        run(configured(tmp_path, f"algorithm={algorithm}", "reference=centralized", "rounds=60"))
    assert not list(tmp_path.glob("*/metrics.csv"))


def test_centralized_training_is_its_own_reference(tmp_path):
    """Its batch is K B already: not multiplied again, so that the distance is zero."""
    run(configured(tmp_path, "algorithm=centralized", "reference=centralized", "rounds=2"))
    assert metrics(tmp_path)["reference_divergence"].max() < 1e-6


@pytest.mark.parametrize("algorithm", [["fedavg"], ["data_sharing", "algorithm.pretraining_epochs=2"]], ids=str)
def test_resumed_equals_uninterrupted(tmp_path, algorithm):
    """SIGTERM between two rounds; the same command again goes on with the reference where it was.

    With a warm-up model: neither trained nor sent again, and the reference starts from it.
    """
    more = ("reference=centralized", "rounds=12", f"algorithm={algorithm[0]}", *algorithm[1:])
    run(configured(tmp_path / "whole", *more))

    def stop_after_three_rounds():
        while not any(path.read_text().count("\n") > 3 for path in (tmp_path / "cut").glob("*/metrics.csv")):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_after_three_rounds, daemon=True)
    thread.start()
    with pytest.raises(Interrupted):
        run(configured(tmp_path / "cut", *more))
    thread.join(timeout=60)
    assert 3 <= len(metrics(tmp_path / "cut")) < 12
    run(configured(tmp_path / "cut", *more))
    assert metrics(tmp_path / "cut").equals(metrics(tmp_path / "whole"))


def test_settings(tmp_path):
    """Off, it is no part of a run's name; on, it is; nonsense is refused."""
    plain = configured(tmp_path)
    assert "reference" not in relevant(plain)
    assert fingerprint(plain) != fingerprint(configured(tmp_path, "reference=centralized"))
    for key, wrong in (("reference", "federated"), ("reference_rounds", 0)):
        with pytest.raises(ConfigError, match=f"{key}={wrong}: must be"):
            check(configured(tmp_path, "reference=centralized", f"{key}={wrong}"))
    with pytest.raises(ConfigError, match=r"reference_rounds=1: there is no reference to stop"):
        check(configured(tmp_path, "reference_rounds=1"))
