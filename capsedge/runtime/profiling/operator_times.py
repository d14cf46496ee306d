"""Time the operators of a session, with their operations and bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.backends.backend import (
    Feeds,
    OperatorEvent,
    ProfiledBackend,
    ProfiledRuns,
    Recording,
)
from capsedge.runtime.metadata.cascade_metadata import CASCADE_KEY
from capsedge.runtime.onnx_file.costs import Cost, TensorSpec, cost
from capsedge.runtime.onnx_file.layer_map import Location, engine_locations, locate, merge_locations
from capsedge.runtime.onnx_file.structure import GraphStructure, Node, Structure, read_structure
from capsedge.runtime.profiling.machine_peaks import Overheads, Peaks, overheads
from capsedge.runtime.profiling.worker import timed_runs
from capsedge.runtime.session.session import Session
from capsedge.spec.operators import operator_of
from capsedge.spec.vocabularies import ESCALATED

# --- Operators in the branches of an `If` ---

SMALL, LARGE, BETWEEN = "small network", "large network", "cascade"
NETWORKS = (SMALL, BETWEEN, LARGE)
OUTSIDE_BRANCHES = (
    "cascade_"  # prefix of the names of nodes between the networks (cascade_graph.py)
)
_BRANCHING = "If"


@dataclass
class Executed:
    """The operators of one run, in the order in which they end: those of a branch before their ``If``.

    Attributes:
        graph: all of them, with the initializers and values of all graphs that they stand in.
        bodies: the graph that each stands in.
    """

    graph: GraphStructure = field(default_factory=GraphStructure)
    bodies: list[GraphStructure] = field(default_factory=list)


def executed_operators(whole: GraphStructure, kinds: Sequence[str]) -> Executed | None:
    """The operators with these types in this order; None if no choice of branches has them."""
    for candidate in _orders(whole):
        if [node.op for _, node in candidate] == list(kinds):
            execution = Executed(GraphStructure(), [body for body, _ in candidate])
            execution.graph.nodes = [node for _, node in candidate]
            for body in {id(b): b for b in (whole, *execution.bodies)}.values():
                execution.graph.initializers += body.initializers
                execution.graph.values += body.values
            execution.graph.inputs, execution.graph.outputs = whole.inputs, whole.outputs
            return execution
    return None


_MOST = 16  # combinations of branches that are tried


def _orders(graph: GraphStructure) -> Iterator[list[tuple[GraphStructure, Node]]]:
    orders: list[list[tuple[GraphStructure, Node]]] = [[]]
    for node in graph.nodes:
        taken: list[list[tuple[GraphStructure, Node]]] = [[]]
        if node.op == _BRANCHING:
            taken = [inner for body in node.bodies for inner in _orders(body)][:_MOST]
        orders = [[*o, *inner, (graph, node)] for o in orders for inner in taken][:_MOST]
    yield from orders


def exclusive_durations(run: Sequence[OperatorEvent]) -> NDArray[np.float64]:
    """Microseconds of each operator of a run, without those of the operators in its branches."""
    own = np.array([event.duration for event in run], dtype=np.float64)
    inside = np.zeros(len(run), bool)
    for k, event in enumerate(run):
        if event.kind != _BRANCHING:
            continue
        for j in range(k - 1, -1, -1):
            if run[j].start < event.start:
                break
            if not inside[j]:
                own[k] -= run[j].duration
                inside[j] = True
    return np.maximum(own, 0.0)


def match_operators(written: Structure, running: Executed) -> list[Location]:
    """The place of every operator; in a cascade, of the network that it belongs to."""
    locations: list[Location | None] = [None] * len(running.bodies)
    for body in {id(b): b for b in running.bodies}.values():
        numbers = [k for k, other in enumerate(running.bodies) if other is body]
        nodes = [running.graph.nodes[k] for k in numbers]
        source = replace(written, graph=_written(written.graph, body))
        part = locate(source, replace(body, nodes=nodes))
        for k, location in zip(numbers, part, strict=True):
            between = running.graph.nodes[k].name.startswith(OUTSIDE_BRANCHES)
            locations[k] = Location() if between else location
    return [location for location in locations if location is not None]


def networks(written: Structure, running: Executed) -> list[str]:
    """The network of a cascade that each operator belongs to, one of `NETWORKS`; empty for other files."""
    if CASCADE_KEY not in written.metadata:
        return [""] * len(running.bodies)
    return [
        _network(body, node) for body, node in zip(running.bodies, running.graph.nodes, strict=True)
    ]


def _network(body: GraphStructure, node: Node) -> str:
    if node.name.startswith(OUTSIDE_BRANCHES):
        return BETWEEN
    return LARGE if body.name == ESCALATED else SMALL


def _written(graph: GraphStructure, body: GraphStructure) -> GraphStructure:
    """The graph of the file that a graph was optimized from: the branch of its name, else the main one."""
    named = [b for node in graph.walk() for b in node.bodies if b.name and b.name == body.name]
    return named[0] if named else graph


# --- All operators of a session, in running order ---

WARMUP = 3  # least number of runs at the start of each turn that are not timed
PAUSE, SETTLE = 0.02, 0.05  # seconds without and with runs before each turn
ROUNDS = 5  # number of rounds in which plain and profiled runs take turns
SECONDS = 2.0  # total for all profiled and plain runs, but at least one run of each per round
MOST_RUNS = 400  # maximum number of runs of the profiled session, whose events are kept in memory


@dataclass(frozen=True)
class TimedOperator:
    """One operator of the executed graph.

    Attributes:
        name, kind: the backend's name of it, and its type.
        layer, group, iteration, label: where it belongs (``layers``); empty in files from other tools.
        microseconds: its time without the profiler's own cost: the mean over the middle half of the runs,
            ordered by their sum.
        share: share of the sum over all operators.
        operations, bytes: per run of the whole batch.
        attainable: microseconds that it would take at the machine's measured peaks; None without them.
        bound: ``compute`` or ``memory``, whichever peak is nearer; empty without peaks.
        provider: the part of the backend that ran it, such as a provider of ONNX Runtime.
        network: for a cascade, one of `branches.NETWORKS`; empty for other files.
    """

    name: str
    kind: str
    layer: str
    group: str
    iteration: int | None
    label: str
    microseconds: float
    share: float
    operations: float
    bytes: int
    attainable: float | None
    bound: str
    provider: str
    network: str = ""


@dataclass(frozen=True)
class Span:
    """One operator in one run, for a trace: microseconds from the start of the first run shown."""

    operator: int
    start: int
    duration: int


@dataclass
class OperatorTimes:
    """The times of the operators, and of whole runs in the same period.

    Attributes:
        operators: the operators, in the order in which they run.
        median_ms: median time of whole runs without the profiler, in turns with the profiled ones.
        sum_ms: sum over the operators.
        call_ms: time of the call around the operators, feeding and fetching; measured with a model of one
            operator.
        timing_cost_us: the cost of timing that was subtracted from each operator.
        runs: number of profiled runs that count.
        arena_peak: the most bytes that intermediate values took; None if ONNX Runtime does not report it.
        spans: the operators of a few runs.
    """

    operators: list[TimedOperator] = field(default_factory=list)
    median_ms: float = 0.0
    sum_ms: float = 0.0
    call_ms: float = 0.0
    timing_cost_us: float = 0.0
    runs: int = 0
    arena_peak: int | None = None
    spans: list[Span] = field(default_factory=list)

    @property
    def attributed(self) -> float:
        """Operators and the call around them, over the median of whole runs; 1 if all time is accounted
        for."""
        return (self.sum_ms + self.call_ms) / self.median_ms if self.median_ms else 0.0


SHOWN_RUNS = 3  # number of runs shown in the trace


def time_operators(
    session: Session, feeds: Feeds, peaks: Peaks | None = None, seconds: float = SECONDS
) -> OperatorTimes:
    """Run a model with and without its backend's profiler, in turns."""
    backend = session.backend
    if not isinstance(backend, ProfiledBackend):
        raise UsageError(
            f"{session.path} runs in {backend.name}, which does not report operator times.",
            "",
            "Leave them out: --no-operators (operators=False).",
        )
    with backend.profiled_runs(feeds) as runs:
        plain, counted = _take_turns(runs, seconds)
        recording = runs.finish()
    around = overheads(backend.threads) if recording.timed_on_host else Overheads(0.0, 0.0)
    return _assemble(session.path, recording, counted, plain, around, peaks, feeds)


