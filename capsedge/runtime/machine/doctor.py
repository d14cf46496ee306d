"""What works on this machine, and what each missing part costs: ``capsedge doctor``."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

from capsedge.errors import CapsedgeError
from capsedge.runtime.backends import onnxruntime_versions
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.machine import gpu, nvidia
from capsedge.runtime.machine.check import BROKEN, MISSING, OK, Check
from capsedge.runtime.machine.environment import installed_version, machine, simd_level


@dataclass(frozen=True)
class Diagnosis:
    """All checks, and whether the base job works: classify an image with the model that comes along."""

    machine: dict[str, str]
    checks: tuple[Check, ...]

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


def diagnose() -> Diagnosis:
    """Look at this machine; tries what can be tried. Never raises for what it finds."""
    checks = [_python(), *_base_packages(), _onnxruntime(), _default_model(), _operator_library()]
    for package, lost in (
        ("torch", "export, verify, sweep or train"),
        ("onnx", "export, quantize or build"),
        ("onnxscript", "export, quantize or build"),
        ("safetensors", "export, verify, sweep or train"),
    ):
        checks.append(
            _package(package, "export", f"no {lost} here", "pip install 'capsedge[export]'")
        )
    checks += [gpu.gpu(), *gpu.onnxruntime_packages(), *nvidia.checks()]
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
    cost, fix = "no model runs", onnxruntime_versions.HOW_TO_GET
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
        from capsedge.zoo import default_model

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


def _operator_library() -> Check:
    """The native kernels: there, and taken by ONNX Runtime."""
    name, cost = (
        "operator library",
        "function bodies run instead: same results, several times slower",
    )
    try:
        path = find_library()
    except CapsedgeError as error:
        return Check(name, "faster", BROKEN, _reason(error), cost, error.fix)
    if path is None:
        return Check(
            name,
            "faster",
            MISSING,
            "not built",
            cost,
            "install a C++17 compiler, then: pip install --force-reinstall --no-binary capsedge capsedge",
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
