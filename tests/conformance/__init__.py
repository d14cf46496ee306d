"""Conformance of every backend with docs/operators.md: one registry of cases, four modes."""
