"""FedConcat (Diao, Li, He, "Exploiting Label Skews in Federated Learning with Model Concatenation", AAAI 2024).

Stage 1 groups the clients, stage 2 trains a model for each group (both are done by the algorithm `clustering`),
stage 3 freezes the groups' encoders, sends them to all clients once and trains a linear classifier on their
concatenated features. Encoders are in evaluation mode in stage 3: no dropout, no moving statistics.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from fedexp import tree
from fedexp.algorithms.clustered import Clustered
from fedexp.algorithms.fedavg import FedAvg, Stage
from fedexp.algorithms.label_clusters import LabelClusters
from fedexp.config.bounds import AtLeast, OneOf
from fedexp.data import Transform
from fedexp.engine import Context, State
from fedexp.errors import ConfigError, require
from fedexp.models import Classifier, Model
from fedexp.randomness import key, seeded
from fedexp.record import pictures
from fedexp.tree import Params, Stack, Tree

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ClassifierRounds(FedAvg):
    """Stage 3: FedAvg of the head, unweighted, because all clients take equally many steps.

    Its model is made by `head_over`. State's "params" are the encoders [M, ...], which no round changes, and the head.
    clustering, feature_map: FedConcat's, for the summary and the artifacts.
    """

    clustering: Clustered
    feature_map: int = 0

    def enter(self, state: State, ctx: Context) -> State:
        """All N clients receive the frozen encoders, once."""
        self.survey(state, torch.arange(ctx.clients), tree.spread(encoders(state["params"]), ctx.clients), ctx)
        return state

    def shared(self, params: Params, ctx: Context) -> Params:
        return head(params)

    def combine(self, state: State, ids: Tensor, uploads: Tree, ctx: Context) -> Params:
        return tree.mean(uploads["update"], torch.ones(len(ids)))

    def predict(self, state: State, model: Model, x: Tensor) -> Tensor:
        return model(head(state["params"]), x, training=False)

    def summary(self, state: State, ctx: Context) -> dict[str, Any]:
        return self.clustering.outcome(state)

    def artifacts(self, state: State, ctx: Context) -> dict[str, Any]:
        shown = self.clustering.artifacts(state, ctx)
        if self.feature_map:
            world, rows = ctx.world, slice(0, self.feature_map)
            named = {"concatenated encoders": world.prepare_test(rows).cpu()}
            shown["feature_map"] = pictures.features(named, world.test_y[rows].cpu(), ctx.seed)
        return shown


@dataclass(frozen=True, kw_only=True)
class FedConcat(FedAvg):
    """clustering: stages 1 and 2. encoder_rounds: rounds of stage 2; all later rounds train the classifier, by
    `classifier_steps` batches with `classifier_weight_decay` (None: that of `local`). classifier_start: random, or
    heads: the clusters' heads side by side, their biases summed. augmented: compute features anew for every batch,
    from augmented images. feature_map: number of test examples to draw in two dimensions (t-SNE).
    """

    clustering: Clustered = field(default_factory=LabelClusters)
    encoder_rounds: Annotated[int, AtLeast(1)] = 31
    classifier_steps: Annotated[int, AtLeast(1)] = 3
    classifier_weight_decay: Annotated[float | None, AtLeast(0)] = None
    classifier_start: Annotated[str, OneOf("random", "heads")] = "random"
    augmented: bool = False
    feature_map: Annotated[int, AtLeast(0)] = 0

    needs_head = True

    def __post_init__(self) -> None:
        super().__post_init__()
        shown = self.feature_map
        require(shown != 1, "algorithm.feature_map", shown, "must be at least 2, or 0 for no map")
        given = self.clustering if isinstance(self.clustering, str) else type(self.clustering).__name__
        require(
            isinstance(self.clustering, Clustered), "algorithm.clustering", given,
            "must be an algorithm that clusters clients: algorithm@algorithm.clustering=ifca, for example",
        )  # fmt: skip

    def check(self, ctx: Context) -> None:
        super().check(ctx)
        entries = dict.fromkeys([*ctx.model.weights, *ctx.model.buffers])
        right = "has no weights below its head to concatenate; choose a model whose encoder has some"
        require(bool(encoders(entries)), "model", type(ctx.model.net).__name__, right)
        try:
            self.clustering.check(ctx)
        except ConfigError as error:  # named in full: algorithm.clustering.clusters, not algorithm.clusters
            group, _, name = error.key.partition(".")
            key = f"algorithm.clustering.{name}" if group == "algorithm" else error.key
            raise ConfigError(key, error.value, error.right) from error

    def stages(self, ctx: Context) -> list[Stage]:
        self.check(ctx)  # here, where errors can name the clustering's keys in full
        classifier = ClassifierRounds(**self.parts, clustering=self.clustering, feature_map=self.feature_map)
        decay = ctx.local.weight_decay if self.classifier_weight_decay is None else self.classifier_weight_decay
        brief = replace(ctx.local, steps=self.classifier_steps, weight_decay=decay)
        return [
            Stage("encoders", self.clustering, ctx, self.encoder_rounds),
            Stage("head", classifier, replace(ctx, local=brief), begin=self.concatenated, inside=self.over_encoders),
        ]

    def concatenated(self, classifier: ClassifierRounds, state: State, ctx: Context) -> State:
        """The encoders of all clusters, a first head over them, and the cluster that each client chose at the end."""
        settled = self.clustering.settled(state, ctx)  # now, while there are still models to choose from
        kept: State = {name: settled[name] for name in ("assigned", "distributions") if name in settled}
        models = settled["params"]
        if single := ", ".join(map(str, of_one_class(settled["assigned"], ctx.world.label_counts))):
            log.warning(
                "clusters that hold a single class: %s; an encoder that has seen no other can give features far larger "
                "than the others', from which the classifier may not learn; try other algorithm.clustering.clusters",
                single,
            )  # fmt: skip
        return {**kept, "params": {**encoders(models), **first_head(models, self.classifier_start, ctx.seed)}}

    def over_encoders(self, state: State, ctx: Context) -> Context:
        """The context of a head over the frozen encoders. Features, computed once, take the place of images; those of
        training images only if these are not augmented anew for every batch."""
        world, frozen = ctx.world, encoders(state["params"])
        anew = self.augmented and world.transform.augments
        starts = range(0, len(world.test_y), world.at_once)
        tests = (world.prepare_test(slice(start, start + world.at_once)) for start in starts)
        test_x = _features(ctx.model, frozen, tests)
        encoder: nn.Module = nn.Identity()
        if anew:
            encoder = Concatenation(ctx.model, frozen)
            world = replace(world, test_x=test_x, test_transform=Transform())
        else:
            rows = torch.arange(len(world.y), device=world.device).split(world.at_once)
            x = _features(ctx.model, frozen, (world.prepare(part) for part in rows))
            world = replace(world, x=x, test_x=test_x, transform=Transform(), test_transform=None, noise=None)
        return replace(ctx, world=world, model=head_over(encoder, head(state["params"])), engine=None)

    def predict(self, state: State, model: Model, x: Tensor) -> Tensor:
        """The concatenated model on images; until there is one, the clusters' models (see Clustered)."""
        params = state["params"]
        if params["head.weight"].dim() == 3:
            return self.clustering.predict(state, model, x)
        return model.head(params, concatenate(model, encoders(params), x))


