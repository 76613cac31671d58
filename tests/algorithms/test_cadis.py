"""CADIS: similarities, estimates, clusters and weights by hand; the distillation; the neutral setting; the rest."""

import math

import pytest
import torch
import torch.nn.functional as F
from worlds import assert_mechanisms_agree, assert_resumes, gap, make_engine, make_model, make_world, play

from fedexp.algorithms.cadis import Cadis, distil, label_similarity, quotients
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Batch, Local, Sent, Trained
from fedexp.engine.client import OneClient
from fedexp.errors import ConfigError
from fedexp.measure.communication import traffic
from fedexp.models.layers import training
from fedexp.randomness import generator

LOCAL = Local(epochs=1, batch_size=8, lr=0.1)
KERNELS = ["centred", "gaussian", "cosine"]


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def fresh_state(n, round=0):
    return {
        "round": round,
        "similarity": torch.eye(n, dtype=torch.float64),
        "meetings": torch.eye(n, dtype=torch.int64),
    }


def met(n, pairs):
    """A state in which `pairs` {(i, j): similarity} have met once."""
    state = fresh_state(n)
    for (i, j), value in pairs.items():
        state["similarity"][i, j] = state["similarity"][j, i] = value
        state["meetings"][i, j] = state["meetings"][j, i] = 1
    return state


def learn(algorithm, state, ids, changes):
    """One round's learning where the head's weights changed by `changes` from ones."""
    start = {"head.weight": torch.ones(len(ids), 1, 2, dtype=torch.float64)}
    back = {"head.weight": start["head.weight"] + tensor(*changes)[:, None]}
    ones = torch.ones(len(ids))
    return algorithm.learn(state, torch.tensor(ids), Sent(start), Trained(back, ones, ones, ones), generator(0, "t"))


def test_similarity_is_the_mean_cosine_over_meetings():
    algorithm = Cadis(3, LOCAL, transitive="off")
    state = learn(algorithm, fresh_state(4), [0, 2, 3], [(3, 4), (4, 3), (-4, 3)])
    expected = tensor([1, 0, 0.96, 0], [0, 1, 0, 0], [0.96, 0, 1, -0.28], [0, 0, -0.28, 1])
    torch.testing.assert_close(state["similarity"], expected)
    assert state["meetings"][0].tolist() == [2, 0, 1, 1] and state["meetings"][1].tolist() == [0, 1, 0, 0]
    state = learn(algorithm, state, [0, 2], [(1, 0), (0, 1)])
    assert float(state["similarity"][0, 2]) == pytest.approx(0.96 / 2)
    assert float(state["similarity"][2, 3]) == pytest.approx(-0.28) and float(state["similarity"][0, 0]) == 1
    assert int(state["meetings"][0, 2]) == 2


def test_estimates_through_third_clients_by_hand():
    """0 and 1 never met; both met 2 (.999, .998) and 3 (.9, .9), the latter too blurred."""
    state = met(4, {(0, 2): 0.999, (1, 2): 0.998, (0, 3): 0.9, (1, 3): 0.9})
    deviation = math.sqrt((1 - 0.999**2) * (1 - 0.998**2)) / 3
    assert deviation < 0.0067 < 0.19 / 3
    given = state["similarity"], state["meetings"]
    similarity, meetings = Cadis(2, LOCAL, transitive="mean").infer(*given, 0.9, generator(0, "t"))
    assert float(similarity[0, 1]) == float(similarity[1, 0]) == pytest.approx(0.999 * 0.998)
    assert int(meetings[0, 1]) == 1, "an estimate counts as one meeting"
    assert int(meetings[2, 3]) == 0 and float(similarity[2, 3]) == 0, "sharp enough for no third client"
    similarity, meetings = Cadis(2, LOCAL, transitive="mean").infer(*given, 0.999, generator(0, "t"))
    assert int(meetings[0, 1]) == 0, "the published code's estimates below epsilon do not count"
    draws = [
        float(Cadis(2, LOCAL).infer(*given, 0.999, generator(seed, "t"))[0][0, 1]) for seed in range(400)
    ]  # fmt: skip
    draws = torch.tensor(draws, dtype=torch.float64)
    assert float(draws.mean()) == pytest.approx(0.999 * 0.998, abs=4 * deviation / 20)
    assert float(draws.std()) == pytest.approx(deviation, rel=0.2)


