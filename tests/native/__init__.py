"""Tests of runtime/native."""
