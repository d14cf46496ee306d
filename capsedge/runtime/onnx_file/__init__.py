"""Reading a model file without running it: wire format, structure, shapes, costs. Does not import onnx."""
