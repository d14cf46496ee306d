"""Run models with ONNX Runtime, plain or with its profiler.

For `capsedge.load`, this module makes the sessions. On a GPU, sessions get the host's arrays directly: an IO
binding and copies through pinned memory took longer on an H100 (1.2 to 2 times). Profiling's plain peers, the
exporter's checks and the readers of executed precision make sessions of their own; the import contract
``packages`` in pyproject.toml lists them all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, EnvironmentProblem, UsageError
from capsedge.runtime.backends import onnxruntime_session
from capsedge.runtime.backends.backend import (
    BatchRange,
    Feeds,
    ModelFile,
    OperatorEvent,
    Port,
    ProfiledRuns,
    Recording,
    closed_error,
    parse_device,
)
from capsedge.runtime.backends.native_library import library_for
from capsedge.runtime.backends.onnxruntime_session import (
    FATAL,
    HOW_TO_GET,
    OLDEST_VERSION,
    OVERLOADS_SINCE,
    NoKernelsHere,
    SessionSettings,
    cannot_load,
    installed_package,
    onnxruntime_run_error,
    parse_version,
    version_text,
)
from capsedge.runtime.files.writing import temporary_folder
from capsedge.runtime.metadata.engine_metadata import EngineMetadata
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.metadata.table_indices import (
    InputBounds,
    bounded_ports,
    read_inputs_property,
    refused_index_error,
)
from capsedge.runtime.onnx_file import summary as onnx_file
from capsedge.runtime.onnx_file.large_tables import STAND_IN, Split, split_tables
from capsedge.runtime.onnx_file.structure import read_structure
from capsedge.runtime.onnx_file.summary import OnnxSummary
from capsedge.runtime.onnx_file.training_mode import refuse_training
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.spec.operators import DOMAIN

if TYPE_CHECKING:
    import onnxruntime
    from typing_extensions import Self


_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    **{f"tensor({s}int{b})": f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)},
}


def import_onnxruntime() -> Any:
    """The module ``onnxruntime``."""
    try:
        import onnxruntime
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime"
        raise EnvironmentProblem(
            "ONNX Runtime is not installed." if missing else "ONNX Runtime cannot be imported.",
            "" if missing else f"{error}.",
            onnxruntime_session.VISUAL_CPP
            if sys.platform == "win32" and "DLL load failed" in str(error)
            else HOW_TO_GET,
        ) from error
    if parse_version(onnxruntime.__version__) < OLDEST_VERSION:
        raise EnvironmentProblem(
            f"ONNX Runtime {onnxruntime.__version__} is too old.",
            f"capsedge needs {version_text(OLDEST_VERSION)} or newer.",
            f"pip install --upgrade {installed_package()}",
        )
    return onnxruntime


def check_overloads(name: Path | str, summary: OnnxSummary, fused: Collection[str]) -> None:
    """Refuse a file whose function bodies ONNX Runtime would mix up.

    Args:
        fused: types of the ``capsedge`` nodes that the operator library runs: their bodies are not used.
    """
    mixed = sorted(n for domain, n in summary.overloaded if domain != DOMAIN or n not in fused)
    if not mixed:
        return
    installed = import_onnxruntime().__version__
    if parse_version(installed) >= OVERLOADS_SINCE:
        return
    raise ArtefactError(
        f"ONNX Runtime {installed} would compute {name} wrongly.",
        f"The file has several functions named {', '.join(mixed)}; ONNX Runtime before "
        f"{version_text(OVERLOADS_SINCE)} uses one of them for all.",
        f"Export the model again (`capsedge export`), or `pip install --upgrade {installed_package()}`.",
    )


class OnnxRuntimeBackend:
    """A model loaded into ONNX Runtime.

    Args:
        settings: how it runs.
        metadata: the metadata of the file.
        mixed: whether there are also capsule operators or routing that no library runs.
        bounds: what the file states of inputs, by name.

    Raises:
        EnvironmentProblem: ONNX Runtime or the provider is missing, or the library does not load into it.
        UnsupportedModelError: part of the model would run on the CPU although a GPU was requested.
        ArtefactError: ONNX Runtime refuses the model, or what it states does not fit its inputs.
    """

    name: ClassVar[str] = "onnxruntime"

    def __init__(
        self,
        data: bytes,
        path: Path,
        settings: SessionSettings | None = None,
        metadata: ModelMetadata | None = None,
        mixed: bool = False,
        bounds: Mapping[str, InputBounds] | None = None,
    ) -> None:
        ort = import_onnxruntime()
        settings = settings or SessionSettings()
        onnxruntime_session.check_provider_available(ort, settings.provider)
        split = split_tables(data) if settings.gpu is None else Split(data, {})
        options = settings.session_options(ort, STAND_IN.parent if split.tables else None)
        self._lent = onnxruntime_session.lend_tables(ort, options, split.tables)

        def load(graphs: bool = False) -> onnxruntime.InferenceSession:
            return ort.InferenceSession(
                split.data,
                options,
                providers=onnxruntime_session.provider_chain(
                    settings.provider, settings.gpu, graphs
                ),
                enable_fallback=0,  # it would print, and try the same provider again
            )

        if settings.gpu is not None:
            options.add_session_config_entry(onnxruntime_session.NO_FALLBACK, "1")
        try:
            session = load()
            self.inputs = _ports(session.get_inputs())
            self.outputs = _ports(session.get_outputs())
        except Exception as error:
            if settings.gpu is not None:
                onnxruntime_session.check_gpu(settings.gpu)
            if onnxruntime_session.fell_back_to_cpu(error):
                # Either the provider did not start at all, or it does not support every node.
                options.add_session_config_entry(onnxruntime_session.NO_FALLBACK, "0")
                onnxruntime_session.check_provider_starts(load, settings.provider)
                raise onnxruntime_session.refused_by_provider(
                    str(path), settings.provider
                ) from error
            raise cannot_load(ort, path, error) from error
        onnxruntime_session.check_provider_used(session, settings.provider)
        self.inputs = bounded_ports(self.inputs, bounds or {})
        self._session: onnxruntime.InferenceSession | None = session
        self._load = load if settings.gpu is not None else None  # it keeps the file's bytes
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = FATAL
        self._run_options.only_execute_path_to_fetches = True
        self._path, self._settings = path, settings
        self.batches = BatchRange.of(self.inputs)
        self.ops = "portable" if settings.library is None else "mixed" if mixed else "fused"
        self.gpu = settings.gpu
        self.threads: int = options.intra_op_num_threads
        self.metadata = metadata
        self.engine_metadata: EngineMetadata | None = None

    @classmethod
    def accepts(cls, file: ModelFile) -> bool:
        """Whether it is anything but an engine; files of other formats are refused later, by name."""
        return not file.is_engine

    @classmethod
    def open(cls, file: ModelFile, options: RuntimeOptions) -> OnnxRuntimeBackend:
        """Load an ONNX file."""
        path, ops = file.path, options.ops
        if options.contexts is not None:
            raise UsageError(
                f"contexts is {options.contexts} for {path}.",
                "Only TensorRT engines have contexts.",
                "Leave it out.",
            )
        gpu = parse_device(options.device or "cpu")
        provider = onnxruntime_session.resolve_provider(options.provider, gpu)
        data = file.content
        summary = onnx_file.summarize(data, str(path))
        onnx_file.check_harmless(summary, str(path))
        refuse_training(data, summary, str(path))
        metadata = ModelMetadata.from_properties(summary.metadata)
        bare = SessionSettings(options.threads, provider=provider, gpu=gpu, graphs=options.graphs)
        bounds = read_inputs_property(summary.metadata)
        kind = _kind(gpu, options.graphs)
        if gpu is not None:
            onnxruntime_session.preload_cuda(import_onnxruntime())

        def opened(ops: str) -> OnnxRuntimeBackend:
            settings, others = _with_operators(bare, path, data, summary, ops)
            check_overloads(path, summary, settings.nodes if settings.library else ())
            return kind(data, path, settings, metadata, summary.expanded_routing or others, bounds)

        try:
            return opened(ops)
        except NoKernelsHere:  # only a session that uses the provider's CUDA can tell
            if ops == "fused":
                raise
            return opened("portable")

    def open_part(self, content: bytes) -> OnnxRuntimeBackend:
        """A part of the file, opened with the same options."""
        return OnnxRuntimeBackend(content, self._path, self._settings)

    @property
    def session(self) -> onnxruntime.InferenceSession:
        """ONNX Runtime's own session, for what only it can do. Raises UsageError if it is closed."""
        session = self._session  # a reference of its own: another thread may close
        if session is None:
            raise closed_error(self._path)
        return session

    def run(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The named outputs, for inputs that have been checked; nodes that they do not need are not run."""
        session = self.session
        try:
            values = session.run(outputs, feeds, self._run_options)
        except Exception as error:
            refused = refused_index_error(str(error), feeds)
            if refused is not None:
                raise refused from error
            raise onnxruntime_run_error(self._path, feeds, error) from error
        return {name: np.asarray(value) for name, value in zip(outputs, values, strict=True)}

    def profiled_runs(self, feeds: Feeds) -> AbstractContextManager[ProfiledRuns]:
        """This model, and a copy of it that ONNX Runtime's profiler times."""

        if self.closed:
            raise closed_error(self._path)
        names = [port.name for port in self.outputs]
        content = onnx_file.read_model_bytes(self._path)
        return ProfiledSession(content, self._settings, feeds, lambda: self.run(feeds, names))

    def close(self) -> None:
        """Free the model; calls in progress are not affected. A second call does nothing."""
        self._session = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called; the attributes remain available."""
        return self._session is None


def _with_operators(
    bare: SessionSettings, path: Path, data: bytes, summary: OnnxSummary, ops: str
) -> tuple[SessionSettings, bool]:
    """How a file runs, with what the library runs of it, and whether capsule operators are left out."""
    if bare.gpu is None:
        library = library_for(path, summary, ops)
        return replace(bare, library=library, nodes=tuple(summary.capsedge_types)), False
    from capsedge.runtime.backends.cuda_operators import (
        with_operators,  # not for sessions on the CPU
    )

    return with_operators(bare, path, data, summary, ops)


def _kind(gpu: int | None, graphs: bool | None) -> type[OnnxRuntimeBackend]:
    """The class for a device."""
    if gpu is None and graphs:
        raise UsageError(
            "graphs is True on the CPU.",
            "CUDA graphs need a GPU.",
            "Leave it out, or use the device 'cuda'.",
        )
    if gpu is None:
        return OnnxRuntimeBackend
    # Not at the top: it needs this module, and nothing of CUDA is imported for the CPU.
    from capsedge.runtime.backends.onnxruntime_cuda import OnnxRuntimeCudaBackend

    return OnnxRuntimeCudaBackend


def _ports(nodes: Sequence[Any]) -> tuple[Port, ...]:
    return tuple(
        Port(node.name, tuple(node.shape or ()), _DTYPES.get(node.type, node.type))
        for node in nodes
    )


# --- Profiling by operator ---

_SUFFIX = "_kernel_time"


class ProfiledSession:
    """A second session for a model, with ONNX Runtime's profiler on: `ProfiledRuns`.

    Use as a context manager: its files are written to a temporary folder.

    Args:
        settings: how it runs.
        feeds: the inputs.
        plain: runs the model on them in the first session.
        keep_graph: whether to read back the optimized graph.
    """

    def __init__(
        self,
        model: bytes,
        settings: SessionSettings,
        feeds: Feeds,
        plain: Callable[[], object],
        keep_graph: bool = True,
    ) -> None:
        ort = import_onnxruntime()
        self._feeds, self._plain, self._on_host = feeds, plain, settings.gpu is None
        self._stack = ExitStack()
        folder = self._stack.enter_context(temporary_folder())
        self._graph = folder / "optimized.onnx"
        try:
            options = settings.session_options(ort)
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "events")
            if keep_graph:
                options.optimized_model_filepath = str(self._graph)
            chosen = onnxruntime_session.provider_chain(settings.provider, settings.gpu)
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
        """Stop the profiler and read its output."""
        try:
            events = json.loads(Path(self._session.end_profiling()).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EnvironmentProblem(
                "The profile of ONNX Runtime is not complete.",
                "It is written to the folder of temporary files, which may be full or have a quota.",
                "Free some space, or name another folder: TMPDIR=/path.",
            ) from error
        graph = read_structure(self._graph) if self._graph.is_file() else None
        return Recording(_runs(events), graph, timed_on_host=self._on_host)


def _runs(events: list[dict[str, Any]]) -> list[list[OperatorEvent]]:
    """Operators by run. ONNX Runtime writes the event of a run after those of its operators."""
    runs: list[list[OperatorEvent]] = []
    current: list[OperatorEvent] = []
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX):
            current.append(_event(event))
        elif event.get("name") == "model_run":
            runs.append(current)
            current = []
    return runs


def _event(raw: dict[str, Any]) -> OperatorEvent:
    args = raw["args"]
    outputs = tuple(
        (kind, tuple(int(d) for d in shape))
        for entry in args.get("output_type_shape", ())
        for kind, shape in entry.items()
    )
    return OperatorEvent(
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
