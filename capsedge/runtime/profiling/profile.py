"""Profile a session: latency, start-up, memory and operators (``capsedge.profile``)."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.options import takes_options
from capsedge.runtime import machine
from capsedge.runtime.backends.backend import Feeds, Port, closed_error, cuda_graphs_text
from capsedge.runtime.files.writing import SESSION, path_error, sha256, write_text
from capsedge.runtime.profiling.machine_peaks import Peaks, measure_peaks
from capsedge.runtime.profiling.operator_times import OperatorTimes, time_operators
from capsedge.runtime.profiling.profile_options import ProfileOptions
from capsedge.runtime.profiling.report_data import ReportData, Run
from capsedge.runtime.profiling.startup import measure_startup
from capsedge.runtime.profiling.timing import (
    StableWindow,
    Statistics,
    processor_speed,
    stable_window,
    summarize,
)
from capsedge.runtime.profiling.worker import RunLimits, take_times, timed_runs
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.result_summary import LINES, Report, Table, shortened_name
from capsedge.runtime.session.session import Session
from capsedge.spec.version import VERSION

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import ProfileKeywords

# --- Reasons to distrust a measurement, as in trtexec ---

LARGE_CV = 0.1
SLOWER = 0.85  # share of the processor's best speed in this measurement
BUSY = 0.5  # load per core before measuring
HOST, TRANSFER = 0.2, 0.1  # shares of a run's time
_LONG = 10.0  # seconds of timing that a user need not be told of beforehand
ATTRIBUTED = 0.1  # how far the operators' sum may be from the run's median


@dataclass(frozen=True)
class MeasurementConditions:
    """The state of the machine around a measurement.

    Attributes:
        speeds: speed of the processor, in rounds per second of a fixed computation, before and after.
        load: processes that were ready to run, averaged over the minute before (``os.getloadavg``).
        cores: number of cores that this process may use.
        stolen: share of the time that the host gave to other machines; None if the system does not report it.
    """

    speeds: tuple[float, ...]
    load: float
    cores: int
    stolen: float | None


def measurement_warnings(
    latency: Statistics,
    stable: StableWindow,
    conditions: MeasurementConditions,
    operators: OperatorTimes | None,
    on_gpu: bool,
) -> list[str]:
    """One or two sentences for each reason to distrust the measurement; empty is good."""
    warnings = []
    if latency.cv > LARGE_CV:
        warnings.append(
            f"Variance: the coefficient of variation is {latency.cv:.0%} (over {LARGE_CV:.0%}). "
            f"Compare medians, "
            "not means; close other programs, or measure longer with --duration."
        )
    if stable.start is None:
        warnings.append(
            "No stable window: the median moved by more than 10 % in the second half of the series. "
            "Measure longer with --duration, or warm up longer with --warmup."
        )
    elif stable.start:
        warnings.append(
            f"Warm-up: the series is steady from sample {stable.start} of {latency.count} on, "
            f"with a median of "
            f"{stable.median:.3f} ms. Warm up longer with --warmup."
        )
    slowest, fastest = min(conditions.speeds), max(conditions.speeds)
    if slowest < SLOWER * fastest:
        warnings.append(
            f"CPU frequency: a fixed computation ran at {slowest / fastest:.0%} of its "
            f"best speed during "
            "the measurement: the processor changed its clock, or shares it with neighbours. Fix "
            "the clock, or repeat."
        )
    if conditions.load > BUSY * conditions.cores:
        warnings.append(
            f"CPU load: {conditions.load:.1f} processes competed for the {conditions.cores} cores in "
            f"the minute before. "
            "Stop other programs."
        )
    if conditions.stolen is not None and conditions.stolen > 0.02:
        warnings.append(
            f"CPU load: the host gave {conditions.stolen:.0%} of this virtual machine's time to others."
        )
    if operators is not None and operators.median_ms:
        warnings += _bounds(operators, on_gpu)
    return warnings


def _bounds(operators: OperatorTimes, on_gpu: bool) -> list[str]:
    warnings = []
    median = operators.median_ms
    if operators.call_ms > HOST * median:
        warnings.append(
            f"Host-bound: {operators.call_ms / median:.0%} of a run is the call itself, not "
            f"operators. Use larger batches."
        )
    tiny = [o for o in operators.operators if o.microseconds < 2.0]
    share = sum(o.microseconds for o in tiny) / 1e3 / median
    if not on_gpu and share > HOST:
        warnings.append(
            f"Host-bound: {len(tiny)} operators take less than 2 µs each and {share:.0%} of a run "
            "in all, "
            "more for dispatch than for work. Fused operators (`--ops fused`) or larger batches help."
        )
    copies = [o for o in operators.operators if o.kind.startswith("Memcpy")]
    moved = sum(o.microseconds for o in copies) / 1e3 / median
    if moved > TRANSFER:
        warnings.append(
            f"Transfer-bound: {len(copies)} copies between host and device take {moved:.0%} of a run."
        )
    whole = operators.attributed
    if abs(whole - 1) > ATTRIBUTED:
        warnings.append(
            f"Operators: their sum is {whole:.0%} of the median of whole runs, more than 10 % off; "
            "the times by operator are less certain than usual."
        )
    return warnings


def stolen_ticks() -> tuple[int, int] | None:
    """Ticks stolen by the host, and all ticks, since the machine started; None if not reported."""
    try:
        with open("/proc/stat", encoding="ascii") as f:
            fields = [int(x) for x in f.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return (fields[7], sum(fields)) if len(fields) == 8 else None


def stolen_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Share of the time between two readings that the host took away."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def load_average() -> float:
    """Processes ready to run, averaged over the last minute; 0 if the system does not report it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


