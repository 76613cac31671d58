"""FedConcat (Diao, Li, He, "Exploiting Label Skews in Federated Learning with Model Concatenation", AAAI 2024).

Stage 1 groups the clients, stage 2 trains a model for each group (both are `clustering`, an algorithm of its
own), stage 3 freezes the groups' encoders, sends them to everyone once and trains a linear classifier on their
concatenated features. Encoders evaluate in stage 3: no dropout, no moving statistics.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fedexp import pictures, tree
from fedexp.algorithms.clustered import Clustered
from fedexp.algorithms.fedavg import FedAvg
from fedexp.algorithms.label_clusters import LabelClusters
from fedexp.data import Transform
from fedexp.engine import Batch, Engine, Sent, Trained
from fedexp.engine.client import OneClient
from fedexp.engine.exchange import State
from fedexp.errors import ConfigError, require
from fedexp.models import Classifier, Model
from fedexp.randomness import key
from fedexp.tree import Params, Stack
from fedexp.world import World

_CHUNK = 1000  # examples in one forward pass


@dataclass
class ClassifierRounds(FedAvg):
    """Stage 3: FedAvg of the head, unweighted, because all clients take equally many steps.

    `augmented`: batches are images, and clients use the frozen encoders that they kept; otherwise batches are
    features already.
    """

    augmented: bool = False

    def send(self, state: State, ids: Tensor) -> Sent:
        start = tree.spread(head(state["params"]), len(ids))
        kept = {"encoders": tree.spread(encoders(state["params"]), len(ids))} if self.augmented else {}
        return Sent(start, memory=kept)

    def loss(self, model: Model, params: Params, batch: Batch, sent: OneClient) -> Tensor:
        logits = model.head(params, self._features(model, sent, batch.x))
        return batch.mean(F.cross_entropy(logits, batch.y, reduction="none"))

    def answer(self, model: Model, sent: OneClient, x: Tensor) -> Tensor:
        return model.head(sent.start, self._features(model, sent, x))

    def _features(self, model: Model, sent: OneClient, x: Tensor) -> Tensor:
        return concatenate(model, sent.memory["encoders"], x) if self.augmented else x

    def merge(self, state: State, ids: Tensor, sent: Sent, trained: Trained) -> State:
        mean = tree.mean(trained.params, torch.ones(len(ids)))
        return {**state, "params": {**state["params"], **mean}}


@dataclass
class FedConcat(FedAvg):
    """clustering: builds stages 1 and 2 from (clients_per_round, local). encoder_rounds: rounds of stage 2;
    all later rounds are classifier rounds, of `classifier_steps` batches with `classifier_weight_decay`
    (None: that of `local`). classifier_start: random, or heads, the clusters' heads side by side, their
    biases summed. augmented: compute features anew for every batch, from augmented images. feature_map:
    number of test examples to draw in two dimensions (t-SNE).
    """

    clustering: Callable[..., Clustered] = LabelClusters
    encoder_rounds: int = 31
    classifier_steps: int = 3
    classifier_weight_decay: float | None = None
    classifier_start: str = "random"
    augmented: bool = False
    feature_map: int = 0

    def __post_init__(self) -> None:
        for name, least in (("encoder_rounds", 1), ("classifier_steps", 1)):
            value = getattr(self, name)
            require(value >= least, f"algorithm.{name}", value, f"must be at least {least}")
        shown = self.feature_map
        require(shown == 0 or shown >= 2, "algorithm.feature_map", shown, "must be at least 2, or 0 for no map")
        starts, start = ("random", "heads"), self.classifier_start
        require(start in starts, "algorithm.classifier_start", start, "must be random or heads")
        decay = self.local.weight_decay if self.classifier_weight_decay is None else self.classifier_weight_decay
        require(decay >= 0, "algorithm.classifier_weight_decay", decay, "must be at least 0, or null")
        right = "must be an algorithm that clusters clients: algorithm@algorithm.clustering=ifca, for example"
        require(callable(self.clustering), "algorithm.clustering", self.clustering, right)
        with _keys_of_clustering():
            self.clustered = self.clustering(self.clients_per_round, self.local)
        found = type(self.clustered).__name__
        require(isinstance(self.clustered, Clustered), "algorithm.clustering", found, right)
        brief = replace(self.local, steps=self.classifier_steps, weight_decay=decay)
        self.classifier = ClassifierRounds(self.clients_per_round, brief, augmented=self.augmented)

    def check(self, world: World) -> None:
        with _keys_of_clustering():
            self.clustered.check(world)

    def init(self, world: World, model: Model, params: Params) -> State:
        require(bool(encoders(params)), "model", "this one", "has no weights below its head to concatenate")
        with _keys_of_clustering():
            return self.clustered.init(world, model, params)

    def round(self, state: State, world: World, engine: Engine, gen: Generator) -> State:
        if state["round"] < self.encoder_rounds:
            return self.clustered.round(state, world, engine, gen)
        if state["round"] == self.encoder_rounds:
            state = self.clustered.settled(state, engine)  # while there are models to choose among
            frozen = encoders(state["params"])
            engine.exchange(torch.arange(world.clients), down=tree.spread(frozen, world.clients))
            state = {**state, "params": {**frozen, **self._first_head(state["params"], engine)}}
        trainer, _ = self._third_stage(state, engine)
        return self.classifier.round(state, trainer.world, trainer, gen)

    def centre(self, state: State, ids: Tensor) -> Stack:
        if self._concatenated(state):
            return tree.spread(head(state["params"]), len(ids))
        return self.clustered.centre(state, ids)

    def predict(self, state: State, model: Model, x: Tensor) -> Tensor:
        """The concatenated model; until there is one, the clusters' models (see Clustered)."""
        if not self._concatenated(state):
            return self.clustered.predict(state, model, x)
        return model.head(head(state["params"]), concatenate(model, encoders(state["params"]), x))

    def examined(self, state: State, engine: Engine) -> tuple[Callable[[Tensor], Tensor], World]:
        """In stage 3 the head over test features that were computed once."""
        if not self._concatenated(state):
            return super().examined(state, engine)
        _, tester = self._third_stage(state, engine)
        return (lambda features: tester.model.head(head(state["params"]), features)), tester.world

    def conclude(self, state: State, engine: Engine) -> dict[str, Any]:
        if self._concatenated(state):
            return self.clustered.outcome(state)
        return self.clustered.conclude(state, engine)

    def exhibits(self, state: State, engine: Engine) -> dict[str, Any]:
        shown = self.clustered.exhibits(state, engine)
        if self.feature_map:
            world, rows = engine.world, slice(0, self.feature_map)
            with torch.no_grad():
                features = concatenate(engine.model, encoders(state["params"]), world.prepare_test(rows)).cpu()
            named = {"concatenated encoders": features}
            shown["feature_map"] = pictures.features(named, world.test_y[rows].cpu(), engine.seed)
        return shown

    def _concatenated(self, state: State) -> bool:
        return state["round"] > self.encoder_rounds

    def _third_stage(self, state: State, engine: Engine) -> tuple[Engine, Engine]:
        """The engines that train and that examine the head, made once, or again from State after a resume.

        It is the same one, over features; or, where training images are augmented, one over these and one over
        the test features.
        """
        if not engine.siblings:
            if self.augmented:
                engine.sibling(engine.model, engine.world, self.classifier.local)
            self._over_features(state, engine)
        return engine.siblings[0], engine.siblings[-1]

    def _over_features(self, state: State, engine: Engine) -> Engine:
        """A head by itself, and a world in which features stand for images (of training, unless augmented)."""
        world, frozen = engine.world, encoders(state["params"])
        starts = range(0, len(world.test_y), _CHUNK)
        with torch.no_grad():
            tests = [world.prepare_test(slice(start, start + _CHUNK)) for start in starts]
            test_x = torch.cat([concatenate(engine.model, frozen, test) for test in tests])
            parts = () if self.augmented else torch.arange(len(world.y), device=world.device).split(_CHUNK)
            x = torch.cat([test_x[:0], *(concatenate(engine.model, frozen, world.prepare(part)) for part in parts)])
        net = Classifier(nn.Identity(), nn.Linear(test_x.shape[1], world.classes)).to(world.device, world.dtype)
        over_features = replace(world, x=x, test_x=test_x, transform=Transform())
        return engine.sibling(Model(net), over_features, self.classifier.local)

    def _first_head(self, models: Stack, engine: Engine) -> Params:
        """The concatenated head, [C, K d] and [C]: PyTorch's random start, or the sum of the clusters' logits."""
        heads = head(models)
        joined = {"head.weight": heads["head.weight"].transpose(0, 1).flatten(1)}
        if "head.bias" in heads:
            joined["head.bias"] = heads["head.bias"].sum(0)
        if self.classifier_start == "heads":
            return joined
        classes, width = joined["head.weight"].shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(engine.seed, "classifier"))
            fresh = nn.Linear(width, classes)
        return {name: getattr(fresh, name.removeprefix("head.")).detach().to(leaf) for name, leaf in joined.items()}


@contextmanager
def _keys_of_clustering() -> Iterator[None]:
    """Errors name the clustering's keys where they stand: algorithm.clustering.clusters, not algorithm.clusters."""
    try:
        yield
    except ConfigError as error:
        group, _, name = error.key.partition(".")
        key = f"algorithm.clustering.{name}" if group == "algorithm" else error.key
        raise ConfigError(key, error.value, error.right) from error


def encoders(params: Params) -> Params:
    """The entries below the head."""
    return {name: leaf for name, leaf in params.items() if not name.startswith("head.")}


def head(params: Params) -> Params:
    return {name: leaf for name, leaf in params.items() if name.startswith("head.")}


def concatenate(model: Model, frozen: Stack, x: Tensor) -> Tensor:
    """Features [n, K d] of the frozen encoders [K, ...], side by side."""
    return torch.cat([model.encode(one, x, training=False) for one in tree.unstack(frozen)], 1)
