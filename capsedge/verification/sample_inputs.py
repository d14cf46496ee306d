"""Provide the inputs of a comparison: samples, hard cases, and arrays of any shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor

from capsedge.datasets import ImageSet, read_images
from capsedge.datasets.array_files import arrays_by_input, read_arrays
from capsedge.errors import CapsedgeError, UsageError
from capsedge.exporters.parity import input_cases, out_of_range_cases
from capsedge.graph.fusion.index_inputs import table_sizes
from capsedge.graph.ir import Graph
from capsedge.models.user.example_inputs import whole_numbers
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.images.headers import SUFFIXES
from capsedge.runtime.images.preprocessing import normalized, prepare
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.origin import AnySplit
from capsedge.runtime.onnx_file.summary import read_harmless
from capsedge.runtime.session.session import Session
from capsedge.runtime.zoo import samples_folder

# --- Images: real samples, and hard cases that data sets do not contain ---

Floats = NDArray[np.float32]
GENERATED = 64  # images drawn when no data is given
_MADE = "made for comparisons"


def load_samples(
    source: Path | str,
    prep: Preprocessing | None,
    limit: int | None,
    inputs: Mapping[str, str] | None = None,
    classes: bool = True,
    rule: AnySplit | None = None,
    named: Sequence[str] = (),
) -> ImageSet:
    """Samples of a data set (its test split), an archive, an idx file or images.

    Args:
        source, prep, limit, inputs, classes, rule, named: as for ``datasets.read_images``.

    Raises:
        UsageError: the source cannot be read, or does not fit the model.
    """
    found = read_images(source, prep, "test", limit, inputs, classes, rule, named)
    return replace(found, source=str(source))


def shipped_samples(
    prep: Preprocessing | None, shape: tuple[int, int, int], limit: int | None
) -> ImageSet:
    """The package's own samples: its drawn images if they fit, and generated strokes.

    Args:
        shape: shape of one input, ``(C, H, W)``.
    """
    parts = [generated(shape, prep, GENERATED)]
    files = sorted(p for p in samples_folder().rglob("*") if p.suffix.lower() in SUFFIXES)
    if prep is not None and prep.channels in (1, 3) and files:
        parts.insert(0, np.stack([prepare(file, prep) for file in files]))
    names = (*(f.name for f in files if len(parts) == 2), *(f"drawn {k}" for k in range(GENERATED)))
    images = np.concatenate(parts)[:limit]
    return ImageSet(
        "samples of the package", images, names=names[: len(images)], known=_MADE, total=len(images)
    )


def generated(
    shape: tuple[int, int, int], prep: Preprocessing | None, count: int, seed: int = 2017
) -> Floats:
    """Pen strokes on black, seeded: soft-edged random curves with the statistics of handwriting.

    Returns:
        ``[count, C, H, W]``, prepared.
    """
    rng = np.random.default_rng(seed)
    channels, height, width = shape
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    images = np.zeros((count, channels, height, width))
    t = np.linspace(0, 1, 48)[:, None]
    for image in images:
        for channel in image if rng.random() < 0.3 else [image]:
            for _ in range(rng.integers(1, 4)):
                # A cubic Bézier curve inside the middle of the picture.
                p = rng.uniform(0.15, 0.85, (4, 2))
                curve = (
                    (1 - t) ** 3 * p[0]
                    + 3 * t * (1 - t) ** 2 * p[1]
                    + 3 * t * t * (1 - t) * p[2]
                    + t**3 * p[3]
                )
                pen, strength = rng.uniform(0.02, 0.05), rng.uniform(0.6, 1)
                near = (
                    _within(y[:, 0], curve[:, 0], 1.6 * pen),
                    _within(x[0], curve[:, 1], 1.6 * pen),
                )
                ink = (
                    np.clip(1.6 - _distance(y[near[0], 0], x[0, near[1]], curve) / pen, 0, 1)
                    * strength
                )
                part = channel[(..., *near)]
                np.maximum(part, ink, out=part)
    return prepared(images, prep)


def _distance(
    y: NDArray[np.float64], x: NDArray[np.float64], curve: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Of every pixel ``[h, w]`` at rows and columns of a grid to the nearest point of a curve."""
    down, right = np.square(y[:, None] - curve[:, 0]), np.square(x[:, None] - curve[:, 1])
    nearest = down[:, :1] + right[:, 0]
    for k in range(1, len(curve)):
        np.minimum(nearest, down[:, k, None] + right[:, k], out=nearest)
    return np.asarray(np.sqrt(nearest))