def test_an_estimate_averages_all_third_clients():
    """Through 2 and through 3; the average of two numbers drawn has the deviation sqrt(a^2 + b^2) / 2."""
    state = met(4, {(0, 2): 0.999, (1, 2): 0.998, (0, 3): 0.997, (1, 3): 0.999})
    given = state["similarity"], state["meetings"]
    similarity, _ = Cadis(2, LOCAL, transitive="mean").infer(*given, 0.5, generator(0, "t"))
    assert float(similarity[0, 1]) == pytest.approx((0.999 * 0.998 + 0.997 * 0.999) / 2)
    a = math.sqrt((1 - 0.999**2) * (1 - 0.998**2)) / 3
    b = math.sqrt((1 - 0.997**2) * (1 - 0.999**2)) / 3
    drawn = [float(Cadis(2, LOCAL).infer(*given, 0.5, generator(seed, "t"))[0][0, 1]) for seed in range(400)]
    assert float(torch.tensor(drawn).std()) == pytest.approx(math.hypot(a, b) / 2, rel=0.2)


def test_known_pairs_are_never_replaced_by_estimates():
    state = met(3, {(0, 1): 0.2, (0, 2): 0.999, (1, 2): 0.999})
    similarity, meetings = Cadis(2, LOCAL).infer(state["similarity"], state["meetings"], 0.9, generator(0, "t"))
    assert torch.equal(similarity, state["similarity"]) and torch.equal(meetings, state["meetings"])


def test_q_matrix_by_hand():
    state = met(4, {(0, 1): 0.8, (0, 2): 0.6, (1, 2): -0.9})
    expected = tensor([1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1])
    torch.testing.assert_close(quotients(state["similarity"], state["meetings"]), expected)


def test_epsilon_rises_and_stays_at_its_largest():
    algorithm = Cadis(2, LOCAL, epsilon=0.9)
    epsilon = 0.9
    for round in range(30):
        assert algorithm.threshold(round) == pytest.approx(epsilon)
        epsilon = min(epsilon * 1.0005**round, 0.985)
    assert algorithm.threshold(19) < 0.985 == algorithm.threshold(20)
    assert Cadis(2, LOCAL).threshold(6) < 0.985 == Cadis(2, LOCAL).threshold(7)
    assert Cadis(2, LOCAL, epsilon_growth=2.0).threshold(10**6) == 0.985
    assert Cadis(2, LOCAL, epsilon=0).threshold(10**6) == 0


def test_a_round_clusters_with_the_epsilon_of_that_round():
    """Epsilon is 0.9, 0.9, 0.99 in the first three; clients 0 and 1 have Q = 0.94."""
    algorithm = Cadis(2, LOCAL, epsilon=0.9, epsilon_growth=1.1, epsilon_largest=1.0)
    known = met(3, {(0, 1): 0.94, (0, 2): 1e-12})  # the least similarity is next to 0: Q is the similarity
    for round, clusters in enumerate([1, 1, 2]):
        found, _ = algorithm.cluster({**known, "round": round}, torch.tensor([0, 1]), torch.ones(2))
        assert found == clusters


def test_weights_of_two_known_clusters_are_the_closed_form():
    """Clients 0, 1, 2 and 3, 4; all but client 2 take part: weights n / 2 in both clusters."""
    pairs = {(0, 1): 1.0, (0, 2): 1.0, (1, 2): 1.0, (3, 4): 1.0}
    state = met(5, pairs | {(i, j): 0.1 for i in (0, 1, 2) for j in (3, 4)})
    ids, sizes = torch.tensor([0, 1, 3, 4]), torch.tensor([10, 20, 30, 40])
    clusters, weights = Cadis(4, LOCAL).cluster(state, ids, sizes)
    assert clusters == 2 and weights.tolist() == [5, 10, 15, 20]
    _, weights = Cadis(4, LOCAL, cluster_size="all").cluster(state, ids, sizes)
    assert weights.tolist() == pytest.approx([10 / 3, 20 / 3, 15, 20])
    _, weights = Cadis(4, LOCAL, weights="clusters").cluster(state, ids, sizes)
    assert weights.tolist() == [0.5] * 4
    clusters, weights = Cadis(3, LOCAL).cluster(state, torch.tensor([0, 1, 3]), torch.tensor([10, 20, 30]))
    assert clusters == 2 and weights.tolist() == [5, 10, 30]


