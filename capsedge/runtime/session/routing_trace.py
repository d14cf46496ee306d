"""Read the values of every routing iteration, from files of ``capsedge export --with trace``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.result_summary import Row, Summarized, Summary, shortened_name
from capsedge.spec import limits
from capsedge.spec.vocabularies import ROUTINGS, TRACE_KINDS, TRACE_REQUIRED

PREFIX = "trace/"  # prefix of the names of its outputs

Floats = NDArray[np.float32]
Pair = tuple[int, int]


@dataclass(frozen=True)
class TraceLayer:
    """The metadata of a routed layer and its trace.

    Attributes:
        name: name of the layer, such as ``classes``.
        routing: one of `ROUTINGS`.
        iterations: routing iterations ``T``.
        outputs: the output of the graph for each kind of value.
        grid: rows and columns of the parents' map; 1 and 1 for a dense layer.
        child_grid: rows and columns of the children's map; None if it is not known.
        kernel, strides: of the window that a parent sees, in children's rows and columns; None if not
            known.
        types_first: whether the children of a window are ordered by type, row and column, instead of by row,
            column and type.
    """

    name: str
    routing: str
    iterations: int
    outputs: Mapping[str, str]
    grid: Pair = (1, 1)
    child_grid: Pair | None = None
    kernel: Pair | None = None
    strides: Pair | None = None
    types_first: bool = False

    def __post_init__(self) -> None:
        if self.routing not in ROUTINGS:
            raise ValueError(f"routing '{self.routing}', known: {', '.join(ROUTINGS)}")
        if not 1 <= self.iterations <= limits.ITERATIONS:
            raise ValueError(f"iterations {self.iterations}")
        if not set(TRACE_REQUIRED) <= set(self.outputs) <= set(TRACE_KINDS):
            raise ValueError(
                f"outputs for {', '.join(self.outputs)}; known: {', '.join(TRACE_KINDS)}"
            )
        pairs = (self.grid, self.child_grid, self.kernel, self.strides)
        if any(not 1 <= side <= limits.WIDTH for pair in pairs if pair for side in pair):
            raise ValueError(f"a side of '{self.name[:80]}' is not 1 to {limits.WIDTH}")
        if any(len(text) > limits.NAME_CHARACTERS for text in (self.name, *self.outputs.values())):
            raise ValueError(f"a name has over {limits.NAME_CHARACTERS} characters")

    @property
    def dense(self) -> bool:
        """Whether the parents are not on a map."""
        return self.grid == (1, 1)


@dataclass(frozen=True)
class TraceOutputs:
    """The traced layers of a file, in the order of routing; the class capsules are the last."""

    layers: tuple[TraceLayer, ...]

    def __post_init__(self) -> None:
        names = [layer.name for layer in self.layers]
        outputs = [name for layer in self.layers for name in layer.outputs.values()]
        if not names or len(names) > limits.LAYERS:
            raise ValueError(f"a trace of {len(names)} layers")
        if len(set(names)) != len(names) or len(set(outputs)) != len(outputs):
            raise ValueError("a layer or an output is named twice")

    @property
    def outputs(self) -> tuple[str, ...]:
        """All outputs of the trace."""
        return tuple(
            layer.outputs[k] for layer in self.layers for k in TRACE_KINDS if k in layer.outputs
        )


@dataclass(frozen=True, eq=False, repr=False)
class TracedLayer(Summarized):
    """The routing of one layer, iteration by iteration.

    A dense layer has the shapes below; one whose parents lie on a map of more than one place has its rows
    and columns behind T: ``[N, T, H', W', I, J]``. Child ``i`` of a window is the type ``c`` of its row
    ``dy`` and column ``dx``: ``i = (dy * kernel[1] + dx) * C + c``; with ``types_first``,
    ``i = (c * kernel[0] + dy) * kernel[1] + dx``.

    Attributes:
        name: name of the layer, such as ``classes``.
        routing: ``dynamic``, ``em``, ``attention`` or ``self-attention``.
        iterations: their number T.
        couplings: couplings of the weighted sum of each iteration ``[N, T, I, J]``.
        poses: poses of the parents after each iteration ``[N, T, J, P]``.
        agreement: ``[N, T, I, J]``: the product of each vote and the parent's pose after the iteration; of
            EM routing the responsibilities after its E-step.
        distances: EM: Euclidean distances of votes and poses ``[N, T, I, J]`` (Hinton et al. 2018, fig. 2);
            otherwise None.
        activations: EM: of the parents after each iteration ``[N, T, J]``; otherwise None.
        children: EM: activations of the children ``[N, T, I]``, the same in every iteration; their votes
            count in the M-step by coupling times activation (Hinton et al. 2018, procedure 1). Otherwise
            None.
        grid: rows and columns of the parents' map; 1 and 1 for a dense layer.
        child_grid: rows and columns of the children's map; None if it is not known.
        kernel, strides: those of the window that a parent sees, in the children's map; None if unknown.
        types_first: whether the children of a window are ordered by type, row and column.
    """

    name: str
    routing: str
    iterations: int
    couplings: Floats
    poses: Floats
    agreement: Floats
    grid: Pair
    child_grid: Pair | None
    kernel: Pair | None
    strides: Pair | None
    distances: Floats | None = None
    activations: Floats | None = None
    children: Floats | None = None
    types_first: bool = False

    def _summary(self) -> Summary:
        shapes = [(k, getattr(self, k)) for k in TRACE_KINDS if getattr(self, k) is not None]
        rows = [Row(kind, f"{list(value.shape)}") for kind, value in shapes]
        words = f"{shortened_name(self.name)}: {self.routing} routing, {self.iterations} iterations"
        return Summary("TracedLayer", [words], rows)


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Summarized):
    """The routing of a model on a batch of images.

    Attributes:
        layers: in the order of routing; the class capsules are the last.
    """

    layers: tuple[TracedLayer, ...]

    def __getitem__(self, name: str) -> TracedLayer:
        """The layer of that name; KeyError if there is none."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"{name}; layers: {', '.join(layer.name for layer in self.layers)}")

    def __iter__(self) -> Iterator[TracedLayer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def _summary(self) -> Summary:
        rows = [
            Row(
                shortened_name(each.name), f"{each.routing}, couplings {list(each.couplings.shape)}"
            )
            for each in self.layers
        ]
        count = len(self.layers[0].poses)
        return Summary("Trace", [f"{count} images, {len(self)} routed layers"], rows)


def run_traced(
    declared: TraceOutputs,
    per_image: int,
    batches: Iterable[NDArray[Any]],
    run: Callable[[NDArray[Any], Sequence[str]], Mapping[str, NDArray[Any]]],
) -> Trace:
    """The trace of images.

    Args:
        declared: what the file states of its trace.
        per_image: bytes that it takes of an image.
        batches: prepared images ``[n, C, H, W]``.
        run: the named outputs for a batch.
    """
    runs, count = [], 0
    for batch in batches:
        count += len(batch)
        if count * per_image > limits.TRACED_BYTES:
            raise UsageError(
                f"The trace of the images takes over {limits.TRACED_BYTES // limits.MIB} MiB.",
                f"One image takes {per_image / limits.MIB:.1f} MiB.",
                f"Trace at most {limits.TRACED_BYTES // per_image} images at a time.",
            )
        runs.append(run(batch, list(declared.outputs)))
    if not runs:
        raise UsageError("There are no images to trace.", "", "Pass at least one.")
    return _join_runs(declared, runs)


def _join_runs(declared: TraceOutputs, runs: Sequence[Mapping[str, NDArray[Any]]]) -> Trace:
    """The trace of all images from the outputs of one or more runs."""

    def whole(layer: TraceLayer, kind: str) -> Floats:
        parts = [run[layer.outputs[kind]] for run in runs]
        return np.concatenate(parts).astype(np.float32, copy=False)

    def values(layer: TraceLayer) -> dict[str, Floats]:
        return {kind: whole(layer, kind) for kind in TRACE_KINDS if kind in layer.outputs}

    return Trace(
        tuple(
            TracedLayer(
                name=layer.name,
                routing=layer.routing,
                iterations=layer.iterations,
                grid=layer.grid,
                child_grid=layer.child_grid,
                kernel=layer.kernel,
                strides=layer.strides,
                types_first=layer.types_first,
                **values(layer),
            )
            for layer in declared.layers
        )
    )
