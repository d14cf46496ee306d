"""capsedge: export, verify and run trained capsule networks at the edge.

Names are loaded when they are first used, so that a device needs only what it runs.
"""

from __future__ import annotations

import os

from capsedge.spec.version import VERSION as __version__  # noqa: N811

# ONNX Runtime 1.29 and newer reports models and the machine to its maker and keeps an identifier in the home
# folder. Only this variable, set before the first session, disables that; set it to 0 to allow it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

TYPE_CHECKING = False  # importing typing for its own would take as long as everything else here
if TYPE_CHECKING:
    from typing import Any

    from capsedge import datasets, models, viz
    from capsedge.batch_inference.batch import BatchReport, batch
    from capsedge.calibration.quantization_report import QuantizationReport
    from capsedge.calibration.quantize import quantize
    from capsedge.deploy.deployment import KServeDeployment, TritonDeployment, WebDeployment
    from capsedge.deploy.kserve import deploy_kserve
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
    from capsedge.exporters.build import build
    from capsedge.exporters.export import export
    from capsedge.exporters.export_report import ExportReport
    from capsedge.exporters.tensorrt.write_engine import BuildReport
    from capsedge.importers.import_checkpoint import ImportReport, import_checkpoint
    from capsedge.models import ops
    from capsedge.models.checkpoint import load_checkpoint
    from capsedge.models.training.run import Trained, train
    from capsedge.optimization.cascade import CascadeReport, cascade
    from capsedge.optimization.optimize import OptimizationReport, optimize
    from capsedge.optimization.prune import prune
    from capsedge.optimization.prune_report import PruningReport
    from capsedge.optimization.sweep import SweepReport, sweep
    from capsedge.runtime.inspection import inspect
    from capsedge.runtime.inspection_report import EngineInspection, Inspection
    from capsedge.runtime.load import load
    from capsedge.runtime.metadata.metadata import Outputs, Preprocessing
    from capsedge.runtime.profiling.profile import ProfileReport, profile
    from capsedge.runtime.session.ensemble import Ensemble
    from capsedge.runtime.session.predictions import Prediction
    from capsedge.runtime.session.routing_trace import Trace, TracedLayer
    from capsedge.runtime.session.session import Session
    from capsedge.runtime.user_metadata import Description
    from capsedge.runtime.video.frame_sources import Camera, VideoFile, WatchedFolder
    from capsedge.serving.serve import serve
    from capsedge.verification.certificate import Certificate
    from capsedge.verification.verify import verify
    from capsedge.verification.verify_ensemble import EnsembleCertificate, verify_ensemble

_MODULES = {
    "datasets": "capsedge.datasets",
    "models": "capsedge.models",
    "ops": "capsedge.models.ops",
    "viz": "capsedge.viz",
}
_HOMES = {
    "load": "capsedge.runtime.load",
    "Session": "capsedge.runtime.session.session",
    "Ensemble": "capsedge.runtime.session.ensemble",
    "Prediction": "capsedge.runtime.session.predictions",
    "Trace": "capsedge.runtime.session.routing_trace",
    "TracedLayer": "capsedge.runtime.session.routing_trace",
    "VideoFile": "capsedge.runtime.video.frame_sources",
    "Camera": "capsedge.runtime.video.frame_sources",
    "WatchedFolder": "capsedge.runtime.video.frame_sources",
    "batch": "capsedge.batch_inference.batch",
    "BatchReport": "capsedge.batch_inference.batch",
    "profile": "capsedge.runtime.profiling.profile",
    "ProfileReport": "capsedge.runtime.profiling.profile",
    "inspect": "capsedge.runtime.inspection",
    "Inspection": "capsedge.runtime.inspection_report",
    "EngineInspection": "capsedge.runtime.inspection_report",
    "Outputs": "capsedge.runtime.metadata.metadata",
    "Preprocessing": "capsedge.runtime.metadata.metadata",
    "Description": "capsedge.runtime.user_metadata",
    "export": "capsedge.exporters.export",
    "ExportReport": "capsedge.exporters.export_report",
    "quantize": "capsedge.calibration.quantize",
    "QuantizationReport": "capsedge.calibration.quantization_report",
    "cascade": "capsedge.optimization.cascade",
    "CascadeReport": "capsedge.optimization.cascade",
    "optimize": "capsedge.optimization.optimize",
    "OptimizationReport": "capsedge.optimization.optimize",
    "prune": "capsedge.optimization.prune",
    "PruningReport": "capsedge.optimization.prune_report",
    "sweep": "capsedge.optimization.sweep",
    "SweepReport": "capsedge.optimization.sweep",
    "train": "capsedge.models.training.run",
    "Trained": "capsedge.models.training.run",
    "serve": "capsedge.serving.serve",
    "build": "capsedge.exporters.build",
    "BuildReport": "capsedge.exporters.tensorrt.write_engine",
    "deploy_web": "capsedge.deploy.web",
    "WebDeployment": "capsedge.deploy.deployment",
    "deploy_triton": "capsedge.deploy.triton",
    "TritonDeployment": "capsedge.deploy.deployment",
    "deploy_kserve": "capsedge.deploy.kserve",
    "KServeDeployment": "capsedge.deploy.deployment",
    "verify": "capsedge.verification.verify",
    "Certificate": "capsedge.verification.certificate",
    "verify_ensemble": "capsedge.verification.verify_ensemble",
    "EnsembleCertificate": "capsedge.verification.verify_ensemble",
    "load_checkpoint": "capsedge.models.checkpoint",
    "import_checkpoint": "capsedge.importers.import_checkpoint",
    "ImportReport": "capsedge.importers.import_checkpoint",
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
    "Camera",
    "CapsedgeError",
    "CascadeReport",
    "Certificate",
    "Description",
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
    "SweepReport",
    "Trace",
    "TracedLayer",
    "Trained",
    "TritonDeployment",
    "UnsupportedModelError",
    "UsageError",
    "VideoFile",
    "WatchedFolder",
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
    "serve",
    "sweep",
    "train",
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
        return importlib.import_module(_MODULES[name])
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
