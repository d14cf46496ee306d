"""The inputs of a comparison where a file takes other arrays than images: any number, shape and type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsedge.datasets import ImageSet
from capsedge.datasets.npz import by_name, read_arrays
from capsedge.errors import UsageError
from capsedge.exporters.checks import input_cases, outside
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.session import Session
from capsedge.verification.inputs import GENERATED

Given = Path | str | NDArray[Any] | Mapping[str, NDArray[Any]]
SEVERAL = 16  # samples a run, after a first run of one


def takes_images(session: Session) -> bool:
    """Whether the only input is floats ``[N, C, H, W]``, the last three fixed."""
    shapes = [port.shape for port in session.inputs]
    return (
        len(shapes) == 1
        and len(shapes[0]) == 4
        and all(isinstance(size, int) for size in shapes[0][1:])
        and session.inputs[0].dtype.startswith("float")
    )


def arrays_for(
    session: Session, given: Given | None, limit: int | None
) -> tuple[ImageSet, ImageSet]:
    """Samples and hard cases.

    Args:
        given: an npz or npy file, an array, or arrays by the names of the inputs, the batch first; None for
            random values.
        limit: of the samples, from the first on.

    Returns:
        The user's own inputs, or uniform values in [0, 1]; and hard cases, those within the range of the
        user's inputs.

    Raises:
        UsageError: they do not fit the inputs; or an input whose values are to be drawn takes whole numbers
            or has free sizes.
    """
    if given is not None:
        return _given(session, given, limit)
    example = [
        torch.zeros(_sizes(port), dtype=getattr(torch, port.dtype)) for port in session.inputs
    ]
    uniform = input_cases(example, (GENERATED,))[0][1]
    hard = dict(input_cases(example, (1,))[1:])
    samples = _named("random values", session, [each.numpy() for each in uniform])
    return samples.first(limit), _hard(session, hard, example)


def _given(session: Session, given: Given, limit: int | None) -> tuple[ImageSet, ImageSet]:
    source = "inputs"
    if isinstance(given, (str, Path)):
        source, given = str(given), read_arrays(Path(given))
    if not isinstance(given, Mapping):
        given = {"array": given}
    ports = session.inputs
    values = by_name(given, [port.name for port in ports], source)
    arrays = [_fitting(port, value, source) for port, value in zip(ports, values, strict=True)]
    if len({len(each) for each in arrays}) > 1:
        raise UsageError(
            f"{source} holds different numbers of inputs.", "", "Give as many of each."
        )
    samples = _named(source, session, arrays)
    own = [torch.from_numpy(np.ascontiguousarray(each)) for each in arrays]
    cases = input_cases(own, (1,))
    beyond = outside(cases, own)
    hard = {name: tensors for name, tensors in cases if name not in beyond}
    return samples.first(limit), _hard(session, hard, own)


def array_runs(
    session: Session, data: ImageSet
) -> Iterator[tuple[tuple[NDArray[Any], ...], dict[str, NDArray[Any]]]]:
    """Run a file on arrays: one sample first, then several at a time; a fixed batch as it is.

    Yields:
        The inputs of one run in the file's order, and its outputs by name, each ``[n, ...]``.
    """
    most = session.backend.batches.fixed or min(SEVERAL, session.backend.batches.largest or SEVERAL)
    at = 0
    while at < len(data):
        rows = np.arange(
            at, min(at + (most if at else session.backend.batches.smallest), len(data))
        )
        part = data.take(np.resize(rows, max(len(rows), session.backend.batches.smallest)))
        arrays = [part.images, *(part.others[port.name] for port in session.inputs[1:])]
        names = [port.name for port in session.inputs]
        found = session.run(dict(zip(names, arrays, strict=True)))
        count = len(rows)
        yield tuple(a[:count] for a in arrays), {k: v[:count] for k, v in found.items()}
        at += count


def _fitting(port: Port, value: NDArray[Any], source: str) -> NDArray[Any]:
    """An array in the type of its input; `Session.run` checks its sizes.

    Raises:
        UsageError: it has no batch, or the type would change its values.
    """
    array = np.asarray(value)
    if array.ndim == 0 or not len(array):
        raise UsageError(f"{source} holds no values for '{port.name}'.", "", "Put the batch first.")
    floats = array.dtype.kind == "f"
    cast = array.astype(port.dtype)
    if floats != port.dtype.startswith("float") or not (floats or np.array_equal(cast, array)):
        raise UsageError(
            f"{source} does not fit the input '{port.name}'.",
            f"It holds {array.dtype}; the file takes {port.dtype}.",
            "Give the inputs as the network sees them.",
        )
    return cast


def _sizes(port: Port) -> tuple[int, ...]:
    """The sizes of one sample, batch first.

    Raises:
        UsageError: values cannot be drawn for this input.
    """
    sizes = [size for size in port.shape[1:] if isinstance(size, int)]
    whole = not port.dtype.startswith("float")
    if whole or len(sizes) != len(port.shape) - 1:
        why = f"takes {port.dtype}" if whole else f"has free sizes, {list(port.shape)}"
        fix = f"with one array [n, ...] for each input by name: numpy.savez('data.npz', {port.name}=...)"
        raise UsageError(
            f"Inputs for the comparison cannot be drawn: '{port.name}' {why}.",
            "The file does not say which values it expects.",
            f"Pass inputs='data.npz', {fix}.",
            command=f"Add --inputs data.npz, {fix}.",
        )
    return (1, *sizes)


def _named(
    source: str, session: Session, arrays: list[NDArray[Any]], names: tuple[str, ...] = ()
) -> ImageSet:
    others = {port.name: each for port, each in zip(session.inputs[1:], arrays[1:], strict=True)}
    return ImageSet(source, arrays[0], names=names, others=others)


def _hard(session: Session, cases: Mapping[str, list[Tensor]], like: list[Tensor]) -> ImageSet:
    """One sample of each case; possibly none."""
    rows = [
        torch.cat([x[:0], *(tensors[k] for tensors in cases.values())]) for k, x in enumerate(like)
    ]
    names = tuple(name.partition(",")[0] for name in cases)
    return _named("hard cases", session, [each.numpy() for each in rows], names)
