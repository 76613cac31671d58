"""CADIS: similarities, estimates, clusters and weights by hand; the distillation; the neutral setting; the rest."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from worlds import (
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
from fedexp.algorithms import pairs
from fedexp.algorithms.cadis import Cadis, label_similarity
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.pairwise_distillation import distil
from fedexp.data import Transform
from fedexp.data.digits import digits
from fedexp.engine import Batch, Client, Local
from fedexp.errors import ConfigError
from fedexp.models import Model
from fedexp.models.layers import training
from fedexp.partition.cluster import multi_cluster
from fedexp.randomness import generator
from fedexp.selection.clusamp import CluSamp
from fedexp.world import World

ONE_EPOCH = Local(epochs=1, batch_size=8, lr=0.1)
KERNELS = ["centred", "gaussian", "cosine"]


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def fresh_state(number=0):
    known = pairs.new(similarity=torch.float64, meetings=torch.int64)
    return {"round": number, "pairs": known, "touched": torch.empty(0, dtype=torch.int64)}


def met(known):
    """A state in which these pairs {(i, j): similarity} have met once."""
    first, second = torch.tensor(sorted(known)).T
    values = torch.tensor([known[pair] for pair in sorted(known)], dtype=torch.float64)
    once = torch.ones_like(first)
    return {**fresh_state(), "pairs": {"pair": pairs.pair(first, second), "similarity": values, "meetings": once}}


def known(state, name):
    """{(i, j): value} of a state's pairs."""
    first, second = pairs.ids(state["pairs"]["pair"])
    return dict(zip(zip(first.tolist(), second.tolist()), state["pairs"][name].tolist()))


def learn(algorithm, state, ids, changes, clients=4):
    """One round's learning where the head's weights changed by `changes`."""
    return algorithm.learn(state, torch.tensor(ids), tensor(*changes)[:, None], clients, generator(0, "t"))


def infer(algorithm, state, epsilon, seed=0, clients=4):
    """The state after the estimates through all clients."""
    found, touched = algorithm.infer(state["pairs"], torch.arange(clients), clients, epsilon, generator(seed, "t"))
    return {**state, "pairs": found, "touched": touched}


def test_similarity_is_the_mean_cosine_over_meetings():
    algorithm = Cadis(transitive="off")
    state = learn(algorithm, fresh_state(), [3, 0, 2], [(-4, 3), (3, 4), (4, 3)])
    assert known(state, "similarity") == pytest.approx({(0, 2): 0.96, (0, 3): 0, (2, 3): -0.28})
    assert known(state, "meetings") == {(0, 2): 1, (0, 3): 1, (2, 3): 1}
    state = learn(algorithm, state, [0, 2], [(1, 0), (0, 1)])
    assert known(state, "similarity") == pytest.approx({(0, 2): 0.96 / 2, (0, 3): 0, (2, 3): -0.28})
    assert known(state, "meetings")[0, 2] == 2


def test_estimates_through_third_clients_by_hand():
    """0 and 1 never met; both met 2 (.999, .998) and 3 (.9, .9), the latter too blurred."""
    state = met({(0, 2): 0.999, (1, 2): 0.998, (0, 3): 0.9, (1, 3): 0.9})
    deviation = math.sqrt((1 - 0.999**2) * (1 - 0.998**2)) / 3
    assert deviation < 0.0067 < 0.19 / 3
    found = infer(Cadis(transitive="mean"), state, 0.9)
    assert known(found, "similarity")[0, 1] == pytest.approx(0.999 * 0.998)
    assert known(found, "meetings")[0, 1] == 1, "an estimate counts as one meeting"
    assert found["touched"].tolist() == [0, 1]
    assert (2, 3) not in known(found, "similarity"), "sharp enough for no third client"
    found = infer(Cadis(transitive="mean"), state, 0.999)
    assert (0, 1) not in known(found, "similarity"), "the published code's estimates below epsilon do not count"
    draws = [known(infer(Cadis(), state, 0.999, seed), "similarity")[0, 1] for seed in range(400)]
    draws = torch.tensor(draws, dtype=torch.float64)
    assert float(draws.mean()) == pytest.approx(0.999 * 0.998, abs=4 * deviation / 20)
    assert float(draws.std()) == pytest.approx(deviation, rel=0.2)