def _take_turns(runs: ProfiledRuns, seconds: float) -> tuple[NDArray[np.float64], list[int]]:
    """Seconds of the plain runs, and which of the profiled runs count."""
    plain: list[NDArray[np.float64]] = []
    counted: list[int] = []
    done = 0
    each = seconds / (2 * ROUNDS)
    for _ in range(ROUNDS):
        _settle(runs.plain)
        plain.append(timed_runs(runs.plain, each))
        most = min(len(plain[-1]), MOST_RUNS // ROUNDS)
        done += _settle(runs.profiled)
        count = len(timed_runs(runs.profiled, each, most=most))
        counted += range(done, done + count)
        done += count
    return np.concatenate(plain), counted


def _settle(run: Callable[[], Any]) -> int:
    """Let the other session's threads stop spinning and these spread; returns the runs that it took."""
    time.sleep(PAUSE)
    return len(timed_runs(run, SETTLE, WARMUP))


def _assemble(
    path: Path,
    recording: Recording,
    counted: Sequence[int],
    plain: NDArray[np.float64],
    around: Overheads,
    peaks: Peaks | None,
    feeds: Feeds,
) -> OperatorTimes:
    first = recording.runs[counted[0]]
    names = [event.name for event in first]
    runs = [recording.runs[k] for k in counted]
    same = [run for run in runs if [event.name for event in run] == names]
    running, where, of_network = _locations(path, recording, first)
    values = _values(running, first, feeds) if running is not None else {}
    durations = np.array([exclusive_durations(run) for run in same])
    bias = around.timing_us
    # The runs whose sums lie in the middle: their sum is comparable with the median of whole runs.
    order = np.argsort(durations.sum(axis=1))
    middle = order[len(order) // 4 : len(order) - len(order) // 4]
    taken = [max(0.0, float(t) - bias) for t in durations[middle].mean(axis=0)]
    total = sum(taken)
    operators = []
    for k, event in enumerate(first):
        spent = cost(running.nodes[k], values) if running is not None else None
        operator = _operator(event, where[k], spent, taken[k], total, peaks)
        operators.append(replace(operator, network=of_network[k]))
    shown = same[-SHOWN_RUNS:]
    origin = shown[0][0].start if shown and shown[0] else 0.0
    return OperatorTimes(
        operators=operators,
        median_ms=1e3 * float(np.median(plain)),
        sum_ms=total / 1e3,
        call_ms=around.call_ms,
        timing_cost_us=bias,
        runs=len(same),
        arena_peak=arena_peak(recording.runs),
        spans=[
            Span(k, round(event.start - origin), round(event.duration))
            for run in shown
            for k, event in enumerate(run)
        ],
    )


def _locations(
    path: Path, recording: Recording, run: Sequence[OperatorEvent]
) -> tuple[GraphStructure | None, list[Location], list[str]]:
    """The operators of a run as a graph, if reported, with their places and networks in a cascade."""
    none = [""] * len(run)
    if (
        recording.graph is None
    ):  # only names are available: those of an engine state where its nodes come from
        return None, [merge_locations(engine_locations(f"{e.name} {e.origin}")) for e in run], none
    execution = executed_operators(recording.graph.graph, [event.kind for event in run])
    if execution is None:
        return None, [Location() for _ in run], none
    written = read_structure(path)
    return execution.graph, match_operators(written, execution), networks(written, execution)


def _operator(
    event: OperatorEvent,
    location: Location,
    spent: Cost | None,
    taken: float,
    total: float,
    peaks: Peaks | None,
) -> TimedOperator:
    """One operator: the microseconds taken, of the total, against what the machine could do."""
    attainable, bound = None, ""
    if peaks is not None and spent is not None and spent.known:
        compute, memory = spent.operations / peaks.operations, spent.bytes / peaks.bandwidth
        attainable, bound = 1e6 * max(compute, memory), "compute" if compute >= memory else "memory"
    return TimedOperator(
        name=event.name,
        kind=operator_of(event.kind),
        layer=location.layer,
        group=location.group,
        iteration=location.iteration,
        label=location.label,
        microseconds=taken,
        share=taken / total if total else 0.0,
        operations=spent.operations if spent else 0.0,
        bytes=spent.bytes if spent else 0,
        attainable=attainable,
        bound=bound,
        provider=event.provider,
    )


def arena_peak(runs: list[list[OperatorEvent]]) -> int | None:
    """The most bytes that intermediate values and outputs took, in the first run of a session.

    Later runs get one block for all values, planned from the sizes in the first run.

    ONNX Runtime's allocator also holds some weights; memory in use before the first operator is subtracted.
    """
    events = [event for run in runs for event in run]
    if not events or events[0].arena is None or events[0].arena_delta is None:
        return None
    before = events[0].arena - events[0].arena_delta
    return max(event.arena or 0 for event in runs[0]) - before


def _values(
    running: GraphStructure, events: list[OperatorEvent], feeds: Feeds
) -> dict[str, TensorSpec]:
    """Shape and type of every value in the run."""
    values = {name: TensorSpec(str(array.dtype), array.shape) for name, array in feeds.items()}
    for stored in running.initializers:
        shape = tuple(int(d) for d in stored.shape or ())
        values[stored.name] = TensorSpec(stored.type, shape)
    for node, event in zip(running.nodes, events, strict=True):
        named = [o for o in node.outputs if o]
        for name, (kind, shape) in zip(named, event.outputs, strict=False):
            values[name] = TensorSpec(_TYPES.get(kind, kind), shape)
    return values


_TYPES = {"float": "float32", "double": "float64"}
