"""How a macOS library is linked and what is judged of it, on files that are built here."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tools import pe, wheels, zig
from tools.macos import link, macho

NAME, SCRIPT = next(iter(macho.LIBRARIES.items()))
NAMES = tuple(sorted(f"_{name}" for name in pe.exported(SCRIPT)))
PAGE = 4096


@dataclass(frozen=True)
class Parts:
    """What a library is made of; by default, one in order."""

    processor: int = 0x0100000C
    kind: int = 6
    flags: int = 0x100085
    oldest: tuple[int, int] = (14, 0)
    name: str = f"@rpath/{Path(NAME).name}"
    needs: tuple[str, ...] = tuple(sorted(macho.SYSTEM))
    exports: tuple[str, ...] = NAMES
    undefined: tuple[str, ...] = ("_malloc", "___cxa_throw")
    signed: int = 0x20002
    commands: list[bytes] = field(default_factory=list)


def _command(kind: int, body: bytes) -> bytes:
    body = body.ljust(-(-len(body) // 8) * 8, b"\0")
    return struct.pack("<2I", kind, 8 + len(body)) + body


def _library_command(kind: int, name: str) -> bytes:
    return _command(kind, struct.pack("<4I", 24, 0, 0, 0) + name.encode() + b"\0")


def _trie(names: tuple[str, ...]) -> bytes:
    """A tree of one level: every name is a child of the root."""
    size = 2 + sum(len(name) + 3 for name in names)
    root, leaves = bytearray([0, len(names)]), bytearray()
    for name in names:
        at = size + len(leaves)
        root += name.encode() + b"\0" + bytes([at & 0x7F | 0x80, at >> 7])
        leaves += bytes([2, 0, 0, 0])
    return bytes(root + leaves)


def _signature(data: bytes, flags: int) -> bytes:
    pages = [hashlib.sha256(data[n : n + PAGE]).digest() for n in range(0, len(data), PAGE)]
    directory = struct.pack(
        ">9I4B", 0xFADE0C02, 0, 0x20400, flags, 44, 0, 0, len(pages), len(data), 32, 2, 0, 12
    ).ljust(44, b"\0") + b"".join(pages)
    return struct.pack(">5I", 0xFADE0CC0, 20 + len(directory), 1, 0, 20) + directory


def library(parts: Parts) -> bytes:
    """A library of headers and tables, without code."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in parts.undefined)
    symbols, at = b"", 1
    for name in parts.undefined:
        symbols += struct.pack("<IBBHQ", at, 0x01, 0, 0, 0)
        at += len(name) + 1
    tables, places = b"", []
    for table in (_trie(parts.exports), symbols, strings):
        places.append(PAGE + len(tables))
        tables += table
    end = 2 * PAGE
    (major, minor), trie = parts.oldest, _trie(parts.exports)
    commands = [
        _library_command(0xD, parts.name),
        *(_library_command(0xC, name) for name in parts.needs),
        _command(0x32, struct.pack("<4I", 1, major << 16 | minor << 8, 0, 0)),
        _command(0x80000033, struct.pack("<2I", places[0], len(trie))),
        _command(0x2, struct.pack("<4I", places[1], len(parts.undefined), places[2], len(strings))),
        *([_command(0x1D, struct.pack("<2I", end, 200))] if parts.signed else []),
    ]
    head = struct.pack(
        "<8I", 0xFEEDFACF, parts.processor, 0, parts.kind, len(commands),
        sum(map(len, commands)), parts.flags, 0,
    )  # fmt: skip
    data = (head + b"".join(commands)).ljust(PAGE, b"\0") + tables
    data = data.ljust(end, b"\0")
    return data + (_signature(data, parts.signed) if parts.signed else b"")


def test_what_is_read() -> None:
    found = macho.read(library(Parts()))
    assert found.exports == {*NAMES}
    assert found.undefined == {"_malloc", "___cxa_throw"}
    assert (found.oldest, found.needs, found.signature) == ("14.0", macho.SYSTEM, "")