def test_clients_that_share_a_similar_client_are_one_cluster():
    """0 and 2 never met, but both are similar to 1; 3 is not."""
    state = met(4, {(0, 1): 1.0, (1, 2): 1.0, (1, 3): 0.5})
    clusters, weights = Cadis(4, LOCAL).cluster(state, torch.arange(4), torch.ones(4))
    assert clusters == 2 and weights.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1])


def test_merge_uses_the_weights():
    """A round in a world of two clusters whose similarities are known beforehand."""
    world = make_world([16, 8, 24])
    model = make_model("cnn", world)
    algorithm = Cadis(3, Local(epochs=1, batch_size=8, lr=1e-3), distillation=0, transitive="off")
    engine = make_engine(model, world, algorithm.local)
    known = met(3, {(0, 1): 1.0, (0, 2): 0.01, (1, 2): 0.01})
    known["meetings"] *= 10**9  # a round changes next to nothing
    state = {**algorithm.init(world, model, model.params()), **known}
    state = algorithm.round(state, world, engine, generator(0, "round", 0))
    exchange = engine.drain()[0]
    weights = {0: 16 / 2, 1: 8 / 2, 2: 24 / 1}
    share = torch.tensor([weights[client] for client in exchange.ids.tolist()], dtype=torch.float64)
    expected = torch.einsum("k,k...->...", share / share.sum(), exchange.trained.params["head.weight"])
    torch.testing.assert_close(state["params"]["head.weight"], expected, rtol=0, atol=1e-15)
    assert state["clusters"] == 2
    plain = torch.einsum("k,k...->...", exchange.trained.sizes / 48, exchange.trained.params["head.weight"].float())
    assert not torch.equal(plain, state["params"]["head.weight"].float()), "FedAvg weighs them 16, 8, 24"


def features(n=8, seed=0):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kernel", KERNELS)
def test_distillation_is_zero_where_student_is_teacher_and_positive_elsewhere(kernel):
    weight = torch.ones(8, dtype=torch.float64)
    assert float(distil(kernel, features(), features(), weight)) == 0
    assert float(distil(kernel, features(), features(seed=1), weight)) > 1e-3


def test_distillation_of_three_examples_by_hand():
    """Points 0, 1, 3 on a line (teacher) and 0, 2, 3 (student): distances 1, 3, 2 and 2, 3, 1."""
    teacher, student = tensor([0], [1], [3]), tensor([0], [2], [3])
    weight = torch.ones(3, dtype=torch.float64)
    spread = 2 / 3 + 0.001  # the variance of 1, 2, 3, and the floor

    def kl(rows_p, rows_q, similar):
        total = 0.0
        for p, q in zip(rows_p, rows_q):
            p, q = [similar(d) for d in p], [similar(d) for d in q]
            total += sum(a / sum(p) * math.log(a / sum(p) / (b / sum(q))) for a, b in zip(p, q))
        return total

    rows_p, rows_q = [(1, 3), (1, 2), (3, 2)], [(2, 3), (2, 1), (3, 1)]
    centred = kl(rows_p, rows_q, lambda d: math.exp(-((d - 2) ** 2) / (2 * spread)))
    gaussian = kl(rows_p, rows_q, lambda d: math.exp(-(d**2) / (2 * spread)))
    assert float(distil("centred", teacher, student, weight)) == pytest.approx(centred)
    assert float(distil("gaussian", teacher, student, weight)) == pytest.approx(gaussian)
    teacher, student = tensor([1, 0], [0, 1], [-1, 0]), tensor([1, 0], [1, 0], [0, 1])
    rows_p, rows_q = [(0, -1), (0, 0), (-1, 0)], [(1, 0), (1, 0), (0, 0)]
    cosine = kl(rows_p, rows_q, lambda c: (c + 1) / 2 + 1e-7) / 6
    assert float(distil("cosine", teacher, student, weight)) == pytest.approx(cosine, rel=1e-4)


