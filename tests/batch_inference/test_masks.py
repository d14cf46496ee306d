"""The rows of a segmentation: masks as PNG, and shares."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pyarrow")

from capsedge.batch_inference.items import Item
from capsedge.batch_inference.rows import RowMaker, part_bytes, schema_of
from capsedge.errors import UsageError
from tests.runtime.test_masks import segmenter


def test_rows_hold_masks_of_the_images_own_sizes() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, size, np.uint8) for size in ((8, 12), (20, 9))]
    items = [Item(str(k), image) for k, image in enumerate(images)]
    with segmenter() as session:
        maker = RowMaker(session, threads=1)
        written, counts = part_bytes(
            maker.rows([*items, Item("bad", error="no")]), schema_of(maker)
        )
        wanted = session.predict(images)
        with pytest.raises(UsageError, match="no scores for a table"):
            RowMaker(session, ["scores"])
    rows = pq.read_table(pa.BufferReader(written)).to_pylist()
    assert (counts.images, counts.failed) == (3, 1)
    assert list(rows[0]) == ["image", "mask", "shares", "atypical", "error"]
    assert rows[2]["mask"] is None
    for row, found in zip(rows, wanted, strict=False):
        mask = np.asarray(Image.open(io.BytesIO(row["mask"])))
        assert np.array_equal(mask, found.mask)
        assert row["shares"] == [area.share for area in found.areas]
