"""Drive a worker process over its pipes, and measure cold starts with one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem, UnsupportedModelError
from capsedge.runtime.backends.backend import Feeds
from capsedge.runtime.files.writing import temporary_folder
from capsedge.runtime.profiling.worker import (
    RunLimits,
    Specification,
    graphs_argument,
    ops_argument,
)
from capsedge.runtime.session.session import Session

# --- The driver of a worker ---

WORKER = (sys.executable, "-m", "capsedge.runtime.profiling.worker")


class Worker:
    """A runtime in its own process. Use as a context manager.

    Args:
        specification: what it runs.
        command: what starts it, before the specification; for peers outside the runtime, and for other
            interpreters.
        limit: seconds from its start to its end, after which it is killed; None for no limit.

    Attributes:
        first: its report on loading and on the first inference.
        cold_start: seconds from starting the process to the first outputs.

    Raises:
        CapsedgeError: it did not start; the cause is as the worker reports it.
    """

    def __init__(
        self,
        specification: Specification,
        command: Sequence[str] = WORKER,
        limit: float | None = None,
    ) -> None:
        self.specification, self._limit = specification, limit
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (lives as long as the worker)
        start = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                [*command, specification.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            self._errors.close()
            raise EnvironmentProblem(
                f"The process of {specification.peer} cannot start.",
                f"{command[0]}: {error.strerror}.",
                "Check the path of the interpreter.",
            ) from error
        self._late = False
        self._timer = threading.Timer(limit or 0.0, self._stop)
        if limit is not None:
            self._timer.start()
        try:
            self.first = self._read()
            self.cold_start = time.perf_counter() - start - self.first["checked_s"]
            self._names = self._read()["answered"] if specification.output else []
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def round(self, limits: RunLimits) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Let it run; return its times in seconds, and its memory."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; reading its output gives the reason
            self._process.stdin.write(json.dumps(asdict(limits)) + "\n")
            self._process.stdin.flush()
        line = self._read()
        return np.array(line.pop("seconds")), line

    def outputs(self) -> dict[str, NDArray[Any]]:
        """The outputs for the given inputs."""
        with np.load(self.specification.output) as archive:
            return dict(zip(self._names, archive.values(), strict=True))

    def close(self) -> None:
        """End the process."""
        self._timer.cancel()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it ended before it read everything
                self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:  # peers also print to the standard output
                continue
            if isinstance(message, dict):
                if "error" in message:
                    kind = (
                        UnsupportedModelError if message.get("unsupported") else EnvironmentProblem
                    )
                    raise kind(*message["error"])
                return message
        self._errors.seek(0)
        last = self._errors.read().strip().splitlines()[-1:]
        raise EnvironmentProblem(
            f"The process of {self.specification.peer} "
            + (
                f"gave no answer within {self._limit} s." if self._late else f"ended{self._code()}."
            ),
            "".join(last)[:300],
            "Run it by itself to see why.",
        )

    def _stop(self) -> None:
        self._late = True
        self._process.kill()

    def _code(self) -> str:
        try:
            return f" with code {self._process.wait(timeout=10)}"
        except subprocess.TimeoutExpired:
            return ""


def write_inputs(folder: Path, feeds: Mapping[str, NDArray[Any]]) -> Path:
    """Write the inputs to a file that workers read."""
    path = folder / "inputs.npz"
    np.savez(path, **feeds)  # type: ignore[arg-type]
    return path


# --- Cold start: a separate process loads the model and runs it once ---


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
            graphs=graphs_argument(session),
        )
        with Worker(specification) as worker:
            _, memory = worker.round(RunLimits(warmup=0.1, duration=0.5, iterations=5))
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
