"""Model repositories open in the versions of ONNX Runtime that Triton's containers have had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import capsedge
from capsedge.runtime.backends import onnxruntime_session
from capsedge.runtime.zoo import MODELS
from tests.conftest import ROOT
from tests.runtimes.test_runtimes import place_of


@pytest.mark.thorough
@pytest.mark.runtimes
@pytest.mark.parametrize("version", onnxruntime_session.TESTED_VERSIONS)
def test_every_model_runs_its_warm_up(version: str, tmp_path: Path) -> None:
    place = place_of(version)
    capsedge.deploy_triton(MODELS, tmp_path / "r", mount=str(tmp_path / "r"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.deploy.served", str(tmp_path / "r")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(place), str(ROOT)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [version]
