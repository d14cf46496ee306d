"""Every command where Python has only what macOS or Windows gives it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.platforms.systems import SYSTEMS, lacking, run
from tests.test_installed import VERBS, data

__all__ = ["data"]
_QUICK = {"infer", "inspect", "doctor", "config"}


@pytest.mark.sample(4)
@pytest.mark.parametrize("platform", SYSTEMS)
@pytest.mark.parametrize(
    "verb", [v if v in _QUICK else pytest.param(v, marks=pytest.mark.slow) for v in VERBS]
)
def test_every_verb(
    verb: str, platform: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    words, code = VERBS[verb]
    if any("{data}" in word for word in words):
        words = [w.replace("{data}", str(request.getfixturevalue("data"))) for w in words]
    done = run(platform, "-m", "capsedge", *(w.format(out=tmp_path) for w in words), cwd=ROOT)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob(".capsedge-*"))


SERVING = """
import os, signal, threading, urllib.request
import capsedge

def ready(serving, address):
    def ask():
        with urllib.request.urlopen(f"http://127.0.0.1:{address.ports.rest}/v2/health/ready") as answer:
            print(answer.status, flush=True)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=ask).start()

print(capsedge.serve("digits-em", port=0, grpc_port=0, metrics_port=0, batch=1, ready=ready) == signal.SIGINT)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("platform", SYSTEMS)
def test_the_server_starts_answers_and_stops(platform: str, tmp_path: Path) -> None:
    """The event loops of Windows have no handlers of signals, and uvloop does not support it."""
    pytest.importorskip("uvicorn")
    done = run(platform, "-c", SERVING, cwd=tmp_path)
    assert done.stdout.split() == ["200", "True"], done.stderr


@pytest.mark.thorough
def test_doctor_says_what_the_machine_is(tmp_path: Path) -> None:
    done = run("win32", "-m", "capsedge", "doctor", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert said["ready"]
    assert said["machine"]["architecture"] == "AMD64"
    assert said["machine"]["system"].startswith("Windows")


@pytest.mark.parametrize(
    "line",
    [
        "import fcntl",
        "import os; os.geteuid()",
        "from os import fork",
        "from signal import SIGKILL",
        "import os; os.O_NONBLOCK",
        "open('/proc/self/status', 'rb')",
        "open('here.txt', 'w')",
        "import os; f = open('here', 'wb'); os.replace('here', 'there')",
    ],
)
def test_what_windows_lacks_is_missed(line: str, tmp_path: Path) -> None:
    """These tests would fail if the package did such a thing; other packages still may."""
    for name, fails in (("capsedge.x", True), ("other", "/proc" in line)):
        code = f"exec(compile({line!r}, 'x', 'exec'), {{'__name__': {name!r}}})"
        done = run("win32", "-c", code, cwd=tmp_path)
        assert (done.returncode != 0) == fails, done.stderr


def test_the_lists_are_of_this_python() -> None:
    assert {"geteuid", "fork", "O_NOFOLLOW", "statvfs"} <= set(lacking("win32")["os"])
    assert "sched_getaffinity" in lacking("darwin")["os"]
    assert "geteuid" not in lacking("darwin")["os"]
    assert "SIGHUP" in lacking("win32")["signal"]
    assert "ENOSPC" not in lacking("win32")["errno"]