def test_a_library_in_order() -> None:
    assert macho.problems(library(Parts()), NAME) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"processor": 0x01000007}, "not for arm64"),
        ({"kind": 2}, "it is no 64-bit library for macOS"),
        ({"flags": 0x108085}, "weak definitions"),
        ({"oldest": (15, 4)}, "it is for macOS 15.4, not 14.0"),
        ({"name": "/tmp/x.dylib"}, "programs would look for it as /tmp/x.dylib"),
        ({"needs": ("/usr/lib/libSystem.B.dylib",)}, "it needs /usr/lib/libSystem.B.dylib"),
        ({"exports": (*NAMES, "__Znwm")}, "its exports differ: __Znwm"),
        ({"exports": NAMES[1:]}, f"its exports differ: {NAMES[0]}"),
        (
            {"undefined": ("__ZTVNSt3__117bad_function_callE",)},
            "symbols.txt does not name __ZTVNSt3",
        ),
        ({"signed": 0}, "it is not signed"),
        ({"signed": 0x10000}, "its signature is not ad hoc"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, object], why: str) -> None:
    (found,) = macho.problems(library(replace(Parts(), **change)), NAME)  # type: ignore[arg-type]
    assert why in found


def test_a_byte_that_was_not_signed() -> None:
    data = bytearray(library(Parts()))
    data[PAGE + 2000] ^= 1
    assert macho.problems(bytes(data), NAME) == ["1 of 2 pages are not what was signed"]


@pytest.mark.parametrize("length", [0, 20, 40, 200, 700, PAGE, 2 * PAGE + 30])
def test_a_cut_file_is_refused(length: int) -> None:
    assert macho.problems(library(Parts())[:length], NAME)


def test_what_a_wheel_may_hold(tmp_path: Path) -> None:
    wheel = tmp_path / f"capsedge-1-py3-none-{wheels.TAGS[zig.MACOS]}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(NAME, library(Parts()))
        archive.writestr("capsedge/x.dll", b"")
    other = next(name for name in macho.LIBRARIES if name != NAME)
    assert macho.wheel_problems(wheel) == [
        f"{other}: it is missing", "capsedge/x.dll: it does not belong into a wheel",
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="is not usable"):
        wheels.judged_tag(wheel)


def test_the_compilers_words_become_the_linkers() -> None:
    words = ["-Wl,-force_load,a.a", "-s", "-Wl,-dead_strip", "b.o"]
    assert link.arguments(words) == ["-force_load", "a.a", "-dead_strip", "b.o"]


def test_what_the_libraries_may_need_is_listed_once_and_in_order() -> None:
    found = link.allowed()
    for names in found.values():
        assert names == sorted({*names})
        assert all(name.startswith("_") for name in names)
    assert not {*found["libSystem"]} & {*found["libc++"]}


def test_a_missing_linker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(link.VARIABLE, raising=False)
    monkeypatch.setattr(link.shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match="apt-get install lld-19"):
        link.linker()


@pytest.mark.parametrize(("symbol", "links"), [("_malloc", True), ("_not_in_macos_14", False)])
def test_only_a_listed_name_links(symbol: str, links: bool, tmp_path: Path) -> None:
    try:
        link.linker()
    except SystemExit as error:
        pytest.skip(str(error))
    # An arm64 object of one section, one undefined and one defined name.
    source = f".globl _RegisterCustomOps\n_RegisterCustomOps:\n b {symbol}\n"
    ziglang = pytest.importorskip("ziglang", reason="pip install 'capsedge[release]'")
    program = Path(ziglang.__file__).parent / "zig"
    (tmp_path / "a.s").write_text(source)
    subprocess.run(
        [program, "cc", "-target", zig.TARGETS[zig.MACOS], "-c", "a.s", "-o", "a.o"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    (tmp_path / "names").write_text("_RegisterCustomOps\n")
    code = link.main(
        ["-install_name", "@rpath/a.dylib", "-o", str(tmp_path / "a.dylib"), str(tmp_path / "a.o"),
         f"-Wl,-exported_symbols_list,{tmp_path / 'names'}"]
    )  # fmt: skip
    assert (code == 0) == links
    if links:
        found = macho.read((tmp_path / "a.dylib").read_bytes())
        assert (found.exports, found.signature) == ({"_RegisterCustomOps"}, "")
