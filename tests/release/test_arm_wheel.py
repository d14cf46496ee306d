"""The wheel for 64-bit ARM runs under emulation, and answers as this machine does (`make test-arm`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from capsedge.runtime.zoo import MODELS
from tests.conftest import ROOT
from tests.release.conftest import build_one, missing
from tests.release.environments import answers, compare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
ARM = ROOT / "build" / "arm64-root"
# Newer ones crash while they are imported by QEMU 7.2; a device takes them.
ONNXRUNTIME = "1.23.2"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    """The command that runs ARM's Python with the wheel and what it needs on its path."""
    if shutil.which("qemu-aarch64") is None or not (ARM / "usr" / "bin" / "python3").exists():
        missing("runs Debian's Python for ARM in qemu-aarch64: make test-arm")
    folder = tmp_path_factory.mktemp("arm")
    with zipfile.ZipFile(build_one("aarch64", tmp_path_factory)) as archive:
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


@pytest.mark.parametrize("model", MODELS)
def test_the_same_answer_as_here(python: list[str | Path], model: str, tmp_path: Path) -> None:
    there = answers([*python, "-m", "capsedge"], tmp_path, "--model", model)
    here = answers([sys.executable, "-m", "capsedge"], ROOT, "--model", model, variables=os.environ)
    compare(there, here, 2e-6)
