"""Outputs are whole or absent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files import replacing, sha256, write_bytes, write_text


def test_writes_and_replaces(tmp_path: Path):
    target = tmp_path / "a"
    write_bytes(target, b"one")
    write_text(target, "zwei: ü")
    assert target.read_text(encoding="utf-8") == "zwei: ü"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_mode_is_that_of_open(tmp_path: Path):
    write_bytes(tmp_path / "ours", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("failure", [RuntimeError("bug"), KeyboardInterrupt()])
def test_failure_inside_keeps_the_old_file(tmp_path: Path, failure: BaseException):
    target = tmp_path / "a"
    target.write_text("old")
    with pytest.raises(type(failure)), replacing(target) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise failure
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_full_disk(tmp_path: Path):
    with (  # noqa: PT012
        pytest.raises(EnvironmentProblem, match="No space left"),
        replacing(tmp_path / "a") as temporary,
    ):
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_nowhere(tmp_path: Path):
    for target in (tmp_path / "none" / "a", tmp_path):
        with pytest.raises(UsageError, match="Cannot write"):
            write_bytes(target, b"")


def test_sha256(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256(tmp_path / "a") == digest