def test_an_estimate_averages_all_third_clients():
    """Through 2 and through 3; the average of two numbers drawn has the deviation sqrt(a^2 + b^2) / 2."""
    state = met({(0, 2): 0.999, (1, 2): 0.998, (0, 3): 0.997, (1, 3): 0.999})
    found = known(infer(Cadis(transitive="mean"), state, 0.5), "similarity")
    assert found[0, 1] == pytest.approx((0.999 * 0.998 + 0.997 * 0.999) / 2)
    a = math.sqrt((1 - 0.999**2) * (1 - 0.998**2)) / 3
    b = math.sqrt((1 - 0.997**2) * (1 - 0.999**2)) / 3
    drawn = [known(infer(Cadis(), state, 0.5, seed), "similarity")[0, 1] for seed in range(400)]
    assert float(torch.tensor(drawn).std()) == pytest.approx(math.hypot(a, b) / 2, rel=0.2)


def test_drawn_estimates_stay_cosines():
    """The bounds are three standard deviations away, and thousands of pairs are estimated, half of each sign."""
    state = met({(0, other): 0.999 * (-1) ** other for other in range(1, 161)})
    found = known(infer(Cadis(), state, 0.999, clients=161), "similarity")
    assert len(found) == 161 * 160 // 2
    assert (min(found.values()), max(found.values())) == (-1, 1)


def test_known_pairs_are_never_replaced_by_estimates():
    given = {(0, 1): 0.2, (0, 2): 0.999, (1, 2): 0.999, (2, 3): 0.5}
    found = infer(Cadis(), met(given), 0.9)
    assert known(found, "similarity") == given
    assert known(found, "meetings") == dict.fromkeys(given, 1)


@pytest.mark.parametrize("transitive", ["draw", "mean"])
def test_asking_only_clients_that_have_something_new_to_say_leaves_nothing_out(transitive):
    """Ten rounds, and the same with all clients asked every time."""
    algorithm, gen = Cadis(transitive=transitive, gamma=0.3, epsilon=0.1), torch.Generator().manual_seed(5)
    state = every = fresh_state()
    met_by_now = 0
    for number in range(10):
        ids = torch.randperm(20, generator=gen)[:4]
        change = 1 + torch.randn(4, 1, 5, generator=gen, dtype=torch.float64)
        every = {**every, "touched": torch.arange(20)}
        state, every = (
            algorithm.learn({**each, "round": number}, ids, change, 20, generator(number, "t"))
            for each in (state, every)
        )
        met_by_now += 6
    assert known(state, "similarity") == known(every, "similarity")
    assert len(known(state, "similarity")) > met_by_now


def test_a_million_clients_cost_what_those_that_met_cost():
    algorithm, state, gen = Cadis(gamma=1.0), fresh_state(), torch.Generator().manual_seed(5)
    for number, ids in enumerate([[7, 999_999, 500_000], [7, 12, 3]]):
        change = torch.randn(3, 1, 5, generator=gen, dtype=torch.float64)
        state = learn(algorithm, {**state, "round": number}, ids, change[:, 0].tolist(), clients=10**6)
        algorithm.cluster(state, torch.tensor(ids), torch.ones(3), 10**6)
    assert len(state["pairs"]["pair"]) == 6 + 4, "pairs that met, and those that met client 7 at different times"
    assert tree.size_in_bytes(state["pairs"]) == 10 * 24


def test_more_pairs_than_there_is_room_for_are_refused():
    world = make_world([2] * 10_001)
    model = make_model("linear", world)
    for cohort, count, transitive in [(100, 90, "draw"), (4, 10_000, "off"), (2000, 20, "off")]:
        Cadis(transitive=transitive).check(make_context(model, world, cohort=cohort, rounds=count))
    for cohort, count, transitive in [(100, 101, "draw"), (4, 2501, "mean"), (2000, 26, "off")]:
        with pytest.raises(ConfigError, match=r"clients=10001: .* up to 5.,...,... pairs, and has room for 50,000,000"):
            Cadis(transitive=transitive).check(make_context(model, world, cohort=cohort, rounds=count))


def test_q_matrix_by_hand():
    """Similarities .8, .6, -.9 and 0: over all, (s + .9) / 1.9; over positive ones, (s - .6) / .4, else 0.

    Client 3 met client 2 alone.
    """
    state = met({(0, 1): 0.8, (0, 2): 0.6, (1, 2): -0.9, (2, 3): 0.0})
    a, b, c = 17 / 19, 15 / 19, 9 / 19
    expected = tensor([1, a, b, 0], [a, 1, 0, 0], [b, 0, 1, c], [0, 0, c, 1])
    torch.testing.assert_close(Cadis().quotients(state, 4), expected)
    expected = tensor([1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1])
    torch.testing.assert_close(Cadis(rescaling="positive").quotients(state, 4), expected)


