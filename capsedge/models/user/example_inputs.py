"""Read example inputs for a user's module, or draw them from names, shapes and types. Needs torch."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capsedge.datasets.array_files import read_arrays
from capsedge.errors import UsageError
from capsedge.models.base import CapsuleModel
from capsedge.models.user.looked_up_tables import table_sizes

_LARGEST = 2**28  # elements of an example
_ROWS = 8  # number of rows of an example with whole numbers
_FEW = 2  # whole numbers that index nothing are below this: masks
_SHAPE = re.compile(r"\*?[0-9]{1,10}(x\*?[0-9]{1,10})*")
_TYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_FORMAT = (
    "Use --example 1x28x28, --example 1x28x28,10 for two inputs, --example hist:*50:int64,user:int64 with "
    "names and types (* before an axis that stays free), or an .npy or .npz file."
)


@dataclass(frozen=True)
class ExampleInputs:
    """Example inputs of a module.

    Attributes:
        tensors: the inputs in the order of its parameters, or by name; batch first.
        free_axes: the axes besides the batch that stay free, by input name.
    """

    tensors: tuple[Tensor, ...] | dict[str, Tensor]
    free_axes: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class _ExampleInput:
    """One input of an example: its sizes without the batch, and which of them are free."""

    name: str
    sizes: tuple[int, ...]
    free: tuple[int, ...]
    dtype: torch.dtype


def read_example(text: str, module: nn.Module) -> ExampleInputs:
    """Inputs of shapes such as ``1x28x28,10`` (without the batch), or from an ``.npy`` or ``.npz`` file.

    A shape may be preceded by a name and followed by a type, as in ``hist:*50:int64``; an axis with an
    asterisk stays free. An input without sizes, such as ``user:int64``, is one number per row.

    Integers are valid indices into the tables that the module looks up with them. Rows have different
    lengths, padded with zeros; the second to last is all zeros, and the last holds the largest numbers.

    Returns:
        The inputs, batch first. They are by name if the text has names or ``forward`` takes one dict. From a
        file, the arrays named like the parameters of ``forward`` are taken, in that order, or all if there
        are none.

    Raises:
        UsageError: the text is neither.
    """
    if text.endswith((".npy", ".npz")):
        return _stored(text, module)
    inputs = _parsed(text)
    generator = torch.Generator().manual_seed(1)
    if all(i.dtype == torch.float32 for i in inputs):
        drawn = [torch.rand((2, *i.sizes), generator=generator) for i in inputs]
    else:
        zeros = [torch.zeros((2, *i.sizes), dtype=i.dtype) for i in inputs]
        arranged = _arranged(inputs, zeros).tensors
        module = in_order(module, list(arranged)) if isinstance(arranged, dict) else module
        most = table_sizes(module, zeros)
        drawn = [_drawn(i, n, generator) for i, n in zip(inputs, most, strict=True)]
    return _arranged(inputs, drawn)


def _arranged(inputs: Sequence[_ExampleInput], tensors: Sequence[Tensor]) -> ExampleInputs:
    if not inputs[0].name:
        return ExampleInputs(tuple(tensors), {})
    named = {i.name: t for i, t in zip(inputs, tensors, strict=True)}
    return ExampleInputs(named, {i.name: i.free for i in inputs if i.free})


def _stored(text: str, module: nn.Module) -> ExampleInputs:
    stored = read_arrays(Path(text))
    parameters = inspect.signature(module.forward).parameters
    arrays = {name: stored[name] for name in parameters if name in stored}
    named = not arrays and len(stored) > 1 and takes_dict(module, tuple(stored))
    arrays = arrays or stored
    if not arrays or any(a.ndim == 0 or not len(a) for a in arrays.values()):
        raise UsageError(
            f"{text} holds no inputs.", "", "Pass arrays with the batch as the first axis."
        )
    tensors = {name: torch.from_numpy(a.copy()) for name, a in arrays.items()}
    return ExampleInputs(tensors if named else tuple(tensors.values()), {})


def _parsed(text: str) -> list[_ExampleInput]:
    """The inputs that a text names.

    Raises:
        UsageError: the text is not of this form.
    """
    wrong = UsageError(
        f"'{text:.60}' is not the shape of an input.",
        f"The format is the shape of one image, channels first, with at most {_LARGEST} values.",
        _FORMAT,
    )
    found = []
    for part in text.split(","):
        words = part.split(":")
        dtype = _TYPES.get(words[-1])
        words = words[:-1] if dtype is not None else words
        shape = words.pop().lower() if words and _SHAPE.fullmatch(words[-1].lower()) else ""
        name = words.pop() if words else ""
        if words or not (shape or name) or (name and not name.isidentifier()):
            raise wrong
        if not shape and dtype is None:
            raise wrong  # a single word is more likely a mistake than an input
        sizes = tuple(int(size.lstrip("*")) for size in shape.split("x") if shape)
        free = tuple(k + 1 for k, size in enumerate(shape.split("x")) if size.startswith("*"))
        if not 0 < math.prod(sizes) <= _LARGEST or (free and not name):
            raise wrong
        found.append(_ExampleInput(name, sizes, free, dtype or torch.float32))
    if len({bool(i.name) for i in found}) > 1 or (
        found[0].name and len({i.name for i in found}) < len(found)
    ):
        raise UsageError(
            f"The inputs in '{text}' are not all named, or two have the same name.",
            "",
            "Give every input a name of its own, or none.",
        )
    return found


def _drawn(given: _ExampleInput, most: int | None, generator: torch.Generator) -> Tensor:
    """Rows of one input; if it indexes a table, ``most`` is the table's size."""
    shape = (_ROWS, *given.sizes)
    if given.dtype.is_floating_point:
        return torch.rand(shape, generator=generator).to(given.dtype)
    return whole_numbers(shape, most, generator).to(given.dtype)


