"""What a Windows library exports and needs, read from its file, and what a wheel for Windows may hold.

The format: Microsoft's "PE Format" (learn.microsoft.com/windows/win32/debug/pe-format). It is enough for
64-bit libraries that this project's compiler made; a damaged file raises `ValueError`.
"""

from __future__ import annotations

import re
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent / "capsedge" / "runtime" / "native"
# Of every library, the version script that names its functions.
LIBRARIES = {
    "capsedge/runtime/_native/libcapsedge_ort.dll": NATIVE / "onnxruntime" / "exports.map",
    "capsedge/runtime/_native/lib/libcapsedge.dll": NATIVE / "libcapsedge" / "src" / "exports.map",
}
IMPORT_LIBRARY = "capsedge/runtime/_native/lib/libcapsedge.dll.a"
# Part of Windows 10 and later: the system's interface, and its C library.
SYSTEM = re.compile(r"(kernel32|api-ms-win-crt-[a-z]+-l1-1-0)\.dll", re.IGNORECASE)
_AMD64 = 0x8664
_HIGH_ENTROPY, _ANY_ADDRESS, _NO_EXECUTION = 0x20, 0x40, 0x100


@dataclass(frozen=True)
class Library:
    """The parts of a library's header that decide where it loads."""

    machine: int
    characteristics: int
    exports: frozenset[str]
    imports: frozenset[str]


class _Image:
    """Addresses of the loaded library, as places in its file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        (self.header,) = struct.unpack_from("<I", data, 0x3C)
        if data[:2] != b"MZ" or data[self.header : self.header + 4] != b"PE\0\0":
            raise ValueError("it is not a PE file")
        self.machine, count, *_, optional = struct.unpack_from("<HHIIIH", data, self.header + 4)
        self.optional = self.header + 24
        if struct.unpack_from("<H", data, self.optional) != (0x20B,):
            raise ValueError("it is not a 64-bit PE file")
        table = self.optional + optional
        self.sections = [
            struct.unpack_from("<IIII", data, table + 40 * i + 8) for i in range(count)
        ]

    def place(self, address: int) -> int:
        for size, start, held, offset in self.sections:
            if start <= address < start + max(size, held):
                return offset + address - start
        raise ValueError(f"no section holds the address {address:#x}")

    def text(self, address: int) -> str:
        at = self.place(address)
        return self.data[at : self.data.index(b"\0", at)].decode("ascii")

    def directory(self, index: int) -> int:
        """The address of a table; 0 if there is none."""
        (address,) = struct.unpack_from("<I", self.data, self.optional + 112 + 8 * index)
        return int(address)

    def exports(self) -> list[str]:
        if not self.directory(0):
            return []
        at = self.place(self.directory(0))
        (count,) = struct.unpack_from("<I", self.data, at + 24)
        (names,) = struct.unpack_from("<I", self.data, at + 32)
        return [
            self.text(a) for a in struct.unpack_from(f"<{count}I", self.data, self.place(names))
        ]

    def imports(self) -> list[str]:
        found: list[str] = []
        at = self.place(self.directory(1)) if self.directory(1) else None
        while at is not None:
            (name,) = struct.unpack_from("<I", self.data, at + 12)
            if not name:
                break
            found.append(self.text(name))
            at += 20
        return found


def read(data: bytes) -> Library:
    """Read a library.

    Raises:
        ValueError: it is not a 64-bit PE file, or is damaged.
    """
    try:
        image = _Image(data)
        (characteristics,) = struct.unpack_from("<H", data, image.optional + 70)
        return Library(
            image.machine, characteristics, frozenset(image.exports()), frozenset(image.imports())
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged: {error}") from None


def exported(script: Path) -> frozenset[str]:
    """The functions that a version script names."""
    found = re.findall(r"^ +(\w+);$", script.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(found)


def problems(data: bytes, script: Path) -> list[str]:
    """Why a library of ours would not load on every Windows 10 (x86-64), or exports other functions.

    Args:
        data: the library's file.
        script: the version script that names its functions.
    """
    try:
        library = read(data)
    except ValueError as error:
        return [str(error)]
    found = []
    if library.machine != _AMD64:
        found.append(f"it is for the machine {library.machine:#x}, not for x86-64")
    if other := sorted(n for n in library.imports if not SYSTEM.fullmatch(n)):
        found.append(f"it needs {', '.join(other)}, which not every Windows has")
    if wrong := library.exports ^ exported(script):
        found.append(f"{script.name} and its exports differ: {', '.join(sorted(wrong))}")
    for bit, what in (
        (_HIGH_ENTROPY | _ANY_ADDRESS, "load at any address"),
        (_NO_EXECUTION, "run with data that cannot be executed"),
    ):
        if library.characteristics & bit != bit:
            found.append(f"it does not say that it can {what}")
    return found


def wheel_problems(wheel: Path) -> list[str]:
    """What is wrong with the libraries of a wheel for Windows: each as ``name: why``."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        found = [
            f"{name}: it is missing" for name in (*LIBRARIES, IMPORT_LIBRARY) if name not in names
        ]
        found += [
            f"{name}: it does not belong into a wheel"
            for name in sorted(names)
            if name.endswith((".pdb", ".so", ".exe"))
            or (name.endswith((".dll", ".a", ".lib")) and name not in (*LIBRARIES, IMPORT_LIBRARY))
        ]
        for name in sorted(names & set(LIBRARIES)):
            found += [f"{name}: {why}" for why in problems(archive.read(name), LIBRARIES[name])]
    return found
