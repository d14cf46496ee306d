"""Frames per second of a clip, decoded in the sandbox, against PyAV in the same process.

    python -m benchmarks.moving_pictures [--model digits-dynamic] [--sizes 320x240,1280x720] [--frames 300]

Both predict every frame of a clip drawn here, in turns. Prints, for each size, the median frames per second
of both, their ratio, and the share of each step in ours.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import av
import numpy as np
from PIL import Image

import capsedge
from benchmarks.common import machine
from capsedge.runtime.video.follow import Pace, follow

DIGIT = Path(__file__).resolve().parents[1] / "capsedge/zoo/samples/digit-7.png"


def draw(path: Path, width: int, height: int, frames: int) -> None:
    """A digit that moves from side to side, as H.264."""
    digit = np.asarray(Image.open(DIGIT).convert("RGB").resize((height, height)))
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for k in range(frames):
            picture = np.zeros((height, width, 3), np.uint8)
            start = round((width - height) / 2 * (1 + np.sin(k / 10)))
            picture[:, start : start + height] = digit
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())


def ours(session: capsedge.Session, path: Path) -> Pace:
    """The pace in the sandbox."""
    pace = Pace()
    for _ in follow(session, capsedge.VideoFile(path), pace):
        pass
    return pace


def plain(session: capsedge.Session, path: Path) -> float:
    """Frames per second without: one after another, in this process."""
    started, count = time.perf_counter(), 0
    with av.open(str(path)) as file:
        file.streams.video[0].codec_context.thread_count = 1
        for frame in file.decode(video=0):
            session.predict(frame.to_ndarray(format="rgb24"), layout="HWC")
            count += 1
    return count / (time.perf_counter() - started)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="digits-dynamic")
    parser.add_argument("--sizes", default="320x240,1280x720")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"{machine()['cpu']}, {given.model}, {given.frames} frames")
    with capsedge.load(given.model) as session, tempfile.TemporaryDirectory() as folder:
        for size in given.sizes.split(","):
            width, height = map(int, size.split("x"))
            path = Path(folder) / f"{size}.mp4"
            draw(path, width, height, given.frames)
            rounds = [(ours(session, path), plain(session, path)) for _ in range(given.rounds)]
            rates = [
                statistics.median(r) for r in zip(*((p.rate, q) for p, q in rounds), strict=True)
            ]
            ratio = statistics.median(p.rate / q for p, q in rounds)
            steps = {
                s: statistics.median(p.share(s) for p, _ in rounds) for s in rounds[0][0].steps
            }
            shares = ", ".join(f"{name} {share:.0%}" for name, share in steps.items() if share)
            print(
                f"{size}: {rates[0]:.1f} frames per second, PyAV alone {rates[1]:.1f}, "
                f"ratio {ratio:.2f}; {shares}"
            )


if __name__ == "__main__":
    main()
