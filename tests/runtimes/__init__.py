"""The same answer on every supported ONNX Runtime."""
