"""A user's own module as the subject of an export: its inputs, its outputs, and what its batch does."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capsedge.errors import CapsedgeError, UnsupportedModelError, UsageError
from capsedge.exporters.modules import Subject
from capsedge.exporters.repeatable import check_repeatable
from capsedge.exporters.user_code import (
    first_line,
    is_user_code,
    line_of,
    lines_with,
    on_cpu,
    reductions_over_batch,
)
from capsedge.runtime.metadata import ModelMetadata

Example = Tensor | Sequence[Tensor]
_LARGEST_EXAMPLE = 8  # rows of an example that the module is captured with
_FP64, _FP32 = 1e-9, 1e-4  # of the largest magnitude: what batching may change by rounding


@dataclass(frozen=True)
class Scored:
    """Scores ``[N, J]`` made of an output.

    Attributes:
        output: its number among the values.
        classes: J.
        capsules: whether it holds capsules, whose lengths are the scores; otherwise it has axes of 1 more.
    """

    output: int
    classes: int
    capsules: bool

    def __call__(self, values: Sequence[Tensor]) -> Tensor:
        """The scores; axes of 1 do not count."""
        flat = values[self.output].flatten(1)
        if not self.capsules:
            return flat
        capsules = flat.reshape(flat.shape[0], self.classes, flat.shape[1] // self.classes)
        lengths: Tensor = torch.linalg.vector_norm(capsules, dim=-1)
        return lengths


class Flat(nn.Module):
    """A user's module whose output, of any form, is made a plain tuple of tensors.

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
        scored: Scored | None = None,
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
        with on_cpu():  # code may write into its input, which others read afterwards
            values = tuple(named(self.module(*(x.clone() for x in inputs))).values())
        values = _apart(values, inputs)
        if self.ranks is not None and len(self.ranks) == len(values):
            values = tuple(
                v[None] if v.ndim == rank - 1 and inputs[0].shape[0] == 1 else v
                for v, rank in zip(values, self.ranks, strict=True)
            )
        return values if self.scored is None else (*values, self.scored(values))


