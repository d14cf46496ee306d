"""Comparing one computation with another: tolerance, outputs, decisions. Does not import torch."""
