"""Calibration and quantization of ONNX files: data, observers, tables, placement, search.

Works on files alone: imports neither torch nor ``exporters``.
"""
