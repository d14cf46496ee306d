"""What once did harm stays harmless: every reader, its seeds, and inputs made to break it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import folder_mutants, onnx_mutants
from tests.fuzz.hostile import HOSTILE
from tests.fuzz.readers import READERS, check

WATCHDOG = 300  # seconds for all inputs of a reader, on a busy machine
SMALL = 20_000  # bytes of an input that the fast tier reads
# Readers whose hostile inputs are made in a moment.
QUICK = (
    "config",
    "onnx",
    "engine_metadata",
    "metadata",
    "key map",
    "repository",
    "table",
)


@pytest.fixture(scope="module", autouse=True)
def _optimizer() -> None:
    """PyTorch imports a compiler, a second's work, when the first optimizer's state is made or read."""
    reader = READERS["state"]
    check(reader, next(iter(reader.seeds())))


def test_every_reader_has_hostile_inputs() -> None:
    assert HOSTILE.keys() == READERS.keys()


@pytest.mark.parametrize("part", range(8))
def test_a_few_damaged_files(part: int) -> None:
    """Of every reader: what it reads, half of it, nothing, and it with another byte."""
    failed = []
    for name, reader in list(READERS.items())[part::8]:
        inputs = []
        for seed in list(reader.seeds())[:1]:
            at = len(seed) // 3
            inputs += [seed, seed[: len(seed) // 2], b"", seed[:at] + b"\xff" + seed[at + 1 :]]
        if name in QUICK:
            inputs += [data for data in HOSTILE[name]().values() if len(data) < SMALL]
        for number, data in enumerate(inputs):
            try:
                check(reader, data)
            except Exception as error:
                failed.append(f"{name}, input {number}: {error!r}")
    assert failed == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", READERS)
def test_hostile_inputs(name: str) -> None:
    """In a process of its own, which a crash ends, and whose memory is its own."""
    command = [sys.executable, "-m", "tests.fuzz.replay", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, check=False)
    failed = [line for line in done.stdout.splitlines() if "FAILED" in line]
    assert (done.returncode, failed) == (0, []), done.stderr[-2000:]


def test_a_mutant_that_once_was_a_bug(tmp_path: Path) -> None:
    """Poses of other classes than its scores, which `reshape` refused with exit code 1."""
    onnx_mutants.prepare(tmp_path)
    content, side = onnx_mutants.mutant(30, onnx_mutants.seeds())
    path = tmp_path / "mutant.onnx"
    path.write_bytes(content)
    for words in onnx_mutants.words_of(30, path, side):
        assert onnx_mutants.judge(words) == ""


@pytest.mark.thorough
def test_damaged_folders_of_c(tmp_path: Path) -> None:
    """The first mutants of `verify FOLDER`: every kind of damage is among them."""
    folder_mutants.prepare(tmp_path)
    failed = [folder_mutants.judge(folder_mutants.mutate(k, tmp_path)) for k in range(12)]
    assert not any(failed), failed
