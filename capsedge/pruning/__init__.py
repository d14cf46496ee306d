"""Structured pruning of trained checkpoints: fewer channels, capsules and units, no masks. Needs torch."""
