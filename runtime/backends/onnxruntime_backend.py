"""ONNX Runtime: the only place where `capsedge.load` uses its API.

Profiling's plain peers, the exporter's check and the reading of executed precision run sessions of their own;
``tests/test_layers.py`` lists them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, EnvironmentProblem
from capsedge.runtime.backends import onnxruntime_versions as versions
from capsedge.runtime.backends import providers
from capsedge.runtime.files import limits
from capsedge.runtime.reading.onnx_file import OnnxSummary
from capsedge.schema.names import DOMAIN, FAMILIES_KEY, families

if TYPE_CHECKING:
    import onnxruntime

_FATAL = (
    4  # log severity: ONNX Runtime's messages reach the person through our errors, not on stderr
)

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_FOLDED_BYTES = "optimization.constant_folding_max_output_size_in_bytes"  # known from 1.24 on


@dataclass(frozen=True)
class Port:
    """An input or output of a model.

    Attributes:
        name: its name in the graph.
        shape: sizes; a string or None is a free dimension.
        dtype: numpy's name for the element type, or ONNX Runtime's if numpy has none.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: str

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any] | None:
        """The element type; None if numpy has none."""
        return np.dtype(self.dtype) if self.dtype in np.sctypeDict else None


_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    **{f"tensor({s}int{b})": f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)},
}


def import_onnxruntime() -> Any:
    """The module ``onnxruntime``.

    Raises:
        EnvironmentProblem: it is missing, does not load, or is older than the oldest supported version.
    """
    try:
        import onnxruntime
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime"
        raise EnvironmentProblem(
            "ONNX Runtime is not installed." if missing else "ONNX Runtime cannot be imported.",
            "" if missing else f"{error}.",
            versions.HOW_TO_GET,
        ) from error
    if versions.parse(onnxruntime.__version__) < versions.OLDEST:
        raise EnvironmentProblem(
            f"ONNX Runtime {onnxruntime.__version__} is too old.",
            f"capsedge needs {versions.text(versions.OLDEST)} or newer.",
            f"pip install --upgrade {versions.distribution()}",
        )
    return onnxruntime


def check_overloads(name: Path | str, summary: OnnxSummary, fused: bool) -> None:
    """Refuse a file whose function bodies ONNX Runtime would mix up.

    Args:
        fused: the operator library runs the ``capsedge`` nodes, whose bodies are then not used.

    Raises:
        ArtefactError: functions differ only in their overloads, which this version ignores.
    """
    mixed = sorted(n for domain, n in summary.overloaded if not (fused and domain == DOMAIN))
    if not mixed:
        return
    installed = import_onnxruntime().__version__
    if versions.parse(installed) >= versions.OVERLOADS:
        return
    raise ArtefactError(
        f"ONNX Runtime {installed} would compute {name} wrongly.",
        f"The file has several functions named {', '.join(mixed)}; ONNX Runtime before "
        f"{versions.text(versions.OVERLOADS)} uses one of them for all.",
        f"Export the model again (`capsedge export`), or `pip install --upgrade {versions.distribution()}`.",
    )


def register_operators(options: Any, library: Path, nodes: Iterable[str]) -> None:
    """Register the operator library in session options, with kernels for the nodes of one file."""
    options.add_session_config_entry(FAMILIES_KEY, families(nodes))
    options.register_custom_ops_library(str(library))


def available_threads() -> int:
    """Threads to request from ONNX Runtime; 0 leaves the choice to it: one thread per physical core.

    ONNX Runtime counts the machine's cores even if the process may use only some of them.
    """
    if not hasattr(os, "sched_getaffinity"):
        return 0
    allowed = len(os.sched_getaffinity(0))
    return allowed if allowed < (os.cpu_count() or 1) else 0


