"""Fuzzing: targets, the corpus of past failures, and the driver behind ``make fuzz``."""
