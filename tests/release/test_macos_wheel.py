"""The wheel for macOS is built, and its libraries are what they should be. Nobody has run them on macOS."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.release.conftest import build_one, missing
from tools import wheels, zig
from tools.macos import link, macho

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        link.linker()
    except SystemExit as error:
        missing(str(error))
    return build_one(zig.MACOS, tmp_path_factory)


def test_its_name(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-macosx_14_0_arm64.whl")
    assert wheels.judged_tag(wheel) == "macosx_14_0_arm64"


@pytest.mark.parametrize("name", macho.LIBRARIES)
def test_a_library(wheel: Path, name: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert macho.problems(archive.read(name), name) == []
