"""Export PyTorch networks to ONNX (needs torch); ``tensorrt`` builds engines from ONNX files."""