def _apart(values: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Outputs that are no input and no other output: in a file each has a name of its own."""
    found: list[Tensor] = []
    for value in values:
        known = any(value is other for other in (*inputs, *found))
        found.append(value * 1 if known else value)
    return tuple(found)


class PerImage(nn.Module):
    """A flat module applied to every image on its own, however its code treats the batch."""

    def __init__(self, flat: Flat) -> None:
        super().__init__()
        self.flat = flat

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        def one(*image: Tensor) -> tuple[Tensor, ...]:
            return tuple(v.reshape(v.shape[1:]) for v in self.flat(*(x[None] for x in image)))

        result = torch.func.vmap(one)(*inputs)
        return tuple(result)


def named(result: Any) -> dict[str, Tensor]:
    """The tensors of a module's output by name: keys, fields, or ``output_0``, ``output_1``, ...

    Names of nested outputs are joined by ``_``. None stands for an output that is not there.

    Raises:
        UnsupportedModelError: there is something else in it, or nothing.
    """
    found: dict[str, Tensor] = {}
    wrong: list[str] = []

    def walk(name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.is_complex():
            wrong.append(f"{name or 'the output'} (complex numbers: return torch.view_as_real(x))")
        elif isinstance(value, Tensor):
            found[name or "output"] = value
        elif isinstance(value, Mapping):
            for key, each in value.items():
                walk(f"{name}_{key}" if name else str(key), each)
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            walk(name, dict(zip(value._fields, value, strict=True)))
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
            "Return a tensor, a tuple, a named tuple or a dict of tensors.",
        )
    return found


def of_module(
    module: nn.Module,
    example: Example | None,
    batch: int | None,
    output_names: Sequence[str] | None,
    metadata: ModelMetadata | None,
) -> Subject:
    """The subject for a user's own module.

    Raises:
        UsageError: there is no example, it does not fit, or the names do not fit the outputs.
        UnsupportedModelError: an output is not a tensor, or the batch cannot be free.
    """
    tensors = _tensors(example)
    inputs = _input_names(module, len(tensors))
    flat, names = _flat(module, tensors, batch)
    if output_names is not None:
        if len(output_names) != len(names):
            raise UsageError(
                f"{len(output_names)} output names were given.",
                f"The module has {len(names)} outputs: {', '.join(names)}.",
            )
        names = tuple(output_names)
    count = batch or min(max(2, len(tensors[0])), _LARGEST_EXAMPLE)
    shaped = tuple(t[torch.arange(count) % len(t)].clone() for t in tensors)
    return Subject(flat.eval(), inputs, names, shaped, metadata, (1, 2, 5))


def _tensors(example: Example | None) -> tuple[Tensor, ...]:
    if example is None:
        raise UsageError(
            "A module of your own needs an example input.",
            "Its input shapes are otherwise unknown.",
            "Pass example=torch.zeros(2, ...), or a tuple of tensors for several inputs.",
        )
    several = isinstance(example, (list, tuple))
    given: tuple[Any, ...] = tuple(example) if several else (example,)
    wrong = next((t for t in given if not isinstance(t, Tensor)), None)
    if isinstance(wrong, np.ndarray):
        raise UsageError(
            "The example is a numpy array.",
            "A module of PyTorch takes tensors.",
            "Pass example=torch.from_numpy(array).float(), or torch.rand(2, ...).",
        )
    if wrong is not None:
        raise UsageError(
            f"The example {'holds' if several else 'is'} a value of type {type(wrong).__name__}.",
            "A module of PyTorch takes tensors.",
            "Pass a tensor, such as torch.rand(2, 1, 28, 28), or a tuple of them.",
        )
    tensors: tuple[Tensor, ...] = given
    if not tensors or any(t.ndim == 0 for t in tensors):
        raise UsageError("Every input needs a batch dimension.", "", "Put the batch first.")
    return tensors


def _input_names(module: nn.Module, count: int) -> tuple[str, ...]:
    """The names of ``forward``'s parameters.

    Raises:
        UsageError: it needs more inputs, or takes fewer.
    """
    parameters = inspect.signature(module.forward).parameters.values()
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in plain]
    needed = [p.name for p in plain if p.default is p.empty]
    variadic = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    if count < len(needed) or (count > len(names) and not variadic):
        raise UsageError(
            f"The example has {count} input{'s' * (count > 1)}.",
            f"forward takes {', '.join(names) or 'none'}"
            + (f", of which {', '.join(needed)} must be given." if needed != names else "."),
            "Give one example for each input. A label that only training needs should be optional: "
            f"forward(self, {names[0] if names else 'x'}, y=None).",
        )
    return (*names, *(f"input_{i}" for i in range(len(names), count)))[:count]


def sized(tensors: Sequence[Tensor], batch: int) -> tuple[Tensor, ...]:
    """The first image of each, repeated to a batch; a copy, which code may write into."""
    return tuple(t[:1].repeat(batch, *[1] * (t.ndim - 1)) for t in tensors)


def _flat(
    module: nn.Module, tensors: tuple[Tensor, ...], batch: int | None
) -> tuple[Flat, tuple[str, ...]]:
    """The module made flat, and the names of its outputs; judged at the batches that it must take."""
    if batch is not None and batch > 1:
        result = _run(module, sized(tensors, batch), batch)
        _check_repeatable(module, tensors, batch)
        return Flat(module), tuple(result)
    failure: CapsedgeError | None = None
    several: dict[str, Tensor] | None = None
    try:
        several = _run(module, sized(tensors, 2), 2)
    except CapsedgeError as error:
        failure = error
    if several is None or batch == 1:
        try:
            alone = _run(module, sized(tensors, 1), 1)
        except CapsedgeError as error:
            raise (failure if failure is not None and batch is None else error) from None
        _check_repeatable(module, tensors, 1)
        ranks = [v.ndim for v in (alone if several is None else several).values()]
        return Flat(module, ranks, each=several is None and batch is None), tuple(alone)
    _check_repeatable(module, tensors, 2)
    _check_batch_axis(module, several)
    _check_alone(module, tensors, several)
    flat = Flat(module, [v.ndim for v in several.values()])
    _check_independent(flat, tensors, tuple(several))
    return flat, tuple(several)


def _run(module: nn.Module, inputs: tuple[Tensor, ...], batch: int) -> dict[str, Tensor]:
    """The module's outputs.

    Raises:
        UnsupportedModelError: it fails; the error names the user's line.
    """
    try:
        with torch.no_grad(), on_cpu():
            return named(module(*inputs))
    except CapsedgeError:
        raise
    except (Exception, SystemExit) as error:  # of the user's code: any kind
        lines, fix = _fixed_batch(module, batch)
        fix = fix or (
            "Check the shape of the example; where the code says a number of images, use x.size(0), or fix "
            "the batch to that number with batch= (--batch)."
        )
        lines = [line_of(error), *lines]
        raise UnsupportedModelError(
            f"The module fails on an example of {', '.join(str(list(t.shape)) for t in inputs)}.",
            f"{type(error).__name__}: {first_line(error)}",
            fix,
            details=[line for line in lines if line],
        ) from error


def _check_repeatable(module: nn.Module, tensors: tuple[Tensor, ...], batch: int) -> None:
    """Refuse a module whose answers are drawn, before anything else is said of it."""
    cases = sized(tensors, batch), _drawn(tensors, batch)
    check_repeatable(module, lambda inputs: _run(module, tuple(inputs), batch), cases)


def _drawn(tensors: Sequence[Tensor], batch: int) -> tuple[Tensor, ...]:
    """Uniform numbers of the shapes of the example; integer inputs repeat it."""
    generator = torch.Generator().manual_seed(7)
    return tuple(
        torch.rand((batch, *t.shape[1:]), generator=generator).to(t.dtype)
        if t.dtype.is_floating_point
        else sized([t], batch)[0]
        for t in tensors
    )


def _fixed_batch(module: nn.Module, batch: int) -> tuple[list[str], str]:
    """The line that says another batch, and the way out; nothing where there is none."""
    fixed = next(((n, k) for n, k in _batch_sizes(module).items() if k != batch), None)
    if fixed is None:
        return [], ""
    name, size = fixed
    return lines_with(module, name), (
        f"Where the code says {name}, use x.size(0), the batch that comes in; or fix the batch to {size} "
        f"with batch={size} (--batch {size})."
    )


def _batch_sizes(module: nn.Module) -> dict[str, int]:
    """Whole numbers that the module, or the file of its class, keeps under a name with "batch" in it."""
    found = {}
    for each in module.modules():
        code = sys.modules.get(type(each).__module__)
        places = [("self.", vars(each))]
        if code is not None and is_user_code(getattr(code, "__file__", None) or "<none>"):
            places.append(("", vars(code)))
        for prefix, values in places:
            for key, value in values.items():
                if "batch" in key.lower() and type(value) is int:
                    found[prefix + key] = value
    return found


def _check_batch_axis(module: nn.Module, outputs: Mapping[str, Tensor]) -> None:
    wrong = next((n for n, v in outputs.items() if v.ndim == 0 or v.shape[0] != 2), None)
    if wrong is not None:
        lines, fix = _fixed_batch(module, 2)
        raise UnsupportedModelError(
            f"The output '{wrong}' does not begin with the batch.",
            f"For two images its shape is {list(outputs[wrong].shape)}.",
            fix
            or "Return one row for each image (the batch first), leave the output out, or fix the batch "
            "with batch=1 (--batch 1).",
            details=lines,
        )


def _check_alone(
    module: nn.Module, tensors: tuple[Tensor, ...], several: Mapping[str, Tensor]
) -> None:
    """Refuse a module that computes something else of one image than of several.

    Raises:
        UnsupportedModelError: it fails, or its outputs have other shapes, but for a batch axis dropped at the
            end.
    """
    what = "The module works at batch 2, and not at batch 1."
    fix = "Fix a batch that it works at with batch=2 (--batch 2), or change that line."
    squeezes = lines_with(module, ".squeeze()") or lines_with(module, "torch.squeeze(")
    if squeezes:
        fix = "Name the axis: squeeze(-1), so that an axis of one image stays; or fix another batch with "
        fix += "batch= (--batch)."
    try:
        alone = _run(module, sized(tensors, 1), 1)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(
            what, error.why, fix, details=[*error.details, *squeezes]
        ) from error
    for name, v in several.items():
        found = alone[name].shape if name in alone else None
        if found not in ((1, *v.shape[1:]), v.shape[1:]):
            raise UnsupportedModelError(
                what,
                f"Output '{name}' has the shape {list(v.shape)} for two images and "
                f"{'none' if found is None else list(found)} for one.",
                fix,
                details=squeezes,
            )


def _check_independent(flat: Flat, tensors: tuple[Tensor, ...], names: tuple[str, ...]) -> None:
    """Refuse a module in which an image's answer depends on the others in its batch.

    Raises:
        UnsupportedModelError: it does; the error names a line that reduces over the batch.
    """
    batch = _drawn(tensors, 3)
    together, alone, exact = _both(flat, batch)
    for name, many, one in zip(names, together, alone, strict=True):
        a, b = many[:1].double(), one.double()
        if a.shape != b.shape or not torch.isfinite(b).all():
            continue
        size = b.abs().max() if b.numel() else torch.zeros(())
        if b.numel() and (a - b).abs().max() > (_FP64 if exact else _FP32) * size + 1e-12:
            with reductions_over_batch(7) as lines, torch.no_grad():
                flat(*sized(tensors, 7))
            raise UnsupportedModelError(
                "An image's answer depends on the other images of its batch, so the batch cannot be free.",
                f"Output '{name}' of one image differs by {float((a - b).abs().max()):.3g} when two others "
                "come along: routing that averages its agreements over the batch, BatchNorm in training "
                "mode, or the like.",
                "Use batch=1 (--batch 1), which is what one image at a time computes; or leave out what "
                "joins the images (an average over axis 0, .train() in forward) and train again.",
                details=lines[:1],
            )


def _both(
    flat: Flat, batch: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], bool]:
    """Outputs of a batch and of its first image alone, in FP64 where the code allows it."""
    first = tuple(t[:1] for t in batch)
    with torch.no_grad():
        try:
            exact = in_double(flat)
            return run_double(exact, batch), run_double(exact, first), True
        except Exception:  # code that fixes a type
            return flat(*batch), flat(*first), False


def in_double(module: nn.Module) -> nn.Module:
    """A copy in FP64."""
    return copy.deepcopy(module).double()


def run_double(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A flat module's outputs in FP64; tensors that its code makes are FP64 too."""
    with default_double():
        result = module(*(t.double() if t.dtype.is_floating_point else t for t in inputs))
    return tuple(result)


@contextlib.contextmanager
def default_double() -> Iterator[None]:
    """Tensors that code makes without a type are FP64 while it lasts."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
