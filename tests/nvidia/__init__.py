"""Lowering, building and plugins against NVIDIA's own TensorRT-RTX: its parser, builder and registry need no GPU."""
