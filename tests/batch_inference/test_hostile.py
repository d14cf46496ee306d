"""Files of strangers: every damaged byte ends in rows with errors or in one readable error."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capsedge
from capsedge.batch_inference import parquet
from capsedge.batch_inference.sources import open_source
from capsedge.batch_inference.tar import BadTar, Stream, members
from capsedge.errors import UsageError
from capsedge.spec import limits
from tests.batch_inference.sources import COUNT, KINDS, MODEL, pixels, png


def answered(source: Path, place: Path) -> list[dict[str, Any]]:
    capsedge.batch(MODEL, source, place / "out.parquet", threads=1)
    found: list[dict[str, Any]] = pq.read_table(place / "out.parquet").to_pylist()
    return found


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", **fields: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in fields.items():
        setattr(member, field, value)
    archive.addfile(member, io.BytesIO(data))


def test_members_that_are_no_files_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(pixels()[0]))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "link.png", type=tarfile.SYMTYPE, linkname=str(secret))
        add(archive, "hard.png", type=tarfile.LNKTYPE, linkname="../secret.png")
        add(archive, "device.png", type=tarfile.CHRTYPE)
        add(archive, "pipe.png", type=tarfile.FIFOTYPE)
        add(archive, "../../up.png", png(pixels()[0]))
        add(archive, "x.pickle", pickle.dumps({}))
        add(archive, "x.npy", b"\x93NUMPY")
        add(archive, "n" * 200 + ".png", png(pixels()[1]))
        add(archive, "ü\x1b.png", png(pixels()[2]), pax_headers={"comment": "x" * 2000})
    found = answered(tmp_path / "a.tar", tmp_path)
    names = [
        "link.png",
        "hard.png",
        "device.png",
        "pipe.png",
        "../../up.png",
        "n" * 200 + ".png",
        "ü\x1b.png",
    ]
    assert [row["image"] for row in found] == names
    assert [row["error"] is None for row in found] == [False] * 4 + [True] * 3
    assert "symbolic link" in found[0]["error"]
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "out.parquet", "secret.png"}


def header(name: bytes, size: int, kind: bytes = b"0") -> bytes:
    """A header with whatever size."""
    field = b"%011o\0" % size if size < 8**11 else struct.pack(">BxxxQ", 0x80, size)
    fields = name.ljust(100, b"\0") + b"0000644\0" * 3 + field + b"0" * 11 + b"\0" + b" " * 8 + kind
    plain = fields.ljust(257, b"\0") + b"ustar\00000"
    plain = plain.ljust(512, b"\0")
    return plain[:148] + b"%06o\0 " % sum(plain) + plain[156:]


def test_sizes_are_judged_before_memory_is_asked_for() -> None:
    for data in (
        header(b"x", 2**40, b"L"), header(b"x", limits.TAR_HEADER_BYTES + 1, b"x"),
        header(b"a.png", 2**63 - 1)[:511], header(b"x", 9, b"x") + b"9999999 a".ljust(512, b"\0"),
    ):  # fmt: skip
        with pytest.raises(BadTar):
            list(members(Stream(io.BytesIO(data), len(data))))
    huge = header(b"a.png", 2**40)
    member = next(members(Stream(io.BytesIO(huge), len(huge))))
    assert member.size == 2**40


def test_a_large_member_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(header(b"a.png", 2**40))
    found, end = answered(tmp_path / "a.tar", tmp_path)
    assert "the limit is" in found["error"]
    assert "without the mark" in end["error"]


@pytest.mark.thorough
def test_a_bomb_of_gzip_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNPACKED_BYTES", 1 << 20)
    bomb = header(b"a.txt", 64 << 20) + bytes(64 << 20) + header(b"b.png", 3) + b"abc"
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(bomb))
    (found,) = answered(tmp_path / "a.tar.gz", tmp_path)
    assert "unpacks to more" in found["error"]


def test_a_torn_archive_keeps_what_came_before(tmp_path: Path) -> None:
    for kind in ("tar", "tar.gz"):
        (tmp_path / kind).mkdir()
        source = KINDS[kind](pixels(), tmp_path / kind)
        whole = source.read_bytes()
        source.write_bytes(whole[: len(whole) // 2])
        found = answered(source, tmp_path / kind)
        assert 1 < len(found) < COUNT
        assert [row["error"] is None for row in found] == [True] * (len(found) - 1) + [False]


class Exploding(pa.ExtensionType):  # type: ignore[misc]
    """An extension type that runs code when a file is opened, as types that unpickle do."""

    opened = 0

    def __init__(self) -> None:
        super().__init__(pa.binary(), "capsedge.exploding")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"payload"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Exploding:
        cls.opened += 1
        return cls()


def test_extension_types_are_refused_before_they_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa.register_extension_type(Exploding())
    try:
        images = pa.array([png(image) for image in pixels(2)], pa.binary())
        table = pa.table({"image": pa.ExtensionArray.from_storage(Exploding(), images)})
        pq.write_table(table, tmp_path / "a.parquet")
        Exploding.opened = 0
        pq.read_schema(tmp_path / "a.parquet")
        assert Exploding.opened  # that is what pyarrow does of its own accord
        Exploding.opened = 0
        with pytest.raises(UsageError, match="extension types"):
            open_source(str(tmp_path / "a.parquet"))
        assert not Exploding.opened
        monkeypatch.setattr(parquet, "_check_plain", lambda _: None)  # as if it had found nothing
        with (tmp_path / "a.parquet").open("rb") as data, parquet.opened_parquet(data) as file:
            assert file.content.schema_arrow.field("image").type == pa.binary()
        assert not Exploding.opened
    finally:
        pa.unregister_extension_type("capsedge.exploding")


def test_a_parquet_file_of_another_writer_is_read(tmp_path: Path) -> None:
    """With an Arrow schema of large, dictionary and fixed-size types, which is not needed."""
    images = [png(image) for image in pixels(3)]
    flat = pa.array(pixels(3).reshape(-1))
    table = pa.table({
        "image": pa.array(images, pa.large_binary()),
        "name": pa.array(["a", "b", "a"]).dictionary_encode(),
        "when": pa.array([0, 1, 2], pa.timestamp("us", "UTC")),
        "values": pa.FixedSizeListArray.from_arrays(flat, 784),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    assert [row["error"] for row in answered(tmp_path / "a.parquet", tmp_path)] == [None] * 3


def fuzzed(data: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    changed = bytearray(data)
    for place, value in changes:
        changed[place % len(changed)] = value
    return bytes(changed[: len(changed) - cut % len(changed)]) if cut else bytes(changed)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["tar", "tar.gz", "bytes", "list", "npy", "npz", "idx", "idx.gz"]),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    tail=st.booleans(),
    cut=st.integers(0, 400),
)
def test_damaged_sources_end_in_items_or_in_one_error(
    kind: str, changes: list[tuple[int, int]], tail: bool, cut: int
) -> None:
    with TemporaryDirectory() as name:
        path = KINDS[kind](pixels(4), Path(name))
        data = path.read_bytes()
        if tail:  # where the indices of parquet and zip are
            changes = [(len(data) - 1 - place % 800, value) for place, value in changes]
        path.write_bytes(fuzzed(data, changes, cut if cut < 200 else 0))
        try:
            source = open_source(str(path))
            items = [item for part in source.parts() for item in source.read(part)]
        except UsageError:
            return
        for item in items:
            assert bool(item.error) == (item.image is None)
            assert isinstance(item.image, (bytes, np.ndarray, type(None)))
