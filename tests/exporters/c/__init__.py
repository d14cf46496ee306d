"""Networks as plain C."""