@pytest.mark.parametrize("rescaling", ["all", "positive"])
def test_q_matrix_without_a_span_or_with_a_diverged_model(rescaling):
    algorithm = Cadis(rescaling=rescaling)
    expected = tensor([1, 1, 0], [1, 1, 0], [0, 0, 1])
    torch.testing.assert_close(algorithm.quotients(met({(0, 1): 1.0}), 3), expected)
    state = met({(0, 1): 0.8, (0, 2): math.nan, (1, 2): 0.6})
    expected = tensor([1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1])
    torch.testing.assert_close(algorithm.quotients(state, 4), expected)


def test_epsilon_rises_and_stays_at_its_largest():
    algorithm = Cadis(epsilon=0.9)
    epsilon = 0.9
    for number in range(30):
        assert algorithm.threshold(number) == pytest.approx(epsilon)
        epsilon = min(epsilon * 1.0005**number, 0.985)
    assert algorithm.threshold(19) < 0.985 == algorithm.threshold(20)
    assert Cadis().threshold(6) < 0.985 == Cadis().threshold(7)
    assert Cadis(epsilon_growth=2.0).threshold(10**6) == 0.985
    assert Cadis(epsilon=0).threshold(10**6) == 0


def test_a_round_clusters_with_the_epsilon_of_that_round():
    """Epsilon is 0.9, 0.9, 0.99 in the first three; clients 0 and 1 have Q = 0.94."""
    algorithm = Cadis(epsilon=0.9, epsilon_growth=1.1, epsilon_largest=1.0)
    state = met({(0, 1): 0.94, (0, 2): 0.0})  # the least similarity is 0: Q is the similarity
    for number, clusters in enumerate([1, 1, 2]):
        found, _ = algorithm.cluster({**state, "round": number}, torch.tensor([0, 1]), torch.ones(2), 3)
        assert found == clusters


def test_weights_of_two_known_clusters_are_the_closed_form():
    """Clients 0, 1, 2 and 3, 4; all but client 2 take part: weights n / 2 in both clusters."""
    similar = {(0, 1): 1.0, (0, 2): 1.0, (1, 2): 1.0, (3, 4): 1.0}
    state = met(similar | {(i, j): 0.1 for i in (0, 1, 2) for j in (3, 4)})
    ids, sizes = torch.tensor([0, 1, 3, 4]), torch.tensor([10, 20, 30, 40])
    clusters, weights = Cadis().cluster(state, ids, sizes, 5)
    assert clusters == 2 and weights.tolist() == [5, 10, 15, 20]
    _, weights = Cadis(cluster_size="all").cluster(state, ids, sizes, 5)
    assert weights.tolist() == pytest.approx([10 / 3, 20 / 3, 15, 20])
    _, weights = Cadis(weights="clusters").cluster(state, ids, sizes, 5)
    assert weights.tolist() == [0.5] * 4
    clusters, weights = Cadis().cluster(state, torch.tensor([0, 1, 3]), torch.tensor([10, 20, 30]), 5)
    assert clusters == 2 and weights.tolist() == [5, 10, 30]


def test_epsilon_0_makes_one_cluster_of_all_and_epsilon_1_asks_for_equal_directions():
    """Client 3 has met nobody."""
    state = met({(0, 1): 1.0, (0, 2): 0.6})
    ids, sizes = torch.tensor([0, 1, 3]), torch.tensor([10, 20, 30])
    for counted, members in (("participants", 3), ("all", 5)):
        found, weights = Cadis(epsilon=0, cluster_size=counted).cluster(state, ids, sizes, 5)
        assert found == 1 and weights.tolist() == [10 / members, 20 / members, 30 / members]
    found, weights = Cadis(epsilon=1, epsilon_largest=1).cluster(state, torch.tensor([0, 1, 2]), sizes, 5)
    assert found == 2 and weights.tolist() == [5, 10, 30]


def test_clients_that_share_a_similar_client_are_one_cluster():
    """0 and 2 never met, but both are similar to 1; 3 is not."""
    state = met({(0, 1): 1.0, (1, 2): 1.0, (1, 3): 0.5})
    clusters, weights = Cadis().cluster(state, torch.arange(4), torch.ones(4), 4)
    assert clusters == 2 and weights.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1])


