"""Work on ONNX graphs without torch: bodies, exact rewrites, portable forms, quantized files. Needs onnx."""
