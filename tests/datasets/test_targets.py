"""Images with values to estimate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsedge.datasets import ImageSet, read_images, read_targets
from capsedge.errors import UsageError
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.spec import limits

PREP = Preprocessing(8, 8, 3)
NAMES = ("yaw", "pitch")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    for k, name in enumerate(("1.png", "b/2.png", "3.png")):
        Image.new("RGB", (8, 8), (10 * k, 0, 255)).save(tmp_path / name)
    (tmp_path / "targets.csv").write_text(
        "pitch,file,note,yaw\n1.5,b/2.png,x,-90\n2,1.png,,4e1\n", encoding="utf-8-sig"
    )
    return tmp_path


def test_a_table_names_files_and_values(folder: Path) -> None:
    found = read_targets(folder, PREP, NAMES)
    assert found.targets is not None
    assert found.targets.tolist() == [[-90.0, 1.5], [40.0, 2.0]]
    assert found.images[:, 0, 0].tolist() == [[10, 0, 255], [0, 0, 255]]
    assert found.names == ("b/2.png", "1.png")
    assert found.whole
    few = read_targets(folder, PREP, NAMES, 1)
    assert len(few) == 1
    assert not few.whole
    assert few.digest() == found.first(1).digest() != replace(few, targets=None).digest()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("file,yaw\n1.png,1\n", "no column 'pitch'"),
        ("", "no column 'file'"),
        ("file,yaw,pitch\n", "no rows"),
        ("file,yaw,pitch\n1.png,1\n", "pitch is 'None'"),
        ("file,yaw,pitch\n1.png,left,2\n", "line 2: yaw is 'left'"),
        ("file,yaw,pitch\n1.png,nan,2\n", "yaw is 'nan'"),
        ("file,yaw,pitch\n../x.png,1,2\n", "names the file"),
        ("file,yaw,pitch\n/etc/x.png,1,2\n", "names the file"),
        ("file,yaw,pitch\n,1,2\n", "names the file ''"),
        ("file,yaw,pitch\n9.png,1,2\n", "9.png"),
        (f"file,yaw,pitch\n{'x' * 200_000},1,2\n", "not a table"),
        (b"file,yaw,pitch\n\xff.png,1,2\n", "not UTF-8"),
    ],
)
def test_a_table_that_cannot_be_read(table: str | bytes, says: str, folder: Path) -> None:
    data = table if isinstance(table, bytes) else table.encode()
    (folder / "targets.csv").write_bytes(data)
    with pytest.raises(UsageError) as refused:
        read_targets(folder, PREP, NAMES)
    assert says in " ".join((refused.value.what, refused.value.why))


def test_a_table_that_is_too_large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TABLE_BYTES", 30)
    with pytest.raises(UsageError, match="larger than"):
        read_targets(folder, PREP, NAMES)


def archive(path: Path, **changes: object) -> Path:
    arrays = {
        "images": np.zeros((4, 8, 8, 3), np.uint8),
        "targets": np.arange(8, dtype=np.float32).reshape(4, 2),
        "labels": np.full((4, 2), 0.5),  # of no class, and not read
    }
    np.savez(path, **{k: v for k, v in (arrays | changes).items() if v is not None})  # type: ignore[arg-type]
    return path


def test_an_archive_has_them_in_their_order(tmp_path: Path) -> None:
    file = archive(tmp_path / "test.npz")
    for source in (file, tmp_path):
        found = read_targets(source, PREP, NAMES, 3)
        assert found.targets is not None
        assert found.targets.tolist() == [[0, 1], [2, 3], [4, 5]]
        assert len(found) == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"targets": None}, "targets"),
        ({"targets": np.zeros((4, 3))}, r"\[4, 3\]"),
        ({"targets": np.zeros((3, 2))}, r"\[3, 2\]"),
        ({"targets": np.full((4, 2), np.nan)}, "NaN"),
        ({"targets": np.zeros((4, 2), bool)}, "bool"),
    ],
)
def test_an_archive_with_other_values(changes: dict, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        read_targets(archive(tmp_path / "a.npz", **changes), PREP, NAMES)


def test_images_alone_have_no_values(folder: Path) -> None:
    (folder / "targets.csv").unlink()
    with pytest.raises(UsageError, match="no values") as refused:
        read_targets(folder, PREP, NAMES)
    assert "file,yaw,pitch" in refused.value.command


@pytest.mark.parametrize(
    "prep",
    [
        replace(PREP, order="BGR"),
        replace(PREP, per_image="standardize"),
        replace(PREP, per_image="min-max"),
        replace(PREP, layout="NHWC"),
    ],
)
def test_images_by_class_are_prepared_once(prep: Preprocessing, tmp_path: Path) -> None:
    """They are kept as pixels, which are the same for every model of the size."""
    pixels = np.random.default_rng(1).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    (tmp_path / "test" / "cat").mkdir(parents=True)
    Image.fromarray(pixels).save(tmp_path / "test" / "cat" / "1.png")
    found = read_images(tmp_path, prep, "test")
    wanted = ImageSet("pixels", pixels[None], preprocessing=prep)
    assert np.array_equal(next(found.inputs()), next(wanted.inputs()))
