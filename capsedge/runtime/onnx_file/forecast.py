"""Forecast the memory and traffic of a model by layer, from shapes alone, before it is built.

Activations are followed through the graph as in an executor: a value lives from the operator that makes it
to the last one that reads it, outputs live to the end; a reshape makes no copy, and an elementwise operator
overwrites an input that no other operator reads. The largest sum is the peak.
"""

from __future__ import annotations

import shlex
from bisect import bisect_left, insort
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.metadata.cascade_metadata import CASCADE_KEY
from capsedge.runtime.onnx_file.costs import VIEWS, NumericShapes, TensorSpec, cost
from capsedge.runtime.onnx_file.layer_map import locate
from capsedge.runtime.onnx_file.structure import GraphStructure, Node, read_structure
from capsedge.runtime.result_summary import Report, Table, shortened_name
from capsedge.spec import limits

# Memory in bytes and bandwidth in bytes per second, from the makers' data sheets.
DEVICES: dict[str, tuple[int, float]] = {
    "orin-nano-4gb": (4 * 2**30, 34e9),
    "orin-nano-8gb": (8 * 2**30, 68e9),
    "orin-nano-8gb-super": (8 * 2**30, 102e9),
    "orin-nx-8gb": (8 * 2**30, 102e9),
    "orin-nx-16gb": (16 * 2**30, 102e9),
    "agx-orin-32gb": (32 * 2**30, 204e9),
    "agx-orin-64gb": (64 * 2**30, 204e9),
    "xavier-nx-8gb": (8 * 2**30, 59e9),
    "raspberry-pi-5-8gb": (8 * 2**30, 17e9),
}
_USABLE = 0.75  # share of a device's memory; the rest is used by the system and the runtime
_IN_PLACE = frozenset(
    ("Relu", "Sigmoid", "Tanh", "Add", "Sub", "Mul", "Div", "Sqrt", "Exp", "Log", "Neg", "Softplus",
     "Softmax", "Clip", "Abs", "LeakyRelu", "Elu")
)  # fmt: skip


class UnknownSizes(UnsupportedModelError):
    """The sizes of values cannot be determined from the file."""


@dataclass(frozen=True)
class LayerForecast:
    """One layer.

    Attributes:
        name: as in ``capsedge profile``.
        operations: operations for the whole batch; a multiply-add counts as two.
        traffic: bytes of its operators' inputs, weights and outputs, each once.
        weights: the part of the traffic that is weights, in bytes.
        live: the most bytes of live activations while it runs.
    """

    name: str
    operations: float
    traffic: int
    weights: int
    live: int


@dataclass(frozen=True)
class DeviceFit:
    """How a model fits a device.

    Attributes:
        name, memory, bandwidth: of the device, from its maker.
        fits: weights and activations take no more than three quarters of the memory.
        largest_batch: the largest batch that fits; activations grow with the batch.
        least_ms: the traffic at the device's bandwidth, which no implementation of these operators undercuts
            as long as nothing stays in a cache.
    """

    name: str
    memory: int
    bandwidth: float
    fits: bool
    largest_batch: int
    least_ms: float


@dataclass(frozen=True)
class Forecast:
    """The memory and traffic of a batch.

    Attributes:
        batch: images.
        weights: bytes of stored tensors.
        peak: the most bytes of activations live at once, including outputs but not inputs, which belong to
            the caller; the memory that ONNX Runtime uses in its first run.
        planned: the block that ONNX Runtime plans for the runs after it (its memory pattern), and the
            outputs.
        peak_layer: the layer with the peak.
        inputs: bytes of the inputs.
        traffic, operations: sums over all layers.
        layers: the layers, in order.
        device: how it fits a device; None if no device was named.
    """

    batch: int
    weights: int
    peak: int
    planned: int
    peak_layer: str
    inputs: int
    traffic: int
    operations: float
    layers: tuple[LayerForecast, ...]
    device: DeviceFit | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return asdict(self)

    def tables(self) -> list[Table]:
        """The layers, and their sums."""
        layers = Table(
            f"Forecast, batch {self.batch}",
            ("layer", "operations", "traffic", "of which weights", "live activations"),
            [
                (
                    x.name,
                    f"{x.operations / 1e6:.2f} M",
                    format_bytes(x.traffic),
                    format_bytes(x.weights),
                    format_bytes(x.live),
                )
                for x in self.layers
            ],
        )
        return [layers, Table("Sum", ("", ""), self._sums())]

    def _sums(self) -> list[tuple[str, str]]:
        rows = [
            ("weights", format_bytes(self.weights)),
            ("activations, peak", f"{format_bytes(self.peak)} in {self.peak_layer}"),
            ("activations, planned block", format_bytes(self.planned)),
            ("inputs", format_bytes(self.inputs)),
            ("traffic", format_bytes(self.traffic)),
        ]
        if (device := self.device) is not None:
            fits = "fits" if device.fits else "does not fit in three quarters of its memory"
            least = f"{device.least_ms:.3f} ms at {device.bandwidth / 1e9:.0f} GB/s"
            rows += [
                (device.name, fits),
                ("largest batch there", f"{device.largest_batch:,}"),
                ("traffic at its bandwidth", least),
            ]
        return rows


