"""Damaged and hostile videos end with an error of the package, and nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

pytest.importorskip("av", reason="videos need PyAV: pip install 'capsedge[video]'")

from capsedge.errors import UsageError
from tests.runtime.video import hostile

pytestmark = pytest.mark.thorough
MUTANTS = 48


def outcome(folder: Path, data: bytes) -> str:
    """Why it was refused; empty if it was read. Any other error is a finding."""
    try:
        hostile.read(folder, data)
    except UsageError as error:
        return error.why
    return ""


def test_seeds_are_whole(tmp_path: Path) -> None:
    assert [hostile.read(tmp_path, data) for data in hostile.seeds()] == [12] * 8


def test_hostile_files(tmp_path: Path) -> None:
    found = {name: outcome(tmp_path, data) for name, data in hostile.hostile().items()}
    read = {name for name, why in found.items() if not why}
    assert read == {"no time", "one frame, again and again"}
    assert not [name for name, why in found.items() if "unexpectedly" in why or "took over" in why]


@pytest.mark.parametrize("seed", range(4))
def test_mutants(seed: int, tmp_path: Path) -> None:
    """A crash of a decoder would be contained; none is known."""
    whys = [outcome(tmp_path, data) for data in hostile.mutants(MUTANTS // 4, seed)]
    assert not [why for why in whys if "unexpectedly" in why or "Error:" in why]
    assert any(whys)


def test_a_process_that_lies_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers with sizes beyond the limits, as from a process that a file has taken over."""
    from capsedge.runtime.video import decoding_worker as worker
    from capsedge.runtime.video import frame_sources

    path = tmp_path / "a.mp4"
    path.write_bytes(b"any")
    large = worker.HEADER.pack(worker.PICTURE, 1 << 31, 1 << 31, 0, 0.0, 0.0)
    for header in (large, worker.HEADER.pack(b"????", 0, 0, 0, 0.0, 0.0), b"short"):
        program = f"import os; os.write(1, {header!r})"
        (tmp_path / "liar.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with monkeypatch.context() as changed, contextlib.suppress(StopIteration):
            changed.setattr(frame_sources.worker, "__name__", "liar")
            with pytest.raises(UsageError, match="The decoder ended unexpectedly"):
                next(iter(frame_sources.VideoFile(path)))
