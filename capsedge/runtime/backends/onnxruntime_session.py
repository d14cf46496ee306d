"""Options that every session of ONNX Runtime has, and the error for a file that it refuses."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.errors import ArtefactError, EnvironmentProblem
from capsedge.runtime.backends import onnxruntime_versions
from capsedge.runtime.machine import saturates_products_of_bytes
from capsedge.spec import limits
from capsedge.spec.operators import INSTANCES_KEY, instance_counts

FATAL = (
    4  # log severity: ONNX Runtime's messages reach the person through our errors, not on stderr
)

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_FOLDED_BYTES = "optimization.constant_folding_max_output_size_in_bytes"  # known from 1.24 on
_SHARED = "Attempt to replace the existing tensor"  # its words for a weight of two nodes


def register_operators(options: Any, library: Path, nodes: Iterable[str]) -> None:
    """Register the operator library in session options, with kernels for the nodes of one file."""
    options.add_session_config_entry(INSTANCES_KEY, instance_counts(nodes))
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


def multiply_exactly(options: Any) -> None:
    """Keep products of bytes from saturating.

    On x86 processors without VNNI, ONNX Runtime's kernels for uint8 times int8 saturate, and INT8 files
    give wrong answers. There, integer operators get their int8 weights as uint8, whose slower kernels are
    exact, and operators between DequantizeLinear and QuantizeLinear run in floating point.
    """
    if saturates_products_of_bytes():
        options.add_session_config_entry("session.x64quantprecision", "1")
        options.add_session_config_entry("session.disable_quant_qdq", "1")


@dataclass(frozen=True)
class SessionSettings:
    """How a model runs in ONNX Runtime: the same for a file, for a part of it, and for a profiled copy.

    Attributes:
        threads: of one inference; None leaves the choice to ONNX Runtime.
        library: the operator library to register; its kernels are for the CPU.
        nodes: types of the file's ``capsedge`` nodes, for which the library has kernels to register.
        provider: ONNX Runtime's name of the execution provider.
        gpu: number of the GPU; None on the CPU.
    """

    threads: int | None = None
    library: Path | None = None
    nodes: tuple[str, ...] = ()
    provider: str = onnxruntime_versions.CPU
    gpu: int | None = None

    def session_options(self, ort: Any) -> Any:
        """Options of a session that keeps to itself.

        Raises:
            EnvironmentProblem: the operator library does not load into ONNX Runtime.
        """
        options = ort.SessionOptions()
        options.log_severity_level = FATAL
        options.intra_op_num_threads = available_threads() if self.threads is None else self.threads
        options.inter_op_num_threads = 1
        keep_to_itself(options)
        multiply_exactly(options)
        if self.library is None:
            return options
        try:
            register_operators(options, self.library, self.nodes)
        except Exception as error:
            raise EnvironmentProblem(
                f"The operator library {self.library} does not load into ONNX Runtime {ort.__version__}.",
                first_line(error),
                "Reinstall capsedge, or run without the library: `--ops portable` (ops='portable').",
            ) from error
        return options


def first_line(error: BaseException, limit: int = 300) -> str:
    """ONNX Runtime's message without its prefix, source positions and stack."""
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return line if len(line) <= limit else line[: limit - 3] + "..."


def cannot_load(ort: Any, path: Path, error: Exception) -> ArtefactError:
    """The error for a file that ONNX Runtime refuses."""
    if _SHARED in str(error):
        return ArtefactError(
            f"ONNX Runtime {ort.__version__} cannot multiply the bytes of {path} exactly here.",
            "Two integer operators share an INT8 weight or zero point. On x86 processors without VNNI, "
            "ONNX Runtime turns these into UINT8, and fails at the second operator.",
            "Give each operator its own tensors, write QuantizeLinear and DequantizeLinear instead of "
            "integer operators, or use a processor with VNNI.",
        )
    return ArtefactError(
        f"ONNX Runtime {ort.__version__} cannot load {path}.",
        first_line(error),
        "Check the file with `capsedge inspect`, or export it again with `capsedge export`.",
    )
