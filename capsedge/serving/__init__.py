"""Models behind the Open Inference Protocol, on MLServer."""
