"""Define backends: capabilities, ports, batch ranges, profiler events, and the file they load.

Every backend is a `Backend`. Capabilities that only some backends have are separate protocols
(`DeviceBackend`, `GraphBackend`, `PartialBackend`, `ProfiledBackend`); callers test for it with
``isinstance``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.files.formats import is_engine
from capsedge.runtime.metadata.engine_metadata import EngineMetadata
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.onnx_file.summary import read_model_bytes
from capsedge.runtime.runtime_options import RuntimeOptions

if TYPE_CHECKING:
    from capsedge.runtime.backends.device_array import DeviceArray
    from capsedge.runtime.onnx_file.structure import Structure


Feeds = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Port:
    """An input or output of a model.

    Attributes:
        name: its name in the graph.
        shape: sizes; a string or None is a free dimension.
        dtype: numpy's name for the element type, or the backend's if numpy has none.
        entries: size of the table that an integer input indexes; None if the file does not state it.
        longest: the largest size of each axis of an input; 0 for any, empty if the file states none.
        independent: whether the file states that the result for a row does not depend on the other rows.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: str
    entries: int | None = None
    longest: tuple[int, ...] = ()
    independent: bool = False

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any] | None:
        """The element type; None if numpy has none."""
        return np.dtype(self.dtype) if self.dtype in np.sctypeDict else None


@dataclass(frozen=True)
class BatchRange:
    """The batches that one run of a model takes.

    Attributes:
        smallest, largest: both included; ``largest`` is None for any.
    """

    smallest: int = 1
    largest: int | None = None

    @property
    def fixed(self) -> int | None:
        """The only batch that it takes; None if there are several."""
        return self.smallest if self.smallest == self.largest else None

    @classmethod
    def of(cls, inputs: Sequence[Port]) -> BatchRange:
        """The batch that the inputs fix, taken from the first; any batch if one input leaves it free."""
        sizes = [port.shape[0] for port in inputs if port.shape]
        fixed = [size for size in sizes if isinstance(size, int) and size > 0]
        return cls(fixed[0], fixed[0]) if fixed and len(fixed) == len(sizes) else cls()


_GPU = re.compile(r"[0-9]{1,4}")


def parse_device(device: str) -> int | None:
    """The number of the GPU that ``cuda`` or ``cuda:1`` names; None for ``cpu``.

    Raises:
        UsageError: anything else.
    """
    if device == "cpu":
        return None
    name, _, number = device.partition(":")
    if name == "cuda" and (_GPU.fullmatch(number) or device == "cuda"):
        return int(number or 0)
    raise UsageError(
        f"Unknown device '{device:.40}'.",
        "Devices are cpu, cuda, cuda:1 and so on.",
        "Use the device 'cpu'.",
    )


class ModelFile:
    """A file that is being loaded; it is read when its content is first needed.

    Args:
        path: the file; its name in errors.
        content: its bytes, if they are known; then nothing is read.
    """

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        self.path = path
        self._content = content

    @cached_property
    def is_engine(self) -> bool:
        """Whether it is an engine of TensorRT."""
        return self._content is None and is_engine(self.path)

    @cached_property
    def content(self) -> bytes:
        """Its bytes, as `summary.read_model_bytes` reads them.

        Raises:
            UsageError, ArtefactError: as `summary.read_model_bytes`.
        """
        return read_model_bytes(self.path) if self._content is None else self._content


