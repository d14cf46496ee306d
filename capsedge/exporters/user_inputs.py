"""Make a user's own module the subject of an export: its inputs, outputs and example."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capsedge.errors import UsageError
from capsedge.exporters.flat_module import unique_output_name
from capsedge.exporters.subject import Subject
from capsedge.exporters.user_batch import in_batches
from capsedge.models.user.example_inputs import in_order

Example = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
FreeAxes = Mapping[str, Sequence[int]]
_LARGEST_EXAMPLE = 8  # rows of the example that are used to capture the module


def of_module(
    module: nn.Module,
    example: Example | None,
    batch: int | None,
    output_names: Sequence[str] = (),
    free_axes: FreeAxes | None = None,
) -> Subject:
    """Make the subject from a user's own module.

    Raises:
        UsageError: there is no example, it does not fit, or the names do not fit the outputs or the axes.
        NoFreeBatch: ``batch`` is None, and the module works at another fixed batch.
        UnsupportedModelError: an output is not a tensor, or the batch cannot be free.
    """
    tensors = _tensors(example)
    if isinstance(example, Mapping):
        inputs = tuple(map(str, example))
        module = in_order(module, inputs)
    else:
        inputs = _input_names(module, len(tensors))
    free = _free_axes(free_axes or {}, inputs, tensors)
    flat, names = in_batches(module, tensors, batch)
    if output_names:
        if len(output_names) != len(names):
            raise UsageError(
                f"{len(output_names)} output names were given.",
                f"The module has {len(names)} outputs: {', '.join(names)}.",
            )
        names = tuple(output_names)
        if taken := [name for k, name in enumerate(names) if name in (*inputs, *names[:k])]:
            raise UsageError(
                f"The output name '{taken[0]}' is already taken.",
                "All inputs and outputs of a file have different names.",
                "Choose another name.",
            )
    outputs: list[str] = []
    for name in names:
        outputs.append(unique_output_name(name, (*inputs, *outputs)))
    count = batch or min(max(2, len(tensors[0])), _LARGEST_EXAMPLE)
    shaped = tuple(t[torch.arange(count) % len(t)].clone() for t in tensors)
    return Subject(flat.eval(), inputs, tuple(outputs), shaped, None, (1, 2, 5), free_axes=free)


def _free_axes(
    given: FreeAxes, inputs: Sequence[str], tensors: Sequence[Tensor]
) -> tuple[tuple[int, ...], ...]:
    """For each input, the axes besides the batch that are to be free; empty if none are.

    Raises:
        UsageError: there is no such input or axis.
    """
    unknown = [name for name in given if name not in inputs]
    if unknown:
        raise UsageError(
            f"free_axes names the input '{unknown[0]}', which the module does not have.",
            f"Its inputs: {', '.join(inputs)}.",
            "Name inputs like the parameters of forward, or like the keys of its dict.",
        )
    for name, x in zip(inputs, tensors, strict=True):
        wrong = [k for k in given.get(name, ()) if k not in range(1, x.ndim)]
        if wrong:
            raise UsageError(
                f"The input '{name}' has no axis {wrong[0]} that could be free.",
                f"Its example has the shape {list(x.shape)}; axis 0 is the batch.",
                f"Use free_axes={{'{name}': [1]}} for the first axis after the batch.",
            )
    axes = tuple(tuple(sorted(set(given.get(name, ())))) for name in inputs)
    return axes if any(axes) else ()


def _tensors(example: Example | None) -> tuple[Tensor, ...]:
    if example is None:
        raise UsageError(
            "Your own module needs an example input.",
            "Its input shapes are otherwise unknown.",
            "Pass example=torch.zeros(2, ...), or a tuple of tensors for several inputs.",
        )
    if isinstance(example, Mapping):
        example = tuple(example.values())
    several = isinstance(example, (list, tuple))
    given: tuple[Any, ...] = tuple(example) if several else (example,)
    wrong = next((t for t in given if not isinstance(t, Tensor)), None)
    if isinstance(wrong, np.ndarray):
        raise UsageError(
            "The example is a numpy array.",
            "A PyTorch module takes tensors.",
            "Pass example=torch.from_numpy(array).float(), or torch.rand(2, ...).",
        )
    if wrong is not None:
        raise UsageError(
            f"The example {'holds' if several else 'is'} a value of type {type(wrong).__name__}.",
            "A PyTorch module takes tensors.",
            "Pass a tensor, such as torch.rand(2, 1, 28, 28), a tuple of them, or tensors by name.",
        )
    tensors: tuple[Tensor, ...] = given
    if not tensors or any(t.ndim == 0 for t in tensors):
        raise UsageError("Every input needs a batch axis.", "", "Put the batch first.")
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
            "Pass one example per input. Make labels that only training needs optional: "
            f"forward(self, {names[0] if names else 'x'}, y=None).",
        )
    return (*names, *(f"input_{i}" for i in range(len(names), count)))[:count]
