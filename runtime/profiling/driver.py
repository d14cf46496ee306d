"""The driver of a worker, at the other end of its pipes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.profiling.measure import Limits
from capsedge.runtime.profiling.worker import Specification

WORKER = "capsedge.runtime.profiling.worker"


class Worker:
    """A backend in its own process. Use as a context manager.

    Args:
        specification: what it runs.
        module: the worker's module, for peers outside the runtime.

    Attributes:
        first: its report on loading and on the first inference.
        cold_start: seconds from starting the process to the first outputs.

    Raises:
        CapsedgeError: it did not start; the cause is as the worker reports it.
    """

    def __init__(self, specification: Specification, module: str = WORKER) -> None:
        self.specification = specification
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (lives as long as the worker)
        start = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, specification.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            errors="replace",
        )
        try:
            self.first = self._read()
            self.cold_start = time.perf_counter() - start
            if specification.answer:
                self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def round(self, limits: Limits) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Let it run; returns its times in seconds, and its memory."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; reading its output gives the reason
            self._process.stdin.write(json.dumps(asdict(limits)) + "\n")
            self._process.stdin.flush()
        said = self._read()
        return np.array(said.pop("seconds")), said

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Its outputs for the inputs."""
        with np.load(self.specification.answer) as archive:
            return {name: archive[name] for name in archive.files}

    def close(self) -> None:
        """End the process."""
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
        # Peers also print to the standard output; their lines are not JSON documents.
        for line in self._process.stdout:
            if line.startswith("{"):
                said: dict[str, Any] = json.loads(line)
                if "error" in said:
                    raise EnvironmentProblem(*said["error"])
                return said
        self._errors.seek(0)
        last = self._errors.read().strip().splitlines()[-1:]
        raise EnvironmentProblem(
            f"The process of {self.specification.peer} ended.",
            "".join(last),
            "Run it alone to see why.",
        )


def write_inputs(folder: Path, feeds: Mapping[str, NDArray[Any]]) -> Path:
    """Write the inputs to a file that workers read."""
    path = folder / "inputs.npz"
    np.savez(path, **feeds)  # type: ignore[arg-type]
    return path
