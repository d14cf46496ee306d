"""The wheel for 64-bit ARM runs under emulation, and answers as this machine does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.release.test_wheels import SAMPLE, made

__all__ = ["made"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
ARM = ROOT / "build" / "arm64-root"
# Newer ones crash while they are imported by QEMU 7.2; a device takes them.
ONNXRUNTIME = "1.23.2"


@pytest.fixture(scope="module")
def python(made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs ARM's Python with the wheel and what it needs on its path."""
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("emulates ARM: apt-get install qemu-user")
    if not (ARM / "usr" / "bin" / "python3").exists():
        pytest.skip("runs Debian's Python for ARM: tools/arm64_root.sh")
    folder = tmp_path_factory.mktemp("arm")
    with zipfile.ZipFile(made["aarch64"]) as archive:
        archive.extractall(folder)
    version = next(p.name for p in (ARM / "usr" / "lib").glob("python3.*")).removeprefix("python")
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (28, 27, 17)]
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--target", folder, *platforms, "--python-version", version, "--only-binary", ":all:",
            "numpy", "pillow", "click", "rich", f"onnxruntime=={ONNXRUNTIME}",
        ],
        check=True,
    )  # fmt: skip
    return ["env", f"PYTHONPATH={folder}", "qemu-aarch64", "-L", str(ARM), f"{ARM}/usr/bin/python3"]


def infer(command: list[str], *options: str | Path) -> dict[str, Any]:
    said = subprocess.run(
        [*command, "-m", "capsedge", "infer", SAMPLE, "--json", *options],
        check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(said.stdout)
    return found


@pytest.mark.parametrize("model", ["digits-dynamic", "digits-em", "digits-attention"])
def test_the_same_answer_as_here(python: list[str], model: str, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    subprocess.run(
        [sys.executable, "-m", "capsedge", "export", "--checkpoint", model, "-o", file], check=True
    )
    there, here = (infer(c, "--checkpoint", file) for c in (python, [sys.executable]))
    assert there["ops"] == "fused"
    first, second = (r["images"][0] for r in (there, here))
    assert first["labels"][0]["label"] == second["labels"][0]["label"] == "7"
    np.testing.assert_allclose(first["scores"], second["scores"], atol=1e-6)
