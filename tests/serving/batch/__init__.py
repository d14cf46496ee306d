"""Tests of `capsedge batch`."""
