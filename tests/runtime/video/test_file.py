"""Video files: every frame, at its time, in its colours; and what is refused."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="videos need PyAV: pip install 'capsedge[video]'")

import av

from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.video.frame_sources import VideoFile
from capsedge.runtime.video.frames import Frame
from capsedge.spec import limits
from tests.runtime.video.clips import HEIGHT, WIDTH, number_of, numbered, write_clip


def read(path: Path) -> list[Frame]:
    return list(VideoFile(path))


def noise(count: int) -> list[np.ndarray]:
    """Frames of which each takes as many bytes as any other."""
    return [np.random.default_rng(k).integers(0, 256, (64, 96, 3), np.uint8) for k in range(count)]


def until_error(path: Path) -> tuple[int, UsageError]:
    """The number of frames before the one error."""
    count, frames = 0, iter(VideoFile(path))
    with pytest.raises(UsageError) as caught:
        for count, _ in enumerate(frames, 1):  # noqa: B007
            pass
    return count, caught.value


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp4", "libx264"), ("c.mp4", "libx265"), ("a.avi", "mpeg4"), ("a.webm", "libvpx-vp9"),
     ("a.mov", "mjpeg"), ("a.mpg", "mpeg2video"), ("a.ts", "libx264"), ("b.mkv", "libsvtav1")],
)  # fmt: skip
def test_every_frame_is_given_in_order(name: str, codec: str, tmp_path: Path) -> None:
    larger = 4 if codec in ("libsvtav1", "libx265") else 1  # than the smallest that these encode
    frames = [np.kron(numbered(k), np.ones((larger, larger, 1), np.uint8)) for k in range(8)]
    pixel_format = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = write_clip(tmp_path / name, frames, codec, rate=25, pixel_format=pixel_format)
    assert [number_of(f.pixels[::larger, ::larger]) for f in read(path)] == list(range(8))


def test_what_a_frame_holds(tmp_path: Path) -> None:
    video = VideoFile(write_clip(tmp_path / "a.mp4", 3))
    assert video.rate is None
    frames = list(video)
    assert video.rate == pytest.approx(10)
    assert video.dropped == 0
    assert [f.index for f in frames] == [0, 1, 2]
    assert [f.seconds for f in frames] == pytest.approx([0, 0.1, 0.2])
    assert all(f.pixels.shape == (HEIGHT, WIDTH, 3) and f.decoding > 0 for f in frames)
    assert np.asarray(frames[0]) is frames[0].pixels
    assert np.asarray(frames[0], np.float32).dtype == np.float32


def test_times_of_a_variable_rate(tmp_path: Path) -> None:
    def times(k: int) -> float:
        return (0, 0.04, 0.5, 0.54, 2.0)[k]

    path = write_clip(tmp_path / "a.mkv", 5, times=times)
    assert [f.seconds for f in read(path)] == pytest.approx([times(k) for k in range(5)])


def test_sizes_may_change(tmp_path: Path) -> None:
    path, sizes = tmp_path / "a.avi", [(32, 48), (64, 96), (32, 48)]
    with av.open(path, "w") as file:
        stream = file.add_stream("mjpeg", rate=10)
        stream.height, stream.width, stream.pix_fmt = *sizes[0], "yuvj420p"
        for k, size in enumerate(sizes):
            encoder = av.CodecContext.create("mjpeg", "w")
            encoder.height, encoder.width, encoder.pix_fmt = *size, "yuvj420p"
            encoder.time_base = Fraction(1, 10)
            frame = av.VideoFrame.from_ndarray(numbered(k, size), format="rgb24")
            for packet in encoder.encode(frame.reformat(format="yuvj420p")):
                packet.stream, packet.pts, packet.dts = stream, k, k
                packet.time_base = Fraction(1, 10)
                file.mux(packet)
    frames = read(path)
    assert [f.pixels.shape[:2] for f in frames] == sizes
    assert [number_of(f.pixels) for f in frames] == [0, 1, 2]


def test_frames_are_turned_upright(tmp_path: Path) -> None:
    """As telephones record: the display matrix of the track header says how to turn them."""
    path = write_clip(tmp_path / "a.mp4", 2)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40  # the matrix, version 0 of the box
    one, zero = (1 << 16).to_bytes(4, "big"), bytes(4)
    minus = (-(1 << 16) & 0xFFFFFFFF).to_bytes(4, "big")
    data[at : at + 20] = zero + one + zero + minus + zero  # a quarter clockwise
    path.write_bytes(data)
    pixels = read(path)[1].pixels
    assert pixels.shape == (WIDTH, HEIGHT, 3)
    assert number_of(pixels.transpose(1, 0, 2)) == 1  # what was left is above


SPACES = {"bt709": 1, "smpte170m": 6}


@pytest.mark.parametrize(
    ("matrix", "full", "height"),
    [("bt709", False, 64), ("bt709", True, 64), ("smpte170m", False, 64), ("smpte170m", True, 64),
     (None, False, 64), (None, False, 720)],
)  # fmt: skip
def test_colours_are_those_of_the_stated_matrix_and_range(
    matrix: str | None, full: bool, height: int, tmp_path: Path
) -> None:
    """A file of one YCbCr value, against the arithmetic of the standards."""
    y, cb, cr = 120, 90, 180
    planes = np.concatenate(
        [np.full(64 * height, y), np.full(16 * height, cb), np.full(16 * height, cr)]
    )
    frame = av.VideoFrame.from_ndarray(
        planes.astype(np.uint8).reshape(height * 3 // 2, 64), format="yuv420p"
    )
    path = tmp_path / "a.mkv"
    with av.open(path, "w") as file:
        stream = file.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, height, "yuv420p"
        if matrix is not None:
            stream.codec_context.colorspace = SPACES[matrix]
        stream.codec_context.color_range = 2 if full else 1
        frame.pts = 0
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    hd = matrix == "bt709" or (matrix is None and height >= 720)
    red, blue = (0.2126, 0.0722) if hd else (0.299, 0.114)
    luma = y / 255 if full else (y - 16) / 219
    u, v = ((c - 128) / (255 if full else 224) for c in (cb, cr))
    wanted = [
        luma + 2 * (1 - red) * v,
        luma - (2 * blue * (1 - blue) * u + 2 * red * (1 - red) * v) / (1 - red - blue),
        luma + 2 * (1 - blue) * u,
    ]
    found = read(path)[0].pixels.reshape(-1, 3)
    assert np.abs(found - np.clip(np.array(wanted) * 255, 0, 255)).max() <= 2


def test_a_predicted_frame_is_the_image(tmp_path: Path) -> None:
    import capsedge

    frame = next(iter(VideoFile(write_clip(tmp_path / "a.mp4", 1))))
    with capsedge.load() as session:
        assert session.predict(frame)[0].scores.tolist() == (
            session.predict(frame.pixels)[0].scores.tolist()
        )
        streamed = list(session.stream(VideoFile(tmp_path / "a.mp4")))
        assert [p.scores.tolist() for p in streamed] == [session.predict(frame)[0].scores.tolist()]


# --- What is refused ---


def test_a_video_is_no_image(tmp_path: Path) -> None:
    from capsedge.runtime.images.decoding import read_image

    with pytest.raises(UsageError, match=r"Videos go to capsedge\.VideoFile"):
        read_image(write_clip(tmp_path / "a.mp4", 1))


def test_a_file_that_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"text" * 100)
    with pytest.raises(UsageError, match=r"cannot be read as a video\.\nThe decoder reports"):
        read(path)
    with pytest.raises(UsageError, match="There is no such file"):
        read(tmp_path / "missing.mp4")


@pytest.mark.parametrize(
    ("content", "named"), [(b"", "empty"), (b"\x89PNG\r\n\x1a\n" + bytes(99), "an image")]
)
def test_a_file_of_another_kind_is_named(content: bytes, named: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"The file is {named}"):
        read(path)


@pytest.mark.parametrize("text", ["#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{other}\n#EXT-X-ENDLIST\n",
                                  "ffconcat version 1.0\nfile {other}\n"])  # fmt: skip
def test_a_playlist_is_not_followed(text: str, tmp_path: Path) -> None:
    other = write_clip(tmp_path / "other.ts", 2, rate=25)
    path = tmp_path / "list.mp4"
    path.write_text(text.format(other=other))
    with pytest.raises(UsageError, match="cannot be read as a video"):
        read(path)


def test_a_file_without_video(tmp_path: Path) -> None:
    path = tmp_path / "sound.mp4"
    with av.open(path, "w") as file:
        stream = file.add_stream("aac", rate=8000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        sound.sample_rate = 8000
        file.mux(stream.encode(sound))
        file.mux(stream.encode())
    with pytest.raises(UsageError, match="It has no video"):
        read(path)


def test_a_codec_that_is_not_read(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mov", 2, "png", pixel_format="rgb24")
    with pytest.raises(UsageError, match=r"Its codec, png, is not read"):
        read(path)


def test_a_title_in_another_encoding(tmp_path: Path) -> None:
    """It is not needed, so it does no harm."""
    path = tmp_path / "a.mkv"
    with av.open(path, "w") as file:
        file.metadata["title"] = "Kapseln:AEOEUE"
        stream = file.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        file.mux(stream.encode(av.VideoFrame.from_ndarray(numbered(1), format="rgb24")))
        file.mux(stream.encode())
    path.write_bytes(path.read_bytes().replace(b"AEOEUE", "ÄÖÜäöü".encode("latin-1")))
    assert [number_of(f.pixels) for f in read(path)] == [1]


def test_a_video_without_frames(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.avi", 2, "mpeg4")
    data = bytearray(path.read_bytes())
    start = data.index(b"movi") + 4
    path.write_bytes(data[:start])
    count, error = until_error(path)
    assert count == 0
    assert error.why == "It has no frames." or "The file ends after 0 of 2 frames." in error.why


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [("a.mp4", "libx264", {"movflags": "faststart"}), ("a.mkv", "libx264", {}), ("a.avi", "mpeg4", {})],
)  # fmt: skip
def test_a_file_that_ends_early_gives_what_it_has(
    name: str, codec: str, options: dict[str, str], tmp_path: Path
) -> None:
    path = write_clip(tmp_path / name, noise(12), codec, options=options)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    count, error = until_error(path)
    assert 2 <= count <= 10
    assert error.what == f"{path} cannot be read beyond frame {count - 1}."


def test_damage_in_the_middle_ends_it_with_one_error(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", noise(12), "libx264")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 400] = bytes(255 - b for b in data[middle : middle + 400])
    path.write_bytes(data)
    count, error = until_error(path)
    assert 2 <= count <= 10
    assert error.what == f"{path} cannot be read beyond frame {count - 1}."


def test_frames_that_are_too_large(tmp_path: Path) -> None:
    """The size is in the header of the JPEG; its pixels are not allocated."""
    side = math.isqrt(limits.VIDEO_PIXELS) + 64
    path = write_clip(tmp_path / "a.avi", 2, "mjpeg", pixel_format="yuvj420p")
    data = path.read_bytes()
    size = b"\xff\xc0\x00\x11\x08" + HEIGHT.to_bytes(2, "big") + WIDTH.to_bytes(2, "big")
    assert size in data
    path.write_bytes(data.replace(size, size[:5] + side.to_bytes(2, "big") * 2))
    with pytest.raises(UsageError, match="cannot be read as a video") as caught:
        read(path)
    assert "too large" in caught.value.why or "Invalid" in caught.value.why


def test_more_frames_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VIDEO_FRAMES", 3)
    count, error = until_error(write_clip(tmp_path / "a.mp4", 5))
    assert (count, error.why) == (3, "It has over 3 frames.")


def test_without_pyav(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "a.mp4", 1)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(EnvironmentProblem, match="need PyAV") as caught:
        read(path)
    assert caught.value.fix == "pip install 'capsedge[video]'"


def test_an_iteration_that_stops_ends_the_process(tmp_path: Path) -> None:
    frames = iter(VideoFile(write_clip(tmp_path / "a.mp4", 40)))
    assert next(frames).index == 0
    frames.close()  # type: ignore[attr-defined]
    assert list(frames) == []
