"""Rehearse without a GPU: nvcc's PTX for 9.0, executed on the CPU by a libcudart for tests (`tools.ptx`)."""

from __future__ import annotations

from capsedge.errors import EnvironmentProblem
from tools.ptx import build


def environment() -> dict[str, str]:
    """The environment variables that make the steps use it.

    Raises:
        EnvironmentProblem: nvcc, a C++ compiler or AVX2 is missing.
    """
    missing = build.unavailable()
    if missing:
        raise EnvironmentProblem(
            "The rehearsal executes the kernels' PTX, and cannot here.",
            missing,
            "Run it where both are.",
        )
    return build.built(90).variables()
