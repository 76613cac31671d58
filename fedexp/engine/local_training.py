"""One client's local training, from download to upload. The worker pool runs it as it is; `vectorized` stacks it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedexp import tree
from fedexp.config.settings import Local
from fedexp.engine import returned
from fedexp.engine.contract import Batch, Client, ClientFunctions, Examples, Pass, Privacy, Question
from fedexp.engine.optimizer import Optimizer, clip
from fedexp.engine.schedule import batches, noise_key
from fedexp.engine.steps import Recordings, over_leaves
from fedexp.errors import Interrupted
from fedexp.models.classifier import Model
from fedexp.models.convolution import laid_out
from fedexp.models.layers import training
from fedexp.randomness import key, seeded
from fedexp.tree import Params, Stack, Tree
from fedexp.world import World


class Task(NamedTuple):
    """One client's part in a round. work: how many epochs it trains, or steps where local.steps is set; None: the full
    number. again: how many earlier places of the cohort the same client fills, if it trains anew for each of them."""

    client: int
    work: int | None = None
    again: int = 0


@dataclass
class LocalTraining:
    """All that local training needs besides the algorithm and what its clients received."""

    model: Model
    world: World
    local: Local
    seed: int
    precision: str
    compiled: bool
    stopped: Callable[[], bool]
    recordings: Recordings | None = None  # of a vectorized cohort's steps; None: they are launched one by one
    tiles: dict[str, int] = field(default_factory=dict)
    padded_steps: dict[type, int] = field(default_factory=dict)  # of each algorithm's class, so far

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16)

    @torch.no_grad()
    def inspect(
        self, algorithm: Question, client: int, download: Tree, memory: Tree, number: int | None = None
    ) -> Tree:
        """What ONE client finds out on its own examples, in a round before it trains or outside of one."""
        examples = Examples(self.world, client, self.seed, number)
        return returned.tensors("inspect", algorithm.inspect(self.model, download, memory, examples))

    def inspect_all(
        self, algorithm: Question, clients: list[int], download: Tree, memory: Tree, number: int | None = None
    ) -> Tree:
        """The same for several clients one after another: all leaves [n, ...]."""
        found = [
            self.inspect(algorithm, client, tree.take(download, row), tree.take(memory, row), number)
            for row, client in enumerate(clients)
        ]
        returned.alike("inspect", found)
        return tree.stack(found)

    def reviewed(
        self, algorithm: ClientFunctions, clients: list[int], stack: Stack, cohort: Client, number: int
    ) -> Client:  # fmt: skip
        """Several clients [n, ...] after training has ended with `stack` [n, ...], with what each found out then."""
        if algorithm.review is None:
            return cohort
        after = [
            self._review(algorithm, client, tree.take(stack, row), over_leaves(itemgetter(row), cohort), number)
            for row, client in enumerate(clients)
        ]
        returned.alike("review", after)
        return cohort._replace(found={**cohort.found, **tree.stack(after)})

    @torch.no_grad()
    def _review(self, algorithm: ClientFunctions, client: int, params: Params, at_hand: Client, number: int) -> Tree:
        """What ONE client finds out on its own examples after it has trained."""
        assert algorithm.review is not None
        examples = Examples(self.world, client, self.seed, number)
        versions = returned.versions(params)
        found = returned.tensors("review", algorithm.review(self.model, params, at_hand, examples))
        returned.unchanged("review", returned.TRAINED, params, versions)
        return returned.other_names("review", "inspect", at_hand.found, found)

    def passes(self, algorithm: ClientFunctions, task: Task) -> list[Pass]:
        """A client's passes in a round, of the length that its task allows."""
        passes = returned.passes(algorithm.passes(self.local.shortened(task.work)), algorithm)
        return [each._replace(stream=f"{each.stream} {task.again}") for each in passes] if task.again else passes

    def examples(self, algorithm: ClientFunctions, task: Task) -> int:
        """How many examples a client's training goes through."""
        size = int(self.world.sizes[task.client])
        return sum(each.local.examples(size) for each in self.passes(algorithm, task))

    def scalars(self, passes: Sequence[Pass], number: int, clients: list[int]) -> dict[str, Tensor]:
        """The numbers of a `Client` by name, for several clients at once, each in a pass: each [K], on the device."""
        sizes, local = self.world.sizes[clients], passes[0].local  # which differ in their lengths alone
        steps = torch.tensor([each.local.schedule(int(size))[1] for each, size in zip(passes, sizes)])
        keys = torch.tensor([
            noise_key(self.seed, number, client, each.stream) for each, client in zip(passes, clients)
        ])  # fmt: skip
        lr = torch.full_like(steps, local.rate(number), dtype=self.world.dtype)
        numbers = {
            "size": sizes, "steps": steps, "path": local.path(steps).to(self.world.dtype), "lr": lr,
            "round": torch.full_like(steps, number), "key": keys,
        }  # fmt: skip
        return {name: value.to(self.world.device) for name, value in numbers.items()}

    def client(self, each: Pass, number: int, client: int, download: Tree, memory: Tree) -> Client:
        """ONE client, ready for a pass. memory: its own."""
        found = self.inspect(each.functions, client, download, memory, number)
        numbers = {name: value[0] for name, value in self.scalars([each], number, [client]).items()}
        start = returned.one_model("start", each.functions.start(download, memory, found), self.model.own)
        return Client(download, memory, found, start, **numbers)

    def objective(
        self, algorithm: ClientFunctions, params: Params, batch: Batch, client: Client, padded: bool,
        alone: bool = False,
    ) -> tuple[Tensor, Params]:  # fmt: skip
        """One client's loss on one batch, and the running statistics that its layers would keep."""
        with (
            training(batch.share if padded else None, batch.key, alone, self.tiles) as now,
            self.autocast(),
        ):
            loss = returned.loss(algorithm.loss(self.model, params, batch, client))
        return loss, {name: value.detach() for name, value in now.statistics.items()}

    def train(
        self, algorithm: ClientFunctions, number: int, task: Task, received: Tree, untrained: bool = False
    ) -> Tree:
        """Train a client on what it `received`, its download and its memory: its uploads, its memory and its mean loss
        over all steps of the algorithm's own pass, named as in `Trained`.

        untrained: take no step, to learn the form of the result.
        """
        with seeded(key(self.seed, "local training", number, task.client, task.again)):
            return self._train(algorithm, number, task, received, untrained)

    def _train(self, algorithm: ClientFunctions, number: int, task: Task, received: Tree, untrained: bool) -> Tree:
        done: Tree = {}
        received = tree.apply(laid_out, received)
        versions = returned.versions(received)
        kept = received["memory"]
        for each in self.passes(algorithm, task):
            client = self.client(each, number, task.client, received["download"], kept["own"])
            params, loss = self._carry_out(each, number, task.client, client, untrained)
            if each.functions.review is not None:
                after = self._review(each.functions, task.client, params, client, number)
                client = client._replace(found={**client.found, **after})
            trained = returned.versions(params)
            if each.functions is algorithm:
                uploads, kept = finish(algorithm, self.model.weights, params, client, kept["compression"])
                done = {"uploads": uploads, "loss": loss}
            else:
                kept = {**kept, "own": remembered(each.functions, params, client)}
            returned.unchanged("a client's hook", returned.TRAINED, params, trained)
        returned.unchanged(
            "a client's hook", "what the client received, its download or its memory", received, versions
        )
        return {**done, "memory": kept}

    def _carry_out(
        self, each: Pass, number: int, owner: int, client: Client, untrained: bool
    ) -> tuple[Params, Tensor]:  # fmt: skip
        """The weights that a pass of client `owner` ends at in a round, and its mean loss."""
        world, algorithm, local = self.world, each.functions, each.local
        params = {name: value.detach().clone() for name, value in client.start.items()}
        names = returned.trained(algorithm.trains(self.model), params, self.model.weights)
        weights = {name: params[name].requires_grad_() for name in names}
        rows, tensors, total = world.of(owner), list(weights.values()), torch.zeros((), dtype=world.dtype)
        optimizer = Optimizer(tensors, local, local.rate(number), fused=True)
        plan = () if untrained else batches(self.seed, number, owner, len(rows), local, each.stream)
        for step, positions in enumerate(plan):
            chosen, key = rows.index_select(0, positions.to(rows.device)), client.key + step
            x = world.prepare(chosen, key)
            if x.dim() == 4:  # makes the first convolution, of few channels, faster
                x = x.to(memory_format=torch.channels_last)
            share = torch.full((len(chosen),), 1 / len(chosen), dtype=world.dtype, device=x.device)
            batch = Batch(x, world.y.index_select(0, chosen), share, key)
            versions = returned.versions(params)
            loss, statistics = self.objective(algorithm, params, batch, client, padded=False, alone=True)
            found = returned.gradient(torch.autograd.grad(loss, tensors, allow_unused=True), tensors)
            with torch.no_grad():
                plain = dict(zip(weights, found))
                grads = returned.corrected(plain, algorithm.correct(dict(plain), params, client))
                returned.unchanged("loss or correct", "the weights, params,", params, versions)
                if local.max_grad_norm is not None:
                    grads = clip(grads, local.max_grad_norm, stacked=False, model=self.model.weights)
            optimizer.step(tensors, [grads[name] for name in weights])
            del found, plain, grads  # so that the next step's gradients lie in the same memory, which is in the cache
            params.update(statistics)
            total = total + loss.detach()
            if self.stopped():
                raise Interrupted
        return {name: value.detach() for name, value in params.items()}, (total / client.steps).to(world.dtype)


