"""A second device, as a GPU is one, on any machine: its tensors compute on the CPU, but meet the CPU's own only
where CUDA's may, and what crosses between the two is counted."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fedexp

_PACKAGE = fedexp.__path__[0]
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
        named = dict(named or {})
        if function in (torch.tensor, torch.as_tensor) and _is_remote(named.get("device")):
            del named["device"]
            return function(*arguments, **named).to(DEVICE)
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
        named = named or {}
        stays = self._stays(operation, arguments, named)
        here, named_here = _here(arguments), _here(named)
        if named_here.get("device") is not None:
            named_here["device"] = torch.device("cpu")
        result = operation(*here, **named_here)
        return _as_given(operation, arguments, named, result) if stays else result

    def _stays(self, operation: Any, arguments: Any, named: dict[str, Any]) -> bool:
        """Whether the result is on DEVICE. Counts crossings; raises RuntimeError where devices may not meet."""
        to = named.get("device")
        if operation is _aten.copy_.default:
            return self._copied(arguments[1], isinstance(arguments[0], Remote))
        if operation is _aten._to_copy.default:
            return self._copied(arguments[0], isinstance(arguments[0], Remote) if to is None else _is_remote(to))
        tensors = [*_tensors(arguments), *_tensors(named)]
        if to is not None or not any(isinstance(each, Remote) for each in tensors):
            return _is_remote(to)
        waits, strangers = operation in _WAITED_FOR, tensors
        if operation in _BY_INDEX and isinstance(arguments[0], Remote):  # indices may come from the CPU
            waits, strangers = any(_on_cpu(each) or _is_mask(each) for each in arguments[1]), arguments[2:3]
        self._count(waits)
        for each in strangers:
            if _on_cpu(each) and each.dim():
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
    slots = operation._schema.arguments
    written = [
        named.get(slot.name, arguments[position] if position < len(arguments) else None)
        for position, slot in enumerate(slots)
        if slot.alias_info is not None and slot.alias_info.is_write
    ]
    returns = operation._schema.returns
    if written and all(each.alias_info is not None for each in returns):
        return (written[0] if len(returns) == 1 else tuple(written)) if returns else None
    return _remote(result)


# PyTorch's own tree_map takes several times as long, of thousands of operations in every test.


def _here(value: Any) -> Any:
    """The same with the CPU's tensors in the place of DEVICE's."""
    if isinstance(value, Remote):
        return value.here
    return _mapped(_here, value)


def _remote(value: Any) -> Any:
    """The same with DEVICE's tensors in the place of the CPU's."""
    if _on_cpu(value):
        return Remote(value)
    return _mapped(_remote, value)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """What holds values, with `function` of each; any other value as it is."""
    if isinstance(value, dict):
        return {name: function(each) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(function(each) for each in value)
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All that an argument is or holds."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)
