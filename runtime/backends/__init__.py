"""The backends that run a model: ONNX Runtime and TensorRT, behind one protocol (``backend.Backend``)."""
