"""A second device, as a GPU is one, on any machine: its tensors compute on the CPU, but meet the CPU's own only
where CUDA's may, and what crosses between the two is counted."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fedexp

_PACKAGE = fedexp.__path__[0]
_CPU = torch.device("cpu")
DEVICE = torch.device("lazy", 0)  # a name that PyTorch knows, of a device that computes nothing here
_aten = torch.ops.aten
_TO_NUMBERS = {_aten._local_scalar_dense.default, _aten.equal.default}
_OF_UNKNOWN_SIZE = {  # a GPU waits for their result to know how much memory it takes
    _aten.nonzero.default, _aten.masked_select.default, _aten._unique2.default, _aten.unique_dim.default,
    _aten.repeat_interleave.Tensor, _aten.bincount.default,
}  # fmt: skip
_WAITED_FOR = _TO_NUMBERS | _OF_UNKNOWN_SIZE
_BY_INDEX = {
    _aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default,
}  # fmt: skip
_JOINED = {_aten.cat.default, _aten.stack.default}  # in which not even a number may be on the CPU
_BENEATH = {torch.tensor, torch.as_tensor, torch.Tensor.new_tensor, torch.Tensor.tolist, torch.Tensor.numpy}


@contextmanager
def second_device() -> Iterator[Counter]:
    """Within, tensors can be made on DEVICE. Gives how often something crossed, by the line that had it cross."""
    crossings: Counter = Counter()
    with _Made(crossings), _Dispatch(crossings):
        yield crossings


class Remote(torch.Tensor):
    """A tensor on DEVICE; `here` holds its values."""

    @staticmethod
    def __new__(cls, here: torch.Tensor) -> "Remote":
        layout = {"strides": here.stride(), "storage_offset": here.storage_offset(), "dtype": here.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, here.size(), **layout, device=DEVICE)

    def __init__(self, here: torch.Tensor) -> None:
        self.here = here

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        raise RuntimeError(f"{operation} outside of second_device()")


def _on_cpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, Remote)


def _is_remote(device: torch.device | str | None) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _line() -> str:
    """The line of fedexp that is being carried out."""
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(_PACKAGE)}:{frame.f_lineno}" if frame else "a test"


class _Made(TorchFunctionMode):
    """What happens beneath dispatch: torch.tensor builds its values there, tolist and numpy read them there."""

    def __init__(self, crossings: Counter) -> None:
        self.crossings = crossings

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        if function not in _BENEATH:
            return function(*arguments, **named)
        if function in (torch.tensor, torch.as_tensor) and _is_remote(named.get("device")):
            return function(*arguments, **{**named, "device": "cpu"}).to(DEVICE)
        if function is torch.Tensor.new_tensor and isinstance(arguments[0], Remote):
            return torch.tensor(arguments[1], dtype=named.get("dtype") or arguments[0].dtype).to(DEVICE)
        if function is torch.Tensor.tolist and isinstance(arguments[0], Remote):
            self.crossings[_line()] += 1
            return arguments[0].here.tolist()
        if function is torch.Tensor.numpy and isinstance(arguments[0], Remote):
            raise TypeError(f"numpy() of a tensor on {DEVICE}")
        return function(*arguments, **named)


class _Dispatch(TorchDispatchMode):
    def __init__(self, crossings: Counter) -> None:
        super().__init__()
        self.crossings = crossings

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        tensors: list[torch.Tensor] = []
        here = tuple([_here(each, tensors) for each in arguments])
        named = named or {}
        named_here = {name: _here(each, tensors) for name, each in named.items()}
        stays = self._stays(operation, arguments, named.get("device"), tensors)
        if named_here.get("device") is not None:
            named_here["device"] = _CPU
        result = operation(*here, **named_here)
        return _as_given(operation, arguments, named, result) if stays else result

    def _stays(
        self, operation: Any, arguments: Any, to: torch.device | str | None, tensors: list[torch.Tensor]
    ) -> bool:
        """Whether the result is on DEVICE. Counts crossings; raises RuntimeError where devices may not meet.

        tensors: all that the arguments are or hold.
        """
        if operation is _aten.copy_.default:
            return self._copied(arguments[1], isinstance(arguments[0], Remote))
        if operation is _aten._to_copy.default:
            return self._copied(arguments[0], isinstance(arguments[0], Remote) if to is None else _is_remote(to))
        if to is not None or Remote not in map(type, tensors):
            return _is_remote(to)
        waits, strangers = operation in _WAITED_FOR, tensors
        if operation in _BY_INDEX and isinstance(arguments[0], Remote):  # indices may come from the CPU
            waits, strangers = any(_on_cpu(each) or _is_mask(each) for each in arguments[1]), arguments[2:3]
        self._count(waits)
        for each in strangers:
            if _on_cpu(each) and (each.dim() or operation in _JOINED):
                raise RuntimeError(f"{operation}: a tensor of shape {tuple(each.shape)} is on the CPU")
        return operation not in _TO_NUMBERS

    def _copied(self, source: torch.Tensor, stays: bool) -> bool:
        self._count(isinstance(source, Remote) != stays)
        return stays

    def _count(self, crossed: bool) -> None:
        if crossed:
            self.crossings[_line()] += 1


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _as_given(operation: Any, arguments: Any, named: dict[str, Any], result: Any) -> Any:
    """Results on DEVICE; what was written in place is the tensor that was given."""
    slots, returned = _written(operation)
    if not slots:
        return _remote(result)
    written = tuple(
        named.get(name, arguments[position] if position < len(arguments) else None) for name, position in slots
    )
    return (written[0] if returned == 1 else written) if returned else None


@cache
def _written(operation: Any) -> tuple[list[tuple[str, int]], int]:
    """The names and positions of the arguments that an operation writes to and returns, if it returns nothing else;
    and how many it returns."""
    slots = [
        (slot.name, position) for position, slot in enumerate(operation._schema.arguments)
        if slot.alias_info is not None and slot.alias_info.is_write
    ]  # fmt: skip
    returns = operation._schema.returns
    return (slots if all(each.alias_info is not None for each in returns) else []), len(returns)


# PyTorch's own tree_map takes several times as long, of thousands of operations in every test.


def _here(value: Any, found: list[torch.Tensor]) -> Any:
    """The same with the CPU's tensors in the place of DEVICE's. All tensors are added to those `found`."""
    if isinstance(value, torch.Tensor):
        found.append(value)
        return value.here if type(value) is Remote else value
    if type(value) in (tuple, list):
        return type(value)([_here(each, found) for each in value])
    return value


def _remote(value: Any) -> Any:
    """The same with DEVICE's tensors in the place of the CPU's."""
    if isinstance(value, torch.Tensor):
        return value if type(value) is Remote else Remote(value)
    if type(value) in (tuple, list):
        return type(value)([_remote(each) for each in value])
    return value