def of_one_class(assigned: Tensor, label_counts: Tensor) -> list[int]:
    """The clusters whose clients hold a single class together, given clients' clusters [N] and label counts [N, C]."""
    totals = label_counts.new_zeros(int(assigned.max()) + 1, label_counts.shape[1]).index_add(0, assigned, label_counts)
    return (totals.count_nonzero(1) == 1).nonzero().flatten().tolist()


class Concatenation(nn.Module):
    """Frozen encoders [M, ...] of `model` side by side: maps images to features; features are passed on as they are.

    The encoders are no parameters of this module, so that they are not trained, sent or copied.
    """

    def __init__(self, model: Model, frozen: Stack) -> None:
        super().__init__()
        self.model, self.frozen = model, frozen

    def forward(self, x: Tensor) -> Tensor:
        return concatenate(self.model, self.frozen, x) if x.dim() == 4 else x  # augmented inputs are always images


def head_over(encoder: nn.Module, params: Params) -> Model:
    """A model of a linear head with entries `params` over an encoder that has no entries of its own."""
    own = {name.removeprefix("head."): leaf for name, leaf in params.items()}
    classes, width = own["weight"].shape
    linear = skip_init(nn.Linear, width, classes, bias="bias" in own).to(own["weight"])
    linear.load_state_dict(own)
    return Model(Classifier(encoder, linear))


def first_head(models: Stack, start: str, seed: int) -> Params:
    """The concatenated head, [C, M d] and [C]: PyTorch's random start, or (heads) the sum of the clusters' logits."""
    heads = head(models)
    joined = {"head.weight": heads["head.weight"].transpose(0, 1).flatten(1)}
    if "head.bias" in heads:
        joined["head.bias"] = heads["head.bias"].sum(0)
    if start == "heads":
        return joined
    classes, width = joined["head.weight"].shape
    with seeded(key(seed, "classifier"), held=True):
        fresh = nn.Linear(width, classes)
    return {name: getattr(fresh, name.removeprefix("head.")).detach().to(leaf) for name, leaf in joined.items()}


def encoders(params: Params) -> Params:
    """The entries below the head."""
    return {name: leaf for name, leaf in params.items() if not name.startswith("head.")}


def head(params: Params) -> Params:
    return {name: leaf for name, leaf in params.items() if name.startswith("head.")}


def concatenate(model: Model, frozen: Stack, x: Tensor) -> Tensor:
    """Features [n, M d] of the frozen encoders [M, ...], side by side."""
    return torch.cat([model.encode(one, x, training=False) for one in tree.unstack(frozen)], 1)


@torch.no_grad()
def _features(model: Model, frozen: Stack, chunks: Iterator[Tensor]) -> Tensor:
    return torch.cat([concatenate(model, frozen, x) for x in chunks])
