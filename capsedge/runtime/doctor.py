"""Diagnose this machine for ``capsedge doctor``: what works, what is missing, drivers, JetPack."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from capsedge.errors import CapsedgeError
from capsedge.runtime import machine as gpu
from capsedge.runtime.backends import cuda as cuda_runtime
from capsedge.runtime.backends import onnxruntime_session
from capsedge.runtime.backends.cuda_operators import find_cuda_operators, load_problem
from capsedge.runtime.backends.native_library import (
    NAME,
    VARIABLE,
    how_to_get_libraries,
    installed,
    named_library,
    refusal,
)
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.backends.tensorrt_library import find_plugin, how_to_get, no_plugin
from capsedge.runtime.machine import (
    BROKEN,
    MISSING,
    OK,
    Check,
    has_gpu,
    installed_version,
    machine,
    simd_level,
)
from capsedge.runtime.result_summary import Report, Table

# --- Compatible versions of JetPack, TensorRT, CUDA and driver (nvidia.json) ---

RELEASE_FILE = Path("/etc/nv_tegra_release")
_GPU = "gpu"
_NO_ENGINES = "no TensorRT engines here"
_OLD_JETPACK = "its TensorRT is too old for capsedge engines"
PLUGIN_MAJORS = [10, 11]  # of TensorRT, for which capsedge-cuda may have a plugin library
_UPDATE = "flash JetPack 6.1 or later (docs/how-to/jetson.md); until then models run on the CPU"


@lru_cache(maxsize=1)
def table() -> Mapping[str, Any]:
    """The compatible versions."""
    text = Path(__file__).with_name("nvidia.json").read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document


def version_numbers(version: str) -> tuple[int, ...]:
    """``"36.4.3"`` as comparable numbers, up to the first part that is not a number."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _within(version: str, first: str, before: str) -> bool:
    return version_numbers(first) <= version_numbers(version) < version_numbers(before)


def l4t_release(text: str) -> str:
    """``"36.4.3"`` from the first line of ``/etc/nv_tegra_release``; empty if the line has no release."""
    match = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", text)
    return f"{match[1]}.{match[2]}" if match else ""


def jetpack_of(l4t: str) -> Mapping[str, Any] | None:
    """The row of the table for an L4T release: the newest one that is not newer; None before the first."""
    rows = [r for r in table()["jetpack"] if version_numbers(r["l4t"]) <= version_numbers(l4t)]
    return max(rows, key=lambda r: version_numbers(r["l4t"]), default=None)


def is_known(l4t: str) -> bool:
    """Whether the table has the release itself, and not only older ones."""
    row = jetpack_of(l4t)
    if row is None:
        return False
    release = version_numbers(row["l4t"])
    return version_numbers(l4t)[: len(release)] == release


def tensorrt_row(version: str) -> Mapping[str, Any] | None:
    """The row of the table for a version of TensorRT."""
    rows: Sequence[Mapping[str, Any]] = table()["tensorrt"]
    return next((r for r in rows if _within(version, r["from"], r["before"])), None)


def driver_for(cuda: str) -> str:
    """The oldest Linux driver for a CUDA version; empty if the table has none."""
    rows = [r for r in table()["driver"] if r["cuda"] == cuda.split(".")[0]]
    return str(rows[0]["linux"]) if rows else ""


def nvidia_checks() -> list[Check]:
    """Lines for ``capsedge doctor``; JetPack only on a Jetson."""
    l4t = l4t_release(RELEASE_FILE.read_text("utf-8", "replace")) if RELEASE_FILE.is_file() else ""
    lines = [jetpack(l4t)] if l4t else []
    version = installed_version("tensorrt")
    of = "" if l4t else cuda_of_wheels()
    driver = cuda_runtime.driver_version()
    return [*lines, _cuda(), _cuda_kernels(), tensorrt(version, l4t, of, driver), _plugin(version)]


def cuda_of_wheels() -> str:
    """``"12"`` or ``"13"``: the CUDA of the installed TensorRT wheels; empty if there is none, or both."""
    versions = []
    for cuda in ("12", "13"):
        with suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(f"tensorrt-cu{cuda}-bindings")
            versions.append(cuda)
    return versions[0] if len(versions) == 1 else ""


