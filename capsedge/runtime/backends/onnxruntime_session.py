"""Requirements of an ONNX Runtime session: version, provider and options, and the errors if it is refused.

pyproject.toml and capsedge/runtime/native/onnxruntime/ort_abi.h repeat ``OLDEST_VERSION``; a test compares
them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

from capsedge.errors import (
    ArtefactError,
    CapsedgeError,
    EnvironmentProblem,
    UnsupportedModelError,
    UsageError,
)
from capsedge.runtime.machine import available_cores, saturates_products_of_bytes
from capsedge.spec import limits
from capsedge.spec.operators import (
    CUDA_KERNELS_KEY,
    CUDA_OPERATORS_KEY,
    INSTANCES_KEY,
    instance_counts,
)
from capsedge.spec.vocabularies import PROVIDERS

# --- Versions: the oldest supported one, and what changed since ---

OLDEST_VERSION = (1, 19)
OVERLOADS_SINCE = (1, 27)  # the first that tells functions apart by ``FunctionProto.overload``
HOW_TO_GET = "pip install 'capsedge[cpu]', or 'capsedge[gpu]' on a machine with an NVIDIA GPU"
# Its wheel for Windows needs a newer runtime (14.40 works, 14.22 does not) than many machines have.
VISUAL_CPP = (
    "Install a recent Visual C++ runtime: `pip install --upgrade msvc-runtime`, or Microsoft's "
    "redistributable (https://aka.ms/vs/17/release/vc_redist.x64.exe)"
)
# Versions that tests/runtimes uses beside the installed one (`make runtimes`): the oldest, the last for
# Python 3.10 and JetPack 6, the last before OVERLOADS_SINCE.
TESTED_VERSIONS = ("1.19.0", "1.23.2", "1.26.0")


def parse_version(version: str) -> tuple[int, int]:
    """Major and minor number of ``1.23.2`` or ``1.27.0.dev20260101``; 0 for a part that is missing."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def installed_package() -> str:
    """The installed package that is the module ``onnxruntime``, such as ``onnxruntime-gpu``."""
    import importlib.metadata

    packages = importlib.metadata.packages_distributions().get("onnxruntime", ())
    return next((name for name in sorted(packages) if name != "onnxruntime"), "onnxruntime")


def version_text(version: tuple[int, int]) -> str:
    """``1.19``."""
    return ".".join(map(str, version))


# --- Execution providers: the requested device is used, or loading fails ---

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
_NAMES = {"cpu": CPU, "cuda": CUDA, "tensorrt": TENSORRT}
NO_FALLBACK = "session.disable_cpu_ep_fallback"
_FELL_BACK = "fallback to CPU EP has been explicitly disabled"


def resolve_provider(provider: str, gpu: int | None) -> str:
    """ONNX Runtime's name for the provider to use."""
    if provider not in PROVIDERS:
        raise UsageError(
            f"Unknown provider '{provider}'.", "", f"Choose one of: {', '.join(PROVIDERS)}."
        )
    if provider == "auto":
        return CPU if gpu is None else CUDA
    if (provider == "cpu") != (gpu is None):
        wanted = "cpu" if provider == "cpu" else "cuda"
        raise UsageError(
            f"The provider '{provider}' does not run on the device '{'cpu' if gpu is None else 'cuda'}'.",
            "",
            f"Combine it with the device '{wanted}'.",
        )
    return _NAMES[provider]


def provider_chain(provider: str, gpu: int | None, graphs: bool = False) -> list[Any]:
    """The provider, for TensorRT with CUDA's after it; CUDA without TF32, so that FP32 is FP32."""
    if gpu is None:
        return [provider]
    # Without a number it is GPU 0; with one, ONNX Runtime 1.31 prints a warning that means nothing here.
    device = {"device_id": str(gpu)} if gpu else {}
    captured = {"enable_cuda_graph": "1"} if graphs else {}
    cuda = (CUDA, {**device, "use_tf32": "0", **captured})
    return [cuda] if provider == CUDA else [(provider, device), cuda]


def check_provider_available(ort: Any, provider: str) -> None:
    """Refuse a provider that this build of ONNX Runtime lacks."""
    available = ort.get_available_providers()
    if provider not in available:
        raise EnvironmentProblem(
            f"ONNX Runtime {ort.__version__} has no {provider}.",
            f"It has {', '.join(available)}.",
            "Replace it: `pip uninstall onnxruntime`, then `pip install 'capsedge[gpu]'`; or use the "
            "device 'cpu'.",
        )


def check_gpu(number: int) -> None:
    """Refuse a GPU that this machine does not have, if CUDA can say which it has."""
    from capsedge.runtime.backends.cuda import load_cuda  # not for sessions on the CPU

    try:
        cuda = load_cuda()
    except EnvironmentProblem:
        return  # the provider's own error says more
    cuda.check_device(number)


