"""Build the distributions: source archive, wheels with and without libraries, the CUDA kernels.

    make wheels                             # those for Linux, and those without libraries, in dist/
    make wheels-all                         # those for the other systems too
    python -m tools.wheels pure x86_64      # some of them

The libraries are compiled by zig's Clang on one machine: for Linux with glibc 2.17 (2012) on both processors;
for Windows 10 and later on x86-64, whose libraries `tools/pe.py` judges; for macOS 14 and later on Apple's
processors, whose libraries LLVM's linker links and `tools/macos/macho.py` judges. Those never ran on macOS.
A wheel for this machine's processor is refused if its kernels choose other SIMD levels here than the local
build's: without vectors it would compute the same, many times slower. The wheel without libraries
(``py3-none-any``) serves every other platform: models run there through the function bodies in their files.
The CUDA kernels and TensorRT plugins are a distribution of their own, ``capsedge-cuda``
(`tools/cuda_wheel.py`).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from capsedge.deploy.web import built_page
from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends import native_library
from tools import cuda_wheel, pe, zig
from tools.macos import link, macho

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PROCESSORS = zig.PROCESSORS
OTHER_SYSTEMS = (zig.WINDOWS, zig.MACOS)  # built by `make wheels-all` and for a release
LINUX = ("sdist", "pure", *PROCESSORS, "cuda")
KINDS = (*LINUX, *OTHER_SYSTEMS)
TAGS = {
    # As PEP 600 names a processor and a C library.
    **{p: f"manylinux_{zig.GLIBC[0]}_{zig.GLIBC[1]}_{p}" for p in PROCESSORS},
    zig.WINDOWS: "win_amd64",
    zig.MACOS: f"macosx_{link.OLDEST.replace('.', '_')}_arm64",
}
_JUDGES = {zig.WINDOWS: pe.wheel_problems, zig.MACOS: macho.wheel_problems}


def judged_tag(wheel: Path) -> str:
    """The platform tag that a wheel deserves by what its libraries need: auditwheel's for Linux, else ours.

    Raises:
        SystemExit: its libraries would not load everywhere on another system, or export the wrong functions.
        subprocess.CalledProcessError: it is not a wheel with libraries.
    """
    for kind, judge in _JUDGES.items():
        if wheel.stem.endswith(TAGS[kind]):
            if problems := judge(wheel):
                raise SystemExit("\n".join([f"error: {wheel.name} is not usable:", *problems]))
            return TAGS[kind]
    said = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)],
        capture_output=True, encoding="utf-8", check=True,
    ).stdout  # fmt: skip
    found = re.search(r'following platform tag:\s+"([^"]+)"', said)
    return found[1] if found else "none"


def library_in(wheel: Path, folder: Path) -> Path:
    """The operator library of a wheel, unpacked into a folder."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(f"/{native_library.NAME}"))
        return Path(archive.extract(name, folder))


def local_library() -> Path:
    """The operator library that the compiler of this machine built.

    Raises:
        SystemExit: there is none.
    """
    found = native_library.find_library()
    if found is None:
        raise SystemExit(
            "error: A wheel's SIMD levels are compared with those of a local build, and this environment has "
            "none.\nInstall a C++17 compiler (Debian: apt-get install g++), then: pip install -e ."
        )
    return found


def check_levels(wheel: Path) -> None:
    """Refuse a wheel for this processor whose kernels choose other SIMD levels than the local build's.

    Raises:
        SystemExit: they differ, or there is no local build.
    """
    local = local_library()
    with tempfile.TemporaryDirectory(prefix="capsedge-levels-") as name:
        found, wanted = (
            ",".join(native_library.levels_of(library))
            for library in (library_in(wheel, Path(name)), local)
        )
    if found != wanted:
        raise SystemExit(
            f"error: {wheel.name} is not made: on this machine its kernels run the levels {found}, those of "
            f"{local} {wanted}.\nIf the local build is older than the sources, renew it: pip install -e .\n"
            "If not, what kernels/cpu/simd/features.h finds depends on the compiler, which is a bug."
        )


def _run(*command: object, **environment: str) -> None:
    subprocess.run(
        [str(c) for c in command],
        check=True,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=sys.stderr,
    )


def _build(folder: Path, *arguments: str, **environment: str) -> Path:
    """Run ``python -m build`` in an empty folder; returns the one file that it makes."""
    _run(sys.executable, "-m", "build", "--outdir", folder, *arguments, ROOT, **environment)
    (made,) = folder.iterdir()
    return made


def _with_libraries(folder: Path, kind: str) -> Path:
    """A wheel with cross-compiled libraries; its tag states what they need."""
    made = _build(
        folder,
        "--wheel",
        f"-Ccmake.toolchain-file={zig.TOOLCHAIN}",
        **zig.variables(kind),
    )
    _run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", TAGS[kind], made)
    (tagged,) = folder.iterdir()
    if kind == platform.machine():
        check_levels(tagged)
    if kind in _JUDGES:
        judged_tag(tagged)
    return tagged


def make(kind: str, target: Path = DIST) -> Path:
    """Build one distribution.

    Args:
        kind: one of ``KINDS``.
        target: folder into which it is moved when complete.

    Raises:
        SystemExit: zig or LLVM's linker is missing, the wheel has other SIMD levels than the local build, its
            libraries do not suit their system, or the CUDA kernels are not compiled.
        subprocess.CalledProcessError: the build failed; its output is on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="capsedge-wheel-") as name:
        folder = Path(name)
        if kind == "sdist":
            made = _build(folder, "--sdist")
        elif kind == "pure":
            made = _build(folder, "--wheel", "-Cwheel.cmake=false", "-Cwheel.platlib=false")
        elif kind == "cuda":
            made = cuda_wheel.make(folder)
        else:
            made = _with_libraries(folder, kind)
        target.mkdir(parents=True, exist_ok=True)
        partial = target / f".{made.name}.partial"
        shutil.copyfile(made, partial)
        return partial.rename(target / made.name)


def main() -> None:
    """Build the named distributions, or all, and print where they are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND",
        help=f"of {', '.join(KINDS)} (default: {', '.join(LINUX)})",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="those for other systems too")
    parser.add_argument("--into", type=Path, default=DIST, help="folder (default: dist)")
    options = parser.parse_args()
    unknown = set(options.kinds) - set(KINDS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    kinds = options.kinds or (KINDS if options.all else LINUX)
    try:
        if set(kinds) - {"cuda"}:
            built_page()
    except EnvironmentProblem as error:
        raise SystemExit(f"error: {error}") from None
    for kind in kinds:
        print(make(kind, options.into))


if __name__ == "__main__":
    main()