def jetpack(l4t: str) -> Check:
    """JetPack by its L4T release."""
    row = jetpack_of(l4t)
    if row is None:
        return Check(
            "JetPack", _GPU, BROKEN, f"L4T {l4t}, older than JetPack 5", _OLD_JETPACK, _UPDATE
        )
    if row["supported"] and not is_known(l4t):
        after = f"JetPack {row['jetpack']} (L4T {row['l4t']})"
        return Check("JetPack", _GPU, OK, f"L4T {l4t}, newer than capsedge knows: after {after}")
    release = (
        f"JetPack {row['jetpack']} (L4T {l4t}): CUDA {row['cuda']}, TensorRT {row['tensorrt']}"
    )
    if row["supported"]:
        return Check("JetPack", _GPU, OK, release)
    return Check("JetPack", _GPU, BROKEN, release, _OLD_JETPACK, _UPDATE)


def tensorrt(version: str, l4t: str, cuda: str = "", driver: str = "") -> Check:
    """TensorRT by its version, by JetPack, and by the driver.

    Args:
        version: version of TensorRT; empty if it is not installed.
        l4t: the release of a Jetson; empty elsewhere.
        cuda: major version of CUDA that TensorRT's wheels are for; empty if unknown.
        driver: newest CUDA that the driver supports; empty without a driver.
    """
    if not version:
        return Check("tensorrt", _GPU, MISSING, "not installed", _NO_ENGINES, how_to_get())
    row = tensorrt_row(version)
    if row is None or not row["supported"]:
        known = "newer than capsedge knows" if row is None else "too old"
        return Check(
            "tensorrt",
            _GPU,
            BROKEN,
            f"{version}, {known}; 10.3 to 11 are supported",
            _NO_ENGINES,
            how_to_get(),
        )
    board = jetpack_of(l4t) if l4t else None
    if board is not None:
        return _on_jetpack(version, board)
    if cuda and driver and version_numbers(driver) < version_numbers(cuda):
        older = f"or `pip install 'capsedge[tensorrt-cu{version_numbers(driver)[0]}]'` in its place"
        return Check(
            "tensorrt", _GPU, BROKEN, f"{version} for CUDA {cuda}, with a driver for {driver}",
            _NO_ENGINES, f"install NVIDIA driver {driver_for(cuda)} or later, {older}",
        )  # fmt: skip
    return Check("tensorrt", _GPU, OK, f"{version} for CUDA {cuda}" if cuda else version)


def _on_jetpack(version: str, board: Mapping[str, Any]) -> Check:
    ranges = [r for r in board["runs"] if _within(version, r[0], r[1])]
    if not ranges:
        return Check(
            "tensorrt", _GPU, BROKEN,
            f"{version}, which does not support JetPack {board['jetpack']} (its own: {board['tensorrt']})",
            "engines may not build or load",
            "use JetPack's own: `sudo apt-get install python3-libnvinfer`, in an environment created with "
            "--system-site-packages",
        )  # fmt: skip
    needs = ", made for JetPack 7.2.2 or later on AGX Orin and Thor" if version[:2] == "11" else ""
    return Check("tensorrt", _GPU, OK, f"{version}{needs}")


def _cuda() -> Check:
    try:
        library = cuda_runtime.load_cuda()
    except CapsedgeError as error:
        return Check("CUDA runtime", _GPU, MISSING, error.what, _NO_ENGINES, error.fix)
    try:
        return cuda(library.runtime_version(), library.driver_version())
    except CapsedgeError as error:
        status = BROKEN if has_gpu() else MISSING
        return Check("CUDA runtime", _GPU, status, error.why, _NO_ENGINES, error.fix)


def cuda(runtime: str, driver: str) -> Check:
    """The CUDA runtime compared with the newest CUDA that the driver supports; ``0.0`` means no driver."""
    if driver == "0.0" and not has_gpu():
        return Check("CUDA runtime", _GPU, OK, f"{runtime}, for which there is no GPU here")
    if version_numbers(driver) < version_numbers(runtime)[:1]:
        least = driver_for(runtime)
        installed = "no driver" if driver == "0.0" else f"a driver for {driver}"
        return Check(
            "CUDA runtime", _GPU, BROKEN, f"{runtime}, with {installed}", "nothing runs on the GPU",
            f"install NVIDIA driver {least or 'of this CUDA version'} or later",
        )  # fmt: skip
    return Check("CUDA runtime", _GPU, OK, f"{runtime}, driver for {driver}")


def _cuda_kernels() -> Check:
    """Capsule operators in ONNX Runtime's CUDA provider, and in PyTorch on a GPU."""
    name, cost = (
        "CUDA kernels",
        "on a GPU, ONNX Runtime and PyTorch run without them: same results, slower routing",
    )
    try:
        library, kernels = find_cuda_operators()
        if why := load_problem(library, kernels) if has_gpu() else "":
            raise onnxruntime_session.kernels_problem(why)
    except onnxruntime_session.NoKernelsHere as error:
        return Check(name, _GPU, MISSING, _reason(error), cost, error.fix)
    except CapsedgeError as error:
        return Check(
            name, _GPU, BROKEN, _reason(error), "no model loads on a GPU with ops 'auto'", error.fix
        )
    return Check(name, _GPU, OK, f"{kernels}{'' if has_gpu() else ' (but no GPU)'}")


