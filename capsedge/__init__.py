"""capsedge: export, prove and run trained capsule networks at the edge.

Names are loaded when they are first used, so that a device needs only what it runs.
"""

from __future__ import annotations

import os

__version__ = "0.1.0"

# ONNX Runtime 1.29 and newer reports models and the machine to its maker and keeps an identifier in the home
# folder. Only this variable, set before the first session, disables that; set it to 0 to allow it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

TYPE_CHECKING = False  # importing typing for its own would take as long as everything else here
if TYPE_CHECKING:
    from typing import Any

    from capsedge import datasets, models, ops, viz
    from capsedge.batches.api import batch
    from capsedge.batches.report import BatchReport
    from capsedge.calibration.api import quantize
    from capsedge.calibration.report import QuantizationReport
    from capsedge.checkpoint import load_checkpoint
    from capsedge.deploy.kserve import deploy_kserve
    from capsedge.deploy.report import WebDeployment
    from capsedge.deploy.repository_report import KServeDeployment, TritonDeployment
    from capsedge.deploy.triton import deploy_triton
    from capsedge.deploy.web import deploy_web
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
    from capsedge.exporters.export_report import ExportReport
    from capsedge.exporters.tensorrt.api import build
    from capsedge.exporters.tensorrt.engine_file import BuildReport
    from capsedge.exporters.to_onnx import export
    from capsedge.importing.api import ImportReport, import_checkpoint
    from capsedge.pipelines.cascade import cascade
    from capsedge.pipelines.cascade_report import CascadeReport
    from capsedge.pipelines.optimize import OptimizationReport, optimize
    from capsedge.pruning.prune import prune
    from capsedge.pruning.report import PruningReport
    from capsedge.runtime.backends.engine_inspection import EngineInspection
    from capsedge.runtime.ensemble import Ensemble
    from capsedge.runtime.inspect import inspect
    from capsedge.runtime.load import load
    from capsedge.runtime.metadata import Outputs, Preprocessing
    from capsedge.runtime.predictions import Prediction
    from capsedge.runtime.profiling.profile_report import ProfileReport
    from capsedge.runtime.profiling.profiler import profile
    from capsedge.runtime.reading.inspection import Inspection
    from capsedge.runtime.routing_trace import Trace, TracedLayer
    from capsedge.runtime.session import Session
    from capsedge.verification.certificate import Certificate
    from capsedge.verification.compare import verify
    from capsedge.verification.ensemble import EnsembleCertificate, verify_ensemble

_MODULES = ("datasets", "models", "ops", "viz")
_HOMES = {
    "load": "capsedge.runtime.load",
    "Session": "capsedge.runtime.session",
    "Ensemble": "capsedge.runtime.ensemble",
    "Prediction": "capsedge.runtime.predictions",
    "Trace": "capsedge.runtime.routing_trace",
    "TracedLayer": "capsedge.runtime.routing_trace",
    "batch": "capsedge.batches.api",
    "BatchReport": "capsedge.batches.report",
    "profile": "capsedge.runtime.profiling.profiler",
    "ProfileReport": "capsedge.runtime.profiling.profile_report",
    "inspect": "capsedge.runtime.inspect",
    "Inspection": "capsedge.runtime.reading.inspection",
    "EngineInspection": "capsedge.runtime.backends.engine_inspection",
    "Outputs": "capsedge.runtime.metadata",
    "Preprocessing": "capsedge.runtime.metadata",
    "export": "capsedge.exporters.to_onnx",
    "ExportReport": "capsedge.exporters.export_report",
    "quantize": "capsedge.calibration.api",
    "QuantizationReport": "capsedge.calibration.report",
    "cascade": "capsedge.pipelines.cascade",
    "CascadeReport": "capsedge.pipelines.cascade_report",
    "optimize": "capsedge.pipelines.optimize",
    "OptimizationReport": "capsedge.pipelines.optimize",
    "prune": "capsedge.pruning.prune",
    "PruningReport": "capsedge.pruning.report",
    "build": "capsedge.exporters.tensorrt.api",
    "BuildReport": "capsedge.exporters.tensorrt.engine_file",
    "deploy_web": "capsedge.deploy.web",
    "WebDeployment": "capsedge.deploy.report",
    "deploy_triton": "capsedge.deploy.triton",
    "TritonDeployment": "capsedge.deploy.repository_report",
    "deploy_kserve": "capsedge.deploy.kserve",
    "KServeDeployment": "capsedge.deploy.repository_report",
    "verify": "capsedge.verification.compare",
    "Certificate": "capsedge.verification.certificate",
    "verify_ensemble": "capsedge.verification.ensemble",
    "EnsembleCertificate": "capsedge.verification.ensemble",
    "load_checkpoint": "capsedge.checkpoint",
    "import_checkpoint": "capsedge.importing.api",
    "ImportReport": "capsedge.importing.api",
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
    "BatchReport",
    "BuildReport",
    "CapsedgeError",
    "CascadeReport",
    "Certificate",
    "EngineInspection",
    "Ensemble",
    "EnsembleCertificate",
    "EnvironmentProblem",
    "ExitCode",
    "ExportReport",
    "ImportReport",
    "Inspection",
    "KServeDeployment",
    "OptimizationReport",
    "Outputs",
    "ParityError",
    "Prediction",
    "Preprocessing",
    "ProfileReport",
    "PruningReport",
    "QuantizationReport",
    "Session",
    "ShapeError",
    "Trace",
    "TracedLayer",
    "TritonDeployment",
    "UnsupportedModelError",
    "UsageError",
    "WebDeployment",
    "__version__",
    "batch",
    "build",
    "cascade",
    "datasets",
    "deploy_kserve",
    "deploy_triton",
    "deploy_web",
    "export",
    "import_checkpoint",
    "inspect",
    "load",
    "load_checkpoint",
    "models",
    "ops",
    "optimize",
    "profile",
    "prune",
    "quantize",
    "verify",
    "verify_ensemble",
    "viz",
]


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first used (PEP 562)."""
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module 'capsedge' has no attribute '{name}'")
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"capsedge.{name}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
