"""CUDA graphs in ONNX Runtime's own CUDA provider, whose kernels are executed on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tools.ptx import provider

ONCE, CAPTURED = (
    1.0,
    3.0,
)  # launches of a call, relative to the plain one: two plain runs and a replay


@pytest.mark.thorough
@pytest.mark.skipif(bool(provider.unavailable()), reason=provider.unavailable())
def test_graphs() -> None:
    """Replays, inputs replaced in place, two batch sizes, arrays on the GPU and four threads: the bits of the
    plain session, and a capture at the second call of each batch size only.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.graphs_on_provider"],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 4
    for operator, facts in found.items():
        assert facts == {
            "launches": [ONCE, CAPTURED, ONCE, ONCE, ONCE, CAPTURED, ONCE, ONCE],
            "bits equal": True,
            "bytes more after 20 replays": 0,
            "reason": "",
            "captured": 2,
            "bits equal on the device": True,
            "bits equal in threads": True,
            "reason after threads": "",
            "fault": "",
        }, operator
