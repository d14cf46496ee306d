"""Chromium, played by puppeteer: one case a process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.web import browser, package

SCRIPT = Path(__file__).with_name("browser.mjs")
SITE = ROOT / "capsedge" / "deploy" / "site"
SECONDS = 500


def missing() -> str:
    """What the tests lack, and the command that installs it; empty if they can run."""
    built = (SITE / "index.html").is_file()
    return (
        package.missing()
        or browser.missing()
        or ("" if built else "needs the built page: make web")
    )


def play(name: str, url: str, ready: Callable[[], None] | None = None, **options: Any) -> Any:
    """What a case of ``browser.mjs`` saw; the page broke no policy and complained about nothing.

    Args:
        ready: called when the case says that it is; it goes on afterwards.
    """
    given = {"url": url, "browser": browser.chromium(), "modules": str(package.WEB), **options}
    with subprocess.Popen(
        ["node", str(SCRIPT), name, json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        if ready is not None:
            assert running.stdout.readline() == "ready\n"
            ready()
            running.stdin.write("go on\n")
            running.stdin.flush()
        said, _ = running.communicate(timeout=SECONDS)
        assert running.returncode == 0
    seen = json.loads(said)
    assert seen.pop("violations") == []
    assert seen.pop("complaints") == []
    return seen