@lru_cache(maxsize=1)
def preload_cuda(ort: Any) -> None:
    """Load CUDA and cuDNN of the packages that pip installs, where the provider does not look for them."""
    preload = getattr(ort, "preload_dlls", None)  # since 1.21
    if preload is not None:
        with redirect_stdout(
            StringIO()
        ):  # it prints what is missing; the provider's error says that
            preload()


def check_provider_used(session: Any, provider: str) -> None:
    """Make sure that a session really has the provider: ONNX Runtime only warns when one does not start."""
    if provider not in session.get_providers():
        raise _did_not_start(provider)


def check_provider_starts(load: Callable[[], Any], provider: str) -> None:
    """Make sure that a provider starts, with a session that may fall back to the CPU."""
    try:
        session = load()
    except Exception as error:  # operators that are registered for the GPU alone
        raise _did_not_start(provider) from error
    check_provider_used(session, provider)


def _did_not_start(provider: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{provider} did not start.",
        "ONNX Runtime would have continued on the CPU; usually a library of CUDA, cuDNN or TensorRT is "
        "missing, or is not the version that ONNX Runtime was built for.",
        "Run `capsedge doctor`; install CUDA and cuDNN with `pip install 'onnxruntime-gpu[cuda,cudnn]'`.",
    )


def fell_back_to_cpu(error: BaseException) -> bool:
    """Whether a session was refused because nodes would have run on the CPU."""
    return _FELL_BACK in str(error)


def refused_by_provider(name: str, provider: str) -> UnsupportedModelError:
    """The error for a model that does not run on the device as a whole."""
    return UnsupportedModelError(
        f"{name} does not run entirely on {provider}.",
        "Some of its operators would run on the CPU, with copies in between, but the requested "
        "device is binding.",
        "Use an FP32 or FP16 file, run this one on the CPU, or build a TensorRT engine.",
    )


# --- Options ---

FATAL = (
    4  # log severity: ONNX Runtime's messages reach users through our errors, not through stderr
)

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_FOLDED_BYTES = "optimization.constant_folding_max_output_size_in_bytes"  # known from 1.24 on
_SHARED = "Attempt to replace the existing tensor"  # its words for a weight of two nodes


def register_operators(
    options: Any, library: Path, nodes: Iterable[str], kernels: Path | None = None
) -> None:
    """Register the operator library in session options, with kernels for the nodes of one file.

    Args:
        kernels: the GPU's code of CUDA kernels, for exactly these nodes; None for kernels of the CPU.
    """
    if kernels is None:
        options.add_session_config_entry(INSTANCES_KEY, instance_counts(nodes))
    else:
        options.add_session_config_entry(CUDA_OPERATORS_KEY, ",".join(nodes))
        options.add_session_config_entry(CUDA_KERNELS_KEY, str(kernels))
    options.register_custom_ops_library(str(library))


def available_threads() -> int:
    """Threads to request from ONNX Runtime; 0 leaves the choice to it: one thread per physical core.

    ONNX Runtime counts the machine's cores even if the process may use only some of them.
    """
    if not hasattr(os, "sched_getaffinity"):
        return 0
    allowed = len(os.sched_getaffinity(0))
    return allowed if allowed < (os.cpu_count() or 1) else 0


def without_spinning(options: Any) -> None:
    """Let idle threads sleep: a session of few runs, or of many small ones, computes less than they spin."""
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")


def keep_to_itself(options: Any, folder: Path | None = None) -> None:
    """A second line of defence behind `onnx_file`: sessions read only this format, and no other files.

    ONNX Runtime 1.19 has no folder for external initializers, 1.23 lets absolute paths leave it, 1.26
    and newer enforce it.

    Args:
        folder: where external data would be; None for nowhere. The file has none except what is lent to the
            session.
    """
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # Nothing can lie below the null device.
    options.add_session_config_entry(_EXTERNAL_FOLDER, str(folder or os.devnull))
    # Large constants are computed only when they are needed, not while the file is checked.
    options.add_session_config_entry(_FOLDED_BYTES, str(limits.RUN_BYTES))


def lend_tables(ort: Any, options: Any, tables: Mapping[str, Any]) -> list[Any]:
    """Let a session read tables from memory that it does not own; the caller keeps the values as long as the
    session.

    Args:
        tables: arrays by the name of the initializer, which the file declares as external.
    """
    values = []
    for name, array in tables.items():
        values.append(ort.OrtValue.ortvalue_from_numpy(array))
        options.add_initializer(name, values[-1])
    return values


def multiply_exactly(options: Any) -> None:
    """Keep products of bytes from saturating.

    On x86 processors without VNNI, ONNX Runtime's kernels for uint8 times int8 saturate, and INT8 files give
    wrong results. There, integer operators get their int8 weights as uint8, whose slower kernels are exact,
    and operators between DequantizeLinear and QuantizeLinear run in floating point.
    """
    if saturates_products_of_bytes():
        options.add_session_config_entry("session.x64quantprecision", "1")
        options.add_session_config_entry("session.disable_quant_qdq", "1")


