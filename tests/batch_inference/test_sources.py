"""Every kind of source gives the same answers to the same images, one row for each."""

from __future__ import annotations

import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import capsedge
from capsedge.batch_inference import batch
from capsedge.batch_inference.model_bytes import read_model
from capsedge.batch_inference.sources import open_source
from capsedge.batch_inference.storage import Storage
from capsedge.errors import EnvironmentProblem, UsageError
from tests.batch_inference.sources import (
    COUNT,
    KINDS,
    MODEL,
    pixels,
    png,
    write_folder,
    write_parquet,
    write_tar,
)


def rows(path: Path | str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def answer(source: Path | str, target: Path, **options: Any) -> list[dict[str, Any]]:
    report = capsedge.batch(MODEL, source, target, **options, threads=1)
    found = rows(target)
    assert report.images == len(found)
    assert report.failed == sum(row["error"] is not None for row in found)
    assert report.atypical == sum(row["atypical"] is not None for row in found)
    assert not Path(f"{target}.parts").exists()
    return found


@pytest.fixture(scope="module")
def expected() -> list[tuple[Any, ...]]:
    with capsedge.load(MODEL, threads=1) as session:
        return [
            (p.label, p.score, p.atypical or None)
            for p in session.predict(pixels(), prepared=False)
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_same_answers(
    kind: str, expected: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    found = answer(KINDS[kind](pixels(), tmp_path), tmp_path / "out.parquet")
    assert [(row["label"], row["score"], row["atypical"]) for row in found] == expected
    assert len({row["image"] for row in found}) == COUNT
    assert all(row["error"] is None for row in found)


def test_names_say_where_an_image_is(tmp_path: Path) -> None:
    names = {}
    for kind in ("folder", "tar", "tars", "parquets", "idx"):
        (tmp_path / kind).mkdir()
        source = KINDS[kind](pixels(), tmp_path / kind)
        names[kind] = answer(source, tmp_path / f"{kind}.parquet")[6]["image"]
    assert names == {
        "folder": "1/00006.png", "tar": "00006.png", "tars": "5.tar/00006.png",
        "parquets": "deep/b.parquet/1", "idx": "6",
    }  # fmt: skip


def test_further_columns(tmp_path: Path) -> None:
    source = KINDS["npy"](pixels(), tmp_path)
    found = answer(source, tmp_path / "out.parquet", outputs=("scores", "poses"))
    with capsedge.load(MODEL, threads=1) as session:
        wanted = session.predict(pixels(), prepared=False)
    for row, prediction in zip(found, wanted, strict=True):
        assert row["scores"] == prediction.scores.tolist()
        np.testing.assert_array_equal(np.float32(row["poses"]), prediction.poses)


def test_bad_images_are_rows(tmp_path: Path) -> None:
    folder = write_folder(pixels(), tmp_path / "images")
    (folder / "0/00001.png").write_bytes(b"no image")
    (folder / "a\x1b[31m.png").write_bytes(png(pixels()[0])[:50])
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "web.webp").write_bytes(b"RIFF    WEBP")
    (folder / "gone.png").symlink_to("nothing")
    found = answer(folder, tmp_path / "out.parquet")
    errors = {row["image"]: row["error"] for row in found if row["error"] is not None}
    assert len(found) == COUNT + 4
    assert {*errors} == {"0/00001.png", "a\x1b[31m.png", "empty.jpg", "web.webp", "gone.png"}
    assert all(error.isprintable() for error in errors.values())
    assert all(row["label"] is None for row in found if row["error"] is not None)


def test_bad_values_of_a_table_are_rows(tmp_path: Path) -> None:
    images = [png(pixels()[0]), None, b"", png(pixels()[1])]
    found = answer(
        write_parquet({"image": images}, tmp_path / "a.parquet"), tmp_path / "out.parquet"
    )
    assert [row["error"] is None for row in found] == [True, False, False, True]
    lists = pa.array(
        [[[0] * 28] * 28, [[0] * 28, [1]], None, [[None] * 28] * 28], pa.list_(pa.list_(pa.uint8()))
    )
    found = answer(write_parquet({"x": lists}, tmp_path / "b.parquet"), tmp_path / "out2.parquet")
    assert [row["error"] is None for row in found] == [True, False, False, False]


def test_one_bad_file_of_many_is_a_row(tmp_path: Path) -> None:
    folder = KINDS["parquets"](pixels(), tmp_path)
    (folder / "c.parquet").write_bytes(b"PAR1 not whole")
    found = answer(folder, tmp_path / "out.parquet")
    assert [row["image"] for row in found if row["error"] is not None] == ["c.parquet"]
    assert len(found) == COUNT + 1


def test_the_column_is_found_or_named(tmp_path: Path) -> None:
    images = [png(image) for image in pixels(2)]
    two = write_parquet({"image": images, "mask": images[::-1]}, tmp_path / "two.parquet")
    by_default = answer(two, tmp_path / "out.parquet")
    named = answer(two, tmp_path / "named.parquet", column="mask")
    assert [row["score"] for row in named] == [row["score"] for row in by_default][::-1]
    other = write_parquet({"left": images, "right": images}, tmp_path / "other.parquet")
    with pytest.raises(UsageError, match="left, right"):
        capsedge.batch(MODEL, other, tmp_path / "none.parquet")
    with pytest.raises(UsageError, match="no column 'middle'"):
        capsedge.batch(MODEL, other, tmp_path / "none.parquet", column="middle")


@pytest.mark.parametrize("kind", ["folder", "tars", "parquets", "npz", "idx", "tar"])
def test_addresses_of_fsspec(kind: str, tmp_path: Path) -> None:
    """Of memory and of this machine, with a folder of parts there."""
    source = KINDS[kind](pixels(), tmp_path)
    local = answer(source, tmp_path / "out.parquet")
    memory = fsspec.filesystem("memory")
    memory.put(str(source), f"/{kind}/{source.name}", recursive=True)
    report = capsedge.batch(
        MODEL,
        f"memory://{kind}/{source.name}",
        f"memory://out/{kind}",
        threads=1,
    )
    names = sorted(memory.ls(f"/out/{kind}", detail=False))
    parts = [name for name in names if "/_" not in name]
    records = [f"_{name.rpartition('/')[2].replace('parquet', 'json')}" for name in parts]
    assert [name.rpartition("/")[2] for name in names if name not in parts] == [
        "_SUCCESS", *records, "_plan.json"
    ]  # fmt: skip
    found = [row for name in parts for row in rows(memory.open(name))]
    assert report.images == len(found)
    assert found == local
    assert answer(f"file://{source}", tmp_path / "file.parquet") == local


def test_the_model_may_be_at_an_address(tmp_path: Path) -> None:
    fsspec.filesystem("memory").put(MODEL, "/models/em.onnx")
    source = KINDS["npy"](pixels(), tmp_path)
    capsedge.batch(
        "memory://models/em.onnx",
        source,
        tmp_path / "a.parquet",
        threads=1,
    )
    answer(source, tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


@pytest.mark.parametrize("name", ["out.parquet", "parts"])
def test_addresses_of_this_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``file://`` means the path behind it, for the model and the output too."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "with space"
    folder.mkdir()
    shutil.copy(MODEL, folder / "m.onnx")
    source = write_folder(pixels(), tmp_path / "images")
    output = folder / name
    given = [each.as_uri() for each in (folder / "m.onnx", source, output)]
    assert capsedge.batch(given[0], given[1], given[2], threads=1).images == COUNT
    assert (
        len(pq.read_table([output] if name == "out.parquet" else sorted(output.glob("part-*"))))
        == COUNT
    )
    assert not (tmp_path / "file:").exists()


def test_a_model_that_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What computes is what an unfinished run is resumed with: the model is read once."""
    read = []
    monkeypatch.setattr(batch, "read_model", lambda model: read.append(model) or read_model(model))
    files = fsspec.filesystem("memory")
    files.pipe_file("/models/once.onnx", Path(MODEL).read_bytes())
    source = write_folder(pixels(), tmp_path / "images")
    capsedge.batch(
        "memory://models/once.onnx",
        source,
        tmp_path / "out.parquet",
        threads=1,
    )
    assert read == ["memory://models/once.onnx"]


def test_a_folder_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is sent to other machines without its names, which the parts have."""
    listed = []
    names = Storage.names
    monkeypatch.setattr(Storage, "names", lambda self: listed.append(self) or names(self))
    source = write_folder(pixels(), tmp_path / "images")
    found = open_source(str(source))
    parts = found.parts()
    assert len(listed) == 1
    sent = pickle.dumps(found)
    assert b".png" not in sent
    read_there = [item.name for part in parts for item in pickle.loads(sent).read(part)]
    assert read_there == [name for part in parts for name in part.names]
    assert len(read_there) == COUNT


def test_hidden_files_are_no_images(tmp_path: Path) -> None:
    """Such as those that macOS leaves on foreign disks and in archives."""
    folder = write_folder(pixels(), tmp_path / "images")
    first = next(folder.glob("**/*.png"))
    first.with_name(f"._{first.name}").write_bytes(b"no picture")
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(folder, "images")
    for source in (folder, tmp_path / "all.tar"):
        found = open_source(str(source))
        names = [item.name for part in found.parts() for item in found.read(part)]
        assert len(names) == COUNT
        assert not any("._" in name for name in names)


@pytest.mark.parametrize(
    "address", ["pipe:cat /etc/passwd", "simplecache::s3://bucket/a.tar", "zip://a.png::file.zip"]
)
def test_commands_and_chains_are_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be used as a source"):
        capsedge.batch(MODEL, address, tmp_path / "out.parquet")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(EnvironmentProblem, match="pip install s3fs"):
        capsedge.batch(MODEL, "s3://bucket/images", tmp_path / "out.parquet")


def test_what_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed/a.png").write_bytes(png(pixels()[0]))
    write_tar(pixels(1), tmp_path / "mixed/a.tar")
    (tmp_path / "text").write_text("hello")
    np.save(tmp_path / "labels.npy", np.arange(5))
    write_tar(pixels(0), tmp_path / "empty.tar")
    for name, why in (
        ("gone", "There is no"), ("empty", "no supported files"), ("mixed", "one kind"), ("text", "text"),
        ("labels.npy", "int64"), ("empty.tar", "no images"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=why):
            capsedge.batch(
                MODEL,
                tmp_path / name,
                tmp_path / "out.parquet",
                threads=1,
            )
    assert {path.name for path in tmp_path.iterdir()} >= {"empty.tar"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("out")]


def test_an_output_in_the_source_is_refused(tmp_path: Path) -> None:
    folder = write_folder(pixels(2), tmp_path / "images")
    with pytest.raises(UsageError, match="is inside the source"):
        capsedge.batch(MODEL, folder, folder / "out.parquet")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(UsageError, match="is inside the source"):
        capsedge.batch(MODEL, folder, tmp_path / "link/out")
