"""ONNX Runtime with its own profiler: a copy of a model whose sessions report the time of each operator."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends import providers
from capsedge.runtime.backends.backend import Event, Feeds, Recording
from capsedge.runtime.backends.onnxruntime_backend import How, import_onnxruntime
from capsedge.runtime.files.writing import temporary_folder
from capsedge.runtime.reading.onnx_structure import read_structure

if TYPE_CHECKING:
    from typing_extensions import Self

_SUFFIX = "_kernel_time"


class ProfiledSession:
    """A second session for a model, with ONNX Runtime's profiler on: `ProfiledRuns`.

    Use as a context manager: its files are written to a temporary folder.

    Args:
        model: the ONNX file.
        how: how it runs.
        feeds: the inputs.
        plain: runs the model on them in the first session.
        keep_graph: whether to read back the optimized graph.
    """

    def __init__(
        self,
        model: bytes,
        how: How,
        feeds: Feeds,
        plain: Callable[[], object],
        keep_graph: bool = True,
    ) -> None:
        ort = import_onnxruntime()
        self._feeds, self._plain, self._on_host = feeds, plain, how.gpu is None
        self._stack = ExitStack()
        folder = self._stack.enter_context(temporary_folder())
        self._graph = folder / "optimized.onnx"
        try:
            options = how.session_options(ort)
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "events")
            if keep_graph:
                options.optimized_model_filepath = str(self._graph)
            chosen = providers.chain(how.provider, how.gpu)
            self._session = ort.InferenceSession(model, options, providers=chosen)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def plain(self) -> None:
        """Run without the profiler."""
        self._plain()

    def profiled(self) -> None:
        """Run with the profiler."""
        self._session.run(None, self._feeds)

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
        return Recording(_runs(events), graph, timed_on_host=self._on_host)


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
        provider=args.get("provider", "").removesuffix("ExecutionProvider"),
        outputs=outputs,
        arena=_integer(args.get("mem_bytes_requested_in_use")),
        arena_delta=_integer(args.get("mem_requested_in_use_delta")),
    )


def _integer(text: str | None) -> int | None:
    return None if text is None else int(text)