@torch.no_grad()
def finish(
    algorithm: ClientFunctions, trained: list[str], params: Params, client: Client, errors: Tree
) -> tuple[Tree, Tree]:  # fmt: skip
    """What ONE client uploads and what it keeps, after training has ended with `params`.

    trained: names of the entries that privacy and compression act on; errors: what the compression remembers of this
    client's earlier rounds.
    """
    upload = returned.upload(algorithm.upload(params, client))
    own = remembered(algorithm, params, client)
    if "update" in upload:
        update = upload["update"]
        received = client.download.get("privacy", {})
        own_entries = {name: update[name] for name in trained if name in update}
        bounded, told = clipped(algorithm.privacy, own_entries, received)
        plain = {name: leaf for name, leaf in update.items() if name not in bounded}
        hook, found = "compression.encode", algorithm.compression.encode(bounded, errors, client.key)
        encoded, errors = (returned.tensors(hook, each) for each in returned.pair(hook, "payload, memory", found))
        upload = {**upload, "update": {"encoded": encoded, "plain": plain}, **({"privacy": told} if told else {})}
    return upload, {"own": own, "compression": errors}


def clipped(privacy: Privacy, update: Params, received: Tree) -> tuple[Params, Tree]:
    """ONE update as the mechanism bounds it, and what else its client tells."""
    hook = "privacy.clip"
    bounded, told = returned.pair(hook, "update, what else is uploaded", privacy.clip(update, received))
    return returned.same_form(hook, "the update's entries", update, bounded), returned.tensors(hook, told)


def remembered(algorithm: ClientFunctions, params: Params, client: Client) -> Tree:
    """ONE client's memory after a pass that ended with `params`."""
    return returned.tensors("remember", algorithm.remember(params, client))
