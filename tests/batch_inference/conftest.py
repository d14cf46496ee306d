"""Small parts, so that few images make several."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="tables need pyarrow: pip install 'capsedge[batch]'")

PART = 3


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from capsedge.batch_inference import items, parquet, rows, sources, tar

    for module in (sources, rows, items, parquet, tar):
        monkeypatch.setattr(module, "PART_ROWS", PART)
