"""A cold start: a separate process that loads the model and runs it once."""

from __future__ import annotations

from dataclasses import dataclass

from capsedge.runtime.backends.backend import Feeds
from capsedge.runtime.files.writing import temporary_folder
from capsedge.runtime.profiling.driver import Worker, write_inputs
from capsedge.runtime.profiling.worker import Limits, Specification, ops_argument
from capsedge.runtime.session import Session


@dataclass(frozen=True)
class Startup:
    """Time and memory of a process from its start to the first outputs and after.

    Attributes:
        cold_start_ms: from starting the process (Python included) to the first outputs; the file is in the
            system's cache if it was read before.
        load_ms: time to import the runtime and load the model.
        first_ms: time of the first inference.
        loaded_bytes: resident memory after loading.
        steady_bytes: resident memory after a second of inferences.
        peak_bytes: peak resident memory, loading included.
        model_bytes: memory that loading and running added to the bare process.
        device_bytes: memory on the GPU; None without one.
    """

    cold_start_ms: float
    load_ms: float
    first_ms: float
    loaded_bytes: int | None
    steady_bytes: int | None
    peak_bytes: int | None
    model_bytes: int | None
    device_bytes: int | None


def measure_startup(session: Session, feeds: Feeds, device: str, threads: int) -> Startup:
    """Start a process that runs in the same way as the session.

    Raises:
        EnvironmentProblem: the process does not start.
    """
    with temporary_folder() as folder:
        inputs = write_inputs(folder, feeds)
        specification = Specification(
            "capsedge",
            str(session.path),
            str(inputs),
            threads=threads,
            ops=ops_argument(session),
            device=device,
        )
        with Worker(specification) as worker:
            _, memory = worker.round(Limits(warmup=0.1, duration=0.5, iterations=5))
            first = worker.first
            before, peak = first["before_bytes"], memory["peak_bytes"]
            return Startup(
                cold_start_ms=1e3 * worker.cold_start,
                load_ms=1e3 * first["load_s"],
                first_ms=1e3 * first["first_s"],
                loaded_bytes=first["loaded_bytes"],
                steady_bytes=memory["steady_bytes"],
                peak_bytes=peak,
                model_bytes=None if before is None or peak is None else peak - before,
                device_bytes=memory["device_bytes"],
            )