def _plugin(tensorrt_version: str) -> Check:
    name, cost = "plugin library", "engines use native operators: same results, slower routing"
    numbers = version_numbers(tensorrt_version)
    majors = [numbers[0]] if numbers else PLUGIN_MAJORS
    try:
        plugins = [path for path in map(find_plugin, majors) if path is not None]
        why = no_plugin(majors[0])
    except CapsedgeError as error:
        return Check(name, _GPU, BROKEN, error.what, cost, error.fix)
    if not plugins:
        return Check(name, _GPU, MISSING, why.why.rstrip("."), cost, why.fix)
    return Check(name, _GPU, OK, f"{plugins[0]}{'' if tensorrt_version else ' (but no TensorRT)'}")


# --- The diagnosis ---


_JOBS = {
    "infer": "Classify images here",
    "faster": "Fused kernels",
    "export": "Export, verify and train (workstation)",
    "more": "Tables, servers, pictures, videos, browsers",
    "gpu": "NVIDIA GPU",
    "compare": "Comparisons",
}


@dataclass(frozen=True, repr=False)
class Diagnosis(Report):
    """All checks, and whether the base job works: classifying an image with the bundled model."""

    heading: ClassVar[str] = "This machine"

    machine: dict[str, str]
    checks: tuple[Check, ...]

    def _lines(self) -> list[str]:
        return self.closing()

    def rows(self) -> list[tuple[str, str]]:
        """The machine."""
        return list(self.machine.items())

    def tables(self) -> list[Table]:
        """The checks of each job, and how to get what is missing."""
        jobs = [
            Table(
                title,
                ("", "", ""),
                [(c.name, c.status, c.found) for c in self.checks if c.job == job],
            )
            for job, title in _JOBS.items()
        ]
        missing = [line for c in self.checks if c.status != OK for line in c.advice()]
        return [*jobs, *([Table("", (), (), notes=["Missing", *missing])] if missing else [])]

    def closing(self) -> list[str]:
        """Whether the base job works."""
        return [
            "PASSED: images can be classified here"
            if self.ready
            else "FAILED: images cannot be classified here"
        ]

    @property
    def ready(self) -> bool:
        """True when every part of the base job is in order."""
        return all(c.status == OK for c in self.checks if c.job == "infer")

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "schema": 1,
            "ready": self.ready,
            "machine": self.machine,
            "checks": [asdict(c) for c in self.checks],
        }


# Of each extra, the package whose absence is noticed first; and what is lost without it.
_PACKAGES = (
    ("torch", "export", "export", "export, verify, sweep or train"),
    ("onnx", "export", "build", "export, quantize or build"),
    ("onnxscript", "export", "build", "export, quantize or build"),
    ("safetensors", "export", "export", "export, verify, sweep or train"),
    ("pyarrow", "more", "batch", "tables of `batch`"),
    ("grpc", "more", "serve", "`serve`"),
    ("matplotlib", "more", "viz", "`see`, and no charts of `profile` and `sweep`,"),
    ("av", "more", "video", "videos and cameras"),
    ("h5py", "more", "import", "`import` of Keras files"),
    ("ziglang", "more", "wasm", "WebAssembly of `build`"),
)


def diagnose() -> Diagnosis:
    """Examine this machine and try whatever can be tried. Findings never raise an error."""
    checks = [_python(), *_base_packages(), _onnxruntime(), _default_model(), _operator_library()]
    checks += [
        _package(package, job, f"no {lost} here", f"pip install 'capsedge[{extra}]'")
        for package, job, extra, lost in _PACKAGES
    ]
    checks += [gpu.gpu(), *gpu.onnxruntime_packages(), *nvidia_checks(), *_on_gpu()]
    checks.append(
        _package("openvino", "compare", "no comparison with OpenVINO", "pip install openvino")
    )
    return Diagnosis(machine(), tuple(checks))


def _python() -> Check:
    # An older Python cannot import this file; pip refuses to install there.
    return Check("python", "infer", OK, f"{platform.python_version()} ({sys.executable})")


def _base_packages() -> list[Check]:
    return [
        _package(package, "infer", "nothing works", "pip install capsedge", shown)
        for package, shown in (("numpy", "numpy"), ("PIL", "pillow"))
    ]


