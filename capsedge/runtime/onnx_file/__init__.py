"""Read a model file without running it: wire format, structure, shapes, costs. No onnx needed."""