def whole_numbers(shape: Sequence[int], most: int | None, generator: torch.Generator) -> Tensor:
    """Integers below ``most``, or 0 and 1, in zero-padded rows with lengths from the longest down to one.

    The second to last row is all zeros; the last holds the largest number.

    Args:
        shape: at least three rows.
        most: entries of the table that they index; None if they index nothing.

    Returns:
        int64.
    """
    below = _FEW if most is None else most
    drawn = torch.randint(below, tuple(shape), generator=generator)
    if len(shape) > 1:
        length = shape[-1]
        lengths = torch.linspace(length, 1, shape[0]).round().long()
        here = torch.arange(length) < lengths.reshape(-1, *[1] * (len(shape) - 1))
        drawn = drawn * here
    drawn[-2], drawn[-1] = 0, below - 1
    return drawn


# --- Modules whose forward takes one dict ---


class TakesNames(nn.Module):
    """Wraps a module whose ``forward`` takes one dict, or keywords, to take the values in order.

    Args:
        module: the user's.
        names: the keys.
        keywords: whether the keys are parameter names.
    """

    def __init__(self, module: nn.Module, names: Sequence[str], *, keywords: bool = False) -> None:
        super().__init__()
        self.module, self.names, self.keywords = module, tuple(names), keywords

    def forward(self, *inputs: Tensor) -> Any:
        named = dict(zip(self.names, inputs, strict=True))
        return self.module(**named) if self.keywords else self.module(named)


def takes_dict(module: nn.Module, names: Sequence[str]) -> bool:
    """Whether these input names are keys of a dict rather than parameters of ``forward``."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return False
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p.name for p in plain if p.default is p.empty]
    return len(needed) == 1 and needed[0] not in names


def in_order(module: nn.Module, names: Sequence[str]) -> nn.Module:
    """Wrap a module that takes inputs by these names to take them in this order.

    Raises:
        UsageError: ``forward`` neither has these parameters nor takes a dict.
    """
    if takes_dict(module, names):
        return TakesNames(module, names)
    parameters = list(inspect.signature(module.forward).parameters)
    unknown = [name for name in names if name not in parameters]
    if unknown:
        raise UsageError(
            f"forward has no parameter {unknown[0]}.",
            f"Its parameters: {', '.join(parameters) or 'none'}.",
            "Name the inputs like the parameters, or, if forward takes one dict, like its keys.",
        )
    if list(names) == parameters[: len(names)]:
        return module
    return TakesNames(module, names, keywords=True)


def in_order_of(module: nn.Module, names: Sequence[str]) -> nn.Module:
    """`in_order` for the inputs of a file, which may use other names."""
    if isinstance(module, CapsuleModel):
        return module
    if takes_dict(module, names) and (len(names) > 1 or _says_dict(module)):
        return TakesNames(module, names)
    return module


def _says_dict(module: nn.Module) -> bool:
    """Whether the only parameter is annotated as a dict, or the code indexes it with a string."""
    (name, parameter) = next(iter(inspect.signature(module.forward).parameters.items()))
    if (
        "dict" in str(parameter.annotation).lower()
        or "mapping" in str(parameter.annotation).lower()
    ):
        return True
    try:
        code = inspect.getsource(module.forward)
    except (OSError, TypeError):
        return False
    return re.search(rf"\b{name}\[[\"']", code) is not None
