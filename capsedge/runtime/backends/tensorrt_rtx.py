"""Use TensorRT-RTX, which is TensorRT for GeForce RTX and RTX PRO.

Its Python package has the names of TensorRT's. The builder works ahead of time on any machine, without a GPU
and without a driver, and builds for several GPUs; on the GPU, the runtime compiles the kernels when an engine
is first run there.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Sequence
from typing import Any

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.backends.tensorrt_library import import_tensorrt
from capsedge.spec.vocabularies import TENSORRT_RTX

MODULES = ("tensorrt_rtx_bindings", "tensorrt_rtx")  # NVIDIA's wheels, and its archives
OLDEST_RTX = (1, 7)
HOW_TO_GET = "pip install 'capsedge[rtx]'"
# Every RTX GPU from Ampere to Blackwell, as TensorRT-RTX builds by default; 8.0, 7.5 and 12.1 on request.
DEFAULT_CAPABILITIES = ("8.6", "8.9", "12.0")
_JETSONS = {"7.2": "Xavier", "8.7": "Orin", "10.1": "Thor", "11.0": "Thor"}
# The parser opens the library under this name for a plugin node, and ends the process without it.
_UNVERSIONED = "libtensorrt_rtx.so"


def import_tensorrt_rtx() -> Any:
    """The Python package of TensorRT-RTX."""
    for name in MODULES:
        try:
            trt = importlib.import_module(name)
            break
        except ModuleNotFoundError as error:
            if error.name != name:
                raise _broken(error) from error
        except ImportError as error:
            raise _broken(error) from error
    else:
        raise EnvironmentProblem(
            "TensorRT-RTX is not installed.",
            f"The Python package '{MODULES[0]}' was not found.",
            HOW_TO_GET,
        )
    version = tuple(int(part) for part in trt.__version__.split(".")[:2])
    if version < OLDEST_RTX:
        raise EnvironmentProblem(
            f"TensorRT-RTX {trt.__version__} is too old.",
            f"capsedge builds and runs engines with TensorRT-RTX {OLDEST_RTX[0]}.{OLDEST_RTX[1]} or later.",
            HOW_TO_GET,
        )
    return trt


def _broken(error: ImportError) -> EnvironmentProblem:
    return EnvironmentProblem("TensorRT-RTX cannot be imported.", f"{error}.", HOW_TO_GET)


def import_for(target: str) -> Any:
    """The Python package for engines of a target: of TensorRT or of TensorRT-RTX."""
    return import_tensorrt_rtx() if target == TENSORRT_RTX else import_tensorrt()


def compute_capabilities(trt: Any) -> dict[str, Any]:
    """The compute capabilities of a TensorRT-RTX release: ``{"8.6": ComputeCapability.SM86}``."""
    capabilities = {}
    for name in dir(trt.ComputeCapability):
        digits = re.fullmatch(r"SM([0-9]+)([0-9])", name)
        if digits is not None:
            capabilities[f"{digits[1]}.{digits[2]}"] = getattr(trt.ComputeCapability, name)
    return dict(sorted(capabilities.items(), key=lambda pair: float(pair[0])))


def check_capabilities(trt: Any, asked: Sequence[str]) -> None:
    """Refuse compute capabilities that a release does not build for."""
    known = compute_capabilities(trt)
    for capability in asked:
        if capability in _JETSONS:
            raise UsageError(
                f"Compute capability {capability} is a Jetson's ({_JETSONS[capability]}).",
                "TensorRT-RTX is not made for Jetsons; TensorRT comes with JetPack.",
                "Build on the Jetson itself, without `--target` (docs/how-to/jetson.md).",
            )
        if capability not in known:
            raise UsageError(
                f"Unknown compute capability '{capability}'.",
                f"TensorRT-RTX {trt.__version__} builds for {', '.join(known)}.",
                f"For example: `--compute-capability {','.join(DEFAULT_CAPABILITIES)}`.",
            )
    if not asked or len(set(asked)) != len(asked):
        raise UsageError(
            f"--compute-capability {','.join(asked)}.",
            "Expected: each once, at least one.",
            f"For example: `--compute-capability {','.join(DEFAULT_CAPABILITIES)}`.",
        )


def set_compute_capabilities(trt: Any, config: Any, asked: Sequence[str]) -> None:
    """Set the GPUs of an engine, accepted by `check_capabilities`, in a builder's configuration."""
    known = compute_capabilities(trt)
    config.num_compute_capabilities = len(asked)
    for index, capability in enumerate(asked):
        config.set_compute_capability(known[capability], index)


def check_parser_takes_plugins() -> None:
    """Refuse where the parser would end the process at the first plugin.

    It opens ``libtensorrt_rtx.so`` for a plugin and calls ``std::terminate`` if it is missing; NVIDIA's
    wheel contains only ``libtensorrt_rtx.so.1``.
    """
    try:
        ctypes.CDLL(_UNVERSIONED)
    except OSError as error:
        raise EnvironmentProblem(
            f"TensorRT-RTX needs the name {_UNVERSIONED} for engines with plugins.",
            f"{error}. NVIDIA's package contains only {_UNVERSIONED}.1, and its parser ends the process "
            "if it does not find the other name.",
            "Create a link of that name and put its folder into LD_LIBRARY_PATH (docs/how-to/tensorrt.md), "
            "or build with `--plugin native`.",
        ) from error
