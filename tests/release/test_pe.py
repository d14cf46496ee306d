"""What is judged of a Windows library, on files that are built here."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from tools import pe, wheels, zig

SECTION, FILE = 0x1000, 0x400  # where the only section is loaded, and where it is in the file
NAMES = ("RegisterCustomOps", "capsedge_kernel_levels")
NEEDS = ("KERNEL32.dll", "api-ms-win-crt-heap-l1-1-0.dll")


def library(
    exports: tuple[str, ...] = NAMES,
    imports: tuple[str, ...] = NEEDS,
    machine: int = 0x8664,
    characteristics: int = 0x160,
) -> bytes:
    """A 64-bit library of headers and one section, with tables of names and no code."""
    texts = dict.fromkeys((*exports, *imports), 0)
    body = bytearray(40 + 4 * len(exports) + 20 * (len(imports) + 1))
    for name in texts:
        texts[name] = SECTION + len(body)
        body += name.encode() + b"\0"
    table = 40 + 4 * len(exports)
    struct.pack_into("<I", body, 24, len(exports))
    struct.pack_into("<I", body, 32, SECTION + 40)
    struct.pack_into(f"<{len(exports)}I", body, 40, *(texts[name] for name in exports))
    for i, name in enumerate(imports):
        struct.pack_into("<I", body, table + 20 * i + 12, texts[name])
    optional = bytearray(240)
    struct.pack_into("<H", optional, 0, 0x20B)
    struct.pack_into("<H", optional, 70, characteristics)
    struct.pack_into("<II", optional, 112, SECTION, 40)
    struct.pack_into("<II", optional, 120, SECTION + table, 20)
    header = b"PE\0\0" + struct.pack("<HHIIIHH", machine, 1, 0, 0, 0, len(optional), 0x2022)
    section = b".rdata\0\0" + struct.pack("<IIII", len(body), SECTION, len(body), FILE) + bytes(16)
    start = b"MZ" + bytes(0x3A) + struct.pack("<I", 0x40)
    return (start + header + optional + section).ljust(FILE, b"\0") + body


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "exports.map"
    path.write_text(f"{{\n  global:\n    {NAMES[0]};\n    {NAMES[1]};\n  local:\n    *;\n}};\n")
    return path


def test_what_is_read() -> None:
    assert pe.read(library()) == pe.Library(0x8664, 0x160, frozenset(NAMES), frozenset(NEEDS))
    assert pe.read(library((), ())).exports == frozenset()


def test_a_library_in_order(script: Path) -> None:
    assert pe.problems(library(), script) == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (library(exports=NAMES[:1]), "exports differ: capsedge_kernel_levels"),
        (library(exports=(*NAMES, "_Znwm")), "exports differ: _Znwm"),
        (
            library(imports=(*NEEDS, "libc++.dll")),
            "it needs libc++.dll, which not every Windows has",
        ),
        (library(imports=("MSVCP140.dll",)), "it needs MSVCP140.dll"),
        (library(machine=0xAA64), "for the machine 0xaa64"),
        (library(characteristics=0x140), "can load at any address"),
        (library(characteristics=0x60), "data that cannot be executed"),
        (b"\x7fELF" + bytes(100), "it is not a PE file"),
        (library()[:0x300], "it is damaged"),
        (b"", "it is damaged"),
    ],
)
def test_what_is_refused(data: bytes, said: str, script: Path) -> None:
    (found,) = pe.problems(data, script)
    assert said in found


def test_the_version_scripts_name_functions() -> None:
    """By name, because Windows knows no patterns."""
    for script in pe.LIBRARIES.values():
        assert len(pe.exported(script)) > 16
        assert "*" not in script.read_text().split("global:")[1].split("local:")[0]


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Path) -> Path:
    monkeypatch.setattr(pe, "LIBRARIES", dict.fromkeys(pe.LIBRARIES, script))
    path = tmp_path / f"capsedge-1-py3-none-{wheels.TAGS[zig.WINDOWS]}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in pe.LIBRARIES:
            archive.writestr(name, library())
        archive.writestr(pe.IMPORT_LIBRARY, b"")
    return path


def test_a_wheel_deserves_its_tag(wheel: Path) -> None:
    assert wheels.judged_tag(wheel) == "win_amd64"


@pytest.mark.parametrize("name", ["capsedge/runtime/_native/x.pdb", "capsedge/other.dll"])
def test_a_wheel_with_more_than_its_libraries_is_refused(wheel: Path, name: str) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(name, b"")
    with pytest.raises(SystemExit, match=f"not usable:\n{name}: it does not belong into a wheel"):
        wheels.judged_tag(wheel)


def test_a_wheel_without_its_libraries_is_refused(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "w"):
        pass
    with pytest.raises(
        SystemExit, match=r"(?s)libcapsedge_ort\.dll: it is missing.*\.dll\.a: it is"
    ):
        wheels.judged_tag(wheel)