def test_without_the_closure_a_client_counts_those_similar_to_itself():
    """As above, where 0 is similar to 0, 1; 1 to 0, 1, 2; 2 to 1, 2; and, of participants 0 and 2, each to itself."""
    state = met({(0, 1): 1.0, (1, 2): 1.0, (1, 3): 0.5})
    algorithm, sizes = Cadis(closure=False), torch.tensor([10, 20, 30, 40])
    clusters, weights = algorithm.cluster(state, torch.arange(4), sizes, 4)
    assert clusters == 2 and weights.tolist() == pytest.approx([10 / 2, 20 / 3, 30 / 2, 40])
    apart = torch.tensor([0, 2])
    clusters, weights = algorithm.cluster(state, apart, sizes[apart], 4)
    assert clusters == 2 and weights.tolist() == [10, 30]
    clusters, weights = Cadis().cluster(state, apart, sizes[apart], 4)
    assert clusters == 1 and weights.tolist() == [5, 15]


def test_merge_uses_the_weights():
    """A round in a world of two clusters whose similarities are known beforehand."""
    world = make_world([16, 8, 24])
    ctx = make_context(make_model("cnn", world), world, Local(epochs=1, batch_size=8, lr=1e-3))
    algorithm = Cadis(distillation=0, transitive="off")
    learnt = met({(0, 1): 1.0, (0, 2): 0.01, (1, 2): 0.01})
    learnt["pairs"]["meetings"] *= 10**9  # a round changes next to nothing
    (only,) = rounds(algorithm, ctx, 1, {**start(algorithm, ctx), **learnt})
    weights = {0: 16 / 2, 1: 8 / 2, 2: 24 / 1}
    share = torch.tensor([weights[client] for client in only.ids.tolist()], dtype=torch.float64)
    models, found = only.models["head.weight"], only.after["params"]["head.weight"]
    expected = torch.einsum("k,k...->...", share / share.sum(), models)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)
    assert only.after["clusters"] == 2
    plain = torch.einsum("k,k...->...", ctx.sizes[only.ids] / 48, models.float())
    assert not torch.equal(plain, found.float()), "FedAvg weighs them 16, 8, 24"


def features(n=8, seed=0):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kernel", KERNELS)
def test_distillation_is_zero_where_student_is_teacher_and_positive_elsewhere(kernel):
    weight = torch.ones(8, dtype=torch.float64)
    assert float(distil(kernel, features(), features(), weight)) == 0
    assert float(distil(kernel, features(), features(seed=1), weight)) > 1e-3


def test_distillation_of_three_examples_by_hand():
    """Points 0, 1, 3 on a line (teacher) and 0, 2, 3 (student): distances 1, 3, 2 and 2, 3, 1.

    A batch has six ordered pairs, each distance twice: mean 2, squared deviations 4 in all, variance 4 / (6 - 1).
    """
    teacher, student = tensor([0], [1], [3]), tensor([0], [2], [3])
    weight = torch.ones(3, dtype=torch.float64)

    def kl(rows_p, rows_q, similar):
        total = 0.0
        for p, q in zip(rows_p, rows_q):
            p, q = [similar(d) for d in p], [similar(d) for d in q]
            total += sum(a / sum(p) * math.log(a / sum(p) / (b / sum(q))) for a, b in zip(p, q))
        return total

    rows_p, rows_q = [(1, 3), (1, 2), (3, 2)], [(2, 3), (2, 1), (3, 1)]
    centred = kl(rows_p, rows_q, lambda d: math.exp(-((d - 2) ** 2) / (2 * (0.8 + 0.001))))
    gaussian = kl(rows_p, rows_q, lambda d: math.exp(-(d**2) / (2 * 0.8)))
    assert float(distil("centred", teacher, student, weight)) == pytest.approx(centred)
    assert float(distil("gaussian", teacher, student, weight)) == pytest.approx(gaussian)
    teacher, student = tensor([1, 0], [0, 1], [-1, 0]), tensor([1, 0], [1, 0], [0, 1])
    rows_p, rows_q = [(0, -1), (0, 0), (-1, 0)], [(1, 0), (1, 0), (0, 0)]
    cosine = kl(rows_p, rows_q, lambda c: (c + 1) / 2 + 1e-7) / 6
    assert float(distil("cosine", teacher, student, weight)) == pytest.approx(cosine, rel=1e-4)


