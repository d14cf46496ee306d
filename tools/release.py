"""Prepare a release in dist/: distributions, checksums, bill of materials.

    python -m tools.release --dry-run      # builds and checks; says what would be uploaded
    python -m tools.release --upload       # and hands the files to twine

The bill of materials (SBOM, CycloneDX 1.6) lists what ``pip install capsedge[cpu]`` brings, as resolved here.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import wheels

CHECKSUMS = "SHA256SUMS"


def _python(*command: object) -> None:
    subprocess.run([sys.executable, "-m", *map(str, command)], check=True, stdout=sys.stderr)


def distributions(folder: Path) -> list[Path]:
    """Source archive and wheels, by name."""
    return sorted([*folder.glob("*.tar.gz"), *folder.glob("*.whl")])


def write_checksums(folder: Path) -> Path:
    """``SHA256SUMS`` of everything in the folder, as ``sha256sum --check`` reads it."""
    lines = [
        f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n"
        for f in sorted(folder.iterdir())
        if f.is_file() and f.name != CHECKSUMS and not f.name.startswith(".")
    ]
    target = folder / CHECKSUMS
    target.write_text("".join(lines))
    return target


def write_sbom(folder: Path, wheel: Path) -> Path:
    """The components of an environment into which only the wheel with ``[cpu]`` was installed."""
    target = folder / f"{wheel.name.split('-py3')[0]}.cdx.json"
    with tempfile.TemporaryDirectory(prefix="capsedge-sbom-") as name:
        environment = Path(name) / "env"
        _python("venv", environment)
        python = environment / "bin" / "python"
        options = ["--quiet", "--disable-pip-version-check", "-c", wheels.ROOT / "constraints.txt"]
        _python("pip", "--python", python, "install", *options, f"{wheel}[cpu]")
        _python("cyclonedx_py", "environment", python, "--output-file", target)
    return target


def main() -> None:
    """Build, check, and print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--dry-run", action="store_true", help="build and check, upload nothing")
    choice.add_argument("--upload", action="store_true", help="upload with twine at the end")
    parser.add_argument(
        "--into", type=Path, default=wheels.DIST, help="empty folder (default: dist)"
    )
    options = parser.parse_args()
    folder: Path = options.into
    if folder.exists() and any(folder.iterdir()):
        parser.error(f"{folder} is not empty: a release is built from nothing; delete it first")
    for kind in wheels.KINDS:
        wheels.make(kind, folder)
    found = distributions(folder)
    _python("twine", "check", "--strict", *found)
    write_sbom(folder, next(f for f in found if f.name.endswith("x86_64.whl")))
    print(write_checksums(folder).read_text(), end="")
    if options.upload:
        _python("twine", "upload", *found)
    else:
        print(f"Dry run: {len(found)} files would be uploaded.", file=sys.stderr)


if __name__ == "__main__":
    main()
