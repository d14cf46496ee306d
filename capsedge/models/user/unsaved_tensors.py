"""Find tensors that a module computes with and that its weights file does not hold. Needs torch.

A module is built twice with different random numbers, and the same weights are loaded into both. Whatever a
run of the two reads must then be equal: tensors that differ took whatever the constructor drew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from capsedge.errors import UnsupportedModelError
from capsedge.models.user.code import error_with_user_line, innermost_line, on_cpu, seeded
from capsedge.models.user.example_inputs import TakesNames
from capsedge.runtime.onnx_file.stored_values import first_few_lines

_DEPTH = 12  # of attributes, lists and dictionaries inside each other
_OBJECTS = 100_000
_SIZES = (1, 2, 3, 4, 8, 10, 16, 32, 50, 64, 100, 128, 256)  # batches that code may fix
_LARGEST = 512


@dataclass(frozen=True)
class Read:
    """A tensor that a run read and that no operation of the run made.

    Attributes:
        value: the tensor, after the run.
        line: the user's line; empty if there is none.
    """

    value: Tensor
    line: str


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the tensors that operations read and none of them made."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Read] = []
        self._kept: list[Tensor] = list(inputs)  # so that no address is used twice
        self._known = {_address(x) for x in inputs}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_leaves((args, kwargs or {})):
            if isinstance(value, Tensor) and _address(value) not in self._known:
                self.found.append(Read(value.detach(), innermost_line()))
                self._keep(value)
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._keep(value)
        return result

    def _keep(self, value: Tensor) -> None:
        self._known.add(_address(value))
        self._kept.append(value)


def _address(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def tensors_read(module: nn.Module, inputs: Sequence[Tensor], seed: int = 0) -> list[Read]:
    """What a second run reads besides its inputs; the first makes whatever the module makes lazily.

    Args:
        seed: of the first run. Numbers that the second draws itself are always the same.
    """
    with torch.no_grad(), on_cpu():
        with seeded(seed):
            module(*(x.clone() for x in inputs))
        copies = [x.clone() for x in inputs]
        with seeded(0), _Reads(copies) as reads:
            module(*copies)
    found: list[Read] = reads.found
    return found


def check_saved(
    module: nn.Module, again: nn.Module, inputs: Sequence[Tensor], weights: str, batch: int = 0
) -> str:
    """Refuse a module that computes with values that are neither saved nor constant.

    Args:
        module, again: the module, built twice with different random numbers, with the same weights.
        inputs: an example, batch first. If the module does not take as many, common batches are tried.
        weights: the file of the weights, for the message.
        batch: a batch that is tried first; 0 for the example's.

    Returns:
        Why this could not be checked; empty if it was.

    Raises:
        UnsupportedModelError: it names the attributes, or the lines that read the tensors.
    """
    both = _both_read(module, again, inputs, batch)
    if isinstance(both, str):
        return both
    first, second = both
    names = _names(module)
    wrong: list[str] = []
    for k, one in enumerate(first):
        other = second[k] if k < len(second) else None
        if other is None or _equal(one.value, other.value):
            continue
        name = names(one.value)
        line = f" ({one.line})" if one.line else ""
        wrong.append(f"{name or 'a tensor without a name'} {list(one.value.shape)}{line}")
    if not wrong:
        return ""
    several = len(wrong) > 1
    raise UnsupportedModelError(
        f"The module computes with tensors that {weights} does not hold.",
        f"{'Their values change' if several else 'Its values change'} each time that the module is created, "
        "so the file would not compute what was trained.",
        "Register them: nn.Parameter(...), self.register_buffer(NAME, ...) with persistent=True, or "
        "nn.ModuleList([...]) for layers in a list. Save the state dict of the trained module again. If "
        "that module is gone, train again.",
        details=first_few_lines(list(dict.fromkeys(wrong))),
    )


def _both_read(
    module: nn.Module, again: nn.Module, inputs: Sequence[Tensor], batch: int
) -> tuple[list[Read], list[Read]] | str:
    """What both read at the first batch that they take; the first error if they take none."""
    kept = [v for part in module.modules() for k, v in vars(part).items() if "batch" in k.lower()]
    sizes = [batch, len(inputs[0]), *(v for v in kept if type(v) is int and v <= _LARGEST), *_SIZES]
    failed = ""
    for size in dict.fromkeys(n for n in sizes if n > 0):
        rows = [x[torch.arange(size) % len(x)] for x in inputs]
        try:
            return tensors_read(module, rows, 0), tensors_read(again, rows, 1)
        except (Exception, SystemExit) as error:  # of any kind, from the user's code
            failed = (
                failed
                or f"it takes none of the batches that were tried ({error_with_user_line(error)})"
            )
    return failed


def unregistered(module: nn.Module, flat: nn.Module, inputs: Sequence[Tensor]) -> tuple[str, ...]:
    """The tensors that a run reads and that the state dict lacks, by name and shape.

    Args:
        flat: the module, or what calls it.
    """
    try:
        found = tensors_read(flat, inputs)
    except Exception:  # any kind, from the user's code; the export reports it with its line
        return ()
    saved = {_address(t) for t in module.state_dict(keep_vars=True).values()}
    names = _names(module)
    listed_names = [
        f"{name} {list(each.value.shape)}"
        for each in found
        if _address(each.value) not in saved and (name := names(each.value))
    ]
    return tuple(dict.fromkeys(listed_names))


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_floating_point():
        return torch.equal(one.nan_to_num(), other.nan_to_num())
    return torch.equal(one, other)


def _names(module: nn.Module) -> Callable[[Tensor], str]:
    """A function that gives the attribute of a tensor: of its memory, or of its values."""
    held = list(_reachable(module.module if isinstance(module, TakesNames) else module))
    by_address: dict[int, str] = {}
    for name, value in held:
        place = value.ctypes.data if isinstance(value, np.ndarray) else _address(value)
        by_address.setdefault(place, name)

    def find(tensor: Tensor) -> str:
        if name := by_address.get(_address(tensor), ""):
            return name
        for name, value in held:
            if tuple(value.shape) == tuple(tensor.shape):
                given = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
                if torch.equal(given.to(tensor.dtype), tensor):
                    return name
        return ""

    return find


def _reachable(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every tensor and array that can be reached from a module, with its path of attributes."""
    visited: set[int] = set()
    waiting: list[tuple[str, Any, int]] = [("", module, 0)]
    while waiting and len(visited) < _OBJECTS:
        name, value, depth = waiting.pop()
        if id(value) in visited or depth > _DEPTH:
            continue
        visited.add(id(value))
        if isinstance(value, Tensor) or (
            isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        ):
            yield name, value
            continue
        waiting += [(n, v, depth + 1) for n, v in reversed(list(_inside(name, value)))]


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        for group in (value._parameters, value._buffers, value._modules):
            for key, each in group.items():
                yield f"{name}.{key}".lstrip("."), each
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield f"{name}[{key!r}]", each
    elif isinstance(value, (list, tuple, set, frozenset)):
        for k, each in enumerate(value):
            yield f"{name}[{k}]", each
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        for key, each in list(vars(value).items()):
            if key not in ("_parameters", "_buffers", "_modules") and not key.startswith("__"):
                yield f"{name}.{key}".lstrip("."), each
