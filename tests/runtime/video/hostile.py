"""Videos under fuzz: what reads them, what they are made from, and files that would do harm."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np

from capsedge.runtime.video.frame_sources import VideoFile
from capsedge.spec import limits
from tests.runtime.video.clips import write_clip

_CLIPS = (
    ("mp4", "libx264", "yuv420p", {"movflags": "faststart"}),
    ("mp4", "mpeg4", "yuv420p", {"movflags": "frag_keyframe+empty_moov"}),
    ("matroska", "libx264", "yuv420p", {}),
    ("webm", "libvpx-vp9", "yuv420p", {}),
    ("avi", "mjpeg", "yuvj420p", {}),
    ("mpegts", "mpeg2video", "yuv420p", {}),
    ("matroska", "ffv1", "yuv420p", {}),
    ("ogg", "libvpx", "yuv420p", {}),
)  # fmt: skip


def read(folder: Path, data: bytes) -> int:
    """Read all frames; their number."""
    path = folder / "clip.mp4"
    path.write_bytes(data)
    return sum(1 for _ in VideoFile(path))


@cache
def seeds() -> tuple[bytes, ...]:
    """A small clip of each kind."""
    return tuple(_clip(*kind) for kind in _CLIPS)


def _clip(container: str, codec: str, pixels: str, options: dict[str, str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip"
        write_clip(
            path, 12, codec, rate=25, container=container, pixel_format=pixels, options=options
        )
        return path.read_bytes()


def mutants(count: int, seed: int) -> Iterable[bytes]:
    """Seeds that are cut, overwritten, or put together anew."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        data = bytearray(seeds()[random.integers(len(seeds()))])
        for _ in range(random.integers(1, 12)):
            at, kind = int(random.integers(len(data))), random.integers(5)
            if kind == 0:
                data[at] = random.integers(256)
            elif kind == 1:
                data[at : at + 4] = random.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"])
            elif kind == 2:
                del data[at : at + int(random.integers(1, 64))]
            elif kind == 3:
                data[at:at] = data[int(random.integers(len(data))) :][: int(random.integers(1, 64))]
            else:
                data[at : at + 8] = random.bytes(8)
        if random.integers(4) == 0:
            del data[int(random.integers(len(data))) :]
        yield bytes(data)


def hostile() -> dict[str, bytes]:
    """Files that claim what they do not have."""
    mp4, _, mkv, _, avi, *_ = seeds()
    side = 2 * int(limits.VIDEO_PIXELS**0.5)
    many = struct.pack(">I", 2**32 - 1)
    cluster = b"\x1f\x43\xb6\x75"
    table = mp4.index(b"stsz")
    return {
        "samples of 4 billion": mp4[: table + 12] + many + mp4[table + 16 :],
        "a sample of 2 GB": mp4[: table + 16] + b"\x7f\xff\xff\xff" + mp4[table + 20 :],
        "a box of 2**63 bytes": b"\0\0\0\1moov" + struct.pack(">Q", 2**63 - 1) + mp4[32:],
        "boxes in boxes": b"\0\0\xff\xffmoov" * 5000 + mp4,
        "an element of 2**56 bytes": mkv.replace(cluster, cluster + b"\x01" + b"\xff" * 7, 1),
        "a frame that is too large": avi.replace(
            b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 32, 48),
            b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", min(side, 65535), min(side, 65535)),
        ),
        "a frame of 65535 x 65535": avi.replace(
            b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 32, 48), b"\xff\xc0\x00\x11\x08" + b"\xff" * 4
        ),
        "no time": avi[:32] + bytes(4) + avi[36:],
        "a playlist": b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        "a list of files": b"ffconcat version 1.0\nfile /etc/passwd\n",
        "a session": b"v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n",
        "one frame, again and again": seeds()[5] * 200,
        "nothing": b"",
    }  # fmt: skip