def _package(package: str, job: str, cost: str, fix: str, shown: str = "") -> Check:
    version = installed_version(package)
    if version:
        return Check(shown or package, job, OK, version)
    return Check(shown or package, job, MISSING, "not installed", cost, fix)


def _onnxruntime() -> Check:
    cost, fix = "no model runs", onnxruntime_session.HOW_TO_GET
    if not installed_version("onnxruntime"):
        return Check("onnxruntime", "infer", MISSING, "not installed", cost, fix)
    try:
        onnxruntime = import_onnxruntime()
        providers = ", ".join(onnxruntime.get_available_providers())
        return Check("onnxruntime", "infer", OK, f"{onnxruntime.__version__}: {providers}")
    except (
        Exception
    ) as error:  # a half-installed package fails in many ways; doctor reports them all
        return Check("onnxruntime", "infer", BROKEN, _reason(error), cost, _fix_of(error) or fix)


def _default_model() -> Check:
    """The base job itself: load the model that comes with the package and run it once."""
    name, cost = "default model", "`capsedge infer` without --model does not work"
    fix = "install capsedge again: pip install --force-reinstall 'capsedge[cpu]'"
    try:
        import numpy as np

        from capsedge.runtime.load import load
        from capsedge.runtime.zoo import default_model

        path = default_model()
        session = load(path)
        shape = [d if isinstance(d, int) else 1 for d in session.inputs[0].shape]
        outputs = session.run(np.zeros(shape, np.float32))
        if not all(np.isfinite(v).all() for v in outputs.values()):
            return Check(
                name, "infer", BROKEN, f"{path.name} gives values that are not finite", cost, fix
            )
        return Check(name, "infer", OK, f"{path.name} runs, {session.backend.ops} operators")
    except Exception as error:  # whatever stands in the way of the base job is what doctor must say
        return Check(name, "infer", BROKEN, _reason(error), cost, _fix_of(error) or fix)


def _on_gpu() -> list[Check]:
    """The default model in ONNX Runtime on the GPU, and whether it is captured; nothing without both."""
    name, cost = "model on the GPU", "ONNX files do not run with --device cuda"
    try:
        onnxruntime = import_onnxruntime()
        if not has_gpu() or onnxruntime_session.CUDA not in onnxruntime.get_available_providers():
            return []
        import numpy as np

        from capsedge.runtime.backends.backend import cuda_graphs_text
        from capsedge.runtime.load import load
        from capsedge.runtime.runtime_options import RuntimeOptions
        from capsedge.runtime.zoo import default_model

        path = default_model()
        with load(path, RuntimeOptions(device="cuda")) as session:
            shape = [d if isinstance(d, int) else 1 for d in session.inputs[0].shape]
            for _ in range(3):  # the second call is captured, the third one replayed
                session.run(np.zeros(shape, np.float32))
            ran = f"{path.name} runs, {session.backend.ops} operators, {cuda_graphs_text(session.backend)}"
        return [Check(name, _GPU, OK, ran)]
    except Exception as error:  # whatever stands in the way is what doctor must say
        fix = "pip install --upgrade 'onnxruntime-gpu[cuda,cudnn]'"
        return [Check(name, _GPU, BROKEN, _reason(error), cost, _fix_of(error) or fix)]


def _operator_library() -> Check:
    """The native kernels: whether they are installed, and whether ONNX Runtime accepts them."""
    name, cost = (
        "operator library",
        "function bodies run instead: same results, several times slower",
    )
    try:
        path = named_library(VARIABLE, name) or installed(NAME)
    except CapsedgeError as error:
        return Check(name, "faster", BROKEN, _reason(error), cost, error.fix)
    if path is not None and (why := refusal(path)):
        fix = "install capsedge again on this machine"
        return Check(name, "faster", BROKEN, f"{path} does not open: {why}", cost, fix)
    if path is None:
        return Check(
            name,
            "faster",
            MISSING,
            "not built",
            cost,
            how_to_get_libraries(),
        )
    try:
        import onnxruntime

        onnxruntime.SessionOptions().register_custom_ops_library(str(path))
    except Exception as error:  # a library for another machine fails in the loader's own words
        return Check(
            name, "faster", BROKEN, _reason(error), cost, "install capsedge again on this machine"
        )
    return Check(name, "faster", OK, f"{path}, {simd_level()}")


def _reason(error: Exception) -> str:
    return (
        f"{error.what} {error.why}"
        if isinstance(error, CapsedgeError)
        else f"{type(error).__name__}: {error}"
    )


def _fix_of(error: Exception) -> str:
    return error.fix if isinstance(error, CapsedgeError) else ""
