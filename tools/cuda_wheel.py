"""The distribution ``capsedge-cuda``: the CUDA kernels, and the TensorRT plugin libraries that run them.

``make cuda-wheel`` compiles and packs them. The kernels are one file with code for GPUs only, and one more
for JetPack 6; the plugin libraries are small, so one wheel has those for both processors and serves every
system. Its version is that of capsedge, which loads no other.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tools import cuda12, plugin_libraries, release_checks, zig

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
Summary: The CUDA kernels and TensorRT plugins of capsedge
Requires-Python: >=3.10
Requires-Dist: capsedge=={version}
License-Expression: Apache-2.0
License-File: LICENSE
License-File: NOTICE
Description-Content-Type: text/plain

The routing operators of capsedge as code for NVIDIA GPUs of compute capability
{architectures}, and for newer ones through their driver; and as TensorRT plugins.
capsedge of the same version finds and loads them.
"""
_WHEEL = """Wheel-Version: 1.0
Generator: capsedge
Root-Is-Purelib: true
Tag: py3-none-any
"""
_NOTICE = """kernels.fatbin and kernels.*.cubin are compiled by NVIDIA's nvcc and NVRTC from the sources of
capsedge (Apache-2.0).

They contain, in object code, functions of NVIDIA's Common Device Math Functions Library (libdevice.10.bc)
and of its CUDA headers (cuda_fp16.h), which attachment A of the End User License Agreement of the CUDA
Toolkit lists as distributable: https://docs.nvidia.com/cuda/eula/. They do not contain the CUDA runtime
(libcudart): the program that loads them brings its own.

The plugin libraries, if there are any, are compiled from the sources of capsedge with the headers of
TensorRT (Apache-2.0, https://github.com/NVIDIA/TensorRT). They do not contain TensorRT.
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
    other = kernels.with_suffix(cuda12.SUFFIX)
    if not other.is_file() or any(f.stat().st_mtime > other.stat().st_mtime for f in sources):
        raise SystemExit(f"error: {other}, the code for CUDA 12, is missing or old: make cuda")


def _files(kernels: Path, plugins: Mapping[str, Path], version: str) -> Iterator[tuple[str, bytes]]:
    info = f"capsedge_cuda-{version}.dist-info"
    known = ", ".join(f"{a // 10}.{a % 10}" for a in ARCHITECTURES)
    yield "capsedge_cuda/__init__.py", _INIT.format(version=version).encode()
    yield "capsedge_cuda/kernels.fatbin", kernels.read_bytes()
    yield f"capsedge_cuda/kernels{cuda12.SUFFIX}", kernels.with_suffix(cuda12.SUFFIX).read_bytes()
    for name, library in sorted(plugins.items()):
        yield f"capsedge_cuda/{name}", library.read_bytes()
    yield f"{info}/METADATA", _METADATA.format(version=version, architectures=known).encode()
    yield f"{info}/WHEEL", _WHEEL.encode()
    yield f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes()
    yield f"{info}/licenses/NOTICE", _NOTICE.encode()


def pack(kernels: Path, plugins: Mapping[str, Path], version: str, folder: Path) -> Path:
    """Write the wheel; the same files always make the same one.

    Args:
        plugins: the plugin libraries by their names in the package, such as
            ``aarch64/libcapsedge_tensorrt10.so``.

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

        for name, data in _files(kernels, plugins, version):
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


def make_plugins(folder: Path) -> dict[str, Path]:
    """The plugin libraries for the headers that are here, compiled; what is left out is said on stderr.

    Raises:
        SystemExit, subprocess.CalledProcessError: as `plugin_libraries.headers` and `plugin_libraries.make`.
    """
    headers = plugin_libraries.headers()
    if why := plugin_libraries.left_out(headers):
        print(f"capsedge-cuda: {why}", file=sys.stderr)
    if not headers:
        return {}
    return {
        f"{processor}/{library.name}": library
        for processor in zig.PROCESSORS
        for library in plugin_libraries.make(headers, processor, folder / processor)
    }


def make(folder: Path, kernels: Path = KERNELS) -> Path:
    """The wheel of this checkout's version.

    Raises:
        SystemExit: the kernels are not compiled, older than their sources, or not for every GPU; or as
            `make_plugins`.
        subprocess.CalledProcessError: a plugin library does not compile.
    """
    check(kernels)
    with TemporaryDirectory(prefix="capsedge-plugins-") as name:
        plugins = make_plugins(Path(name))
        return pack(kernels, plugins, release_checks.version(ROOT), folder)
