"""Judging one computation against another: tolerance, outputs, decisions. Imports no torch."""
