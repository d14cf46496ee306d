"""ONNX files to TensorRT engines. Needs `onnx`, no torch; TensorRT is imported when something is built."""

from __future__ import annotations

from capsedge.exporters.tensorrt.engine_file import BuildOptions, BuildReport, build

__all__ = ["BuildOptions", "BuildReport", "build"]
