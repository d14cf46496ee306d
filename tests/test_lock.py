"""constraints.lock pins what constraints.txt pins, every package by hash."""

from __future__ import annotations

import re

from tests.conftest import ROOT


def test_lock_is_that_of_the_constraints() -> None:
    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    wanted = {
        normal(line.split("==")[0]): line.split("==")[1].strip()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    text = (ROOT / "constraints.lock").read_text()
    found = re.findall(r"^(\S+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert {normal(name): version for name, version in found} == wanted, "run python tools/lock.py"
    assert "http" not in text
    assert "--index" not in text
