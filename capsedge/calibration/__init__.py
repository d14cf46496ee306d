"""Calibration and quantization of ONNX files: data, observers, tables, placement, search.

Works on files only: imports neither torch nor ``exporters``.
"""
