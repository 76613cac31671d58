"""Power-of-Choice: who is chosen by hand, what is asked and what it costs, neutral setting, mechanisms, resume."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from composing import composed
from program import only_folder, run
from worlds import (
    LOCAL,
    SIZES,
    assert_mechanisms_agree,
    assert_resumes,
    gap,
    make_context,
    make_model,
    make_world,
    play,
    rounds,
    start,
)

from fedexp import tree
from fedexp.algorithms.apfl import APFL
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedcat import FedCat
from fedexp.algorithms.fedper import FedPer
from fedexp.algorithms.ifca import Ifca
from fedexp.algorithms.local_only import LocalOnly
from fedexp.algorithms.scaffold import Scaffold
from fedexp.building import build_algorithm
from fedexp.engine import Pass, client_rows
from fedexp.errors import ConfigError
from fedexp.privacy.none import NoPrivacy
from fedexp.selection.power_of_choice import Loss, PowerOfChoice
from fedexp.selection.uniform import Uniform

POWER = FedAvg(selection=PowerOfChoice())


def context(sizes=SIZES, kind="linear", **settings):
    world = make_world(sizes)
    return make_context(make_model(kind, world), world, LOCAL, **settings)


@pytest.mark.parametrize(("cohort", "candidates"), [(2, 4), (3, 5), (5, 5)])
def test_candidates_are_twice_the_cohort_where_there_are_so_many(cohort, candidates):
    ctx = context([1] * 5, cohort=cohort)
    assert len(PowerOfChoice().select({}, ctx, torch.Generator())) == candidates


def test_candidates_and_the_chosen_by_hand():
    """p (.4, .3, .2, .1), losses (1, 4, 2, 3), d 3, K 2: of 4,000 draws within four deviations."""
    ctx, gen = context([4, 3, 2, 1], cohort=2), torch.Generator().manual_seed(0)
    selection, losses = PowerOfChoice(candidates=3), torch.tensor([1.0, 4, 2, 3])
    sets, chosen = Counter(), Counter()
    for _ in range(4000):
        ids = selection.select({}, ctx, gen)
        sets[tuple(sorted(ids.tolist()))] += 1
        chosen[tuple(sorted(ids[selection.choose(ids, {"loss": losses[ids]}, ctx)].tolist()))] += 1
    expected = {(0, 1, 2): 0.551190, (0, 1, 3): 0.241270, (0, 2, 3): 0.129762, (1, 2, 3): 0.077778}
    assert_frequencies(sets, expected)
    assert_frequencies(chosen, {(1, 2): 0.551190, (1, 3): 0.319048, (2, 3): 0.129762})


def assert_frequencies(found, expected):
    count = sum(found.values())
    assert found.keys() == expected.keys()
    for each, p in expected.items():
        assert abs(found[each] / count - p) < 4 * (p * (1 - p) / count) ** 0.5


def test_ties_go_to_the_lowest_id_and_order_stays():
    ctx, ids = context(cohort=2), torch.tensor([5, 2, 4, 0])
    chosen = PowerOfChoice().choose(ids, {"loss": torch.tensor([1.0, 1.0, 1.0, 0.5])}, ctx)
    assert ids[chosen].tolist() == [2, 4]
    chosen = PowerOfChoice().choose(ids, {"loss": torch.tensor([1.0, float("nan"), 7.0, 9.0])}, ctx)
    assert ids[chosen].tolist() == [2, 0]


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_those_with_the_largest_losses_of_the_received_model_train(kind):
    """Of all six clients, evaluated: with running statistics and without dropout."""
    ctx = context(kind=kind, cohort=2)
    algorithm = FedAvg(selection=PowerOfChoice(candidates=6))
    for done in rounds(algorithm, ctx, 3):
        losses = []
        for client in range(6):
            rows = ctx.world.of(client)
            logits = ctx.model(done.before["params"], ctx.world.prepare(rows), training=False)
            losses.append(float(F.cross_entropy(logits, ctx.world.y[rows])))
        assert sorted(done.ids.tolist()) == sorted(sorted(range(6), key=lambda k: -losses[k])[:2])


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_as_many_uniform_candidates_as_take_part_is_fedavg(kind):
    neutral = FedAvg(selection=PowerOfChoice(candidates=3, drawn="uniform"))
    assert gap(play(neutral, kind), play(FedAvg(), kind)) == 0
    assert gap(play(POWER, kind), play(FedAvg(), kind)) > 1e-3


def test_updates_count_by_examples_or_alike():
    ids = torch.tensor([1, 0])
    assert PowerOfChoice().weights(ids, context()).tolist() == [40, 5]
    assert PowerOfChoice(merge="equal").weights(ids, context()).tolist() == [1, 1]


@pytest.mark.parametrize("d", [3, 4, 6])
def test_bytes(d):
    """d models down, K up with d numbers of 8 bytes."""
    ctx = context(kind="norm")
    size = tree.size_in_bytes(ctx.model.params())
    for done in rounds(FedAvg(selection=PowerOfChoice(candidates=d)), ctx, 2):
        assert (done.bytes_up, done.bytes_down) == (3 * size + 8 * d, d * size)


def test_bytes_of_other_algorithms():
    """Candidates receive what the cohort does: SCAFFOLD's control with the model; of FedPer the body alone."""
    ctx = context(kind="cnn")
    size, body = tree.size_in_bytes(ctx.model.params()), 8 * (4 * 9 + 4)
    (done,) = rounds(Scaffold(selection=PowerOfChoice()), ctx, 1)
    assert (done.bytes_up, done.bytes_down) == (3 * 2 * size + 8 * 6, 6 * 2 * size)
    (done,) = rounds(FedPer(selection=PowerOfChoice()), ctx, 1)
    assert (done.bytes_up, done.bytes_down) == (3 * body + 8 * 6, 6 * body)


