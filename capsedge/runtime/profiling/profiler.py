"""Profile a session: latency, start, memory, operators."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.backends.backend import Feeds, Port, closed_error
from capsedge.runtime.files.given import SESSION, refusal
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.machine import environment
from capsedge.runtime.profiling import warnings
from capsedge.runtime.profiling.machine import Peaks, measure_peaks
from capsedge.runtime.profiling.measure import processor_speed
from capsedge.runtime.profiling.operator_times import time_operators
from capsedge.runtime.profiling.profile_report import ProfileReport
from capsedge.runtime.profiling.report_data import Run
from capsedge.runtime.profiling.startup import measure_startup
from capsedge.runtime.profiling.statistics import stable_window, summarize
from capsedge.runtime.profiling.worker import Limits, take_times
from capsedge.runtime.session import Session

SEED = 0


def profile(
    session: Session,
    *,
    batch: int | Sequence[int] = 1,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    warmup: float = 0.5,
    duration: float = 3.0,
    iterations: int = 10,
    operators: bool = True,
    startup: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> ProfileReport:
    """Measure the latency, its spread, and the memory of a session, and where its time goes.

    Args:
        session: a session of ``capsedge.load``.
        batch: batch sizes, measured one after the other; a file with a fixed batch has only that one.
        inputs: arrays by name instead of random ones; their first dimension is the batch.
        warmup: seconds of runs that are not timed.
        duration: seconds of timed runs.
        iterations: least number of timed runs, whatever the duration.
        operators: also time every operator, or every layer of an engine.
        startup: also start a separate process for cold start and memory.
        progress: called with the name of each step.

    Returns:
        The measurements, and the ways to write them.

    Raises:
        UsageError: an argument is wrong, or the inputs do not fit the model.
        EnvironmentProblem: the process for the cold start does not start.

    Example:
        >>> report = capsedge.profile(capsedge.load("digits.onnx"), batch=(1, 8))
        >>> report.save_html("report.html")
    """
    if not isinstance(session, Session):
        raise refusal(session, SESSION)
    if session.closed:
        raise closed_error(session.path)
    limits = checked_limits(warmup, duration, iterations)
    if inputs is not None and (not isinstance(inputs, Mapping) or not inputs):
        raise UsageError(
            "inputs is not a dictionary of arrays.",
            f"The model takes {', '.join(port.name for port in session.inputs)}.",
            "Give an array for each of them by its name.",
        )
    batches = [len(next(iter(inputs.values())))] if inputs else _batches(session, batch)
    device, threads = session_device(session), session.backend.threads
    peaks = None
    if operators and device == "cpu":
        progress("measuring the machine's peaks")
        peaks = measure_peaks(threads or environment.available_cores())
    runs = []
    for size in batches:
        feeds = dict(inputs) if inputs else random_inputs(session, size)
        progress(f"{session.path.name}, batch {size}: {duration:g} s")
        runs.append(_run(session, feeds, size, limits, operators, startup, peaks, device, threads))
    return ProfileReport(machine_facts(), peaks, runs)


def _run(
    session: Session,
    feeds: Feeds,
    batch: int,
    limits: Limits,
    operators: bool,
    startup: bool,
    peaks: Peaks | None,
    device: str,
    threads: int,
) -> Run:
    load, ticks = warnings.load_average(), warnings.stolen_ticks()
    speeds = [processor_speed()]
    samples = take_times(lambda: session.run(feeds), limits)
    speeds.append(processor_speed())
    stolen = warnings.stolen_share(ticks, warnings.stolen_ticks())
    times = time_operators(session, feeds, peaks) if operators else None
    started = measure_startup(session, feeds, device, threads) if startup else None
    latency, stable = summarize(samples), stable_window(samples)
    conditions = warnings.Conditions(tuple(speeds), load, environment.available_cores(), stolen)
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
        warnings=warnings.judge(latency, stable, conditions, times, device != "cpu"),
        long_way=_long_way(session, feeds),
    )


def _long_way(session: Session, feeds: Feeds) -> float | None:
    """Of a cascade, the share of these inputs that its large network decides."""
    if session.roles.long_way is None:
        return None
    return float(session.run(feeds)[session.roles.long_way].mean())


def checked_limits(warmup: float, duration: float, iterations: int) -> Limits:
    """The limits of a measurement.

    Raises:
        UsageError: a time is negative, or there is less than one run.
    """
    if warmup < 0 or duration < 0 or iterations < 1:
        raise UsageError(
            f"Bad limits: warmup {warmup:g} s, duration {duration:g} s, {iterations} iterations.",
            "Times must not be negative, and there must be at least one timed run.",
            "Use for example --warmup 0.5 --duration 3 --iterations 10.",
        )
    return Limits(warmup, duration, iterations)


def _batches(session: Session, batch: int | Sequence[int]) -> list[int]:
    wanted = [batch] if isinstance(batch, int) else list(batch)
    if not wanted or min(wanted) < 1:
        raise UsageError(
            f"Bad batch sizes {wanted}.",
            "A batch has at least one image.",
            "Use for example --batch 1,8.",
        )
    fixed = session.backend.batches.fixed
    if fixed is not None and any(size != fixed for size in wanted):
        raise UsageError(
            f"{session.path} has a fixed batch of {fixed}, but {wanted} was requested.",
            "",
            f"Use --batch {fixed}, or export it with a free batch.",
        )
    return wanted


def random_inputs(session: Session, batch: int) -> Feeds:
    """Inputs of a batch: uniform in [0, 1) from a fixed seed, whole numbers from 0 to 255 or 0 and 1.

    Raises:
        UsageError: a dimension other than the batch is free.
    """
    rng = np.random.default_rng(SEED)
    return {port.name: _random(rng, port, batch, session) for port in session.inputs}


def _random(rng: np.random.Generator, port: Port, batch: int, session: Session) -> NDArray[Any]:
    sizes = [size for size in port.shape[1:] if isinstance(size, int)]
    if len(sizes) != len(port.shape[1:]):
        raise UsageError(
            f"The input '{port.name}' of {session.path} has free dimensions besides the batch: "
            f"{list(port.shape)}.",
            "The sizes to measure are unknown.",
            "Give arrays: capsedge.profile(session, inputs={...}).",
            command="Give arrays of the sizes to measure: --inputs data.npz (docs/how-to/profile.md).",
        )
    shape = (batch, *sizes) if port.shape else ()
    try:
        dtype = np.dtype(port.dtype)
    except TypeError as error:
        raise UsageError(
            f"The input '{port.name}' of {session.path} is a {port.dtype}.",
            "Only numbers can be drawn at random.",
            "Give arrays: capsedge.profile(session, inputs={...}).",
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
    from capsedge import __version__

    package = session.backend.name
    found = environment.versions(package)
    return (
        f"capsedge {__version__} ({session.backend.ops} operators), {package} "
        f"{found.get(package, 'unknown')}"
    )


def machine_facts() -> dict[str, str]:
    """Facts about the machine of the measurement."""
    versions = environment.versions("numpy", "onnxruntime")
    return {**environment.machine(), "python": platform.python_version(), **versions}
