"""smallNORB and SVHN as fuzz targets: their readers, seeds, and inputs made to break them."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.datasets.foreign_files import element, mat_file, matrix, norb_file

_NAME = "smallnorb-5x46789x9x18x6x2x96x96-training"


def read_svhn(folder: Path, data: bytes) -> None:
    """A file; after the byte 1, one element, which is packed."""
    from capsedge.datasets import svhn

    path = folder / "train_32x32.mat"
    path.write_bytes(mat_file(data[1:]) if data[:1] == b"\1" else data)
    images, digits = svhn.read(path)
    assert images.shape == (len(digits), 32, 32, 3)
    assert svhn.read(path, 1)[0].shape == images[:1].shape


def svhns() -> Iterable[bytes]:
    """Files of SVHN."""
    images, digits = matrix("X", np.zeros((32, 32, 3, 2), np.uint8)), np.array([[1], [10]])
    for kind in ("uint8", "float64"):
        for packed in (False, True):
            yield mat_file(images, matrix("y", digits.astype(kind)), packed=packed)
    yield b"\1" + matrix("y", digits.astype(np.int32))


def hostile_svhns() -> dict[str, bytes]:
    """Files that claim what is not there."""
    digits = matrix("y", np.ones((1, 1), np.uint8))

    def claimed(*sizes: int, name: bytes = b"X", values: bytes = b"") -> bytes:
        body = element(6, bytes(8)) + element(5, struct.pack(f"<{len(sizes)}i", *sizes))
        body += element(1, name) + (values or struct.pack("<2I", 2, 2**32 - 1))
        return struct.pack("<2I", 14, len(body)) + body

    whole = mat_file(matrix("X", np.zeros((32, 32, 3, 1), np.uint8)), digits)
    bomb = matrix("X", np.zeros((32, 32, 3, 200_000), np.uint8))
    return {
        "a size of 2**31": mat_file(claimed(32, 32, 3, 2**31 - 1), digits),
        "a product of 2**124": mat_file(claimed(*[2**31 - 1] * 4), digits),
        "no images, each of 2**93 bytes": mat_file(claimed(*[2**31 - 1] * 3, 0), digits),
        "1,000 axes": mat_file(claimed(*[1] * 1000, values=element(2, b"1")), digits),
        "half a value": mat_file(claimed(1, 1, name=b"y", values=element(9, bytes(12)))),
        "a size below 0": mat_file(claimed(32, 32, -3, -1), digits),
        "an element of 4 GiB": mat_file(claimed(32, 32, 3, 1), digits),
        "that, not packed": mat_file(claimed(32, 32, 3, 1), digits, packed=False),
        "images of 3 GiB that are not there": mat_file(
            claimed(32, 32, 3, 2**20, values=struct.pack("<2I", 2, 3 << 30)), digits, packed=False
        ),
        "a name of 4 GiB": mat_file(element(6, bytes(8)) + struct.pack("<2I", 1, 2**32 - 1)),
        "unpacks 1,000 times": mat_file(bomb, digits),
        "another array that unpacks 1,000 times": mat_file(
            matrix("note", np.zeros(600 << 20, np.uint8)), digits
        ),
        "values of an unknown type": mat_file(claimed(1, 1, values=element(99, bytes(8)))),
        "a name that is no text": mat_file(claimed(1, 1, name=b"\xff" * 9)),
        "100,000 empty elements": whole[:128] + struct.pack("<2I", 99, 0) * 100_000,
        "an element beyond the end": whole[:128] + struct.pack("<2I", 15, 2**32 - 1),
        "spoiled deflate": whole[:140] + b"\xff" + whole[141:],
        "cut off": whole[: len(whole) // 2],
        "a header alone": whole[:128],
    }


def read_smallnorb(folder: Path, data: bytes) -> None:
    """The file of the images, ``||``, that of the classes; gzipped here after the byte 1."""
    from capsedge.datasets import smallnorb

    packed = data[:1] == b"\1"
    images, _, classes = data[packed:].partition(b"||")
    ending = ".gz" if packed else ""
    for kind, content in (("dat", images), ("cat", classes)):
        for each in ("", ".gz"):
            (folder / f"{_NAME}-{kind}.mat{each}").unlink(missing_ok=True)
        path = folder / f"{_NAME}-{kind}.mat{ending}"
        path.write_bytes(gzip.compress(content, 1, mtime=0) if packed else content)
    path = folder / f"{_NAME}-dat.mat{ending}"
    pixels, labels = smallnorb.read(path)
    assert pixels.shape == (len(labels), 48, 48, 2)
    assert len(smallnorb.read(path, 1)[1]) == min(1, len(labels))


def smallnorbs() -> Iterable[bytes]:
    """Files of smallNORB."""
    images = norb_file(np.zeros((2, 2, 96, 96), np.uint8))
    classes = norb_file(np.array([4, 0], np.int32))
    for packed in (b"", b"\1"):
        yield packed + images + b"||" + classes


def hostile_smallnorbs() -> dict[str, bytes]:
    """Files that claim what is not there."""
    images, classes = next(iter(smallnorbs())).split(b"||")

    def claimed(*sizes: int) -> bytes:
        return images[:4] + struct.pack(f"<I{len(sizes)}I", len(sizes), *sizes)

    return {
        "2**32 - 1 pairs": claimed(2**32 - 1, 2, 96, 96) + b"||" + classes,
        "100,000 pairs, gzipped": b"\1" + claimed(100_000, 2, 96, 96) + b"||" + classes,
        "a product of 2**128": claimed(*[2**32 - 1] * 4) + b"||" + classes,
        "2**32 - 1 axes": images[:4] + struct.pack("<I", 2**32 - 1) + b"||" + classes,
        "no axes": images[:4] + struct.pack("<I", 0) + b"||" + classes,
        "2**32 - 1 classes": images + b"||" + classes[:8] + b"\xff" * 4 + classes[12:],
        "a class below 0": images + b"||" + classes[:-4] + b"\xff" * 4,
        "unpacks 1,000 times": b"\1" + claimed(5_000, 2, 96, 96) + bytes(60 << 20) + b"||" + classes,
        "no classes": images,
        "cut off": images[:-1] + b"||" + classes,
    }  # fmt: skip
