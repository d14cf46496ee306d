"""Lowering, building and plugins with NVIDIA's own TensorRT-RTX, which needs no GPU for them."""
