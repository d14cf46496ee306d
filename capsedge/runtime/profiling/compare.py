"""Compare runtimes and models fairly.

Each runs in its own process, on the same inputs and with the same number of threads. Outputs are
compared before anything is timed. Then they take turns (A B C A B C ...), so that a drift of the
machine affects all of them equally; every change includes a pause, because threads of the previous
one may still spin (OpenMP's do for 200 ms), and a warm-up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import CapsedgeError, EnvironmentProblem, UsageError
from capsedge.runtime.backends import onnxruntime_session
from capsedge.runtime.backends.backend import Feeds
from capsedge.runtime.files.writing import temporary_folder
from capsedge.runtime.machine import installed_version
from capsedge.runtime.profiling.startup import WORKER, Worker, write_inputs
from capsedge.runtime.profiling.timing import Statistics, summarize
from capsedge.runtime.profiling.worker import RunLimits, Specification
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.result_summary import distinct_names

ROUNDS = 5
PAUSE = 0.25  # seconds before each turn
TURN_WARMUP = 0.1  # seconds at the start of each turn except the first
TOLERANCE = 1e-3  # relative to an output's largest magnitude, between backends of one model
PACKAGES = {
    "ort": "onnxruntime",
    "openvino": "openvino",
    "litert": "ai-edge-litert",
    "mnn": "MNN",
    "torch": "torch",
}
INSTALL = {
    "ort": onnxruntime_session.HOW_TO_GET,
    "openvino": "pip install openvino",
    "litert": "pip install onnx2tf ai-edge-litert",
    "mnn": "pip install MNN",
    "torch": "pip install 'capsedge[export]'",
}
CAPSEDGE = "capsedge"


@dataclass(frozen=True)
class Entrant:
    """A participant of a comparison.

    Attributes:
        name: its name in reports.
        specification: the specification of its worker; inputs and result are filled in here.
        computes: the model that it computes; the outputs of entrants with the same model are compared.
        command: what starts its worker, before the specification.
        tolerance: of its difference from the first entrant with the same model; beyond it is not timed.
    """

    name: str
    specification: Specification
    computes: str
    command: Sequence[str] = WORKER
    tolerance: float = TOLERANCE


@dataclass(frozen=True)
class Entry:
    """The measurements of one entrant.

    Attributes:
        name, model: as given.
        version: the versions of its packages, as it states them.
        difference: from the first entrant of the same model: the largest over all outputs, each relative
            to the output's largest magnitude; 0 for the first itself. It decides whether the entry is timed.
            NaN if it gave no outputs.
        from_first_file: the same from the first file, whichever backend runs this one; None if the two
            have no output in common.
        problem: why it was not timed; empty if it was.
        samples: seconds of every timed run.
        latency: their statistics; None if it was not timed.
        cold_start_ms: from starting its process to the first outputs.
        peak_bytes: the most memory that its process used.
        loaded_bytes: memory of its process after loading, before the first run.
    """

    name: str
    model: str
    version: str
    difference: float
    from_first_file: float | None
    problem: str
    samples: tuple[float, ...]
    latency: Statistics | None
    cold_start_ms: float
    peak_bytes: int | None
    loaded_bytes: int | None = None


@dataclass(frozen=True)
class SpeedComparison:
    """Entrants that took turns on the same inputs."""

    batch: int
    threads: int
    rounds: int
    entries: tuple[Entry, ...]

    @property
    def failed(self) -> tuple[Entry, ...]:
        """The entries whose outputs differ too much."""
        return tuple(entry for entry in self.entries if entry.problem)

    def ratio(self, entry: Entry) -> float | None:
        """The median relative to the first entrant's; None if either was not timed."""
        first = self.entries[0].latency
        if first is None or entry.latency is None:
            return None
        return entry.latency.median / first.median

    @property
    def fastest(self) -> Entry | None:
        """The entry with the lowest median; None if fewer than two were timed."""
        timed = [(e.latency.median, k, e) for k, e in enumerate(self.entries) if e.latency]
        return min(timed)[2] if len(timed) > 1 else None

    def speed_in_words(self, entry: Entry) -> str:
        """The ratio in words: ``3.7x faster``, ``first`` for the first; empty if either was not timed."""
        ratio = self.ratio(entry)
        if ratio is None or ratio <= 0:
            return ""
        if entry is self.entries[0]:
            return "first"
        times = max(ratio, 1 / ratio)
        if times < 1.005:
            return "as fast"
        text = f"{times:.2f}" if times < 2 else f"{times:.1f}" if times < 100 else f"{times:.0f}"
        return f"{text}x {'slower' if ratio > 1 else 'faster'}"

    def to_dict(self, samples: bool = True) -> dict[str, Any]:
        """JSON values only."""
        entries = []
        for entry in self.entries:
            document = {k: v for k, v in asdict(entry).items() if k != "samples"}
            document["times_first"] = self.ratio(entry)
            if samples:
                document["samples_ms"] = [1e3 * s for s in entry.samples]
            entries.append(document)
        return {
            "batch": self.batch,
            "threads": self.threads,
            "rounds": self.rounds,
            "tolerance": TOLERANCE,
            "entries": entries,
        }