# --- The report ---


@dataclass(repr=False)
class ProfileReport(ReportData, Report):
    """The results of profiling, with methods that write them. Renderers are imported on first use."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all runs."""
        return tuple(
            f"{run.model}, batch {run.batch}: {warning}"
            for run in self.runs
            for warning in run.warnings
        )

    def _lines(self) -> list[str]:
        lines = [f"{shortened_name(run.model)}, batch {run.batch}: {run}" for run in self.runs]
        if len(lines) > LINES:
            lines = [*lines[: LINES - 1], f"and {len(lines) - LINES + 1} more runs"]
        return lines or ["of nothing"]

    def rows(self) -> list[tuple[str, str]]:
        """The machine."""
        return [("machine", ", ".join(self.machine.values()))]

    def tables(self) -> list[Table]:
        """Latency, start and memory; layers of each run; comparisons."""
        from capsedge.runtime.profiling import report_text

        return report_text.tables(self)

    def to_markdown(self) -> str:
        """Tables in Markdown."""
        from capsedge.runtime.profiling.report_text import markdown

        return markdown(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file that contains its charts.

        Raises:
            EnvironmentProblem: matplotlib is not installed.
            UsageError: the path cannot be written.
        """
        from capsedge.runtime.profiling.report_html import write_html_report

        write_html_report(self, Path(path))

    def save_png(self, path: str | os.PathLike[str]) -> None:
        """Draw the charts with matplotlib.

        Raises:
            EnvironmentProblem: matplotlib is not installed.
            UsageError: the path cannot be written.
        """
        from capsedge.runtime.profiling.report_html import save_png

        save_png(self, Path(path))

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace for Perfetto or chrome://tracing.

        Raises:
            UsageError: the path cannot be written, or no operator was timed.
        """
        from capsedge.runtime.profiling.report_text import trace

        write_text(Path(path), json.dumps(trace(self), indent=1))


# --- Measuring ---

SEED = 0


@takes_options(ProfileOptions)
def profile(
    session: Session,
    options: ProfileOptions = ProfileOptions(),
    *,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    progress: Progress = silent,
    **_keywords: Unpack[ProfileKeywords],
) -> ProfileReport:
    """Measure the latency, its spread, and the memory of a session, and where its time goes.

    A file with a fixed batch is measured at that one only.

    Args:
        session: a session of ``capsedge.load``.
        inputs: arrays by name instead of random ones; their first dimension is the batch.
        progress: called with the name of each step.

    Returns:
        The measurements, and the ways to write them.

    Raises:
        UsageError: an argument is wrong, or the inputs do not fit the model.
        EnvironmentProblem: the process for the cold start does not start.

    Example:
        >>> report = capsedge.profile(capsedge.load("digits.onnx"),
        ...     batch=(1, 8))
        >>> report.save_html("report.html")
    """
    if not isinstance(session, Session):
        raise path_error(session, SESSION)
    if session.closed:
        raise closed_error(session.path)
    if inputs is not None and (not isinstance(inputs, Mapping) or not inputs):
        raise UsageError(
            "inputs is not a dictionary of arrays.",
            f"The model takes {', '.join(port.name for port in session.inputs)}.",
            "Pass one array for each of them, by name.",
        )
    batches = [len(next(iter(inputs.values())))] if inputs else _batches(session, options.batch)
    fed = [dict(inputs) if inputs else random_inputs(session, size) for size in batches]
    device, threads = session_device(session), session.backend.threads
    peaks = None
    if options.operators and device == "cpu":
        progress("measuring the machine's peaks")
        peaks = measure_peaks(threads or machine.available_cores())
    runs = []
    for size, feeds in zip(batches, fed, strict=True):
        progress(f"{session.path.name}, batch {size}: {options.duration:g} s")
        if options.warmup:
            _announce(timed_runs(lambda: session.run(feeds), 0.0)[0], options, progress)  # noqa: B023
        runs.append(_run(session, feeds, size, options, peaks, device, threads))
    return ProfileReport(machine_facts(), peaks, runs)


def _announce(seconds: float, options: ProfileOptions, progress: Progress) -> None:
    """Say so if the least number of runs takes much longer than the duration that was asked for."""
    least = options.iterations * seconds
    if least > _LONG + 2 * options.duration:
        progress(
            f"one run takes {seconds:.1f} s: {options.iterations} runs, the least number, take {least:.0f} s "
            "(--iterations, iterations=), and timing the operators more"
        )


def _run(
    session: Session,
    feeds: Feeds,
    batch: int,
    options: ProfileOptions,
    peaks: Peaks | None,
    device: str,
    threads: int,
) -> Run:
    load, ticks = load_average(), stolen_ticks()
    speeds = [processor_speed()]
    samples = take_times(lambda: session.run(feeds), limits_of(options))
    speeds.append(processor_speed())
    stolen = stolen_share(ticks, stolen_ticks())
    times = time_operators(session, feeds, peaks) if options.operators else None
    started = measure_startup(session, feeds, device, threads) if options.startup else None
    latency, stable = summarize(samples), stable_window(samples)
    conditions = MeasurementConditions(tuple(speeds), load, machine.available_cores(), stolen)
    return Run(
        model=session.path.name,
        sha256=sha256(session.path),
        backend=backend_version(session),
        device=device,
        threads=threads,
        batch=batch,
        samples=samples.tolist(),
        latency=latency,
        stable=stable,
        startup=started,
        operators=times,
        warnings=measurement_warnings(latency, stable, conditions, times, device != "cpu"),
        escalated=_escalated(session, feeds),
    )


def _escalated(session: Session, feeds: Feeds) -> float | None:
    """For a cascade, the share of these inputs that its large network decides."""
    if session.roles.escalated is None:
        return None
    return float(session.run(feeds)[session.roles.escalated].mean())


def limits_of(options: ProfileOptions) -> RunLimits:
    """The limits of a measurement."""
    return RunLimits(options.warmup, options.duration, options.iterations)


def _batches(session: Session, wanted: Sequence[int]) -> Sequence[int]:
    fixed = session.backend.batches.fixed
    if fixed is not None and any(size != fixed for size in wanted):
        raise UsageError(
            f"{session.path} has a fixed batch of {fixed}, but {', '.join(map(str, wanted))} was requested.",
            "",
            f"Use --batch {fixed}, or export it with a free batch.",
        )
    return wanted


def random_inputs(session: Session, batch: int) -> Feeds:
    """Inputs of a batch: uniform in [0, 1) from a fixed seed, whole numbers from 0 to 255 or 0 and 1."""
    rng = np.random.default_rng(SEED)
    return {port.name: _random(rng, port, batch, session) for port in session.inputs}


def _random(rng: np.random.Generator, port: Port, batch: int, session: Session) -> NDArray[Any]:
    sizes = [size for size in port.shape[1:] if isinstance(size, int)]
    if len(sizes) != len(port.shape[1:]):
        raise UsageError(
            f"The input '{port.name}' of {session.path} has free dimensions besides the batch: "
            f"{list(port.shape)}.",
            "The sizes to measure are unknown.",
            "Pass arrays: capsedge.profile(session, inputs={...}).",
            command="Pass arrays of the sizes to measure: --inputs data.npz (docs/how-to/profile.md).",
        )
    shape = (batch, *sizes) if port.shape else ()
    try:
        dtype = np.dtype(port.dtype)
    except TypeError as error:
        raise UsageError(
            f"The input '{port.name}' of {session.path} is a {port.dtype}.",
            "Random values can only be generated for numbers.",
            "Pass arrays: capsedge.profile(session, inputs={...}).",
        ) from error
    if dtype.kind == "f":
        return rng.random(shape).astype(dtype)
    if dtype == np.uint8:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return rng.integers(0, 2, shape).astype(dtype)


def session_device(session: Session) -> str:
    """``cpu``, ``cuda`` or ``cuda:1``: where the session runs, in the form that ``capsedge.load`` takes."""
    gpu = session.backend.gpu
    if gpu is None:
        return "cpu"
    return f"cuda:{gpu}" if gpu else "cuda"


def backend_version(session: Session) -> str:
    """The backend of the session, with versions."""
    package = session.backend.name
    versions = machine.versions(package)
    graphs = f", {text}" if (text := cuda_graphs_text(session.backend)) else ""
    return (
        f"capsedge {VERSION} ({session.backend.ops} operators), {package} "
        f"{versions.get(package, 'unknown')}{graphs}"
    )


def machine_facts() -> dict[str, str]:
    """Facts about the machine of the measurement."""
    versions = machine.versions("numpy", "onnxruntime")
    return {**machine.machine(), "python": platform.python_version(), **versions}