@dataclass(frozen=True)
class SessionSettings:
    """How a model runs in ONNX Runtime: the same for a file, for a part of it, and for a profiled copy.

    Attributes:
        threads: number of threads for one inference; None leaves the choice to ONNX Runtime.
        library: the operator library to register.
        nodes: types of the file's ``capsedge`` nodes, for which the library has kernels to register.
        kernels: the GPU's code, for kernels of the CUDA provider; None for those of the CPU.
        provider: ONNX Runtime's name of the execution provider.
        gpu: number of the GPU; None on the CPU.
        graphs: whether to use CUDA graphs; None for where the file can, True to refuse another file.
    """

    threads: int | None = None
    library: Path | None = None
    nodes: tuple[str, ...] = ()
    kernels: Path | None = None
    provider: str = CPU
    gpu: int | None = None
    graphs: bool | None = None

    def session_options(self, ort: Any, folder: Path | None = None) -> Any:
        """Options of a session that opens no other files; ``folder`` as for `keep_to_itself`."""
        options = ort.SessionOptions()
        options.log_severity_level = FATAL
        options.intra_op_num_threads = available_threads() if self.threads is None else self.threads
        options.inter_op_num_threads = 1
        if options.intra_op_num_threads > available_cores():
            # Threads that wait in a loop would keep those that work from the processors.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        keep_to_itself(options, folder)
        multiply_exactly(options)
        if self.library is None:
            return options
        try:
            register_operators(options, self.library, self.nodes, self.kernels)
        except Exception as error:
            raise EnvironmentProblem(
                f"The operator library {self.library} cannot be loaded into ONNX Runtime {ort.__version__}.",
                first_line(error),
                "Reinstall capsedge, or run without the library: `--ops portable` (ops='portable').",
            ) from error
        return options


# --- Errors ---


def first_line(error: BaseException, limit: int = 300) -> str:
    """ONNX Runtime's message without its prefix, source positions and stack."""
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return line if len(line) <= limit else line[: limit - 3] + "..."


class NoKernelsHere(EnvironmentProblem):
    """What the CUDA kernels need is not installed, or is too old: function bodies run without it."""


# How the operator library says that it cannot load the kernels, and reasons for which nothing is broken: the
# driver, or the CUDA runtime that ONNX Runtime uses, is older than what the kernels' code needs.
_REFUSED_KERNELS = re.compile(r"capsedge cannot use the CUDA kernels: ([^\n]*)")
_OLD = re.compile(r"driver is too old|the driver's is|or newer is needed")


def kernels_problem(why: str) -> EnvironmentProblem:
    """The error for CUDA kernels that are installed and cannot be loaded, by the library's reason."""
    if _OLD.search(why):
        return NoKernelsHere(
            "The CUDA kernels of capsedge do not run here.",
            f"{why}.",
            "Install NVIDIA driver 580 or later, then "
            "`pip install --upgrade 'onnxruntime-gpu[cuda,cudnn]'`.",
        )
    return EnvironmentProblem(
        "The CUDA kernels of capsedge cannot be loaded.",
        f"{why}.",
        "Install them again, `pip install --force-reinstall --no-deps capsedge-cuda`, or run without them: "
        "`--ops portable` (ops='portable').",
    )


# How ONNX Runtime and CUDA say that memory ran out.
_SHORT_OF_MEMORY = re.compile(
    r"allocate memory|out of memory|bad_alloc|CUDA failure 2\b", re.IGNORECASE
)
_WANTED = re.compile(r"requested buffer of size (\d+)")


def is_short_of_memory(error: BaseException) -> bool:
    """Whether ONNX Runtime failed because the processor's or the GPU's memory is too small."""
    return bool(_SHORT_OF_MEMORY.search(str(error)))


def _too_little_memory(act: str, error: BaseException) -> EnvironmentProblem:
    wanted = _WANTED.search(str(error))
    return EnvironmentProblem(
        f"There is too little memory to {act}.",
        f"ONNX Runtime needed another {int(wanted[1]):,} bytes." if wanted else first_line(error),
        "Use smaller batches, or close other programs that use the same memory.",
    )


def cannot_load(ort: Any, path: Path, error: Exception) -> CapsedgeError:
    """The error for a file that ONNX Runtime refuses."""
    if is_short_of_memory(error):
        return _too_little_memory(f"load {path}", error)
    if refused := _REFUSED_KERNELS.search(str(error)):
        return kernels_problem(refused[1])
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


def onnxruntime_run_error(path: Path, feeds: Mapping[str, Any], error: Exception) -> CapsedgeError:
    """The error for inputs on which ONNX Runtime fails."""
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
    if is_short_of_memory(error):
        return _too_little_memory(f"run {path} on {shapes}", error)
    return ArtefactError(
        f"ONNX Runtime failed while running {path} on {shapes}.",
        first_line(error),
        "If the model was made for these shapes, the file is damaged: export it again.",
    )
