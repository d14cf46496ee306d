"""Every supported Python can have all that the make targets install, at the versions they pin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement  # which pytest brings

from tests.conftest import ROOT
from tests.release import interpreters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def pins(version: str) -> list[str]:
    """The lines of the constraints that hold for a version, without their markers."""
    found = []
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            one = Requirement(line)
            if one.marker is None or one.marker.evaluate({"python_version": version}):
                found.append(f"{one.name}{one.specifier}")
    return found


def test_no_package_is_pinned_twice() -> None:
    for version in interpreters.supported():
        names = [p.split("==")[0].lower() for p in pins(version)]
        assert len(names) == len(set(names)), version


@pytest.mark.parametrize("version", interpreters.supported())
def test_wheels_of_all_pins_exist(version: str, tmp_path: Path) -> None:
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (35, 28, 27, 17, 12, 5)]
    command = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps",
        "--quiet", "--disable-pip-version-check", "--target", tmp_path, *platforms,
        "--python-version", version, "--only-binary", ":all:", *pins(version),
    ]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr[-2000:]
