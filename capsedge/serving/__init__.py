"""Serve models over the Open Inference Protocol."""