def _within(grid: NDArray[np.float64], curve: NDArray[np.float64], reach: float) -> slice:
    """The part of a rising grid that ink around a curve can reach."""
    first = np.searchsorted(grid, curve.min() - reach)
    return slice(first, np.searchsorted(grid, curve.max() + reach, side="right"))


def hard_cases(shape: tuple[int, int, int], prep: Preprocessing | None) -> ImageSet:
    """Prepared extreme inputs: zero, tiny and huge norms, ties, no structure, too much structure."""
    _, height, width = shape
    rng = np.random.default_rng(2018)
    y, x = np.mgrid[0:height, 0:width]
    noise = rng.random(shape)
    strokes = generated(shape, None, 1)[0].astype(np.float64)

    def everywhere(picture: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.broadcast_to(picture, shape).astype(np.float64)

    spike = np.zeros((height, width))
    spike[height // 2, width // 2] = 1
    symmetric = (strokes + strokes[:, :, ::-1]) / 2
    pixels = {
        "black": np.zeros(shape),
        "white": np.ones(shape),
        "grey": np.full(shape, 0.5),
        "faint noise": noise / 255,
        "noise": noise,
        "saturated noise": (noise > 0.5).astype(np.float64),
        "checkerboard 1": everywhere(((y + x) % 2).astype(np.float64)),
        "checkerboard 4": everywhere((((y // 4) + (x // 4)) % 2).astype(np.float64)),
        "rows": everywhere((y % 2).astype(np.float64)),
        "one pixel": everywhere(spike),
        "ramp": everywhere(x / max(width - 1, 1)),
        "mirror image": symmetric,  # children that tie pairwise
        "inverted strokes": 1 - strokes,
    }
    arrays = {name: prepared(image, prep) for name, image in pixels.items()}
    # Values that pixels cannot reach, given directly to the model's input.
    arrays |= {
        "zero input": np.zeros(shape, np.float32),
        "tiny norm": (strokes * 1e-6).astype(np.float32),
        "huge norm": (strokes * 1e3).astype(np.float32),
        "huge noise": ((noise - 0.5) * 2e3).astype(np.float32),
    }
    return ImageSet("hard cases", np.stack(list(arrays.values())), names=tuple(arrays))


def prepared(images: NDArray[np.float64], prep: Preprocessing | None) -> Floats:
    """Values in [0, 1] ``[..., C, H, W]`` as the model's input."""
    if prep is None:
        return images.astype(np.float32)
    if prep.per_image:
        levels = (images * 255).astype(np.float32).reshape(-1, *images.shape[-3:])
        return np.stack([normalized(one, prep) for one in levels]).reshape(images.shape)
    mean, std = (np.reshape(v, (-1, 1, 1)) for v in (prep.mean, prep.std))
    return np.asarray((images * 255 * prep.scale - mean) / std, np.float32)


# --- Arrays, for files that take no images: any number, shape and type ---

UserArrays = Path | str | NDArray[Any] | Mapping[str, NDArray[Any]]
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
    session: Session, inputs: UserArrays | None, limit: int | None
) -> tuple[ImageSet, ImageSet]:
    """Samples and hard cases.

    Args:
        inputs: an npz or npy file, an array, or arrays by the names of the inputs, the batch first; None for
            random values.
        limit: of the samples, from the first on.

    Returns:
        The user's own inputs, or uniform values in [0, 1] and whole numbers within the tables that the file
        looks up with them; and hard cases, those within the range of the user's inputs.

    Raises:
        UsageError: they do not fit the inputs; or the values are to be drawn and the file takes none that
            were tried.
    """
    if inputs is not None:
        return _read_arrays(session, inputs, limit)
    example = _drawn_example(session)
    uniform = input_cases(example, (GENERATED,))[0][1]
    hard = dict(input_cases(example, (1,))[1:])
    samples = _named("random values", session, [each.numpy() for each in uniform]).first(limit)
    return replace(samples, known=_MADE, total=len(samples)), _hard(session, hard, example)


def _read_arrays(
    session: Session, inputs: UserArrays, limit: int | None
) -> tuple[ImageSet, ImageSet]:
    source = "inputs"
    if isinstance(inputs, (str, Path)):
        source, inputs = str(inputs), read_arrays(Path(inputs))
    if not isinstance(inputs, Mapping):
        inputs = {"array": inputs}
    ports = session.inputs
    values = arrays_by_input(inputs, [port.name for port in ports], source)
    arrays = [_fitting(port, value, source) for port, value in zip(ports, values, strict=True)]
    if len({len(each) for each in arrays}) > 1:
        raise UsageError(
            f"{source} holds different numbers of samples for its inputs.",
            "",
            "Pass the same number of samples for every input.",
        )
    samples = _named(source, session, arrays)
    own = [torch.from_numpy(np.ascontiguousarray(each)) for each in arrays]
    cases = input_cases(own, (1,))
    beyond = out_of_range_cases(cases, own)
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


def _fitting(port: Port, value: NDArray[Any], subject: str) -> NDArray[Any]:
    """An array in the type of its input; `Session.run` checks its sizes.

    Raises:
        UsageError: it has no batch, or the type would change its values.
    """
    array = np.asarray(value)
    if array.ndim == 0 or not len(array):
        raise UsageError(
            f"{subject} holds no values for '{port.name}'.", "", "Put the batch first."
        )
    floats = array.dtype.kind == "f"
    cast = array.astype(port.dtype)
    if floats != port.dtype.startswith("float") or not (floats or np.array_equal(cast, array)):
        raise UsageError(
            f"{subject} does not fit the input '{port.name}'.",
            f"It holds {array.dtype}; the file takes {port.dtype}.",
            "Pass the inputs as the network sees them.",
        )
    return cast


LENGTHS = (50, 7, 2, 1)  # of free axes, of which the first is taken that the file takes
_APART = 3  # by which several lengths differ


def _drawn_example(session: Session) -> list[Tensor]:
    """Zeros for floats; whole numbers within their tables, in rows of different lengths.

    Raises:
        UsageError: the file states too little, or takes none of these.
    """
    tables = _tables(session)
    why = ""
    for lengths in lengths_to_try(session.inputs):
        found = [_rows(port, tables, lengths) for port in session.inputs]
        first = {
            port.name: each[: session.backend.batches.smallest].numpy()
            for port, each in zip(session.inputs, found, strict=True)
        }
        try:
            session.run(first)
        except CapsedgeError as error:
            why = error.why or error.what
            continue
        return found
    names = ", ".join(f"{port.name}=..." for port in session.inputs)
    fix = f"with one array [n, ...] for each input by name: numpy.savez('data.npz', {names})"
    raise UsageError(
        "Inputs for the comparison cannot be drawn.",
        f"The file fails on those that were tried: {why}",
        f"Pass inputs='data.npz', {fix}.",
        command=f"Add --inputs data.npz, {fix}.",
    )


def lengths_to_try(ports: Sequence[Port]) -> Iterator[dict[str | None, int]]:
    """Sizes of the free axes by their names; lengths of several names first differ, then are equal."""
    names = dict.fromkeys(
        size for port in ports for size in port.shape[1:] if not isinstance(size, int)
    )
    for length in LENGTHS if names else (1,):
        for apart in (_APART, 0) if len(names) > 1 else (0,):
            yield {name: max(1, length - k * apart) for k, name in enumerate(names)}


def _rows(port: Port, tables: Mapping[str, int], lengths: Mapping[str | None, int]) -> Tensor:
    sizes = (size if isinstance(size, int) else lengths[size] for size in port.shape[1:])
    shape = (GENERATED, *sizes)
    kind = getattr(torch, port.dtype)
    if port.dtype.startswith("float"):
        return torch.zeros(shape, dtype=kind)
    generator = torch.Generator().manual_seed(5)
    return whole_numbers(shape, tables.get(port.name), generator).to(kind)


def _tables(session: Session) -> dict[str, int]:
    """Of the inputs that a file looks tables up with, how many entries these have; an engine tells none."""
    if session.backend.engine_metadata is not None or all(
        port.dtype.startswith("float") for port in session.inputs
    ):
        return {}
    graph = onnx.load_model_from_string(read_harmless(session.path)[0]).graph
    weights = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    return table_sizes(Graph.of(graph), weights, [port.name for port in session.inputs])


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
