"""What docs/how-to/jetson.md installs on JetPack's Python has wheels for 64-bit ARM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.release import interpreters
from tests.release.test_versions import pins

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
# Python and C library of each JetPack: Ubuntu 22.04, 24.04, and 20.04 with the Python of the page.
JETPACKS = {"6": ("3.10", 35), "7": ("3.12", 39), "5": ("3.12", 31)}
INSTALLED = [(jetpack, extras) for jetpack in "67" for extras in ("cpu", "build", "cpu,build")]


@pytest.mark.parametrize(("jetpack", "extras"), [*INSTALLED, ("5", "cpu")])
def test_everything_has_a_wheel(
    made: dict[str, Path], jetpack: str, extras: str, tmp_path: Path
) -> None:
    version, glibc = JETPACKS[jetpack]
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(glibc, 16, -1)]
    constraints, report = tmp_path / "constraints.txt", tmp_path / "report.json"
    constraints.write_text("\n".join(pins(version)))
    # pip reads markers of dependencies as those of its own Python.
    python = interpreters.find(version) or sys.executable
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", python, "install", "--quiet",
            "--disable-pip-version-check", "--dry-run", "--ignore-installed", "--target", tmp_path / "t",
            *platforms, "--python-version", version, "--only-binary", ":all:", "-c", constraints,
            "--report", report, f"{made['aarch64']}[{extras}]",
        ],
        check=True,
    )  # fmt: skip
    said = json.loads(report.read_text(encoding="utf-8"))["install"]
    files = {p["metadata"]["name"].lower(): p["download_info"]["url"] for p in said}
    assert all(url.endswith(".whl") for url in files.values())
    assert "numpy" in files
    assert ("onnxruntime" in files) == ("cpu" in extras)
    assert ("onnx" in files) == ("build" in extras)
    assert "tensorrt" not in files  # JetPack's own is used


def test_the_page_names_these_pythons() -> None:
    page = (ROOT / "docs" / "how-to" / "jetson.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for jetpack in "67":
        assert any(f"| {jetpack}." in row and JETPACKS[jetpack][0] in row for row in rows)
    assert f"uv venv --seed --python {JETPACKS['5'][0]} " in page
