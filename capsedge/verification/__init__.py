"""Verification: compares an artefact with its PyTorch source. Needs torch."""
