"""Tests of capsedge/runtime/native."""
