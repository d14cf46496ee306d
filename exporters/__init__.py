"""Exporters: PyTorch to ONNX, and what is done to an ONNX file afterwards.

``proto`` and ``bodies`` work on ONNX files alone; only ``export`` needs torch, so it is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capsedge.exporters.report import ExportReport
    from capsedge.exporters.rewrites import Rewrites
    from capsedge.exporters.to_onnx import export

__all__ = ["ExportReport", "Rewrites", "export"]

_PLACES = {"ExportReport": "report", "Rewrites": "rewrites", "export": "to_onnx"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