def check_installed(peers: Sequence[str], known: Sequence[str] = tuple(PACKAGES)) -> None:
    """Refuse peers that are unknown or not installed, before any work."""
    for peer in peers:
        if peer not in known:
            raise UsageError(
                f"Unknown peer '{peer}'.",
                f"Known peers: {', '.join(known)}.",
                "For example: --compare ort,openvino.",
            )
        if not installed_version(PACKAGES[peer]):
            raise EnvironmentProblem(
                f"The peer '{peer}' is not installed.",
                f"It needs the package {PACKAGES[peer]}.",
                INSTALL[peer],
            )


class _Turn:
    """An entrant while it is compared."""

    def __init__(self, entrant: Entrant) -> None:
        self.entrant = entrant
        self.worker: Worker | None = None
        self.outputs: dict[str, NDArray[Any]] = {}
        self.difference = float("nan")
        self.from_first: float | None = None
        self.problem = ""
        self.samples: list[float] = []
        self.peak: int | None = None

    def start(self, inputs: Path, answer: Path, stack: ExitStack) -> None:
        filled = replace(self.entrant.specification, inputs=str(inputs), output=str(answer))
        self.worker = stack.enter_context(Worker(filled, self.entrant.command))
        self.outputs = self.worker.outputs()

    def check(self, first: _Turn, peer: _Turn) -> None:
        """Compare its outputs with those of the first entrant of all, and of the first of its model."""
        self.difference = largest_difference(self.outputs, peer.outputs)
        if _comparable(self.outputs, first.outputs):
            self.from_first = largest_difference(self.outputs, first.outputs)
        if not self.difference <= self.entrant.tolerance:
            self.problem = (
                f"differs from {peer.entrant.name} by {self.difference:.2g} "
                f"(tolerance {self.entrant.tolerance:g})"
            )

    def run(self, limits: RunLimits) -> None:
        assert self.worker is not None
        time.sleep(PAUSE)
        seconds, memory = self.worker.round(limits)
        self.samples += seconds.tolist()
        self.peak = memory["peak_bytes"]

    def entry(self, model: str) -> Entry:
        first = {} if self.worker is None else self.worker.first
        return Entry(
            name=self.entrant.name,
            model=model,
            version=first.get("version", ""),
            difference=self.difference,
            from_first_file=self.from_first,
            problem=self.problem,
            samples=tuple(self.samples),
            latency=summarize(np.array(self.samples)) if self.samples else None,
            cold_start_ms=0.0 if self.worker is None else 1e3 * self.worker.cold_start,
            peak_bytes=self.peak,
            loaded_bytes=first.get("loaded_bytes"),
        )


def compare(
    entrants: Sequence[Entrant],
    feeds: Feeds,
    limits: RunLimits,
    progress: Progress = silent,
    *,
    rounds: int = ROUNDS,
    keep_going: bool = False,
) -> SpeedComparison:
    """Check parity, then measure in turns.

    Args:
        entrants: the others are compared with the first.
        feeds: the inputs of all entrants.
        limits: of each entrant; ``duration`` and ``iterations`` over all rounds, ``warmup`` before the first.
        rounds: turns of each entrant.
        keep_going: an entrant that does not start or fails is an entry with a problem, not an error; the
            first one must start.
    """
    batch = len(next(iter(feeds.values())))
    turns = [_Turn(entrant) for entrant in entrants]

    def attempt(turn: _Turn, act: Callable[[], None]) -> None:
        if turn.problem:
            return
        try:
            act()
        except CapsedgeError as error:
            if not keep_going or turn is turns[0]:
                raise
            turn.problem, turn.samples = f"{error.what} {error.why}".strip(), []

    with temporary_folder() as folder, ExitStack() as stack:
        inputs = write_inputs(folder, feeds)
        for k, turn in enumerate(turns):
            progress(f"starting {turn.entrant.name}")
            attempt(turn, partial(turn.start, inputs, folder / f"answer-{k}.npz", stack))
        peers: dict[str, _Turn] = {}
        for turn in turns:
            if not turn.problem:
                peer = peers.setdefault(turn.entrant.computes, turn)
                attempt(turn, partial(turn.check, turns[0], peer))
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            warmup = TURN_WARMUP if number else limits.warmup
            turn_limits = RunLimits(
                warmup, limits.duration / rounds, -(-limits.iterations // rounds)
            )
            for turn in turns:
                attempt(turn, partial(turn.run, turn_limits))
        names = distinct_names([Path(turn.entrant.specification.model) for turn in turns])
        entries = tuple(turn.entry(name) for turn, name in zip(turns, names, strict=True))
    return SpeedComparison(batch, entrants[0].specification.threads, rounds, entries)


def _comparable(actual: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> bool:
    common = [name for name in expected if name in actual]
    return bool(common) and all(actual[n].shape == expected[n].shape for n in common)


def largest_difference(
    actual: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]
) -> float:
    """Largest difference over the outputs that both have, relative to each output's largest magnitude."""
    if not _comparable(actual, expected):
        raise EnvironmentProblem(
            "The outputs of a peer do not match those of the model.",
            f"It has {sorted(actual)}, the model has {sorted(expected)}.",
            "Remove that peer from --compare.",
        )
    return max(
        float(np.max(np.abs(actual[n].astype(np.float64) - expected[n]), initial=0.0))
        / max(float(np.max(np.abs(expected[n]), initial=0.0)), 1e-30)
        for n in expected
        if n in actual
    )
