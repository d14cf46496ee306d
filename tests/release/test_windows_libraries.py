"""Both libraries for Windows are compiled and linked: what they export and need. Nothing is optimized."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.builds import cmake_build
from tests.release.conftest import need_zig
from tools import pe, zig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
QUICKLY = "-O0 -g0 -fno-sanitize=undefined"  # zig's Clang checks what is not optimized


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_zig()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zig.variables(zig.WINDOWS).items():
            patch.setenv(name, value)
        return cmake_build(
            tmp_path_factory.mktemp("windows"), "all",
            f"-DCMAKE_TOOLCHAIN_FILE={zig.TOOLCHAIN}", "-DCMAKE_BUILD_TYPE=Debug",
            f"-DCMAKE_CXX_FLAGS={QUICKLY}",
        )  # fmt: skip


@pytest.mark.parametrize("name", pe.LIBRARIES)
def test_what_it_exports_and_needs(name: str, folder: Path) -> None:
    (library,) = folder.rglob(Path(name).name)
    assert pe.problems(library.read_bytes(), pe.LIBRARIES[name]) == []
