"""constraints.lock pins what constraints.txt pins, every package by hash."""

from __future__ import annotations

import re

from packaging.requirements import Requirement

from tests.conftest import ROOT


def test_lock_is_that_of_the_constraints() -> None:
    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    text = (ROOT / "constraints.lock").read_text()
    python = re.search(r"for Python (\S+) on", text)
    assert python is not None
    pins = [
        Requirement(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    wanted = {
        normal(pin.name): str(pin.specifier).removeprefix("==")
        for pin in pins
        if pin.marker is None or pin.marker.evaluate({"python_version": python[1]})
    }
    found = re.findall(r"^(\S+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert {normal(name): version for name, version in found} == wanted, "run python tools/lock.py"
    assert "://" not in text
    assert "--index" not in text
