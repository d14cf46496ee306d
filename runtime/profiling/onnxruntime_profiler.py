"""ONNX Runtime with its own profiler: sessions like a given one that report the time of each operator."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.backends.onnxruntime_backend import keep_to_itself, register_operators
from capsedge.runtime.files.writing import temporary_folder
from capsedge.runtime.reading.onnx_file import summarize
from capsedge.runtime.reading.onnx_structure import Structure, read_structure
from capsedge.runtime.session import Session

Feeds = dict[str, NDArray[Any]]
_FATAL = 4  # log severity: hides the warning that the optimized graph is for this machine only
_SUFFIX = "_kernel_time"


@dataclass(frozen=True)
class Configuration:
    """The settings of a session, with which another one runs in the same way."""

    threads: int
    providers: list[str]
    provider_options: list[dict[str, str]]
    library: Path | None

    @property
    def on_cpu(self) -> bool:
        return self.providers == ["CPUExecutionProvider"]


@dataclass(frozen=True)
class Event:
    """One operator in one run.

    Attributes:
        name: ONNX Runtime's name of the node.
        kind: operator type.
        start: microseconds since the profiler was started.
        duration: whole microseconds, including the cost of timing.
        outputs: shape and element type of each output.
        provider: ONNX Runtime's provider that ran it.
        arena: bytes requested from ONNX Runtime's allocator and in use after it, its inputs included;
            None in versions that do not report it.
        arena_delta: bytes that the operator added to them.
    """

    name: str
    kind: str
    start: int
    duration: int
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    provider: str
    arena: int | None = None
    arena_delta: int | None = None


@dataclass
class Recording:
    """The output of ONNX Runtime's profiler for some runs.

    Attributes:
        runs: the operators of each run, in order.
        graph: the optimized graph that ran; None if ONNX Runtime cannot write it.
    """

    runs: list[list[Event]] = field(default_factory=list)
    graph: Structure | None = None


def configuration(session: Session) -> Configuration:
    """The configuration of a session.

    Raises:
        UsageError: it does not run in ONNX Runtime.
    """
    inner = getattr(session._backend, "_session", None)
    if inner is None or not hasattr(inner, "get_session_options"):
        raise UsageError(
            f"{session.path} does not run in ONNX Runtime.",
            "Time by operator comes from ONNX Runtime's profiler.",
            "Profile the ONNX file that it was built from, or use --no-operators.",
        )
    options = inner.get_provider_options()
    names = inner.get_providers()
    return Configuration(
        threads=inner.get_session_options().intra_op_num_threads,
        providers=names,
        provider_options=[options[name] for name in names],
        library=find_library() if session.ops != "portable" else None,
    )


class ProfiledSession:
    """A second session for the same bytes, with ONNX Runtime's profiler on.

    Use as a context manager: its files are written to a temporary folder.
    """

    def __init__(self, model: bytes, how: Configuration, keep_graph: bool = True) -> None:
        import onnxruntime as ort

        self._stack = ExitStack()
        folder = self._stack.enter_context(temporary_folder())
        self._graph = folder / "optimized.onnx"
        options = ort.SessionOptions()
        options.log_severity_level = _FATAL
        options.intra_op_num_threads = how.threads
        options.inter_op_num_threads = 1
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "events")
        if keep_graph:
            options.optimized_model_filepath = str(self._graph)
        keep_to_itself(options)
        if how.library is not None:
            register_operators(options, how.library, summarize(model).capsedge_types)
        providers = list(zip(how.providers, how.provider_options, strict=True))
        try:
            self._session = ort.InferenceSession(model, options, providers=providers)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def __enter__(self) -> ProfiledSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(self, feeds: Feeds) -> list[NDArray[Any]]:
        """All outputs."""
        outputs: list[NDArray[Any]] = self._session.run(None, feeds)
        return outputs

    def finish(self) -> Recording:
        """Stop the profiler and read its output.

        Raises:
            EnvironmentProblem: it could not write all of its output.
        """
        try:
            events = json.loads(Path(self._session.end_profiling()).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EnvironmentProblem(
                "The profile of ONNX Runtime is not complete.",
                "It writes to the folder of temporary files, which may be full or limited.",
                "Free some space, or name another folder: TMPDIR=/path.",
            ) from error
        graph = read_structure(self._graph) if self._graph.is_file() else None
        return Recording(_runs(events), graph)


def _runs(events: list[dict[str, Any]]) -> list[list[Event]]:
    """Operators by run. ONNX Runtime writes the event of a run after those of its operators."""
    runs: list[list[Event]] = []
    current: list[Event] = []
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX):
            current.append(_event(event))
        elif event.get("name") == "model_run":
            runs.append(current)
            current = []
    return runs


def _event(raw: dict[str, Any]) -> Event:
    args = raw["args"]
    outputs = tuple(
        (kind, tuple(int(d) for d in shape))
        for entry in args.get("output_type_shape", ())
        for kind, shape in entry.items()
    )
    return Event(
        name=raw["name"].removesuffix(_SUFFIX),
        kind=args.get("op_name", ""),
        start=raw["ts"],
        duration=raw["dur"],
        outputs=outputs,
        provider=args.get("provider", ""),
        arena=_integer(args.get("mem_bytes_requested_in_use")),
        arena_delta=_integer(args.get("mem_requested_in_use_delta")),
    )


def _integer(text: str | None) -> int | None:
    return None if text is None else int(text)


def midmean(values: NDArray[np.float64]) -> float:
    """Mean of the middle half: as robust as the median, finer than the profiler's whole microseconds."""
    ordered = np.sort(values)
    quarter = len(ordered) // 4
    return float(ordered[quarter : len(ordered) - quarter].mean())
