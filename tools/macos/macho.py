"""What a macOS library exports and needs, and whether its signature fits, read from its file.

The format: Apple's headers ``mach-o/loader.h`` and ``kern/cs_blobs.h``. It is enough for 64-bit libraries
that `link` made; a damaged file raises `ValueError`. None of ours has run on macOS: nothing more is known.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools import pe
from tools.macos import link

# Of every library, the version script that names its functions.
LIBRARIES = {name.replace(".dll", ".dylib"): script for name, script in pe.LIBRARIES.items()}
SYSTEM = frozenset({"/usr/lib/libSystem.B.dylib", "/usr/lib/libc++.1.dylib"})
_MAGIC, _ARM64, _DYLIB, _WEAK_DEFINITIONS = 0xFEEDFACF, 0x0100000C, 6, 0x8000
_SYMTAB, _LOAD, _ID, _SIGNATURE, _TRIE, _VERSION = 0x2, 0xC, 0xD, 0x1D, 0x80000033, 0x32
_INFO, _WEAK_LOAD, _REEXPORT = 0x80000022, 0x80000018, 0x8000001F
_AD_HOC = 0x2


@dataclass(frozen=True)
class Library:
    """The parts of a library that decide where it loads.

    Attributes:
        processor: ``CPU_TYPE_ARM64`` for ours.
        weak: whether another library's definition of a function may replace one of its own.
        oldest: the oldest macOS, ``14.0``.
        name: how programs that are linked with it find it.
        needs: the libraries that it loads.
        exports: names, as the linker writes them: with ``_`` in front.
        undefined: the names that it takes from others.
        signature: what is wrong with its signature; empty if macOS accepts it.
    """

    processor: int
    weak: bool
    oldest: str
    name: str
    needs: frozenset[str]
    exports: frozenset[str]
    undefined: frozenset[str]
    signature: str


def read(data: bytes) -> Library:
    """Read a library.

    Raises:
        ValueError: it is not a 64-bit library for macOS, or is damaged.
    """
    try:
        return _read(data)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ValueError(f"it is damaged: {error}") from None


def _read(data: bytes) -> Library:
    magic, processor, _, kind, count, _, flags, _ = struct.unpack_from("<8I", data)
    if (magic, kind) != (_MAGIC, _DYLIB):
        raise ValueError("it is no 64-bit library for macOS")
    oldest, name, needs, exports, undefined = "", "", set(), set[str](), set[str]()
    signature = "it is not signed"
    place = 32
    for _ in range(count):
        command, size = struct.unpack_from("<2I", data, place)
        body = data[place : place + size]
        if command in (_LOAD, _WEAK_LOAD, _REEXPORT):
            needs.add(_text(body, struct.unpack_from("<I", body, 8)[0]))
        elif command == _ID:
            name = _text(body, struct.unpack_from("<I", body, 8)[0])
        elif command == _VERSION:
            (number,) = struct.unpack_from("<I", body, 12)
            oldest = f"{number >> 16}.{number >> 8 & 255}"
        elif command in (_TRIE, _INFO):
            at, length = struct.unpack_from("<2I", body, 8 if command == _TRIE else 40)
            exports |= {*_exports(data[at : at + length])}
        elif command == _SYMTAB:
            undefined |= {*_undefined(data, *struct.unpack_from("<4I", body, 8))}
        elif command == _SIGNATURE:
            signature = _signature_problem(data, *struct.unpack_from("<2I", body, 8))
        place += max(size, 8)
    return Library(
        processor, bool(flags & _WEAK_DEFINITIONS), oldest, name,
        frozenset(needs), frozenset(exports), frozenset(undefined), signature,
    )  # fmt: skip


def _text(data: bytes, at: int) -> str:
    return data[at:].split(b"\0", 1)[0].decode("ascii")


def _exports(trie: bytes) -> Iterator[str]:
    """The names in a tree of their letters."""
    pending = [(0, "")] if trie else []
    while pending:
        at, prefix = pending.pop()
        size, at = _number(trie, at)
        if size:
            yield prefix
        at += size
        children, at = trie[at], at + 1
        for _ in range(children):
            letters = _text(trie, at)
            child, at = _number(trie, at + len(letters) + 1)
            if child == 0:
                raise ValueError("its list of exports leads back to its root")
            pending.append((child, prefix + letters))


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of any length (ULEB128), and the place after it."""
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7