@pytest.mark.parametrize("algorithm", [Ifca(clusters=2), FedPer(), APFL()], ids=lambda each: type(each).__name__)
def test_the_loss_is_that_of_what_a_client_would_train_from(algorithm):
    """The model that suits it best, or with its own head; not the mixture that it would use."""
    ctx = context(kind="cnn", cohort=4)
    state, ids = rounds(algorithm, ctx, 1)[0].after, torch.arange(6)
    received, memory = algorithm.download(state, ids, ctx), client_rows.take(state["memory"], ids)["own"]
    found = algorithm.survey(state, ids, received, ctx, Loss(algorithm, 1, None))["loss"]
    for client in range(6):
        parts = (tree.take(each, client) for each in (received, memory))
        begun = ctx.engine.training.client(Pass(algorithm, LOCAL), 1, client, *parts).start
        params = {name: begun[name] for name in ctx.model.params()}
        rows = ctx.world.of(client)
        logits = ctx.model(params, ctx.world.prepare(rows), training=False)
        assert float(found[client]) == pytest.approx(float(F.cross_entropy(logits, ctx.world.y[rows])), rel=1e-12)


def test_on_a_batch():
    """Of eight examples, others in another round; those with fewer are asked about all."""
    ctx = context(kind="cnn")
    state, ids = start(POWER, ctx), torch.arange(6)

    def asked(number, examples):
        return POWER.survey(state, ids, POWER.download(state, ids, ctx), ctx, Loss(POWER, number, examples))["loss"]

    whole, first, again, second = asked(0, None), asked(0, 8), asked(0, 8), asked(1, 8)
    assert first.equal(again)
    fewer = torch.tensor(SIZES) <= 8
    torch.testing.assert_close(first[fewer], whole[fewer], rtol=1e-12, atol=0)
    assert ((first != whole) & (first != second))[~fewer].all()
    batches = PowerOfChoice(loss="batch").question(POWER, 2, ctx)
    assert (batches.examples, batches.round) == (LOCAL.batch_size, 2)


LAST = FedAvg(selection=PowerOfChoice(loss="last", candidates=6))


