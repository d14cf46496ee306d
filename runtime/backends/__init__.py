"""What runs a model: ONNX Runtime or TensorRT, behind one protocol (``backend.Backend``)."""
