"""Wrap a user's module so that it returns a plain tuple of tensors: in batches, image by image, in FP64."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from capsedge.errors import UnsupportedModelError
from capsedge.models.user.code import on_cpu


@dataclass(frozen=True)
class AddedScores:
    """Scores ``[N, J]`` computed from an output.

    Attributes:
        output: its number among the values.
        classes: J.
        capsules: whether it holds capsules, whose lengths are the scores; otherwise it has axes of 1 more.
    """

    output: int
    classes: int
    capsules: bool

    def __call__(self, values: Sequence[Tensor]) -> Tensor:
        """The scores; axes of size 1 are ignored."""
        flat = values[self.output].flatten(1)
        if not self.capsules:
            return flat
        capsules = flat.reshape(flat.shape[0], self.classes, flat.shape[1] // self.classes)
        lengths: Tensor = torch.linalg.vector_norm(capsules, dim=-1)
        return lengths


class Flat(nn.Module):
    """A user's module wrapped to return a plain tuple of tensors, whatever the form of its output.

    Args:
        module: the user's.
        ranks: dimensions of each output, where they are known: ``squeeze()`` at batch 1 is undone.
        each: whether the module takes one image at a time; a batch is then taken apart.
        scored: makes scores of one of the outputs, the last output then; None for none.
    """

    def __init__(
        self,
        module: nn.Module,
        ranks: Sequence[int] | None = None,
        each: bool = False,
        scored: AddedScores | None = None,
    ) -> None:
        super().__init__()
        self.module, self.each, self.scored = module, each, scored
        self.ranks = None if ranks is None else tuple(ranks)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.each and inputs[0].shape[0] != 1:
            rows = [self._whole(*(x[k : k + 1] for x in inputs)) for k in range(len(inputs[0]))]
            return tuple(torch.cat(column) for column in zip(*rows, strict=True))
        return self._whole(*inputs)

    def _whole(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        copies = [x.clone() for x in inputs]  # code may write into its input, which is used again
        with on_cpu():
            result = self.module(*copies)
        values = _copy_outputs(tuple(named_outputs(result).values()), inputs)
        if self.ranks is not None and len(self.ranks) == len(values):
            values = tuple(
                v[None] if v.ndim == rank - 1 and inputs[0].shape[0] == 1 else v
                for v, rank in zip(values, self.ranks, strict=True)
            )
        return values if self.scored is None else (*values, self.scored(values))


def _copy_outputs(values: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Outputs that are no input and no other output: in a file each has a name of its own."""
    found: list[Tensor] = []
    for value in values:
        known = any(value is other for other in (*inputs, *found))
        found.append(value * 1 if known else value)
    return tuple(found)


class ImageByImage(nn.Module):
    """A flat module applied to every image on its own, however its code treats the batch."""

    def __init__(self, flat: Flat) -> None:
        super().__init__()
        self.flat = flat

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        def one(*image: Tensor) -> tuple[Tensor, ...]:
            return tuple(v.reshape(v.shape[1:]) for v in self.flat(*(x[None] for x in image)))

        result = torch.func.vmap(one)(*inputs)
        return tuple(result)


def unique_output_name(name: str, taken: Container[str]) -> str:
    """A name for an output that is not taken; in a file, all inputs and outputs have different ones."""
    while name in taken:
        name += "_output"
    return name


def named_outputs(result: Any) -> dict[str, Tensor]:
    """The tensors of a module's output by name: keys, fields, or ``output_0``, ``output_1``, ...

    Names of nested outputs are joined by ``_``. None represents an absent output.

    Raises:
        UnsupportedModelError: the output holds something other than tensors, or nothing.
    """
    found: dict[str, Tensor] = {}
    wrong: list[str] = []

    def walk(name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.is_complex():
            wrong.append(f"{name or 'the output'} (complex numbers: return torch.view_as_real(x))")
        elif isinstance(value, Tensor):
            found[unique_output_name(name or "output", found)] = value
        elif isinstance(value, Mapping):
            for key, each in value.items():
                walk(f"{name}_{key}" if name else str(key), each)
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            walk(name, dict(zip(value._fields, value, strict=True)))
        elif is_dataclass(value) and not isinstance(value, type):
            walk(name, {each.name: getattr(value, each.name) for each in fields(value)})
        elif isinstance(value, (tuple, list)):
            for k, each in enumerate(value):
                walk(f"{name or 'output'}_{k}", each)
        elif value is not None:
            wrong.append(f"{name or 'the output'} ({type(value).__name__})")

    walk("", result)
    if wrong or not found:
        raise UnsupportedModelError(
            "The module's outputs cannot be exported.",
            f"Not a tensor of real numbers: {', '.join(wrong)}."
            if wrong
            else "forward returns nothing.",
            "Return a tensor, a tuple, a named tuple, a dict or a dataclass of tensors.",
        )
    return found


def repeated_to_batch(tensors: Sequence[Tensor], batch: int) -> tuple[Tensor, ...]:
    """The first image of each input, repeated to a batch; a copy that code may write into."""
    return tuple(t[:1].repeat(batch, *[1] * (t.ndim - 1)) for t in tensors)


def resize_free_axes(
    tensors: Sequence[Tensor], free_axes: Sequence[Sequence[int]], sizes: Mapping[int, int]
) -> list[Tensor]:
    """Tensors with free axes cut or repeated from the start.

    Args:
        sizes: the new sizes of axes by their old ones; other axes stay as they are.
    """
    found = list(tensors)
    for n, axes in enumerate(free_axes):
        for axis in axes:
            own = found[n].shape[axis]
            if own in sizes:
                found[n] = found[n].index_select(axis, torch.arange(sizes[own]) % own)
    return found


def to_fp64(module: nn.Module) -> nn.Module:
    """A copy in FP64."""
    return copy.deepcopy(module).double()


def run_fp64(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A flat module's outputs in FP64; tensors that its code makes are FP64 too."""
    with default_fp64():
        result = module(*(t.double() if t.dtype.is_floating_point else t for t in inputs))
    return tuple(result)


@contextlib.contextmanager
def default_fp64() -> Iterator[None]:
    """While active, tensors that code creates without a type are FP64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
