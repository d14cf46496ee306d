"""The models and images of the tests of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import capsedge
from tests.conftest import ROOT
from tests.runtime.models import capsule_model, save

SAMPLES = ROOT / "capsedge" / "zoo" / "samples"
HOSTILE = ("<script>alert(1)</script>", "$\\frac{1}$ & \"'", "\x1b[2J\u202e]]>")


@pytest.fixture(scope="session")
def dynamic() -> Iterator[capsedge.Session]:
    with capsedge.load("digits-dynamic") as session:
        yield session


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[capsedge.Session]:
    """A model without a decoder."""
    with capsedge.load(save(capsule_model(), tmp_path / "plain.onnx")) as session:
        yield session
