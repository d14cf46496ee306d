"""The part that runs on the device: sessions, images, metadata, files. Imports neither torch nor onnx."""
