"""The benchmark of wheels: both libraries run, rows are complete, and a slow wheel ends with an error."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import wheel as benchmark
from capsedge.runtime.backends import native_library

LIBRARY = native_library.find_library()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="the operator library is not built")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """The local build as a wheel."""
    assert LIBRARY is not None
    path = tmp_path / "capsedge-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(LIBRARY, f"capsedge/runtime/_native/{native_library.NAME}")
    return path


@needs_library
def test_the_document(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--models",
        "digits-em",
        "--batches",
        "1",
        "2",
        "--rounds",
        "2",
        "--seconds",
        "0",
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", ["wheel", str(packed), *words])
    benchmark.main()
    document = json.loads(capsys.readouterr().out)
    assert document["levels"]["local"] == document["levels"]["wheel"]
    assert [(row["model"], row["batch"]) for row in document["rows"]] == [
        ("digits-em", 1), ("digits-em", 2)
    ]  # fmt: skip
    assert all(row["ratio"] > 0 and row["local"]["runs"] == 2 for row in document["rows"])
    assert len(benchmark.render(document).splitlines()) == 4


@needs_library
def test_each_session_has_the_library_that_is_asked_for(packed: Path, tmp_path: Path) -> None:
    """The mapped files of the process tell; the package itself loads the local build otherwise."""
    library = benchmark.wheels.library_in(packed, tmp_path / "out")
    with benchmark.opened("digits-em", library):
        assert str(library) in Path("/proc/self/maps").read_text()


def row(ratio: float) -> dict[str, Any]:
    return {"model": "photos", "batch": 8, "ratio": ratio}


def test_what_is_too_slow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document = {"rows": [row(0.9), row(0.89)]}
    monkeypatch.setattr(benchmark, "measure", lambda *_: document)
    monkeypatch.setattr(sys, "argv", ["wheel", str(tmp_path / "a.whl"), "--json"])
    assert benchmark.main() == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: photos at batch 8 runs at 0.89 of the local build's speed; at least 0.9 is wanted"
    ]
    document["rows"].pop()
    assert benchmark.main() == 0
