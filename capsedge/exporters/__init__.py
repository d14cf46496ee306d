"""From PyTorch to ONNX (needs torch), and in ``tensorrt`` from ONNX to engines."""