class Backend(Protocol):
    """A model, loaded into what runs it. Several threads may use it.

    Attributes:
        name: name of the package that runs it; its key in ``BACKENDS``.
        inputs, outputs: name, shape and type of each.
        batches: what one run takes.
        ops: ``fused`` if the capsule operators run in capsedge's operator or plugin library, ``mixed`` if
            the file also has some that the library does not run on this device, or routing in standard
            operators (`export --with couplings`), which no library runs; otherwise ``portable``.
        gpu: number of the GPU that it runs on; None on the CPU.
        threads: threads of one run; 0 where the backend chooses.
        metadata: what the file states of its model; None if it is not a file of capsedge.
        engine_metadata: what the file was built for and with; None for a file that runs on any machine.
    """

    name: ClassVar[str]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    batches: BatchRange
    ops: str
    gpu: int | None
    threads: int
    metadata: ModelMetadata | None
    engine_metadata: EngineMetadata | None

    @classmethod
    def accepts(cls, file: ModelFile) -> bool:
        """Whether it is a kind of file that this backend opens, by its first bytes or its name."""

    @classmethod
    def open(cls, file: ModelFile, options: RuntimeOptions) -> Backend:
        """Load a file.

        Raises:
            UsageError: it cannot be read, or an option does not apply to this backend.
            EnvironmentProblem: something that it needs is not installed, or not in this machine.
            UnsupportedModelError: part of the model would not run on the requested device.
            ArtefactError: the file is damaged, or does not fit this machine.
        """

    def run(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The named outputs, for inputs that have been checked.

        Raises:
            UsageError: it is closed.
            ArtefactError: it cannot run on these shapes.
        """

    def close(self) -> None:
        """Free the model; calls in progress are not affected. A second call does nothing."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called; the attributes remain available."""


@runtime_checkable
class DeviceBackend(Backend, Protocol):
    """A backend that also runs on arrays that are on its device."""

    def run_on_device(
        self,
        feeds: Mapping[str, object],
        out: Mapping[str, object] | None = None,
        stream: int | None = None,
    ) -> dict[str, DeviceArray]:
        """All outputs on the device, for inputs that are there.

        Args:
            feeds: arrays with ``__dlpack__`` or ``__cuda_array_interface__``, by name.
            out: arrays that outputs are written to, by name; the other outputs get new memory.
            stream: the stream in whose order this runs; the call returns when it is queued. None waits for
                the results.

        Raises:
            UsageError: it is closed, or an array is not on this device, or may not be written.
            ShapeError: an array has the wrong shape or type, or is not contiguous.
        """


NOT_REQUESTED = "graphs were not requested"


@runtime_checkable
class GraphBackend(Backend, Protocol):
    """A backend that can run as CUDA graphs."""

    @property
    def no_graph_reason(self) -> str:
        """Why calls do not use graphs; empty while they may."""


def cuda_graphs_text(backend: Backend) -> str:
    """``CUDA graphs``, or why there are none; empty on the CPU."""
    if not isinstance(backend, GraphBackend):
        return ""
    return (
        f"no CUDA graphs: {backend.no_graph_reason}" if backend.no_graph_reason else "CUDA graphs"
    )


def missing_graphs(backend: Backend, wanted: bool | None) -> str:
    """Why a GPU's calls did not use CUDA graphs, unless they were switched off; empty if they did.

    Args:
        wanted: the option ``graphs``.
    """
    why = backend.no_graph_reason if isinstance(backend, GraphBackend) else ""
    return f"ran without CUDA graphs: {why}" if why and wanted is not False else ""


@runtime_checkable
class PartialBackend(Backend, Protocol):
    """A backend that also runs a part of its model by itself, such as the decoder."""

    def open_part(self, content: bytes) -> Backend:
        """A part of the file, extracted as a separate file and opened with the same options."""


@dataclass(frozen=True)
class OperatorEvent:
    """One operator in one run, as the backend's own profiler reports it.

    Attributes:
        name: the backend's name of it.
        kind: operator type.
        start: microseconds since the profiler was started.
        duration: microseconds, including the cost of timing.
        provider: the part of the backend that ran it.
        origin: further information from the backend about the nodes from which it was made.
        outputs: element type and shape of each output, where the backend reports them.
        arena: bytes requested from ONNX Runtime's allocator and in use after it, its inputs included;
            None if they are not reported.
        arena_delta: bytes that the operator added to them.
    """

    name: str
    kind: str
    start: float
    duration: float
    provider: str = ""
    origin: str = ""
    outputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    arena: int | None = None
    arena_delta: int | None = None


@dataclass
class Recording:
    """The report of a backend's profiler.

    Attributes:
        runs: the operators of each run, in order.
        graph: the optimized graph that ran; None if the backend does not report it.
        timed_on_host: whether the durations include the profiler's own work; on a GPU operators are queued,
            which hides it.
    """

    runs: list[list[OperatorEvent]] = field(default_factory=list)
    graph: Structure | None = None
    timed_on_host: bool = False


class ProfiledRuns(Protocol):
    """A model on some inputs, with and without its backend's profiler."""

    def plain(self) -> None:
        """Run without the profiler."""

    def profiled(self) -> None:
        """Run with the profiler."""

    def finish(self) -> Recording:
        """Stop the profiler; returns its report on all profiled runs.

        Raises:
            EnvironmentProblem: the profiler could not write all of its output.
        """


@runtime_checkable
class ProfiledBackend(Backend, Protocol):
    """A backend that also reports how long each operator takes."""

    def profiled_runs(self, feeds: Feeds) -> AbstractContextManager[ProfiledRuns]:
        """The model, ready for repeated runs on these inputs.

        Raises:
            UsageError: it is closed.
        """


def closed_error(path: Path) -> UsageError:
    """The error of a call of a closed model."""
    return UsageError(
        f"The session of {path} is closed.",
        "It was closed by close(), or at the end of its `with` block.",
        "Load the model again: capsedge.load(...).",
    )


# --- CPU cores available to this process ---

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def usable_cores() -> int:
    """Physical cores that this process may use; logical ones if the system does not report them."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    with suppress(OSError):
        return len({Path(_SIBLINGS.format(cpu)).read_text("ascii") for cpu in allowed})
    return len(allowed)