def test_by_the_last_reported_loss_by_hand():
    """Those that never answered come first, in the order in which they were drawn; then the largest loss."""
    ctx, selection = context(cohort=2), LAST.selection
    memory = selection.init(ctx, {})
    drawn = torch.multinomial(ctx.sizes.double(), 6, generator=torch.Generator().manual_seed(3))
    assert selection.select(memory, ctx, torch.Generator().manual_seed(3)).equal(drawn[:2])
    for ids, losses in (([5, 2], [0.5, 0.25]), ([0, 1], [2.0, float("nan")]), ([4, 2], [1.5, 1.0])):
        told = {"selection": {"loss": torch.tensor(losses)}}
        memory = selection.learn(memory, torch.tensor(ids), told, ctx)
    assert memory["losses"].tolist() == [2.0, torch.inf, 1.0, torch.inf, 1.5, 0.5]
    assert memory["participations"].tolist() == [1, 1, 2, 0, 1, 1]
    assert set(selection.select(memory, ctx, torch.Generator()).tolist()) == {1, 3}
    memory["losses"][[1, 3]] = 0.0
    assert selection.select(memory, ctx, torch.Generator()).tolist() == [0, 4]


def test_those_whose_last_local_loss_was_largest_train():
    """All six are candidates: after two rounds of three each has answered; then its last local loss decides."""
    done = rounds(LAST, context(kind="norm"), 5)
    assert sorted(torch.cat([done[0].ids, done[1].ids]).tolist()) == [*range(6)]
    last = torch.empty(6, dtype=torch.float64)
    for number, each in enumerate(done):
        if number >= 2:
            assert each.ids.tolist() == last.argsort(descending=True)[:3].tolist()
        last[each.ids] = each.loss


def test_bytes_by_the_last_reported_loss():
    """No candidates' models, and a number with each update."""
    ctx = context(kind="norm")
    size = tree.size_in_bytes(ctx.model.params())
    for done in rounds(LAST, ctx, 2):
        assert (done.bytes_up, done.bytes_down) == (3 * size + 3 * 8, 3 * size)


def test_how_often_clients_took_part(monkeypatch, tmp_path):
    ctx = context(cohort=2)
    done = rounds(POWER, ctx, 5)
    counts = torch.bincount(torch.cat([each.ids for each in done]), minlength=6).tolist()
    assert POWER.artifacts(done[-1].after, ctx)["participations"]["rounds"].tolist() == counts
    assert FedAvg().artifacts(rounds(FedAvg(), ctx, 1)[0].after, ctx) == {}
    assert run(monkeypatch, tmp_path, "algorithm=power_of_choice", "rounds=2") == 0
    (path,) = only_folder(tmp_path).glob("participations*.csv")
    assert sum(int(line.split(",")[1]) for line in path.read_text().splitlines()[1:]) == 8


@pytest.mark.parametrize("loss", ["all", "batch", "last"])
def test_mechanisms_agree(loss):
    algorithm = FedAvg(selection=PowerOfChoice(candidates=4, loss=loss))
    assert_mechanisms_agree(algorithm, "norm")
    assert gap(*(play(algorithm, "norm", workers=count) for count in (1, 2))) < 1e-12


def test_resumes():
    assert_resumes(FedAvg(selection=PowerOfChoice(loss="batch", candidates=5)), "norm")
    assert_resumes(LAST, "norm")


def test_what_cannot_work_is_refused():
    for d in (2, 7):
        with pytest.raises(
            ConfigError, match=rf"selection\.candidates={d}: must be from clients_per_round=3 to clients=6"
        ):
            FedAvg(selection=PowerOfChoice(candidates=d)).check(context())
    with pytest.raises(ConfigError, match=r"^selection=.*copies"):
        FedCat(grouping=False, selection=PowerOfChoice()).check(context())
    with pytest.raises(ConfigError, match=r"^selection=PowerOfChoice: .*send nothing"):
        LocalOnly(selection=PowerOfChoice()).check(context())

    class Private(NoPrivacy):
        """Any mechanism."""

    FedAvg(selection=Uniform(), privacy=Private()).check(context())
    with pytest.raises(ConfigError, match=r"^privacy=Private: .*answers to PowerOfChoice"):
        FedAvg(selection=PowerOfChoice(), privacy=Private()).check(context())

    class Reports(Uniform):
        reports_loss = True

    with pytest.raises(ConfigError, match=r"^privacy=Private: .*answers to Reports"):
        FedAvg(selection=Reports(), privacy=Private()).check(context())


def test_by_its_name():
    named = build_algorithm(composed("algorithm=power_of_choice", "selection.candidates=9"))
    assert named == FedAvg(selection=PowerOfChoice(candidates=9))
