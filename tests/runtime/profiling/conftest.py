"""A small capsule model and its profile, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

import capsedge
from capsedge.runtime.profiling.profile import ProfileReport
from tests.conftest import ROOT


@pytest.fixture(scope="session")
def report() -> ProfileReport:
    """The digit model's, with bodies inlined, so that there are votes and routing iterations."""
    session = capsedge.load(
        ROOT / "capsedge/zoo/digits-dynamic.onnx",
        threads=1,
        ops="portable",
    )
    return capsedge.profile(session, batch=(1, 2), warmup=0.05, duration=0.2, startup=False)


@pytest.fixture(scope="session")
def page(report: ProfileReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    report.save_html(path)
    return path
