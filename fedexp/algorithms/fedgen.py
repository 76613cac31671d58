"""FedGen (Zhu et al., ICML 2021): a generator of features, trained at the server, regularises the clients.

The generator G maps noise and a label to features that the task model's head can read. After a round's local
training the server trains G, using only the participants' heads h_k, to make features that they label as asked, by
    sum_k mean_b a_k(y_b) CE(h_k(G(e_b, y_b)), y_b) + eta exp(-mean_ij |e_i - e_j|^2 |z_i - z_j|_1),
both norms as means over their entries, a_k(y) = n_k(y) / sum_j n_j(y), y uniform over the labels of which some
participant has more than one example. (The term by which the global model should disagree has weight 0 in the
published settings and is left out.) G's weights and Adam's moments persist between rounds.

From round 2 on, clients receive G and minimise
    CE(x, y) + (B_G / B) alpha_t mean CE(h(G(e, y~)), y~) + beta_t KL(softmax h(G(e, y)) held fixed || softmax f(x)),
y~ uniform, alpha_t and beta_t decaying, G in evaluation mode. A client uploads its label counts once, when the server
asks for them after the first round in which it takes part.
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import vmap

from fedexp import tree
from fedexp.algorithms.fedavg import FedAvg
from fedexp.config.bounds import Above, AtLeast, Within
from fedexp.engine import Batch, Client, Context, Examples, Local, State
from fedexp.engine.optimizer import Optimizer
from fedexp.errors import require
from fedexp.models import Model
from fedexp.models.layers import training
from fedexp.randomness import seeded, uniform
from fedexp.tree import Params, Stack, Tree

_FIXED, _ANY, _LABELS = 1000, 1001, 1002  # streams of a step's key: noise for y, noise for y~, y~


@dataclass(frozen=True, kw_only=True)
class FedGen(FedAvg):
    """conf/algorithm/fedgen.yaml explains each field and the source of its value.

    task_batch: B, the clients' local.batch_size.
    """

    task_batch: Annotated[int, AtLeast(1)]
    alpha: Annotated[float, AtLeast(0)] = 1.0
    beta: Annotated[float, AtLeast(0)] = 1.0
    decay: Annotated[float, Within(0, 1, open_below=True)] = 0.98
    noise: Annotated[int, AtLeast(1)] = 100
    hidden: Annotated[int, AtLeast(1)] = 512
    client_batch: Annotated[int, AtLeast(1)] = 32
    server_batch: Annotated[int, AtLeast(1)] = 128
    server_steps: Annotated[int, AtLeast(1)] = 50
    server_lr: Annotated[float, Above(0)] = 3e-4
    server_lr_decay: Annotated[float, Within(0, 1, open_below=True)] = 0.98
    server_weight_decay: Annotated[float, AtLeast(0)] = 0.01
    diversity: Annotated[float, AtLeast(0)] = 1.0

    needs_head = True

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        require(
            self.task_batch == ctx.local.batch_size, "algorithm.task_batch", self.task_batch,
            f"must be local.batch_size={ctx.local.batch_size}",
        )  # fmt: skip
        self._maker(ctx.model)  # built here, before `loss` runs in workers or vectorized

    def init(self, ctx: Context, params: Params) -> State:
        """label_counts [N, C]: those that the server has received; a client's row is 0 until it has taken part."""
        maker, like = self._maker(ctx.model), params["head.weight"]
        made = {name: like.new_zeros(value.shape) for name, value in maker.params().items()}
        moments = {order: {name: made[name].clone() for name in maker.weights} for order in ("first", "second")}
        counts = torch.zeros(ctx.clients, ctx.model.classes, dtype=torch.int32)
        learning = {"generator": made, "moments": moments, "generator_steps": 0}
        return {**super().init(ctx, params), **learning, "label_counts": counts}

    def download(self, state: State, ids: Tensor, ctx: Context) -> Tree:
        """The model, and the generator once it has been trained."""
        sent = super().download(state, ids, ctx)
        learnt = state["generator_steps"] > 0
        return {**sent, "generator": tree.spread(state["generator"], len(ids))} if learnt else sent

    def inspect(self, model: Model, download: Tree, memory: Tree, examples: Examples) -> Tree:
        """The client's label counts, if the server asks for them by a survey, which sends no model."""
        return {} if "model" in download else {"label_counts": examples.label_counts.int()}

    def aggregate(self, state: State, ids: Tensor, uploads: Tree, ctx: Context, gen: Generator) -> State:
        """FedAvg's aggregation, after training the generator on the local models."""
        if state["generator_steps"] == 0:
            first = tree.apply(lambda new, old: new.to(old), self._fresh(ctx.model, gen), state["generator"])
            state = {**state, "generator": first}
        state = self._introduce(state, ids, ctx)
        starts, update = self.starts(state, ids, uploads, ctx), uploads["update"]
        heads = {name: starts[name] + update[name] for name in update if name.startswith("head.")}
        state = {**state, **self.teach(state, ctx.model, heads, state["label_counts"][ids], gen)}
        return super().aggregate(state, ids, uploads, ctx, gen)

    def _introduce(self, state: State, ids: Tensor, ctx: Context) -> State:
        """Ask the clients that took part for the first time for their label counts."""
        new = ids[state["label_counts"][ids].sum(1) == 0].unique()
        if not len(new):
            return state
        counts = state["label_counts"].clone()
        counts[new] = self.survey(state, new, {}, ctx)["label_counts"].cpu()
        return {**state, "label_counts": counts}

    def loss(self, model: Model, params: Params, batch: Batch, client: Client) -> Tensor:
        logits = model(params, batch.x)
        entropy = batch.cross_entropy(logits)
        generator = client.download.get("generator")
        if generator is None:
            return entropy
        made = self._draw(model, generator, batch.y, batch.key, _FIXED)
        teacher = model.head(params, made).log_softmax(1).detach()
        latent = batch.mean((teacher.exp() * (teacher - logits.log_softmax(1))).sum(1))
        labels = (uniform(batch.key, self.client_batch, _LABELS) * model.classes).long()
        made = self._draw(model, generator, labels, batch.key, _ANY)
        right = F.cross_entropy(model.head(params, made), labels)
        ratio = self.client_batch / self.task_batch
        return entropy + ratio * self._decayed(self.alpha, client) * right + self._decayed(self.beta, client) * latent

    def _decayed(self, weight: float, client: Client) -> Tensor | float:
        """alpha_t or beta_t: never below 1e-4, unless the term is switched off (0)."""
        return (weight * self.decay ** client.round.to(client.lr)).clamp_min(1e-4) if weight else 0.0

    def _draw(self, model: Model, generator: Params, labels: Tensor, key: Tensor, stream: int) -> Tensor:
        """Features [n, d] that the frozen generator makes for labels [n]."""
        noise = uniform(key, len(labels) * self.noise, stream).view(len(labels), self.noise)
        asked = _ask(noise.to(generator["0.weight"]), labels, model)
        # The network of `_build` in evaluation mode, written out: torch.compile cannot trace the building of a network.
        hidden = F.linear(asked, generator["0.weight"], generator["0.bias"])
        entries = ("running_mean", "running_var", "weight", "bias")
        mean, variance, weight, bias = (generator[f"1.{name}"] for name in entries)
        normal = F.batch_norm(hidden, mean, variance, weight, bias)
        return F.linear(normal.relu(), generator["3.weight"], generator["3.bias"])

    def teach(self, state: State, model: Model, heads: Stack, counts: Tensor, gen: Generator) -> State:
        """The server's steps on the generator, given the participants' heads [K, ...] and label counts [K, C]."""
        maker = self._maker(model)
        generator = {name: value.clone() for name, value in state["generator"].items()}
        labels = (counts.max(0).values > 1).nonzero().squeeze(1)
        if not len(labels):
            return {}
        weights = [generator[name].requires_grad_() for name in maker.weights]
        settings = Local(optimizer="adam", weight_decay=self.server_weight_decay)
        rate = self.server_lr * self.server_lr_decay ** state["round"]
        optimizer = Optimizer(weights, settings, rate, fused=False)
        moments = tree.apply(torch.clone, state["moments"])
        optimizer.memory = [[moments[order][name] for name in maker.weights] for order in ("first", "second")]
        optimizer.taken.fill_(state["generator_steps"])
        counts = counts.to(generator["0.weight"])
        for y, noise in zip(*self._questions(labels, generator["0.weight"], gen)):
            with training(None, torch.tensor(0)) as now:
                loss = self.teaching_loss(model, generator, heads, counts, noise, y)
            optimizer.step(weights, list(torch.autograd.grad(loss, weights)))
            generator.update({name: value.detach() for name, value in now.statistics.items()})
        generator = {name: value.detach() for name, value in generator.items()}
        return {"generator": generator, "moments": moments, "generator_steps": int(optimizer.taken)}

    def _questions(self, labels: Tensor, like: Tensor, gen: Generator) -> tuple[Tensor, Tensor]:
        """Labels [steps, b] and noise [steps, b, noise] of a whole round at once, so that a GPU need not wait in each
        step."""
        draws = [
            (labels[torch.randint(len(labels), (self.server_batch,), generator=gen)],
             torch.rand(self.server_batch, self.noise, generator=gen))
            for _ in range(self.server_steps)
        ]  # fmt: skip
        asked, noises = (torch.stack(each) for each in zip(*draws))
        return asked.to(like.device), noises.to(like)

    def teaching_loss(
        self, model: Model, generator: Params, heads: Stack, counts: Tensor, noise: Tensor, y: Tensor
    ) -> Tensor:
        """The generator's loss (module docstring) on noise [b, noise] and labels y [b]."""
        made = self._maker(model)(generator, _ask(noise, y, model))
        logits = vmap(model.head, in_dims=(0, None))(heads, made)
        share = (counts / counts.sum(0).clamp_min(1))[:, y]
        entropy = F.cross_entropy(logits.flatten(0, 1), y.repeat(len(logits)), reduction="none").view_as(share)
        apart = torch.cdist(noise, noise).square() / self.noise * torch.cdist(made, made, p=1) / made.shape[1]
        return (share * entropy).mean(1).sum() + self.diversity * (-apart.mean()).exp()

    def _maker(self, model: Model) -> Model:
        return _architecture(self.noise, self.hidden, model.classes, model.features)

    def _fresh(self, model: Model, gen: Generator) -> Params:
        """The generator's first weights, drawn from the run's own random generator."""
        with seeded(int(torch.randint(2**62, (), generator=gen)), held=True):
            return _build(self.noise, self.hidden, model.classes, model.features).params()


def _build(noise: int, hidden: int, classes: int, features: int) -> Model:
    """The generator: noise [n, noise] and one-hot labels [n, C], side by side, to features [n, d]."""
    inputs = nn.Linear(noise + classes, hidden)
    return Model(nn.Sequential(inputs, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)))


@cache
def _architecture(noise: int, hidden: int, classes: int, features: int) -> Model:
    """The same network, built once and used only for its layers; its weights always come from a State."""
    with seeded(0, held=True):
        return _build(noise, hidden, classes, features)


def _ask(noise: Tensor, labels: Tensor, model: Model) -> Tensor:
    """The generator's input: noise and one-hot labels side by side [n, noise + C]."""
    return torch.cat([noise, (labels[:, None] == torch.arange(model.classes, device=labels.device)).to(noise)], 1)
