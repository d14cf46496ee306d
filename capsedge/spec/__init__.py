"""The facts that every part of the package shares: its operators and the limits of its readers."""