def test_loss_by_hand():
    """Cross-entropy, and lambda times the distillation from the start, which evaluates, to what trains."""
    world = make_world()
    model = make_model("norm", world)
    received = model.params()
    params = {name: value + 0.1 * torch.rand_like(value) for name, value in received.items()}
    rows, key, number = world.of(1)[:8], torch.tensor(99), torch.tensor(0)
    batch = Batch(world.prepare(rows), world.y[rows], torch.full((8,), 1 / 8, dtype=torch.float64), key)
    client = Client({"model": received}, {}, {}, received, *[number] * 6)
    with training(None, key):
        loss = Cadis(distillation=0.3).loss(model, params, batch, client)
    with training(None, key):
        student = model.encode(params, batch.x)
    teacher = model.encode(received, batch.x, training=False)
    assert not torch.allclose(teacher, student)
    expected = F.cross_entropy(model.head(params, student), batch.y)
    expected = expected + 0.3 * distil("centred", teacher, student, batch.weight)
    assert float(loss) == pytest.approx(float(expected))


@pytest.mark.parametrize("kernel", KERNELS)
def test_distillation_leaves_padding_out(kernel):
    weight = torch.tensor([1.0] * 5 + [0.0] * 3, dtype=torch.float64)
    padded = distil(kernel, features(), features(seed=1), weight)
    short = distil(kernel, features()[:5], features(seed=1)[:5], weight[:5])
    assert float(padded) == pytest.approx(float(short), rel=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "case", ["equal to the teacher", "all alike", "two alike", "all zero", "equidistant", "one example"]
)
def test_distillation_has_finite_gradients(kernel, case):
    student, teacher = features(seed=1), features()
    if case == "equal to the teacher":
        teacher = student.clone()
    elif case == "two alike":
        student[1] = student[0]
    elif case == "equidistant":  # but for the last place: the bandwidth is rounding
        student, teacher = torch.eye(8, dtype=torch.float64), teacher[:, [0] * 8]
        student[0, 0] += 1e-15
    elif case == "one example":
        student, teacher = student[:1], teacher[:1]
    elif case != "one example":
        student = torch.zeros_like(student) if case == "all zero" else student[:1].expand(8, 5).clone()
    student.requires_grad_()
    loss = distil(kernel, teacher, student, torch.ones(len(student), dtype=torch.float64))
    (slope,) = torch.autograd.grad(loss, student)
    assert torch.isfinite(loss) and slope.abs().max() < 1e3
    if case in ("equal to the teacher", "one example"):
        assert slope.abs().max() < 1e-12


def test_without_distillation_and_with_one_cluster_it_is_fedavg():
    cadis = play(Cadis(epsilon=0, distillation=0), "norm")
    assert cadis["clusters"] == 1
    assert gap(cadis, play(FedAvg(), "norm")) < 1e-13


def test_distillation_alone_differs_from_fedavg():
    avg = play(FedAvg())
    assert gap(play(Cadis(epsilon=0)), avg) > 1e-3


def digits_in_clusters():
    """30 clients in five clusters of 9, 9, 6, 3 and 3, each with two of the ten digits."""
    data = digits(Transform())
    parts = multi_cluster(data, 30, 0, [3, 3, 2, 1, 1], mean=28, deviation=5, smallest=16, largest=40)
    sizes = torch.tensor([len(part) for part in parts])
    return World(
        data.train_x, data.train_y, data.test_x, data.test_y, torch.cat(parts), sizes, 10, data.transform, torch.float64
    )


@pytest.mark.parametrize(("rescaling", "share", "clusters"), [("all", 1.0, 5), ("positive", 0.0, 30)])
def test_clean_clusters_are_found_in_one_round_of_all_clients(rescaling, share, clusters):
    """Under CADIS's own local training and its epsilon for CIFAR-10.

    Cosines are .96 to .99 within clusters and below -.1 across. From the least of all to 1 the former come out above
    .95; from the least positive one, itself within a cluster, they are spread over [0, 1] and tell nothing.
    """
    world = digits_in_clusters()
    model, local = make_model("linear", world), Local(epochs=5, batch_size=8, lr=0.001, momentum=0.0)
    algorithm, ctx = Cadis(epsilon=0.95, rescaling=rescaling), make_context(model, world, local, cohort=30)
    state = rounds(algorithm, ctx, 1)[-1].after
    within = (label_similarity(world) > 0.5).fill_diagonal_(False)
    assert int(within.sum()) == 2 * (36 + 36 + 15 + 3 + 3)
    similarity = pairs.matrix(state["pairs"]["pair"], state["pairs"]["similarity"], 30).toarray()
    similarity = torch.from_numpy(similarity).fill_diagonal_(1)
    similar = algorithm.quotients(state, 30) >= 0.95
    assert similarity[within].min() > 0.95 and similarity[~within & (similarity < 1)].max() < -0.1
    assert similar[within].double().mean() == share
    assert int(similar.sum()) == 30 + share * int(within.sum()), "no pair across clusters"
    assert algorithm.metrics(state, ctx)["clusters"] == clusters


