"""Putting models where people use them: web pages, Triton Inference Server and KServe."""
