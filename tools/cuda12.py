"""The CUDA kernels as machine code for JetPack 6, whose driver for CUDA 12.6 does not know that of nvcc 13.

    python -m tools.cuda12 build/cuda       # capsedge.cuda12.sm87.cubin, a minute and a half

NVRTC of CUDA 12.6 compiles them; it is installed from the package index in ``build/cuda12``. The loader takes
the file in place of the fat binary beside it (kernels/cuda/device_code.cpp).
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = Path(__file__).with_name("cuda12.txt")
SOURCES = ROOT / "capsedge" / "runtime" / "native" / "kernels" / "cuda"
ARCHITECTURE = 87  # Orin, the only GPU of JetPack 6
SUFFIX = f".cuda12.sm{ARCHITECTURE}.cubin"
# NVRTC has no headers of C++.
_INTEGERS = """#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
"""
_HEADERS = {"cstdint": _INTEGERS, "stdint.h": "#include <cstdint>\n", "stddef.h": "", "cmath": ""}


def installed(folder: Path = ROOT / "build" / "cuda12") -> Path:
    """The folder ``nvidia`` of the pinned packages, installed if they are not.

    Raises:
        SystemExit: pip fails; it has said why.
    """
    ready, wanted = folder / ".ready", PACKAGES.read_text(encoding="utf-8")
    if not ready.is_file() or ready.read_text(encoding="utf-8") != wanted:
        what = "NVIDIA's runtime compiler of CUDA 12.6 (25 MB), proprietary software"
        print(f"Installing {what}, in build/cuda12.", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        python: list[str | Path] = [folder / "bin" / "python"]
        command = [*python, "-m", "pip", "install", "--quiet", "--no-deps"]
        if subprocess.run([*command, "-r", PACKAGES], stdout=sys.stderr, check=False).returncode:
            raise SystemExit(f"error: the packages of {PACKAGES.name} cannot be installed")
        ready.write_text(wanted, encoding="utf-8")
    (found,) = folder.glob("lib/python*/site-packages/nvidia")
    return found


class _Nvrtc:
    def __init__(self, nvidia: Path) -> None:
        folder = nvidia / "cuda_nvrtc" / "lib"
        (builtins,) = folder.glob("libnvrtc-builtins.so.*")
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(folder / "libnvrtc.so.12"))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, text)
        return text.raw

    def compile(self, source: Path, options: list[str], what: str) -> bytes:
        program = ctypes.c_void_p()
        names, bodies = (
            [name.encode() for name in _HEADERS],
            [h.encode() for h in _HEADERS.values()],
        )
        status = self._library.nvrtcCreateProgram(
            ctypes.byref(program), source.read_bytes(), source.name.encode(), len(names),
            (ctypes.c_char_p * len(names))(*bodies), (ctypes.c_char_p * len(names))(*names),
        )  # fmt: skip
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = status or self._library.nvrtcCompileProgram(program, len(options), given)
        if status:
            log = self._text(program, "ProgramLog").decode(errors="replace")
            raise SystemExit(f"error: NVRTC does not compile {source}:\n{log[-4000:]}")
        return self._text(program, what)


def compiled(target: str, nvidia: Path) -> bytes:
    """The kernels as machine code, for ``sm_87``, or as PTX, for ``compute_87``.

    Raises:
        SystemExit: the compiler refuses them; its messages are in the error.
    """
    options = [
        f"-arch={target}", "-std=c++17", "-default-device", f"-I{SOURCES}",
        f"-I{nvidia}/cuda_runtime/include", f"-I{nvidia}/cuda_cccl/include",
    ]  # fmt: skip
    what = "CUBIN" if target.startswith("sm_") else "PTX"
    return _Nvrtc(nvidia).compile(SOURCES / "kernels.cu", options, what)


def main() -> None:
    """Write the file if it is older than the kernels' sources."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of capsedge.fatbin")
    target: Path = parser.parse_args().folder / f"capsedge{SUFFIX}"
    inputs = [SOURCES / "kernels.cu", *SOURCES.glob("*.h"), PACKAGES, Path(__file__)]
    if target.is_file() and all(f.stat().st_mtime < target.stat().st_mtime for f in inputs):
        return
    code = compiled(f"sm_{ARCHITECTURE}", installed())
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(code)
    Path(file.name).replace(target)
    target.chmod(0o644)
    print(f"{target}: {len(code)} bytes")


if __name__ == "__main__":
    main()
