"""The same images as every kind of source."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.conftest import ROOT

MODEL = str(ROOT / "capsedge/zoo/digits-em.onnx")
COUNT = 11  # images, in parts of three: the last part is shorter
SIDE = 28


def pixels(count: int = COUNT, seed: int = 0) -> NDArray[np.uint8]:
    """Images ``[N, H, W]``."""
    return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE), dtype=np.uint8)


def png(image: NDArray[np.uint8]) -> bytes:
    """The content of a PNG file."""
    target = io.BytesIO()
    Image.fromarray(image).save(target, "png")
    return target.getvalue()


def write_folder(images: NDArray[np.uint8], place: Path) -> Path:
    """Files in subfolders, whose names sort as the images do."""
    for k, image in enumerate(images):
        file = place / f"{k // 4}" / f"{k:05}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(image))
    (place / "notes.txt").write_text("no image")
    return place


def write_tar(images: NDArray[np.uint8], place: Path, mode: str = "w", first: int = 0) -> Path:
    """A WebDataset shard: every image with the number of its class beside it."""
    with tarfile.open(place, mode) as archive:  # type: ignore[call-overload]
        for k, image in enumerate(images, first):
            for suffix, data in ((".png", png(image)), (".cls", b"3")):
                member = tarfile.TarInfo(f"{k:05}{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return place


def _folder(images: NDArray[np.uint8], place: Path) -> Path:
    return write_folder(images, place / "images")


def _tar(images: NDArray[np.uint8], place: Path) -> Path:
    return write_tar(images, place / "shard.tar")


def _tar_gz(images: NDArray[np.uint8], place: Path) -> Path:
    return write_tar(images, place / "shard.tar.gz", "w:gz")


def _tars(images: NDArray[np.uint8], place: Path) -> Path:
    (place / "shards").mkdir()
    for k in (0, 5):
        write_tar(images[k : k + 5 if k == 0 else None], place / f"shards/{k}.tar", first=k)
    return place / "shards"


def write_parquet(columns: dict[str, Any], place: Path, rows: int = 2) -> Path:
    """A parquet file with small row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), place, row_group_size=rows)
    return place


def _parquet_bytes(images: NDArray[np.uint8], place: Path) -> Path:
    columns = {"label": [1] * len(images), "image": [png(image) for image in images]}
    return write_parquet(columns, place / "bytes.parquet")


def _parquet_struct(images: NDArray[np.uint8], place: Path) -> Path:
    rows = [{"bytes": png(image), "path": "x.png"} for image in images]
    return write_parquet({"picture": rows}, place / "struct.parquet")


def _parquet_list(images: NDArray[np.uint8], place: Path) -> Path:
    import pyarrow as pa

    flat = pa.array(images.reshape(-1))
    return write_parquet(
        {"x": pa.FixedSizeListArray.from_arrays(flat, SIDE * SIDE)}, place / "l.parquet"
    )


def _parquet_nested(images: NDArray[np.uint8], place: Path) -> Path:
    import pyarrow as pa

    return write_parquet(
        {"x": pa.array(images.tolist(), pa.list_(pa.list_(pa.uint8())))}, place / "n.parquet"
    )


def _parquets(images: NDArray[np.uint8], place: Path) -> Path:
    (place / "tables/deep").mkdir(parents=True)
    for name, few in (("a", images[:5]), ("deep/b", images[5:])):
        write_parquet({"image": [png(image) for image in few]}, place / f"tables/{name}.parquet")
    return place / "tables"


def _idx(images: NDArray[np.uint8], place: Path) -> Path:
    path = place / "t10k-images-idx3-ubyte"
    path.write_bytes(struct.pack(">IIII", 0x803, *images.shape) + images.tobytes())
    return path


def _idx_gz(images: NDArray[np.uint8], place: Path) -> Path:
    path = place / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(_idx(images, place).read_bytes()))
    return path


def _npy(images: NDArray[np.uint8], place: Path) -> Path:
    np.save(place / "images.npy", images)
    return place / "images.npy"


def _npz(images: NDArray[np.uint8], place: Path) -> Path:
    np.savez_compressed(place / "images.npz", images=images, labels=np.zeros(len(images)))
    return place / "images.npz"


def _floats(images: NDArray[np.uint8], place: Path) -> Path:
    np.save(place / "floats.npy", (images.astype(np.float32) * np.float32(1 / 255))[:, None])
    return place / "floats.npy"


KINDS: dict[str, Callable[[NDArray[np.uint8], Path], Path]] = {
    "folder": _folder, "tar": _tar, "tar.gz": _tar_gz, "tars": _tars, "bytes": _parquet_bytes,
    "struct": _parquet_struct, "list": _parquet_list, "nested": _parquet_nested, "parquets": _parquets,
    "idx": _idx, "idx.gz": _idx_gz, "npy": _npy, "npz": _npz, "floats": _floats,
}  # fmt: skip
