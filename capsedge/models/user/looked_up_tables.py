"""Find the tables that a module looks up with its integer inputs, by running it once. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from capsedge.models.user.code import on_cpu

# Functions whose result has other values than their inputs.
_OTHER = frozenset(("eq", "ne", "gt", "ge", "lt", "le", "__eq__", "__gt__", "__ge__", "__lt__", "__le__",
                    "__ne__", "logical_not", "sum", "argmax", "size", "zeros_like", "ones_like"))  # fmt: skip
# Functions whose result has the same values in another type.
_TYPES = frozenset(("int", "long", "to", "type", "type_as"))
# Functions whose result has the same values in another place or number, or some of them.
_MOVES = frozenset(("__getitem__", "cat", "chunk", "clone", "concat", "contiguous", "detach", "expand",
                    "expand_as", "flatten", "flip", "hstack", "movedim", "narrow", "permute", "repeat",
                    "reshape", "select", "split", "squeeze", "stack", "swapaxes", "t", "tensor_split", "tile",
                    "transpose", "unbind", "unflatten", "unsqueeze", "view", "view_as"))  # fmt: skip


def table_sizes(module: nn.Module, tensors: Sequence[Tensor]) -> list[int | None]:
    """Entries of the smallest table that the module indexes with each input; None if it indexes none.

    Args:
        tensors: valid inputs, with which it is run once.
    """
    with _Derived(tensors) as found:
        ran = _runs(module, tensors)
    return found.sizes if ran else [None] * len(tensors)


@dataclass(frozen=True)
class TableBounds:
    """Bounds for the indices in an input, all of which index tables that take no negative ones.

    Attributes:
        least, most: entries of the smallest table that an element indexes, for the element where these are
            fewest and where they are most; 0 if there are no bounds.
    """

    least: int = 0
    most: int = 0


def table_bounds(module: nn.Module, tensors: Sequence[Tensor]) -> list[TableBounds]:
    """The bounds for each input; arguments as for `table_sizes`."""
    with _Followed(tensors) as found:
        ran = _runs(module, tensors)
    return found.bounds if ran else [TableBounds()] * len(tensors)


def _runs(module: nn.Module, tensors: Sequence[Tensor]) -> bool:
    """Whether a module runs; if it does not, the export says so, with the line."""
    try:
        with torch.no_grad(), on_cpu():
            module(*tensors)
    except Exception:  # from the user's code, any kind
        return False
    return True


def _tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results, and those in lists of them."""
    for value in values if isinstance(values, (list, tuple)) else (values,):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (each for each in value if isinstance(each, Tensor))


class _Derived(TorchFunctionMode):
    """Records the sizes of the tables that are indexed with anything computed from some tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.sizes: list[int | None] = [None] * len(tensors)
        self._kept: list[Any] = list(tensors)  # keeps the id from being reused
        self._origin = {id(t): k for k, t in enumerate(tensors)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__getitem__" and args[0].is_floating_point():
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            for axis, part in enumerate(parts):
                self._note(part, args[0].shape[axis] if axis < args[0].ndim else 0)
        for at, size in _look_ups(name, args, kwargs):
            self._note(at, size)
        result = func(*args, **kwargs)
        source = next((t for t in _tensors_in(args) if id(t) in self._origin), None)
        if source is not None and name not in _OTHER:
            for each in _tensors_in(result):
                if not each.is_floating_point():
                    self._origin[id(each)] = self._origin[id(source)]
                    self._kept.append(each)
        return result

    def _note(self, at: Any, size: int) -> None:
        k = self._origin.get(id(at))
        if k is not None and size:
            known = self.sizes[k]
            self.sizes[k] = size if known is None else min(known, size)


class _Followed(TorchFunctionMode):
    """Records for each element of some tensors the smallest table that it indexes with its own value.

    The elements are numbered. Functions that only move elements are applied to these numbers, too.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._sizes = [t.numel() for t in tensors]
        numbers = torch.split(torch.arange(sum(self._sizes)), self._sizes)
        # By the id of a tensor, which is kept so that the id is not used again.
        self._known = {
            id(t): (t, own.reshape(t.shape)) for t, own in zip(tensors, numbers, strict=True)
        }
        self._least = torch.zeros(sum(self._sizes), dtype=torch.int64)  # 0: no table

    @property
    def bounds(self) -> list[TableBounds]:
        """The bounds for each tensor; none if an element indexes no table."""
        parts = torch.split(self._least, self._sizes)
        return [
            TableBounds(int(part.min()), int(part.max()))
            if len(part) and part.min()
            else TableBounds()
            for part in parts
        ]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        for at, size in _look_ups(name, args, kwargs):
            if id(at) in self._known:
                numbers = self._known[id(at)][1].reshape(-1)
                known = self._least[numbers]
                self._least[numbers] = torch.where(known == 0, size, known.clamp(max=size))
        result = func(*args, **kwargs)
        given = list(_tensors_in(args))
        followed = [t for t in given if id(t) in self._known]
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            self._forget(given[:1])  # changed in place, perhaps through a view
        elif name in _TYPES and id(args[0]) in self._known and isinstance(result, Tensor):
            self._known[id(result)] = (result, self._known[id(args[0])][1])
        elif name in _MOVES and followed and len(followed) == len(given):
            moved = func(*self._numbers(args), **kwargs)
            for each, numbers in zip(_tensors_in(result), _tensors_in(moved), strict=True):
                self._known[id(each)] = (each, numbers)
        return result

    def _numbers(self, values: Any) -> list[Any]:
        """Arguments with the numbers of their elements in the place of tensors."""
        found: list[Any] = []
        for value in values:
            if isinstance(value, Tensor):
                found.append(self._known[id(value)][1])
            elif isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
                found.append(self._numbers(value))
            else:
                found.append(value)
        return found

    def _forget(self, changed: Sequence[Tensor]) -> None:
        """No longer follow tensors that share memory with those that were changed."""
        memory = {t.untyped_storage().data_ptr() for t in changed}
        for key, (tensor, _) in list(self._known.items()):
            if tensor.untyped_storage().data_ptr() in memory:
                del self._known[key]


def _look_ups(name: str, args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[Any, int]]:
    """Indices and the number of entries of the table, if a function takes these and no negative index."""
    if name == "embedding":
        at, table = [*args, kwargs.get("input"), kwargs.get("weight")][:2]
        yield at, len(table)
    elif name == "index_select":
        axis, at = [*args[1:], kwargs.get("dim"), kwargs.get("index")][:2]
        yield at, args[0].shape[axis]
