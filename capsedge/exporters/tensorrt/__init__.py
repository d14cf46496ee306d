"""ONNX files to TensorRT engines. Needs onnx, no torch.

TensorRT is imported when something is built.
"""
