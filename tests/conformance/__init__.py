"""Conformance of every backend with docs/reference/operators.md: one registry of cases, four modes."""
