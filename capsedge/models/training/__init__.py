"""Training: enough to make the trained models honestly. Needs torch."""
