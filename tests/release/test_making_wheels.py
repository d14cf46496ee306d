"""What `make wheels` refuses: no page in the checkout, other SIMD levels than those of a local build."""

from __future__ import annotations

import platform
import re
import sys
import zipfile
from pathlib import Path

import pytest

from capsedge.deploy import web
from capsedge.runtime.backends import native_library
from tests.conftest import ROOT
from tests.native import library
from tests.release import conftest
from tools import wheels

OTHER = next(p for p in wheels.PROCESSORS if p != platform.machine())


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A wheel of which only the name of the operator library is right."""
    path = tmp_path / "capsedge-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"capsedge/runtime/_native/{native_library.NAME}", b"in the wheel")
    return path


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Libraries whose levels are their content, and a local build with two of them."""
    local = tmp_path / "local.so"
    local.write_text("plain,avx2")
    monkeypatch.setenv(native_library.VARIABLE, str(local))
    monkeypatch.setattr(native_library, "levels_of", lambda path: path.read_text().split(","))
    return local


def wheel_of(levels: str, packed: Path) -> Path:
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(f"capsedge/runtime/_native/{native_library.NAME}", levels)
    return packed


def test_levels_are_those_of_the_library_that_is_asked() -> None:
    path = native_library.find_library()
    if path is None:
        pytest.skip("the operator library is not built")
    assert native_library.levels_of(path) == library.levels()


def test_the_library_is_taken_out_of_the_wheel(packed: Path, tmp_path: Path) -> None:
    assert wheels.library_in(packed, tmp_path / "out").read_bytes() == b"in the wheel"


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize("levels", ["plain", "plain,avx2,avx512", "avx2,plain", ""])
def test_a_wheel_with_other_levels_is_refused(levels: str, packed: Path) -> None:
    with pytest.raises(SystemExit, match=rf"is not made: .* the levels {levels}, .* plain,avx2\."):
        wheels.check_levels(wheel_of(levels, packed))
    wheels.check_levels(wheel_of("plain,avx2", packed))


def test_without_a_local_build_nothing_can_be_compared(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(native_library.VARIABLE, raising=False)
    monkeypatch.setattr(native_library, "installed", lambda *_: None)
    with pytest.raises(SystemExit, match=r"apt-get install g\+\+\), then: pip install -e \."):
        wheels.check_levels(packed)


@pytest.mark.parametrize(("processor", "refused"), [(platform.machine(), True), (OTHER, False)])
def test_only_a_wheel_for_this_processor_can_be_asked(
    processor: str, refused: bool, stubbed: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if platform.machine() not in wheels.PROCESSORS:
        pytest.skip("there are wheels for x86-64 and 64-bit ARM only")
    monkeypatch.setattr(wheels.zig, "variables", lambda processor: {})
    monkeypatch.setattr(wheels, "_run", lambda *_, **__: None)
    folder = stubbed.parent / "built"
    folder.mkdir()
    made = wheel_of("plain", packed).rename(folder / packed.name)
    monkeypatch.setattr(wheels, "_build", lambda *_, **__: made)
    if refused:
        with pytest.raises(SystemExit, match="is not made"):
            wheels._with_libraries(folder, processor)
    else:
        assert wheels._with_libraries(folder, processor) == made


def test_without_the_page_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "SITE", tmp_path / "site")
    monkeypatch.setattr(sys, "argv", ["wheels", "pure", "--into", str(tmp_path / "dist")])
    with pytest.raises(SystemExit, match=rf"(?s)^error: .*{tmp_path}/site .*`make web`"):
        wheels.main()
    assert not (tmp_path / "dist").exists()


def test_what_a_target_installs_may_be_missing_only_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(conftest.REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception):
        conftest.missing("a tool")
    monkeypatch.setenv(conftest.REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="a tool"):
        conftest.missing("a tool")


def test_slow_tests_of_releases_skip_only_for_what_their_target_installs() -> None:
    """A skip for a file that is not there once hid that wheels could not be made."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    sources = [
        path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "tests" / "release").glob("*.py"))
    ]
    slow = [
        text
        for text in sources
        if re.search(r"^pytestmark = .*\n?.*pytest\.mark\.slow", text, re.M)
    ]
    assert len(slow) > 4
    assert [text for text in slow if re.search(r"pytest\.(skip|importorskip|xfail)\(", text)] == []
    reasons = [
        reason for text in sources for reason in re.findall(r" missing\(\s*f?\"(.+)\"\s*\)", text)
    ]
    targets = [re.search(r": make (test-[a-z]+)$", reason) for reason in reasons]
    assert len(targets) >= 3
    assert all(
        found
        and re.search(rf"^{found[1]}:.*\n(\t.*\n)*\tCAPSEDGE_REQUIRE_RELEASE=1 ", makefile, re.M)
        for found in targets
    )