def test_loss_by_hand():
    """Cross-entropy, and lambda times the distillation from what was sent, which evaluates, to what trains."""
    world = make_world()
    model = make_model("norm", world)
    algorithm = Cadis(2, LOCAL, distillation=0.3)
    start = model.params()
    params = {name: value + 0.1 * torch.rand_like(value) for name, value in start.items()}
    rows, key = world.of(1)[:8], torch.tensor(99)
    batch = Batch(world.prepare(rows), world.y[rows], torch.ones(8, dtype=torch.float64), key)
    with training(None, key):
        loss = algorithm.loss(model, params, batch, OneClient(start, {}, {}))
    with training(None, key):
        student = model.encode(params, batch.x)
    teacher = model.encode(start, batch.x, training=False)
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
@pytest.mark.parametrize("case", ["equal to the teacher", "all alike", "two alike", "all zero", "one example"])
def test_distillation_has_finite_gradients(kernel, case):
    student, teacher = features(seed=1), features()
    if case == "equal to the teacher":
        teacher = student.clone()
    elif case == "two alike":
        student[1] = student[0]
    elif case == "one example":
        student, teacher = student[:1], teacher[:1]
    elif case != "one example":
        student = torch.zeros_like(student) if case == "all zero" else student[:1].expand(8, 5).clone()
    student.requires_grad_()
    loss = distil(kernel, teacher, student, torch.ones(len(student), dtype=torch.float64))
    (slope,) = torch.autograd.grad(loss, student)
    assert torch.isfinite(loss) and torch.isfinite(slope).all()
    if case in ("equal to the teacher", "one example"):
        assert slope.abs().max() < 1e-12


def test_without_distillation_and_with_one_cluster_it_is_fedavg():
    cadis = play(lambda k, local: Cadis(k, local, epsilon=0, distillation=0), "norm")
    assert cadis["clusters"] == 1
    assert gap(cadis, play(lambda k, local: FedAvg(k, local), "norm")) < 1e-6  # FedAvg's shares are single precision


def test_distillation_alone_differs_from_fedavg():
    avg = play(lambda k, local: FedAvg(k, local))
    assert gap(play(lambda k, local: Cadis(k, local, epsilon=0)), avg) > 1e-3


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
    algorithm = Cadis(4, LOCAL, epsilon=0.5, distillation=0)
    engine = make_engine(model, world, LOCAL)
    state = algorithm.init(world, model, model.params())
    errors = []
    for round in range(10):
        state = algorithm.round(state, world, engine, generator(0, "round", round))
        errors.append(algorithm.observe(state, engine)["similarity_mse"])
    q = quotients(state["similarity"], state["meetings"])
    across = torch.arange(6)[:, None] // 3 != torch.arange(6) // 3
    known = state["meetings"] > 0
    assert state["similarity"][known & ~across].min() > 0 > state["similarity"][known & across].max()
    assert (known & across).sum() > 6 and (known & ~across).sum() > 12
    assert errors[-1] < errors[0]
    by_hand = [(float(q[i, j]) - float(true[i, j])) ** 2 for i in range(6) for j in range(6) if i != j]
    assert errors[-1] == pytest.approx(sum(by_hand) / 30)
    row = algorithm.observe(state, engine)
    assert row["clusters"] == state["clusters"] and row["clustering_seconds"] > 0 and row["averaging_seconds"] > 0
    shown = algorithm.exhibits(state, engine)
    assert set(shown) == {"similarity_round0010", "similarity"}
    assert shown["similarity"].to_numpy() == pytest.approx(q.numpy(), abs=1e-6)
    assert len(shown["similarity_round0010"].axes) == 3, "two heat maps and their colour bar"


def test_sends_one_model_each_way():
    world = make_world(dtype=torch.float32)
    model = make_model("cnn", world, torch.float32)
    algorithm, engine = Cadis(3, LOCAL), make_engine(model, world, LOCAL)
    algorithm.round(algorithm.init(world, model, model.params()), world, engine, generator(0, "round", 0))
    size = 4 * sum(value.numel() for value in model.params().values())
    assert traffic(engine.drain()) == (3 * size, 3 * size)


@pytest.mark.parametrize("kind", ["cnn", "norm"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_mechanisms_agree(kind, kernel):
    assert_mechanisms_agree(lambda k, local: Cadis(k, local, epsilon=0.6, kernel=kernel), kind)


def test_resumes():
    assert_resumes(lambda k, local: Cadis(k, local, epsilon=0.6), "norm")


def test_settings_are_checked():
    changes = [{"kernel": "none"}, {"transitive": "yes"}, {"cluster_size": "k"}, {"weights": "equal"}]
    for change in [*changes, {"epsilon": 2}, {"epsilon_growth": 0.9}, {"gamma": -1}, {"distillation": -1}]:
        with pytest.raises(ConfigError, match=f"algorithm.{next(iter(change))}="):
            Cadis(2, LOCAL, **change)
