"""A session for a small model."""

from __future__ import annotations

from pathlib import Path

import pytest

import capsedge
from tests.runtime.models import capsule_model, save


@pytest.fixture
def session(tmp_path: Path) -> capsedge.Session:
    return capsedge.load(save(capsule_model(), tmp_path / "m.onnx"))