def keep_to_itself(options: Any) -> None:
    """A second line of defence behind `onnx_file`: sessions read only this format, and no other files.

    ONNX Runtime 1.19 has no folder for external initializers, 1.23 lets absolute paths leave it, 1.26
    and newer enforce it.
    """
    options.add_session_config_entry("session.load_model_format", "ONNX")
    options.add_session_config_entry(_EXTERNAL_FOLDER, os.devnull)  # nothing can lie below it
    # Large constants are computed only when they are needed, not while the file is checked.
    options.add_session_config_entry(_FOLDED_BYTES, str(limits.RUN_BYTES))


class OnnxRuntimeBackend:
    """A model loaded into ONNX Runtime.

    Args:
        data: the ONNX file.
        name: its name in errors.
        threads: threads of one inference; None leaves the choice to ONNX Runtime.
        library: the operator library to register; its kernels are for the CPU.
        nodes: types of the model's ``capsedge`` nodes, for which the library has kernels to register.
        provider: ONNX Runtime's name of the execution provider.
        gpu: number of the GPU; None on the CPU.

    Raises:
        EnvironmentProblem: ONNX Runtime is missing, the library does not load into it, or the provider
            is not available.
        UnsupportedModelError: part of the model would run on the CPU although a GPU was requested.
        ArtefactError: ONNX Runtime refuses the model.
    """

    smallest_batch = 1
    largest_batch: int | None = None

    def __init__(
        self,
        data: bytes,
        name: str,
        threads: int | None,
        library: Path | None,
        provider: str = providers.CPU,
        gpu: int | None = None,
        nodes: Iterable[str] = (),
    ) -> None:
        ort = import_onnxruntime()
        providers.check_available(ort, provider)
        options = ort.SessionOptions()
        options.log_severity_level = _FATAL
        options.intra_op_num_threads = available_threads() if threads is None else threads
        options.inter_op_num_threads = 1
        keep_to_itself(options)
        if library is not None:
            try:
                register_operators(options, library, nodes)
            except Exception as error:
                raise EnvironmentProblem(
                    f"The operator library {library} does not load into ONNX Runtime {ort.__version__}.",
                    _first_line(error),
                    "Reinstall capsedge, or run without the library: `--ops portable` (ops='portable').",
                ) from error

        def load() -> onnxruntime.InferenceSession:
            return ort.InferenceSession(
                data,
                options,
                providers=providers.chain(provider, gpu),
                enable_fallback=0,  # it would print, and try the same provider again
            )

        if gpu is not None:
            options.add_session_config_entry(providers.NO_FALLBACK, "1")
        try:
            self._session = load()
            self.inputs = _ports(self._session.get_inputs())
            self.outputs = _ports(self._session.get_outputs())
        except Exception as error:
            if providers.fell_back(error):
                # Either the provider did not start at all, or it does not support every node.
                options.add_session_config_entry(providers.NO_FALLBACK, "0")
                providers.check_used(load(), provider)
                raise providers.refused(name, provider) from error
            raise ArtefactError(
                f"ONNX Runtime {ort.__version__} cannot load {name}.",
                _first_line(error),
                "Check the file with `capsedge inspect`, or export it again with `capsedge export`.",
            ) from error
        providers.check_used(self._session, provider)
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = _FATAL
        self._run_options.only_execute_path_to_fetches = True
        self._name = name

    def run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """The named outputs, for inputs that have been checked; nodes that they do not need are not run."""
        try:
            values = self._session.run(outputs, feeds, self._run_options)
        except Exception as error:
            shapes = ", ".join(f"{name} {list(a.shape)}" for name, a in feeds.items())
            raise ArtefactError(
                f"ONNX Runtime failed while running {self._name} on {shapes}.",
                _first_line(error),
                "If the model was made for these shapes, the file is damaged: export it again.",
            ) from error
        return {name: np.asarray(value) for name, value in zip(outputs, values, strict=True)}


def _ports(nodes: Sequence[Any]) -> tuple[Port, ...]:
    return tuple(
        Port(node.name, tuple(node.shape or ()), _DTYPES.get(node.type, node.type))
        for node in nodes
    )


def _first_line(error: BaseException, limit: int = 300) -> str:
    """ONNX Runtime's message without its prefix, source positions and stack."""
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return line if len(line) <= limit else line[: limit - 3] + "..."
