"""What runs on the device: sessions, image input, metadata, files. Imports neither torch nor onnx."""
