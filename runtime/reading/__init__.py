"""What a model file says without being run: wire format, structure, shapes, costs. Imports no onnx."""
