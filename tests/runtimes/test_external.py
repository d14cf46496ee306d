"""No model opens other files: every way in, on the oldest ONNX Runtime and the newest, in two folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from capsedge.runtime.backends import onnxruntime_session
from tests.runtimes.external import SECRET, VALUES

from .test_runtimes import INSTALLED, ROOT, place_of

ARTEFACT = 6


@pytest.mark.runtimes
@pytest.mark.parametrize("where", ["root", "beside"])
@pytest.mark.parametrize("version", [onnxruntime_session.TESTED_VERSIONS[0], INSTALLED])
def test_other_files_stay_closed(version: str, where: str, tmp_path: Path) -> None:
    place = place_of(version)
    VALUES.tofile(tmp_path / SECRET)
    path = os.pathsep.join(str(p) for p in (place, ROOT) if p is not None)
    variables = {**os.environ, "PYTHONPATH": path}
    if place is not None:
        variables["CAPSEDGE_ONNXRUNTIME"] = str(place / "onnxruntime" / "capi")
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtimes.external", str(tmp_path)],
        cwd="/" if where == "root" else tmp_path, env=variables,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    answers = report["answers"]
    assert {a["python"] for a in answers.values()} == {ARTEFACT}, answers
    assert {a["c"] for a in answers.values()} == {ARTEFACT}, answers
    # The files are no dummies: ONNX Runtime alone gives some of them what they ask for.
    if where == "beside":
        assert any(a["bare"] for a in answers.values()), answers
    if version == INSTALLED:
        assert not any(a["second"] for a in answers.values()), answers
