"""FedGen (Zhu et al., ICML 2021): a generator of features, trained at the server, regularises the clients.

The generator G takes noise and a label to features that the task model's head reads. After a round's local
training it learns, from the participants' heads h_k alone, features that they label as asked:
    sum_k mean_b a_k(y_b) CE(h_k(G(e_b, y_b)), y_b) + eta exp(-mean_ij |e_i - e_j|^2 |z_i - z_j|_1),
both norms as means over their entries, a_k(y) = n_k(y) / sum_j n_j(y), y uniform over the labels of which some
participant has more than one example. (The term that has the global model disagree weighs 0 in the published
settings and is left out.) Its weights and Adam's moments persist.

From round 2 on, clients receive G and minimise
    CE(x, y) + (B_G / B) alpha_t mean CE(h(G(e, y~)), y~) + beta_t KL(softmax h(G(e, y)) held fixed || softmax f(x)),
y~ uniform, alpha_t and beta_t decaying, G evaluating. A client sends its label counts up once.
"""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import vmap

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.engine import Batch, Engine, Local, Sent
from fedexp.engine.client import OneClient
from fedexp.engine.exchange import State
from fedexp.engine.optimizer import Optimizer
from fedexp.errors import require
from fedexp.models import Model
from fedexp.models.layers import training
from fedexp.randomness import uniform
from fedexp.tree import Params, Stack
from fedexp.world import World

_FIXED, _ANY, _LABELS = 1000, 1001, 1002  # streams of a step's key: noise for y, noise for y~, y~


