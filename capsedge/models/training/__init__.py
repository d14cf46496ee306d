"""Training, sufficient to reproduce the trained models. Needs torch."""