@dataclass(frozen=True, repr=False)
class ForecastReport(Report):
    """The forecasts of a file for several batches."""

    path: str
    forecasts: tuple[Forecast, ...]

    def _lines(self) -> list[str]:
        name = shortened_name(Path(self.path).name)
        return [
            f"{name}, batch {f.batch}: {format_bytes(f.weights + f.peak)}" for f in self.forecasts
        ]

    def rows(self) -> list[tuple[str, str]]:
        """Nothing: all is in the tables."""
        return []

    def tables(self) -> list[Table]:
        """Those of each forecast."""
        return [table for each in self.forecasts for table in each.tables()]

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "schema": 1,
            "path": self.path,
            "forecasts": [each.to_dict() for each in self.forecasts],
        }


def forecast(path: Path | str, batch: int = 1, device: str | None = None) -> Forecast:
    """Forecast memory and traffic of an ONNX file; ``capsedge`` nodes count as fused, without votes."""
    if batch < 1:
        raise UsageError(
            f"Invalid batch {batch}.", "A batch has at least one image.", "For example: --batch 8."
        )
    if device is not None and device not in DEVICES:
        raise UsageError(
            f"Unknown device '{device}'.",
            f"Known devices: {', '.join(DEVICES)}.",
            "For example: --device orin-nano-8gb.",
        )
    model = read_structure(path)
    if CASCADE_KEY in model.metadata:
        raise UsageError(
            f"{path} is a cascade of two networks.",
            "The number of images for its large network is known only at run time.",
            "Forecast the two networks that it was made from.",
        )
    graph = model.graph
    values = NumericShapes(graph, batch).tensors()
    wanted = [o for node in graph.nodes for o in node.outputs if o]
    wanted += [value.name for value in (*graph.inputs, *graph.outputs, *graph.initializers)]
    missing = [name for name in wanted if name not in values]
    if missing:
        raise _unknown(path, graph, missing)
    stored = {value.name for value in graph.initializers}
    weights = sum(values[name].bytes for name in stored)
    outputs = {o.name for o in graph.outputs}
    live, block = live_bytes(graph.nodes, values, stored, outputs)
    where = locate(model, graph)
    # Operators outside any layer, such as the rounding of an INT8 file's input, are named after their type.
    labels = [p.label if p.layer else n.operator for p, n in zip(where, graph.nodes, strict=True)]
    rows: dict[str, list[float]] = {}
    for node, label, alive in zip(graph.nodes, labels, live, strict=True):
        spent = cost(node, values)
        row = rows.setdefault(label, [0.0, 0, 0, 0])
        row[0] += spent.operations
        row[1] += spent.bytes
        row[2] += sum(values[n].bytes for n in set(node.inputs) & stored)
        row[3] = max(row[3], alive)
    layers = tuple(
        LayerForecast(name, r[0], int(r[1]), int(r[2]), int(r[3])) for name, r in rows.items()
    )
    peak = max(live, default=0)
    planned = block + sum(values[name].bytes for name in outputs)
    inputs = sum(values[v.name].bytes for v in graph.inputs if v.name not in stored)
    traffic = sum(layer.traffic for layer in layers)
    return Forecast(
        batch=batch,
        weights=weights,
        peak=peak,
        planned=planned,
        peak_layer=labels[live.index(peak)] if live else "",
        inputs=inputs,
        traffic=traffic,
        operations=sum(layer.operations for layer in layers),
        layers=layers,
        device=_fit(device, batch, weights, max(peak, planned) + inputs, traffic)
        if device
        else None,
    )


