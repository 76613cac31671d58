"""FedGen: the generator's size and losses by hand, what it learns, neutral setting, bytes, mechanisms, resume."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
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
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.fedgen import FedGen
from fedexp.engine import Batch, Local, Pass, client_rows
from fedexp.errors import ConfigError
from fedexp.models import Model
from fedexp.models.layers import training
from fedexp.models.mcmahan import mcmahan_cnn
from fedexp.models.simple import simple_cnn
from fedexp.models.tf_tutorial import tf_cnn
from fedexp.randomness import generator
from fedexp.selection.uniform import Uniform

ONE_EPOCH = Local(epochs=1, batch_size=8, lr=0.1)
SMALL = {"noise": 5, "hidden": 12, "server_batch": 16, "server_steps": 4, "client_batch": 6, "task_batch": 8}


def make(kind=FedGen, **change):
    return kind(**{**SMALL, **change})


def context(model, world, **settings):
    return make_context(model, world, ONE_EPOCH, **settings)


@pytest.mark.parametrize(
    "net, noise, hidden, size",
    [
        (lambda: mcmahan_cnn((1, 28, 28), 10), 100, 512, 320_512),
        (lambda: tf_cnn((3, 24, 24), 10), 100, 512, 156_352),
        (lambda: simple_cnn((3, 32, 32), 10), 100, 512, 100_948),
    ],
)
def test_generator_has_the_published_sizes(net, noise, hidden, size):
    """Its last layer is as wide as the task model's features; running statistics come on top."""
    model = Model(net())
    algorithm = FedGen(noise=noise, hidden=hidden, task_batch=8)
    made = algorithm.init(context(model, make_world()), model.params())["generator"]
    statistics = [name for name in made if "running" in name]
    assert sum(value.numel() for name, value in made.items() if name not in statistics) == size
    assert sum(made[name].numel() for name in statistics) == 2 * hidden


def prepared(algorithm, kind="cnn", count=1, cohort=3):
    """(context, State after so many rounds)."""
    world = make_world()
    ctx = context(make_model(kind, world), world, cohort=cohort)
    return ctx, rounds(algorithm, ctx, count)[-1].after


def test_teaching_loss_by_hand():
    """Two heads, two labels, a batch of two; every mean and share written out."""
    algorithm = make(diversity=0.5)
    ctx, state = prepared(algorithm)
    draw = torch.Generator().manual_seed(5)
    noise, y = torch.rand(2, 5, generator=draw, dtype=torch.float64), torch.tensor([2, 0])
    heads = {"head.weight": torch.randn(2, 4, 36, generator=draw, dtype=torch.float64)}
    heads["head.bias"] = torch.randn(2, 4, generator=draw, dtype=torch.float64)
    counts = torch.tensor([[3, 0, 1, 0], [1, 5, 7, 0]], dtype=torch.float64)
    loss = algorithm.teaching_loss(ctx.model, state["generator"], heads, counts, noise, y)
    g = state["generator"]
    made = []
    for row in range(2):
        asked = torch.cat([noise[row], F.one_hot(y[row], 4).double()])
        inner = g["0.weight"] @ asked + g["0.bias"]
        inner = (inner - g["1.running_mean"]) / (g["1.running_var"] + 1e-5).sqrt() * g["1.weight"] + g["1.bias"]
        made.append(g["3.weight"] @ inner.clamp_min(0) + g["3.bias"])
    share = {0: {0: 3 / 4, 2: 1 / 8}, 1: {0: 1 / 4, 2: 7 / 8}}
    expected = 0.0
    for k in range(2):
        terms = []
        for z, label in zip(made, y.tolist()):
            logits = heads["head.weight"][k] @ z + heads["head.bias"][k]
            terms.append(share[k][label] * float(logits.logsumexp(0) - logits[label]))
        expected += sum(terms) / 2
    e_gap = float((noise[0] - noise[1]).square().mean())
    z_gap = float((made[0] - made[1]).abs().mean())
    expected += 0.5 * math.exp(-2 * e_gap * z_gap / 4)
    assert float(loss) == pytest.approx(expected)


def client_loss(**settings):
    """One batch's loss in round 3, the labels and features that the generator made for it, batch, weights and model."""
    drawn = []

    class Watched(FedGen):
        def _draw(self, model, generator, labels, key, stream):
            drawn.append((labels, super()._draw(model, generator, labels, key, stream)))
            return drawn[-1][1]

    algorithm = make(Watched, **settings)
    ctx, state = prepared(algorithm, count=2)
    drawn.clear()
    ids, world, model = torch.tensor([1]), ctx.world, ctx.model
    received = algorithm.download(state, ids, ctx), client_rows.take(state["memory"], ids)["own"]
    client = ctx.engine.training.client(Pass(algorithm, ctx.local), 2, 1, *(tree.take(part, 0) for part in received))
    rows = world.of(1)[:8]
    share = torch.full((8,), 1 / 8, dtype=torch.float64)
    batch = Batch(world.prepare(rows), world.y[rows], share, torch.tensor(1234))
    loss = algorithm.loss(model, client.start, batch, client)
    return loss, drawn, batch, client.start, model


