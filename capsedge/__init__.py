"""capsedge: export, prove and run trained capsule networks at the edge.

The names are loaded when they are first used, so that a device needs only what it runs.
"""

from __future__ import annotations

import os

__version__ = "0.1.0"

# ONNX Runtime 1.29 and newer reports models and machine to its maker, keeps an identifier in the home folder,
# and takes a no only from the environment, before its first session. Whoever wants it sets 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

TYPE_CHECKING = False  # typing's own would take as long to import as everything else here
if TYPE_CHECKING:
    from typing import Any

    from capsedge.errors import (
        ArtefactError,
        CapsedgeError,
        EnvironmentProblem,
        ExitCode,
        ParityError,
        ShapeError,
        UnsupportedModelError,
        UsageError,
    )
    from capsedge.exporters.to_onnx import export
    from capsedge.runtime.profiling import ProfileReport, profile
    from capsedge.runtime.session import Session, load
    from capsedge.runtime.vision.prediction import Prediction
    from capsedge.verification import verify

_HOMES = {
    "load": "capsedge.runtime.session",
    "Session": "capsedge.runtime.session",
    "Prediction": "capsedge.runtime.vision.prediction",
    "ProfileReport": "capsedge.runtime.profiling",
    "profile": "capsedge.runtime.profiling",
    "export": "capsedge.exporters.to_onnx",
    "verify": "capsedge.verification",
    **dict.fromkeys(
        (
            "ArtefactError",
            "CapsedgeError",
            "EnvironmentProblem",
            "ExitCode",
            "ParityError",
            "ShapeError",
            "UnsupportedModelError",
            "UsageError",
        ),
        "capsedge.errors",
    ),
}

__all__ = [
    "ArtefactError",
    "CapsedgeError",
    "EnvironmentProblem",
    "ExitCode",
    "ParityError",
    "Prediction",
    "ProfileReport",
    "Session",
    "ShapeError",
    "UnsupportedModelError",
    "UsageError",
    "__version__",
    "export",
    "load",
    "profile",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'capsedge' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