def _undefined(data: bytes, symbols: int, count: int, strings: int, _: int) -> Iterator[str]:
    for k in range(count):
        name, kind = struct.unpack_from("<IB", data, symbols + 16 * k)
        if kind & 0xE0 == 0 and kind & 0x0E == 0:  # neither for debuggers nor defined here
            yield _text(data, strings + name)


def _signature_problem(data: bytes, at: int, size: int) -> str:
    """What is wrong with an ad hoc signature, whose page hashes are computed again."""
    blob = data[at : at + size]
    magic, _, count = struct.unpack_from(">3I", blob)
    if magic != 0xFADE0CC0:
        return "its signature is none"
    for k in range(count):
        kind, start = struct.unpack_from(">2I", blob, 12 + 8 * k)
        if kind == 0:
            directory = blob[start:]
            flags, hashes = struct.unpack_from(">2I", directory, 12)
            pages, limit = struct.unpack_from(">2I", directory, 28)
            length, algorithm, step = directory[36], directory[37], 1 << directory[39]
            found = [
                hashlib.sha256(data[n : min(n + step, limit)]).digest()
                for n in range(0, limit, step)
            ]
            stored = [
                directory[n : n + length] for n in range(hashes, hashes + pages * length, length)
            ]
            if (length, algorithm, limit) != (32, 2, at) or not flags & _AD_HOC:
                return "its signature is not ad hoc, with SHA-256, over all that is before it"
            wrong = (
                sum(a != b for a, b in zip(found, stored, strict=True))
                if pages == len(found)
                else pages
            )
            return f"{wrong} of {pages} pages are not what was signed" if wrong else ""
    return "its signature has no list of pages"


def problems(data: bytes, name: str) -> list[str]:
    """Why a library of ours would not load on every Mac with `link.OLDEST`, or exports other functions.

    Args:
        data: the library's file.
        name: of `LIBRARIES`.
    """
    try:
        library = read(data)
    except ValueError as error:
        return [str(error)]
    script = LIBRARIES[name]
    known = {symbol for names in link.allowed().values() for symbol in names}
    wanted = {f"_{function}" for function in pe.exported(script)}
    found = [library.signature] if library.signature else []
    if library.processor != _ARM64:
        found.append(f"it is for the processor {library.processor:#x}, not for arm64")
    if library.oldest != link.OLDEST:
        found.append(f"it is for macOS {library.oldest}, not {link.OLDEST}")
    if library.name != f"@rpath/{Path(name).name}":
        found.append(f"programs would look for it as {library.name}")
    if library.needs != SYSTEM:
        found.append(f"it needs {', '.join(sorted(library.needs))}")
    if library.weak:
        found.append("functions of another library may replace its own (weak definitions)")
    if wrong := library.exports ^ wanted:
        found.append(f"{script.name} and its exports differ: {', '.join(sorted(wrong))}")
    if newer := library.undefined - known:
        found.append(f"{link.SYMBOLS.name} does not name {', '.join(sorted(newer))}")
    return found


def wheel_problems(wheel: Path) -> list[str]:
    """What is wrong with the libraries of a wheel for macOS: each as ``name: why``."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        found = [f"{name}: it is missing" for name in LIBRARIES if name not in names]
        found += [
            f"{name}: it does not belong into a wheel"
            for name in sorted(names)
            if name.endswith((".so", ".dll", ".a", ".dylib")) and name not in LIBRARIES
        ]
        for name in sorted(names & set(LIBRARIES)):
            found += [f"{name}: {why}" for why in problems(archive.read(name), name)]
    return found