def test_client_loss_by_hand():
    """Cross-entropy, ratio alpha times that of asked labels, beta times KL to the head's view of generated features."""
    loss, drawn, batch, params, model = client_loss(alpha=0.7, beta=0.4, decay=0.9)
    (labels_y, for_y), (asked, for_asked) = drawn
    assert torch.equal(labels_y, batch.y) and len(asked) == 6 and asked.min() >= 0 and asked.max() < 4
    logits = model(params, batch.x, training=False)
    head = params["head.weight"], params["head.bias"]
    p = F.linear(for_y, *head).softmax(1)
    kl = (p * (p / logits.softmax(1)).log()).sum(1).mean()
    expected = F.cross_entropy(logits, batch.y) + 0.4 * 0.9**2 * kl
    expected += 6 / 8 * 0.7 * 0.9**2 * F.cross_entropy(F.linear(for_asked, *head), asked)
    assert float(loss) == pytest.approx(float(expected))


def test_all_labels_are_asked_for_equally_often():
    _, (_, (asked, _)), *_ = client_loss(client_batch=4000)
    assert asked.bincount(minlength=4).tolist() == pytest.approx([1000] * 4, abs=140)  # five standard deviations


def test_every_step_has_noise_of_its_own_and_a_shorter_batch_the_same_for_its_examples():
    algorithm = make()
    ctx, state = prepared(algorithm)
    model, y = ctx.model, torch.tensor([0, 1, 2, 3])
    first = algorithm._draw(model, state["generator"], y, torch.tensor(7), 1000)
    shorter = algorithm._draw(model, state["generator"], y[:2], torch.tensor(7), 1000)
    torch.testing.assert_close(shorter, first[:2])
    assert not torch.allclose(algorithm._draw(model, state["generator"], y, torch.tensor(8), 1000), first)
    assert not torch.allclose(algorithm._draw(model, state["generator"], y, torch.tensor(7), 1001), first)


def test_generator_learns_what_the_heads_know():
    """After some rounds the global head classifies generated features as asked far better than chance."""
    algorithm = make(server_steps=60, server_lr=0.01, server_lr_decay=1.0)
    ctx, state = prepared(algorithm, count=4, cohort=6)
    y = torch.arange(4).repeat(25)
    features = algorithm._draw(ctx.model, state["generator"], y, torch.tensor(1), 1000)
    hits = (ctx.model.head(state["params"], features).argmax(1) == y).double().mean()
    assert hits > 0.9
    assert state["generator_steps"] == 240


def watched(asked):
    """FedGen that notes what the generator was asked: (noise, labels) of every step."""

    class Watched(FedGen):
        def teaching_loss(self, model, generator, heads, counts, noise, y):
            asked.append((noise, y))
            return super().teaching_loss(model, generator, heads, counts, noise, y)

    return Watched


