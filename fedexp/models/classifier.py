"""A model of an encoder and a head, and models as pure functions of Params."""

from contextlib import nullcontext
from typing import Any, cast

from torch import Tensor, nn
from torch.func import functional_call

from fedexp.models.layers import BatchNorm, begin_call, frozen
from fedexp.models.purify import purify, refuse_another_head
from fedexp.tree import Params


class Classifier(nn.Module):
    """forward = head(encoder(x)); the head is the last linear layer. Raises TypeError for another head."""

    def __init__(self, encoder: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        if not isinstance(head, nn.Linear):
            raise TypeError(f"head must be one nn.Linear, not {type(head).__name__}; other layers go into the encoder")
        self.encoder, self.head = encoder, head

    def forward(self, x: Tensor, part: str = "all") -> Tensor:
        """part: all, or encoder (x to features [n, d])."""
        features = self.encoder(x)
        return features if part == "encoder" else self.head(features)


class Model:
    """A network as pure functions of Params, which algorithms call inside `loss` and `predict`.

    Inside the engine's training pass the layers are in training mode (batch statistics, dropout); elsewhere, and with
    training=False, in evaluation mode. `own` are the net's own entries. `weights` names those that are trained; a
    parameter with requires_grad=False is one of the `buffers`. pretrained: the source of the weights below the head;
    None: they are random.

    Calls raise ValueError for params that lack an entry which they need, or that have others than the model's.
    """

    pretrained: str | None = None

    def __init__(self, net: nn.Module) -> None:
        if isinstance(net, Classifier):
            refuse_another_head(net.head)
        self.net = purify(net)
        net.eval()  # in training mode, other layers would add noise in evaluation too
        self.own: Params = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        self.weights = [name for name, value in net.named_parameters() if value.requires_grad]
        self.buffers = [name for name in self.own if name not in self.weights]
        places = [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]
        self.tied = len(places) > len(self.weights) + len(self.buffers)  # looking for tied weights takes time per call
        self._entries = {*self.own}
        self._below_head = {name for name in self._entries if not name.startswith("head.")}

    @property
    def splits(self) -> bool:
        """Whether the net is a Classifier, an encoder and a head, as `encode`, `head` and `features` need."""
        return isinstance(self.net, Classifier)

    @property
    def _head(self) -> nn.Linear:
        return cast(Classifier, self.net).head

    @property
    def features(self) -> int:
        """Width d of the encoder's output."""
        return self._head.in_features

    @property
    def classes(self) -> int:
        return self._head.out_features

    @property
    def normalisation(self) -> list[str]:
        """Names of all entries of batch normalisation layers: weights, biases, running statistics."""
        layers = {path: layer for path, layer in self.net.named_modules() if isinstance(layer, BatchNorm)}
        return [f"{path}.{name}" for path, layer in layers.items() for name in layer.state_dict()]

    @property
    def statistics(self) -> list[str]:
        """Names of all running statistics, which change in training although they are not trained."""
        buffers = {name for name, _ in self.net.named_buffers()}
        return [name for name in self.normalisation if name in buffers]

    def params(self) -> Params:
        """A copy of the net's own weights and buffers."""
        return {name: value.detach().clone() for name, value in self.own.items()}

    def trained(self, entries: Params) -> Params:
        """Those of a model's, an update's or a stack's entries that are trained."""
        return {name: entries[name] for name in self.weights if name in entries}

    def __call__(self, params: Params, x: Tensor, training: bool = True) -> Tensor:
        """Logits [n, C] of prepared examples x [n, ...]."""
        return self._call(params, self._entries, training, x)

    def encode(self, params: Params, x: Tensor, training: bool = True) -> Tensor:
        """Features [n, d]: the encoder's output, which the head reads. `params` may lack the head's entries."""
        return self._call(params, self._below_head, training, x, "encoder")

    def head(self, params: Params, features: Tensor) -> Tensor:
        """Logits [n, C] of features [n, d]. Of `params`, only the head's entries are needed."""
        return nn.functional.linear(features, params["head.weight"], params.get("head.bias"))

    def _call(self, params: Params, needed: set[str], training: bool, *arguments: Any) -> Tensor:
        # PyTorch would take what is missing from the net: its first weights. (Sets cannot be compared within
        # torch.compile in PyTorch 2.11.)
        if not (all(name in params for name in needed) and all(name in self._entries for name in params)):
            parts = {"lack": needed - params.keys(), "have besides": params.keys() - self._entries}
            told = "; ".join(f"they {verb} {', '.join(sorted(names))}" for verb, names in parts.items() if names)
            raise ValueError(f"a model's params must be its own entries, all of them and no others: {told}")
        with nullcontext() if training else frozen():
            begin_call()
            return functional_call(self.net, params, arguments, tie_weights=self.tied)