@dataclass
class FedGen(FedAvg):
    """Fields: conf/algorithm/fedgen.yaml says what each is and where its value comes from."""

    alpha: float = 1.0
    beta: float = 1.0
    decay: float = 0.98
    noise: int = 100
    hidden: int = 512
    client_batch: int = 32
    server_batch: int = 128
    server_steps: int = 50
    server_lr: float = 3e-4
    server_lr_decay: float = 0.98
    server_weight_decay: float = 0.01
    diversity: float = 1.0

    def __post_init__(self) -> None:
        for name in ("noise", "hidden", "client_batch", "server_batch", "server_steps"):
            require(getattr(self, name) >= 1, f"algorithm.{name}", getattr(self, name), "must be at least 1")
        for name in ("alpha", "beta", "diversity", "server_weight_decay"):
            require(getattr(self, name) >= 0, f"algorithm.{name}", getattr(self, name), "must be at least 0")
        for name in ("decay", "server_lr_decay"):
            require(0 < getattr(self, name) <= 1, f"algorithm.{name}", getattr(self, name), "must be in (0, 1]")
        require(self.server_lr > 0, "algorithm.server_lr", self.server_lr, "must be above 0")

    def init(self, world: World, model: Model, params: Params) -> State:
        """label_counts: what the server knows; a client's row is 0 until it has taken part."""
        maker, like = self._maker(model), params["head.weight"]
        made = {name: like.new_zeros(value.shape) for name, value in maker.params().items()}
        moments = {order: {name: made[name].clone() for name in maker.weights} for order in ("first", "second")}
        counts = torch.zeros(world.clients, world.classes, dtype=torch.int32)
        learning = {"generator": made, "moments": moments, "generator_steps": 0}
        return {**super().init(world, model, params), **learning, "label_counts": counts}

    def round(self, state: State, world: World, engine: Engine, gen: Generator) -> State:
        """FedAvg's round; between training and merging the generator learns from the local models."""
        maker = self._maker(engine.model)  # made before `loss` runs in workers or vectorised
        ids = self.select(state, world, gen)
        if state["round"] == 0:
            state = {**state, "generator": _like(self._fresh(engine.model, gen), state["generator"])}
        state = self._introduce(state, ids, world, engine)
        sent = self.send(state, ids)
        trained = engine.train(self, state, ids, sent)
        learnt = self.teach(state, maker, engine.model, trained.params, state["label_counts"][ids], gen)
        return {**self.merge(state, ids, sent, trained), **learnt, "round": state["round"] + 1}

    def _introduce(self, state: State, ids: Tensor, world: World, engine: Engine) -> State:
        """Clients that take part for the first time send their label counts up."""
        new = ids[state["label_counts"][ids].sum(1) == 0]
        if not len(new):
            return state
        counts = state["label_counts"].clone()
        counts[new] = world.label_counts[new].int()
        engine.exchange(new, up={"label_counts": counts[new]})
        return {**state, "label_counts": counts}

    def send(self, state: State, ids: Tensor) -> Sent:
        """From round 2 on with the generator; the weights of its terms follow from the round's number."""
        sent, round = super().send(state, ids), state["round"]
        if round == 0:
            return sent
        like = state["params"]["head.weight"]
        weights = {
            name: like.new_tensor(max(1e-4, value * self.decay**round) if value else 0.0)
            for name, value in (("alpha", self.alpha), ("beta", self.beta))
        }
        return sent._replace(
            extra={"generator": tree.spread(state["generator"], len(ids))}, memory=tree.spread(weights, len(ids))
        )

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        logits = model(params, batch.x)
        entropy = batch.mean(F.cross_entropy(logits, batch.y, reduction="none"))
        if not sent.extra:
            return entropy
        made = self._draw(model, sent.extra["generator"], batch.y, batch.key, _FIXED)
        teacher = model.head(params, made).log_softmax(1).detach()
        latent = batch.mean((teacher.exp() * (teacher - logits.log_softmax(1))).sum(1))
        labels = (uniform(batch.key, self.client_batch, _LABELS) * model.classes).long()
        made = self._draw(model, sent.extra["generator"], labels, batch.key, _ANY)
        right = F.cross_entropy(model.head(params, made), labels)
        ratio = self.client_batch / self.local.batch_size
        return entropy + ratio * sent.memory["alpha"] * right + sent.memory["beta"] * latent

    def _draw(self, model: Model, generator: Params, labels: Tensor, key: Tensor, stream: int) -> Tensor:
        """Features [n, d] that the frozen generator makes for labels [n]."""
        noise = uniform(key, len(labels) * self.noise, stream).view(len(labels), self.noise)
        return self._maker(model)(generator, _ask(noise.to(generator["0.weight"]), labels, model), training=False)

    def teach(
        self, state: State, maker: Model, model: Model, models: Stack, counts: Tensor, gen: Generator
    ) -> State:  # fmt: skip
        """The server's steps on the generator, given the participants' models [K] and label counts [K, C]."""
        generator = {name: value.clone() for name, value in state["generator"].items()}
        labels = (counts.max(0).values > 1).nonzero().squeeze(1)
        if not len(labels):
            return {}
        weights = {name: generator[name].requires_grad_() for name in maker.weights}
        settings = Local(optimizer="adam", weight_decay=self.server_weight_decay)
        rate = self.server_lr * self.server_lr_decay ** state["round"]
        optimizer = Optimizer(list(weights.values()), settings, rate, fused=False)
        moments = tree.apply(torch.clone, state["moments"])
        optimizer.memory = [[moments[order][name] for name in weights] for order in ("first", "second")]
        optimizer.taken = state["generator_steps"]
        heads = {name: value for name, value in models.items() if name.startswith("head.")}
        counts = counts.to(generator["0.weight"])
        for y, noise in zip(*self._questions(labels, generator["0.weight"], gen)):
            with training(None, torch.tensor(0)) as now:
                loss = self.teaching_loss(maker, model, generator, heads, counts, noise, y)
            optimizer.step(list(weights.values()), list(torch.autograd.grad(loss, list(weights.values()))))
            generator.update({name: value.detach() for name, value in now.statistics.items()})
        generator = {name: value.detach() for name, value in generator.items()}
        return {"generator": generator, "moments": moments, "generator_steps": optimizer.taken}

    def _questions(self, labels: Tensor, like: Tensor, gen: Generator) -> tuple[Tensor, Tensor]:
        """Labels [steps, b] and noise [steps, b, noise] of a round, together: a GPU would wait for each step's."""
        draws = [
            (labels[torch.randint(len(labels), (self.server_batch,), generator=gen)],
             torch.rand(self.server_batch, self.noise, generator=gen))
            for _ in range(self.server_steps)
        ]  # fmt: skip
        asked, noises = (torch.stack(each) for each in zip(*draws))
        return asked.to(like.device), noises.to(like)

    def teaching_loss(
        self, maker: Model, model: Model, generator: Params, heads: Stack, counts: Tensor, noise: Tensor, y: Tensor
    ) -> Tensor:
        """The generator's loss (module docstring) on noise [b, noise] and labels y [b]."""
        made = maker(generator, _ask(noise, y, model))
        logits = vmap(model.head, in_dims=(0, None))(heads, made)
        share = (counts / counts.sum(0).clamp_min(1))[:, y]
        entropy = F.cross_entropy(logits.flatten(0, 1), y.repeat(len(logits)), reduction="none").view_as(share)
        apart = torch.cdist(noise, noise).square() / self.noise * torch.cdist(made, made, p=1) / made.shape[1]
        return (share * entropy).mean(1).sum() + self.diversity * (-apart.mean()).exp()

    def _maker(self, model: Model) -> Model:
        return _architecture(self.noise, self.hidden, model.classes, model.features)

    def _fresh(self, model: Model, gen: Generator) -> Params:
        """First weights, from the run's own randomness."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=gen)))
            return _build(self.noise, self.hidden, model.classes, model.features).params()


def _build(noise: int, hidden: int, classes: int, features: int) -> Model:
    """The generator: noise [n, noise] and one-hot labels [n, C], side by side, to features [n, d]."""
    inputs = nn.Linear(noise + classes, hidden)
    return Model(nn.Sequential(inputs, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)))


@cache
def _architecture(noise: int, hidden: int, classes: int, features: int) -> Model:
    """The same, made once, for what it computes; its weights always come from a State."""
    with torch.random.fork_rng(devices=[]):
        return _build(noise, hidden, classes, features)


def _ask(noise: Tensor, labels: Tensor, model: Model) -> Tensor:
    """The generator's input: noise and one-hot labels side by side [n, noise + C]."""
    return torch.cat([noise, (labels[:, None] == torch.arange(model.classes, device=labels.device)).to(noise)], 1)


def _like(values: Params, example: Params) -> Params:
    return {name: value.to(example[name]) for name, value in values.items()}