def two_heads():
    weight = torch.randn(2, 4, 36, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return {"head.weight": weight, "head.bias": torch.zeros(2, 4, dtype=torch.float64)}


def test_the_server_s_steps_are_adam_s_with_persistent_moments_and_a_falling_rate():
    """Two rounds of two steps beside PyTorch's Adam on the same losses; the batch's statistics are kept."""
    asked, change = [], {"server_steps": 2, "server_lr": 0.01, "server_lr_decay": 0.5, "server_weight_decay": 0.3}
    algorithm, plain = make(watched(asked), **change), make(**change)
    ctx, state = prepared(algorithm)
    asked.clear()
    counts = torch.tensor([[3, 2, 4, 0], [1, 5, 7, 0]], dtype=torch.int32)
    found = begun = {**state, "moments": tree.apply(torch.zeros_like, state["moments"]), "generator_steps": 0}
    for number in (1, 2):
        found = {**found, "round": number}
        found |= algorithm.teach(found, ctx.model, two_heads(), counts, generator(number, "t"))
    own = {name: value.clone() for name, value in begun["generator"].items()}
    weights = [own[name].requires_grad_() for name in begun["moments"]["first"]]
    adam = torch.optim.Adam(weights, weight_decay=0.3)
    for step, (noise, y) in enumerate(asked):
        adam.param_groups[0]["lr"] = 0.01 * 0.5 ** (1 + step // 2)
        with training(None, torch.tensor(0)) as now:
            value = plain.teaching_loss(ctx.model, own, two_heads(), counts.double(), noise, y)
        for weight, slope in zip(weights, torch.autograd.grad(value, weights)):
            weight.grad = slope
        adam.step()
        own.update({name: statistic.detach() for name, statistic in now.statistics.items()})
    assert len(asked) == found["generator_steps"] == 4
    for name, value in found["generator"].items():
        torch.testing.assert_close(value, own[name].detach(), rtol=1e-9, atol=1e-12)


def test_only_labels_of_which_someone_has_two_are_asked_for():
    asked = []
    algorithm = make(watched(asked))
    ctx, state = prepared(algorithm)
    asked.clear()
    counts = torch.tensor([[5, 1, 0, 0], [0, 1, 0, 2]], dtype=torch.int32)
    algorithm.teach(state, ctx.model, two_heads(), counts, torch.Generator().manual_seed(0))
    assert set(torch.cat([y for _, y in asked]).tolist()) == {0, 3}
    assert algorithm.teach(state, ctx.model, two_heads(), counts.clamp(max=1), torch.Generator()) == {}


def test_the_generator_learns_from_the_cohort_s_trained_heads():
    """As `teach` does on the heads of the round's models, from the same stream as the selection."""
    algorithm = make()
    world = make_world()
    ctx = context(make_model("cnn", world), world)
    first, second = rounds(algorithm, ctx, 2)
    gen = generator(0, "round", 1)
    assert torch.equal(algorithm.select(first.after, ctx, gen), second.ids)
    heads = {name: leaf for name, leaf in second.models.items() if name.startswith("head.")}
    counts = world.label_counts[second.ids].int()
    taught = algorithm.teach(first.after, ctx.model, heads, counts, gen)
    for name, value in taught["generator"].items():
        assert torch.equal(second.after["generator"][name], value)


def test_without_its_terms_it_is_fedavg():
    assert gap(play(make(alpha=0, beta=0), "norm"), play(FedAvg(), "norm")) == 0


@pytest.mark.parametrize("term", ["alpha", "beta"])
def test_each_term_differs_from_fedavg_from_round_two_on(term):
    ours = make(**{"alpha": 0.0, "beta": 0.0, term: 1.0})
    assert gap(play(ours, count=1), play(FedAvg(), count=1)) == 0
    assert gap(play(ours, count=3), play(FedAvg(), count=3)) > 1e-3


def test_sends_the_generator_down_and_label_counts_up_once():
    world = make_world(dtype=torch.float32)
    model = make_model("norm", world, torch.float32)
    size = 4 * sum(value.numel() for value in model.params().values())
    generated = 4 * ((5 + 4) * 12 + 12 + 2 * 12 + 12 * 36 + 36 + 2 * 12)  # weights and statistics
    seen = set()
    for number, done in enumerate(rounds(make(), context(model, world, precision="float32"), 5)):
        new = set(done.ids.tolist()) - seen
        seen |= new
        assert done.bytes_up == 3 * size + len(new) * 4 * 4
        assert done.bytes_down == 3 * (size + (generated if number else 0))
        expected = world.label_counts * torch.tensor([[client in seen] for client in range(6)])
        assert torch.equal(done.after["label_counts"].long(), expected)
    assert len(seen) > 3, "not all of them took part in the first round"


@dataclass(frozen=True)
class Twice(Uniform):
    """Client 2 twice and client 4."""

    def select(self, memory, ctx, gen):
        return torch.tensor([2, 4, 2])


def test_a_client_drawn_twice_sends_its_label_counts_once():
    world = make_world()
    ctx = context(make_model("linear", world), world)
    fedgen, fedavg = (
        rounds(algorithm, ctx, 1)[0].bytes_up for algorithm in (make(selection=Twice()), FedAvg(selection=Twice()))
    )
    assert fedgen - fedavg == 2 * 4 * 4


@pytest.mark.parametrize("kind", ["cnn", "norm"])
def test_mechanisms_agree(kind):
    assert_mechanisms_agree(make(), kind)


def test_two_workers_are_one():
    assert gap(*(play(make(), "norm", workers=count) for count in (1, 2))) < 1e-12


def test_resumes():
    assert_resumes(make(), "norm")


def test_seeds_differ_in_their_generators():
    world = make_world()
    model = make_model("cnn", world)
    first, second = (
        rounds(make(server_steps=1), context(model, world, seed=seed), 1)[-1].after["generator"]["0.weight"]
        for seed in (0, 1)
    )
    assert (first - second).abs().max() > 0.01


def test_settings_are_checked():
    changes = [{"alpha": -1}, {"noise": 0}, {"decay": 0}, {"server_lr": 0}, {"server_steps": 0}, {"task_batch": 0}]
    for change in changes:
        with pytest.raises(ConfigError, match=rf"algorithm\.{next(iter(change))}="):
            make(**change)
    world = make_world()
    with pytest.raises(ConfigError, match=r"algorithm\.task_batch=9: must be local\.batch_size=8"):
        start(make(task_batch=9), context(make_model("linear", world), world))
