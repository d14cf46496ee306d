"""Ten thousand frames take the memory of a thousand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="videos need PyAV: pip install 'capsedge[video]'")
import capsedge
from capsedge.runtime.video.follow import Pace, follow
from capsedge.runtime.video.frame_sources import VideoFile
from capsedge.runtime.video.outputs import open_output
from tests.runtime.video.clips import numbered, write_clip

FRAMES = 10_000


def resident(process: int) -> int:
    """Bytes of a process in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def children() -> list[int]:
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    return [int(n) for task in tasks for n in (task / "children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_memory_stays_flat(tmp_path: Path) -> None:
    pictures = [numbered(k % 12, (48, 64)) for k in range(48)]
    path = write_clip(tmp_path / "long.mp4", [pictures[k % 48] for k in range(FRAMES)], rate=25)
    pace = Pace()

    def measured() -> Iterator[tuple[int, int]]:
        for seen in follow(session, VideoFile(path), pace):
            assert seen.frame is not None
            assert seen.prediction is not None
            output.write("", seen.frame, seen.prediction, {})
            if pace.frames % 1000 == 900:  # at the end, the decoder has gone
                yield resident(os.getpid()), max(map(resident, children()))

    with (
        capsedge.load(threads=1) as session,
        open_output(tmp_path / "out.mp4", lambda: 25) as output,
    ):
        own, decoder = np.array(list(measured())).T >> 20
    print(f"{pace.rate:.0f} frames per second; MiB after each thousand: {own}, decoder {decoder}")
    assert pace.frames == FRAMES
    assert own[-1] - own[0] <= 8
    assert decoder[-1] - decoder[0] <= 8
