"""Capsule routing in the graphs of other tools: found by its structure, judged by its numbers, replaced. No torch."""