def test_similarity_finds_the_clusters_of_a_world_and_is_shown():
    """Clients 0-2 hold classes 0 and 1, clients 3-5 classes 2 and 3: the similarities tell them apart."""
    world = make_world([24] * 6)
    order = torch.cat([torch.nonzero(world.y < 2), torch.nonzero(world.y >= 2)]).squeeze(1)
    low = int((world.y < 2).sum())
    each = min(low, len(order) - low) // 3
    rows = torch.cat([order[: 3 * each], order[low : low + 3 * each]])
    world = type(world)(
        world.x, world.y, world.test_x, world.test_y, rows, torch.full((6,), each), 4, world.transform, world.dtype
    )
    true = label_similarity(world)
    assert true[:3, :3].min() > 0.7 and true[:3, 3:].max() < 1e-9
    model = make_model("cnn", world)
    algorithm, ctx = Cadis(epsilon=0.5, distillation=0), make_context(model, world, ONE_EPOCH, cohort=4)
    done = rounds(algorithm, ctx, 10)
    state, errors = done[-1].after, [algorithm.metrics(each.after, ctx)["similarity_mse"] for each in done]
    q = algorithm.quotients(state, 6)
    across = torch.arange(6)[:, None] // 3 != torch.arange(6) // 3
    crossing = {pair: similarity for pair, similarity in known(state, "similarity").items() if across[pair]}
    within = {pair: similarity for pair, similarity in known(state, "similarity").items() if not across[pair]}
    assert min(within.values()) > 0 > max(crossing.values())
    assert len(crossing) > 3 and len(within) > 3
    assert errors[-1] < errors[0]
    by_hand = [(float(q[i, j]) - float(true[i, j])) ** 2 for i in range(6) for j in range(6) if i != j]
    assert errors[-1] == pytest.approx(sum(by_hand) / 30)
    row = algorithm.metrics(state, ctx)
    assert row["clusters"] == state["clusters"] and row["clustering_seconds"] > 0 and row["averaging_seconds"] > 0
    shown = algorithm.artifacts(state, ctx)
    assert set(shown) == {"similarity_round0010", "similarity"}
    assert shown["similarity"].to_numpy() == pytest.approx(q.numpy(), abs=1e-6)
    assert len(shown["similarity_round0010"].axes) == 3, "two heat maps and their colour bar"


def test_bytes_are_fedavgs():
    world = make_world(dtype=torch.float32)
    model = make_model("cnn", world, torch.float32)
    (only,) = rounds(Cadis(), make_context(model, world, ONE_EPOCH, precision="float32"), 1)
    size = 4 * sum(value.numel() for value in model.params().values())
    assert (only.bytes_up, only.bytes_down) == (3 * size, 3 * size)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_mechanisms_agree(kind, kernel):
    assert_mechanisms_agree(Cadis(epsilon=0.6, kernel=kernel), kind)


def test_two_workers_are_one():
    assert gap(*(play(Cadis(epsilon=0.6), "norm", workers=count) for count in (1, 2))) < 1e-12


def test_resumes():
    assert_resumes(Cadis(epsilon=0.6), "norm")


def test_settings_are_checked():
    changes = [{"epsilon": 2}, {"epsilon_growth": 0.9}, {"gamma": -1}, {"distillation": -1}, {"epsilon_largest": 0.9}]
    changes += [{name: "k"} for name in ("kernel", "transitive", "cluster_size", "weights", "rescaling")]
    for change in changes:
        with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(change))}="):
            Cadis(**change)


def test_a_selection_with_weights_of_its_own_is_refused():
    world = make_world()
    ctx = make_context(make_model("linear", world), world)
    with pytest.raises(ConfigError, match=r"selection=CluSamp: .*use selection=uniform or full"):
        Cadis(selection=CluSamp()).check(ctx)


def test_a_model_without_a_head_is_refused():
    world = make_world()
    model = Model(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)).double())
    with pytest.raises(ConfigError, match="model=Sequential"):
        Cadis().check(make_context(model, world))
