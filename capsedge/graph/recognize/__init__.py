"""Capsule routing in graphs of other tools: found by structure, judged by numbers, replaced. No torch."""
