"""Writing where a file that is open can be neither renamed nor removed, and where there are no locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platforms.systems import SYSTEMS, run

_WRITES = """
import os, sys, time
from pathlib import Path
from capsedge.errors import CapsedgeError
from capsedge.runtime.files import writing

place = Path("new.bin")
for content in (b"first\\r\\n\\n", b"second"):
    writing.write_bytes(place, content)
    assert place.read_bytes() == content
names = [Path(f".capsedge-{n}.tmp") for n in ("old", "fresh")]
for name in names:
    name.write_bytes(b"")
os.utime(names[0], (0, 0))
writing.write_bytes(place, b"third")
print(*(n.exists() for n in names))
try:
    writing.check_apart([place], [place])
except CapsedgeError as error:
    print(error.what)
try:
    writing.write_bytes("no/such", b"")
except CapsedgeError as error:
    print(error.what)
"""


@pytest.mark.parametrize("platform", SYSTEMS)
def test_files_are_replaced_whole(platform: str, tmp_path: Path) -> None:
    done = run(platform, "-c", f"__name__ = 'capsedge.x'\n{_WRITES}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    left, apart, nowhere = done.stdout.splitlines()
    # Without locks, only age tells that a temporary file is nobody's.
    assert left == ("False True" if platform == "win32" else "False False")
    assert "new.bin" in apart
    assert "no/such" in nowhere
    assert {p.name for p in tmp_path.iterdir()} <= {"new.bin", ".capsedge-fresh.tmp"}
