"""Build TensorRT engines from ONNX files. Needs onnx, not torch.

TensorRT is only imported when an engine is built.
"""
