"""Decode a video, in a process that `capsedge.runtime.files.sandbox` starts.

FFmpeg's demuxers and decoders read the file through its open descriptor. Playlists and other formats that
name further files are not among the demuxers; what slips through can open nothing.

The output is a sequence of messages: a `HEADER` each, followed by pixels or text.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any, BinaryIO

from capsedge.runtime.files.sandbox import enter_sandbox, forbid_new_files
from capsedge.spec import limits

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

# Kind, three whole numbers, two floating-point numbers.
HEADER = struct.Struct("<4sIIIdd")
STREAM = b"strm"  # -, -, -, average frames per second or NaN, -
PICTURE = b"pict"  # width, height, quarter turns to the left; seconds or NaN, seconds spent on it
END = b"end "  # all frames were read
REFUSED = b"refu"  # bytes of a text that follows: why the video cannot be read, or not any further
LACKING = b"lack"  # the same: why PyAV cannot be used

FORMATS = "avi,asf,flv,matroska,webm,mov,mp4,mpeg,mpegts,mpegvideo,ogg"
CODECS = (
    "ffv1,flv,h263,h264,hevc,libdav1d,libtheora,libvpx,libvpx-vp9,mjpeg,mpeg1video,mpeg2video,mpeg4,"
    "msmpeg4,prores,rawvideo,theora,vc1,vp8,vp9,wmv1,wmv2,wmv3"
)
_UNSPECIFIED, _BT709 = 2, 1  # of AVColorSpace
_HD = 720  # from this number of lines on, a video that does not state its matrix has BT.709
_SHORT = 0.25  # seconds that a whole file may end before its stated length
_NAN = float("nan")


class VideoRefused(Exception):
    """The video cannot be read, or not any further."""


class Descriptor:
    """The video on standard input, as a file object for FFmpeg."""

    def read(self, size: int) -> bytes:
        return os.read(0, size)

    def seek(self, offset: int, whence: int) -> int:
        return os.lseek(0, offset, whence)

    def tell(self) -> int:
        return os.lseek(0, 0, os.SEEK_CUR)


def main() -> None:
    """Decode the video on standard input, within the limits given as arguments."""
    enter_sandbox()
    answer = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # libraries print
    try:
        av = _all_of_pyav()
        forbid_new_files()
        options = {"format_whitelist": FORMATS, "codec_whitelist": CODECS}
        with av.open(Descriptor(), options=options, metadata_errors="replace") as container:
            _send(container, answer)
        answer.write(HEADER.pack(END, 0, 0, 0, 0.0, 0.0))
    except VideoRefused as refusal:
        _say(answer, REFUSED, str(refusal))
    except ImportError as error:
        _say(answer, LACKING, f"{error}")
    except MemoryError:
        _say(answer, REFUSED, "it needs too much memory")
    except Exception as error:  # PyAV raises many kinds, none of them ours
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        _say(answer, REFUSED, f"the decoder reports: {reason}")


def _all_of_pyav() -> Any:
    """PyAV, with all that it imports only for some files, before the sandbox closes."""
    import av
    import numpy  # noqa: F401

    for module in walk_packages(av.__path__, "av."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    av.logging.set_level(None)
    return av


def _say(answer: BinaryIO, kind: bytes, text: str) -> None:
    encoded = text.encode(errors="replace")[:500]
    _write(answer, HEADER.pack(kind, len(encoded), 0, 0, 0.0, 0.0))
    _write(answer, encoded)


def _send(container: InputContainer, answer: BinaryIO) -> None:
    """Write the frames of the main video stream."""
    import numpy as np
    from av.video.reformatter import VideoReformatter
    from av.video.stream import VideoStream

    reformatter = VideoReformatter()
    stream = container.streams.best("video")
    if not isinstance(stream, VideoStream):
        raise VideoRefused("it has no video")
    context = stream.codec_context
    if context is None or context.codec.name not in CODECS.split(","):
        raise VideoRefused(f"its codec, {stream.name or 'unknown'}, is not read")
    context.thread_count = 1
    context.options = {"max_pixels": str(limits.VIDEO_PIXELS)}
    _check_size(context.width, context.height)
    rate = float(stream.average_rate or _NAN)
    _write(answer, HEADER.pack(STREAM, 0, 0, 0, rate, 0.0))
    started, count = time.perf_counter(), 0
    for frame in _frames(container, stream):
        if frame.is_corrupt:
            if count:
                raise VideoRefused("a frame is damaged")
            continue  # a recording may begin between two key frames
        _check_size(frame.width, frame.height)
        guessed = frame.colorspace == _UNSPECIFIED and frame.height >= _HD
        pixels = reformatter.reformat(
            frame, format="rgb24", src_colorspace=_BT709 if guessed else None
        ).to_ndarray()
        turns, moment = round(frame.rotation / 90) % 4, frame.time
        spent = time.perf_counter() - started
        _write(
            answer,
            HEADER.pack(
                PICTURE, frame.width, frame.height, turns, _NAN if moment is None else moment, spent
            ),
        )
        _write(answer, np.ascontiguousarray(pixels))  # FFmpeg pads its rows
        started, count = time.perf_counter(), count + 1
    if not count:
        raise VideoRefused("it has no frames")


def _frames(container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    """The frames, and then a refusal if the file ends before it should."""
    packets, end = 0, 0.0
    for packet in container.demux():
        base, moment = packet.time_base, packet.pts
        if moment is not None and base is not None:
            end = max(end, float((moment + (packet.duration or 0)) * base))
        if packet.stream is stream:
            packets += packet.size > 0 or moment is not None
            yield from stream.decode(packet)
    name = container.format.name
    # MOV reports an error of its own, MPEG states no length.
    if "avi" in name and packets < stream.frames:
        raise VideoRefused(f"the file ends after {packets} of {stream.frames} frames")
    stated = (container.duration or 0) / 1e6
    if "matroska" in name and stated - end > max(_SHORT, stated / 100):
        raise VideoRefused(f"the file ends after {end:.1f} of {stated:.1f} seconds")


def _check_size(width: int, height: int) -> None:
    """Refuse frames that are too large, before they are allocated."""
    if width * height > limits.VIDEO_PIXELS or max(width, height) > limits.IMAGE_SIDE:
        raise VideoRefused(f"its frames of {width}x{height} pixels are too large")


def _write(answer: BinaryIO, data: Any) -> None:
    """Write all of it: to a pipe, a single call may write a part."""
    rest = memoryview(data).cast("B")
    while len(rest):
        rest = rest[answer.write(rest) :]


if __name__ == "__main__":
    main()
