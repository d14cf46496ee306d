"""Build the distributions: a source archive, a wheel with the libraries for each platform, and one without.

    make wheels                             # all of them, in dist/
    python -m tools.wheels pure x86_64      # some of them

The libraries are compiled by zig's Clang for glibc 2.17 (2012), for both processors on one machine. The wheel
without libraries (``py3-none-any``) serves every other platform: models run there through the function
bodies in their files.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
GLIBC = (2, 17)
PROCESSORS = ("x86_64", "aarch64")
KINDS = ("sdist", "pure", *PROCESSORS)
PAGE = ROOT / "capsedge" / "deploy" / "site" / "index.html"
_TOOLCHAIN = ROOT / "capsedge" / "runtime" / "native" / "cmake" / "zig.cmake"


def platform_tag(processor: str) -> str:
    """The tag that PEP 600 gives to a wheel for this processor and C library."""
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{processor}"


def judged_tag(wheel: Path) -> str:
    """The platform tag that auditwheel gives to a wheel by what its libraries need.

    Raises:
        subprocess.CalledProcessError: it is not a wheel with libraries.
    """
    said = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)],
        capture_output=True, encoding="utf-8", check=True,
    ).stdout  # fmt: skip
    found = re.search(r'following platform tag:\s+"([^"]+)"', said)
    return found[1] if found else "none"


def _run(*command: object, **environment: str) -> None:
    subprocess.run(
        [str(c) for c in command],
        check=True,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=sys.stderr,
    )


def _zig() -> Path:
    try:
        import ziglang
    except ModuleNotFoundError:
        raise SystemExit("Wheels are compiled with zig: pip install -e '.[release]'") from None
    return Path(ziglang.__file__).parent / "zig"


def _build(folder: Path, *arguments: str, **environment: str) -> Path:
    """Run ``python -m build`` in an empty folder; returns the one file that it makes."""
    _run(sys.executable, "-m", "build", "--outdir", folder, *arguments, ROOT, **environment)
    (made,) = folder.iterdir()
    return made


def _with_libraries(folder: Path, processor: str) -> Path:
    """A wheel with cross-compiled libraries; its tag states what they need."""
    made = _build(
        folder,
        "--wheel",
        f"-Ccmake.toolchain-file={_TOOLCHAIN}",
        CAPSEDGE_ZIG=str(_zig()),
        CAPSEDGE_TARGET=f"{processor}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}",
    )
    tag = platform_tag(processor)
    _run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, made)
    (tagged,) = folder.iterdir()
    return tagged


def make(kind: str, target: Path = DIST) -> Path:
    """Build one distribution.

    Args:
        kind: one of ``KINDS``.
        target: folder into which it is moved when complete.

    Raises:
        SystemExit: zig is missing.
        subprocess.CalledProcessError: the build failed; its output is on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="capsedge-wheel-") as name:
        folder = Path(name)
        if kind == "sdist":
            made = _build(folder, "--sdist")
        elif kind == "pure":
            made = _build(folder, "--wheel", "-Cwheel.cmake=false", "-Cwheel.platlib=false")
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
        "kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all by default"
    )
    parser.add_argument("--into", type=Path, default=DIST, help="folder (default: dist)")
    options = parser.parse_args()
    unknown = set(options.kinds) - set(KINDS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    if not PAGE.is_file():
        parser.error(
            "the page of `capsedge deploy web` is not built, and belongs into wheels: make web"
        )
    for kind in options.kinds or KINDS:
        print(make(kind, options.into))


if __name__ == "__main__":
    main()
