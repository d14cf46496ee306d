"""The wheel for Windows is built; what its libraries export and need. `make test-wine` runs it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.release.conftest import build_one
from tools import pe, wheels, zig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_one(zig.WINDOWS, tmp_path_factory)


def test_its_name(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-win_amd64.whl")
    assert wheels.judged_tag(wheel) == "win_amd64"


@pytest.mark.parametrize("name", pe.LIBRARIES)
def test_a_library(wheel: Path, name: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert pe.problems(archive.read(name), pe.LIBRARIES[name]) == []


def test_what_a_program_is_built_with(wheel: Path) -> None:
    """Headers, the import library and CMake's files, which name it."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        native = "capsedge/runtime/_native"
        assert {f"{native}/include/capsedge.h", f"{native}/include/capsedge.hpp"} <= names
        found = archive.read(f"{native}/lib/cmake/capsedge/capsedgeConfig.cmake").decode()
    assert "/lib/libcapsedge.dll.a" in found
    assert "/lib/libcapsedge.dll" in found
