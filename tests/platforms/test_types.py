"""No line of the package names what a system lacks, outside a test for that system: mypy with its stubs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.platforms.systems import SYSTEMS

pytestmark = pytest.mark.slow


def checked(platform: str, *what: str | Path, cache: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--platform", platform, "--cache-dir", cache, *what]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("platform", SYSTEMS)
def test_the_package_is_typed_for_the_system(platform: str, tmp_path: Path) -> None:
    done = checked(platform, "-p", "capsedge", cache=tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_call_that_windows_lacks_is_reported(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import os\n\nprint(os.geteuid())\n")
    assert 'no attribute "geteuid"' in checked("win32", bad, cache=tmp_path).stdout
