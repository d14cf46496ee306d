"""Commands in a process that may use little memory end with the reason, whatever fails first."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from capsedge.cli import _memory
from tests.conftest import ROOT
from tests.tables import table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")

COMMANDS = {
    "help": ["--help"],
    "help of a verb": ["infer", "--help"],
    "inspect": ["inspect", str(ROOT / "capsedge/zoo/digits-small.onnx")],
    "infer": ["infer", str(ROOT / "capsedge/zoo/samples/digit-0.png")],
}  # fmt: skip


def outcome(mebibytes: int, command: list[str]) -> tuple[int, str]:
    most = mebibytes << 20
    done = subprocess.run(
        [sys.executable, "-m", "capsedge", *command],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_too_little_to_start_a_verb(name: str) -> None:
    code, said = outcome(100, COMMANDS[name])
    if name.startswith("help"):
        assert (code, said) == (0, "")
    else:
        assert code == 3
        assert said.startswith("error: There is not enough memory.\nThis process may use 100 MiB")


@pytest.mark.thorough
@table(
    "mebibytes, name", [(m, n) for m in (17, 20, 40, 130, 270, 290, 600, 1200) for n in COMMANDS]
)
def test_every_limit(mebibytes: int, name: str) -> None:
    code, said = outcome(mebibytes, COMMANDS[name])
    assert code in (0, 3), said
    assert code == 0 or f"may use {mebibytes:,} MiB" in said
    assert "Traceback" not in said


def test_what_is_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory, "LIMIT", None)
    assert _memory.is_cause(MemoryError())
    assert _memory.is_cause(OSError(12, "Cannot allocate memory"))
    assert not _memory.is_cause(ImportError("failed to map segment"))
    monkeypatch.setattr(_memory, "LIMIT", 300 << 20)
    assert _memory.is_cause(ImportError("failed to map segment"))
    assert _memory.is_cause(RuntimeError("can't start new thread"))
    assert not _memory.is_cause(ModuleNotFoundError("No module named 'torch'"))
    assert not _memory.is_cause(ValueError())
