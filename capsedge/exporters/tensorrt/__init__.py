"""ONNX files to TensorRT engines. Needs `onnx`, no torch; TensorRT is imported when something is built."""

from __future__ import annotations

from capsedge.exporters.tensorrt.build import BuildOptions, BuildReport
from capsedge.exporters.tensorrt.build import write_engine as build

__all__ = ["BuildOptions", "BuildReport", "build"]
