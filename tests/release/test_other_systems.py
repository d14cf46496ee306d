"""What pip takes on each system: its wheel, and the packages that ``[cpu]`` needs there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.release import interpreters
from tests.release.test_versions import pins
from tests.release.test_wheels import LINUX, names
from tools import zig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
# Tags of pip's --platform, newest first, and the distribution that pip must choose.
SYSTEMS = {
    "Windows": (["win_amd64"], zig.WINDOWS),
    "Windows on ARM": (["win_arm64"], "pure"),
    "macOS on ARM": ([f"macosx_{v}_0_arm64" for v in range(15, 10, -1)], zig.MACOS),
    "macOS 13": ([f"macosx_{v}_0_arm64" for v in range(13, 10, -1)], "pure"),
    "macOS on Intel": ([f"macosx_{v}_0_x86_64" for v in range(15, 10, -1)], "pure"),
    "musl": (["musllinux_1_2_x86_64"], "pure"),
    "x86-64 of 2014": (["manylinux_2_17_x86_64"], "x86_64"),
    "ARM of 2014": (["manylinux_2_17_aarch64"], "aarch64"),
}
INDEXED = ("Windows", "macOS on ARM")


def pip(*words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check"]
    subprocess.run(command, check=True)


@pytest.mark.parametrize("system", SYSTEMS)
def test_pip_chooses_the_wheel(made: dict[str, Path], system: str, tmp_path: Path) -> None:
    tags, kind = SYSTEMS[system]
    pip(
        "download", "--no-index", "--no-deps", "--only-binary", ":all:", "--dest", tmp_path,
        "--find-links", made["pure"].parent, *(f"--platform={tag}" for tag in tags), "capsedge",
    )  # fmt: skip
    (chosen,) = tmp_path.iterdir()
    assert chosen.name == made[kind].name


@pytest.mark.parametrize("version", interpreters.supported())
@pytest.mark.parametrize("system", INDEXED)
def test_all_that_it_needs_is_there(
    made: dict[str, Path], system: str, version: str, tmp_path: Path
) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(pins(version)))
    python = interpreters.find(version) or sys.executable
    pip(
        "--python", python, "install", "--dry-run", "--ignore-installed", "--only-binary", ":all:",
        "--target", tmp_path / "t", *(f"--platform={tag}" for tag in SYSTEMS[system][0]),
        "--python-version", version, "-c", constraints, f"{made[SYSTEMS[system][1]]}[cpu]",
    )  # fmt: skip


def test_the_source_archive_builds_the_libraries(made: dict[str, Path], tmp_path: Path) -> None:
    """By the compiler of this machine, into a wheel with the same files."""
    pip("wheel", "--no-deps", "--wheel-dir", tmp_path, made["sdist"])
    (wheel,) = tmp_path.iterdir()
    assert names(wheel) >= LINUX
    kept = {n for n in names(made["x86_64"]) if ".dist-info/" not in n and "/_native/" not in n}
    assert kept <= names(wheel)
    with zipfile.ZipFile(wheel) as archive:
        assert all(archive.read(name).startswith(b"\x7fELF") for name in LINUX)