def _unknown(path: Path | str, graph: GraphStructure, missing: list[str]) -> UnknownSizes:
    """The error for values of unknown size: free sizes of the inputs, or a file that does not state them."""
    stored = {value.name for value in graph.initializers}
    for value in graph.inputs:
        free = [d for d in (value.shape or ())[1:] if not isinstance(d, int)]
        if value.name not in stored and free:
            return UnknownSizes(
                f"The sizes of {path} cannot be determined from the file.",
                f"Its input '{value.name}' has free sizes besides the batch: "
                f"{', '.join(str(d or '?') for d in free)}.",
                "Export it with these sizes fixed.",
            )
    return UnknownSizes(
        f"The sizes of {path} cannot be determined from the file.",
        f"It does not state the shape of {len(missing)} value{'s' * (len(missing) > 1)}, the first is "
        f"'{missing[0]}'.",
        "Sizes that depend on values cannot be forecast. Measure them: `capsedge profile "
        f"{shlex.quote(str(path))}`.",
    )


def _fit(device: str, batch: int, weights: int, activations: int, traffic: int) -> DeviceFit:
    memory, bandwidth = DEVICES[device]
    room = int(_USABLE * memory)
    each = activations / batch
    return DeviceFit(
        name=device,
        memory=memory,
        bandwidth=bandwidth,
        fits=weights + activations <= room,
        largest_batch=max(0, int((room - weights) // each)) if each else 0,
        least_ms=1e3 * traffic / bandwidth,
    )


@dataclass
class Planner:
    """Places buffers in one block: into the gap that fits best, otherwise at the end (ONNX Runtime's plan).

    Attributes:
        size: size of the block, so far.
    """

    size: int = 0

    def __post_init__(self) -> None:
        self._placed: dict[int, tuple[int, int]] = {}  # buffer -> offset, end
        self._order: list[tuple[int, int]] = []  # the same, sorted

    def take(self, buffer: int, count: int) -> None:
        """Place a buffer of this many bytes."""
        if len(self._placed) >= limits.LIVE_VALUES:
            raise UnsupportedModelError(
                f"Over {limits.LIVE_VALUES:,} values of the graph are live at the same time.",
                "The forecast does not support this.",
            )
        at, best, end = -1, -1, 0
        for offset, stop in self._order:
            gap = offset - end
            if gap >= count and (best < 0 or gap < best):
                at, best = end, gap
            end = max(end, stop)
        at = end if best < 0 else at
        self._placed[buffer] = (at, at + count)
        insort(self._order, self._placed[buffer])
        self.size = max(self.size, at + count)

    def free(self, buffer: int) -> None:
        """Free a buffer's place."""
        place = self._placed.pop(buffer, None)
        if place is not None:
            del self._order[bisect_left(self._order, place)]


def live_bytes(
    nodes: list[Node], values: dict[str, TensorSpec], stored: set[str], outputs: set[str]
) -> tuple[list[int], int]:
    """Bytes of activations alive while each node runs, and of the block that holds all but the outputs."""
    readers = Counter(name for node in nodes for name in node.inputs)
    buffer: dict[str, int] = {}  # value -> its buffer
    users: Counter[int] = Counter()  # buffer -> readings of its values still to come
    size: list[int] = []
    produced = {o for node in nodes for o in node.outputs} - stored
    planner, alive, totals = Planner(), 0, []
    for node in nodes:
        for output in filter(None, node.outputs):
            held = None
            if output not in outputs:
                held = _reusable(node, output, values, buffer, users, produced)
            if held is None:
                held = len(size)
                size.append(values[output].bytes)
                alive += size[held]
                if output not in outputs:
                    planner.take(held, size[held])
            buffer[output] = held
            users[held] += readers[output] + (output in outputs)
        totals.append(alive)
        for name in (*node.inputs, *(o for o in node.outputs if not readers[o])):
            if name not in buffer:
                continue
            held = buffer[name]
            users[held] -= name in node.inputs
            if users[held] == 0:
                alive -= size[held]
                size[held] = 0
                planner.free(held)
    return totals, planner.size


def _reusable(
    node: Node,
    output: str,
    values: dict[str, TensorSpec],
    buffer: dict[str, int],
    users: Counter[int],
    produced: set[str],
) -> int | None:
    """The buffer of an input that the output takes over, or shares as another view of it."""
    if node.op in VIEWS and node.inputs and node.inputs[0] in buffer:
        return buffer[node.inputs[0]]
    if node.op not in _IN_PLACE:
        return None
    for name in node.inputs:
        last = name in produced and name in buffer and users[buffer[name]] == 1
        if last and values[name].bytes == values[output].bytes:
            return buffer[name]
    return None
