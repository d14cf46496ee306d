"""The distribution ``capsedge-cuda``: the CUDA kernels as one file, for every processor and system.

``make cuda-wheel`` compiles the kernels and packs them. The file has code for GPUs only, so one wheel serves
all; its version is that of capsedge, which loads no other.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tools import release_checks

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "build" / "cuda" / "capsedge.fatbin"
SOURCES = ROOT / "capsedge" / "runtime" / "native" / "kernels" / "cuda"
# Turing, Ampere, Orin, Ada, Hopper, Blackwell, Thor, as in cuda.cmake; and PTX of the last.
ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 110, 120)
MOST_BYTES = 100_000_000  # of a file on the package index
_MAGIC, _HEADER, _ENTRY = 0xBA55ED50, struct.Struct("<IHHQ"), struct.Struct("<HHIQ12xI")
_PTX, _MACHINE = 1, 2

_INIT = '''"""The CUDA kernels of capsedge, which loads them: this package has no functions."""

__version__ = "{version}"
'''
_METADATA = """Metadata-Version: 2.4
Name: capsedge-cuda
Version: {version}
Summary: The CUDA kernels of capsedge
Requires-Python: >=3.10
Requires-Dist: capsedge=={version}
License-Expression: Apache-2.0
License-File: LICENSE
License-File: NOTICE
Description-Content-Type: text/plain

The routing operators of capsedge as code for NVIDIA GPUs of compute capability
{architectures}, and for newer ones through their driver.
capsedge of the same version finds and loads it.
"""
_WHEEL = """Wheel-Version: 1.0
Generator: capsedge
Root-Is-Purelib: true
Tag: py3-none-any
"""
_NOTICE = """kernels.fatbin is compiled by NVIDIA's nvcc from the sources of capsedge (Apache-2.0).

It contains, in object code, functions of NVIDIA's Common Device Math Functions Library (libdevice.10.bc)
and of its CUDA headers (cuda_fp16.h), which attachment A of the End User License Agreement of the CUDA
Toolkit lists as distributable: https://docs.nvidia.com/cuda/eula/. It does not contain the CUDA runtime
(libcudart): the program that loads it brings its own.
"""


def architectures(kernels: Path) -> tuple[list[int], list[int]]:
    """The architectures of a fat binary, such as 90: with machine code, and with PTX.

    Raises:
        SystemExit: it is not a fat binary, or not a whole one.
    """
    data = kernels.read_bytes()
    found: dict[int, list[int]] = {_PTX: [], _MACHINE: []}
    try:
        magic, _, at, size = _HEADER.unpack_from(data)
        end = at + size
        if magic != _MAGIC or end != len(data):
            raise SystemExit(f"error: {kernels} is not a whole fat binary: make cuda")
        while at < end:
            kind, _, header, payload, architecture = _ENTRY.unpack_from(data, at)
            found[kind].append(architecture)
            at += header + payload
    except (struct.error, KeyError):
        raise SystemExit(
            f"error: {kernels} is not a fat binary of a known form: make cuda"
        ) from None
    return sorted(found[_MACHINE]), sorted(found[_PTX])


def check(kernels: Path) -> None:
    """Refuse kernels that are not of these sources, or not for every GPU.

    Raises:
        SystemExit: says what is missing.
    """
    if not kernels.is_file():
        raise SystemExit(
            f"error: the CUDA kernels are not compiled: {kernels} does not exist: make cuda"
        )
    sources = [SOURCES / "kernels.cu", *SOURCES.glob("*.h")]
    changed = [file.name for file in sources if file.stat().st_mtime > kernels.stat().st_mtime]
    if changed:
        raise SystemExit(f"error: {kernels} is older than {changed[0]}: make cuda")
    machine, ptx = architectures(kernels)
    missing = sorted(set(ARCHITECTURES) - set(machine))
    if missing or ARCHITECTURES[-1] not in ptx:
        what = ", ".join(map(str, missing)) or f"{ARCHITECTURES[-1]}, as PTX"
        raise SystemExit(f"error: {kernels} has no code for the architectures {what}: make cuda")


def _files(kernels: Path, version: str) -> Iterator[tuple[str, bytes]]:
    info = f"capsedge_cuda-{version}.dist-info"
    known = ", ".join(f"{a // 10}.{a % 10}" for a in ARCHITECTURES)
    yield "capsedge_cuda/__init__.py", _INIT.format(version=version).encode()
    yield "capsedge_cuda/kernels.fatbin", kernels.read_bytes()
    yield f"{info}/METADATA", _METADATA.format(version=version, architectures=known).encode()
    yield f"{info}/WHEEL", _WHEEL.encode()
    yield f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes()
    yield f"{info}/licenses/NOTICE", _NOTICE.encode()


def pack(kernels: Path, version: str, folder: Path) -> Path:
    """Write the wheel; the same kernels always make the same file.

    Raises:
        SystemExit: it is too large for the package index.
    """
    target = folder / f"capsedge_cuda-{version}-py3-none-any.whl"
    record = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, data: bytes) -> None:
            entry = zipfile.ZipInfo(name)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)

        for name, data in _files(kernels, version):
            add(name, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        own = f"capsedge_cuda-{version}.dist-info/RECORD"
        add(own, "".join([*record, f"{own},,\n"]).encode())
    if target.stat().st_size >= MOST_BYTES:
        raise SystemExit(
            f"error: {target.name} has {target.stat().st_size} bytes; at most {MOST_BYTES}"
        )
    return target


def make(folder: Path, kernels: Path = KERNELS) -> Path:
    """The wheel of this checkout's version.

    Raises:
        SystemExit: the kernels are not compiled, older than their sources, or not for every GPU.
    """
    check(kernels)
    return pack(kernels, release_checks.version(ROOT), folder)
