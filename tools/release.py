"""Prepare a release in dist/: distributions, checksums, bill of materials; and measure the wheel's speed.

    python -m tools.release --dry-run      # builds and checks; shows what an upload would do
    python -m tools.release --upload       # and hands the files to twine

The wheel for this machine's processor must reach 0.9 of the speed of a local build (`benchmarks/wheel.py`).
The bill of materials (SBOM, CycloneDX) lists what ``pip install 'capsedge[cpu]'`` installs, as resolved here.
The exit code is 1 if something is missing or wrong; the last lines say what.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import release_checks, wheels

CHECKSUMS = "SHA256SUMS"


def _python(*command: object, python: object = sys.executable) -> str:
    """Run a module and return its output.

    Raises:
        SystemExit: it failed; its messages are on stderr.
    """
    done = subprocess.run(
        [str(python), "-m", *map(str, command)], stdout=subprocess.PIPE, encoding="utf-8"
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        raise SystemExit(f"error: `python -m {command[0]} {command[1]}` failed")
    return done.stdout


def distributions(folder: Path) -> list[Path]:
    """Source archive and wheels, by name."""
    return sorted([*folder.glob("*.tar.gz"), *folder.glob("*.whl")])


def check_distributions(found: list[Path], version: str) -> None:
    """Check names, metadata (twine) and the platform tags (`wheels.judged_tag`).

    Raises:
        SystemExit: a distribution is missing, has another version, or its libraries do not match its name.
    """
    if len(found) != len(wheels.KINDS):
        raise SystemExit(f"error: {len(wheels.KINDS)} distributions wanted, {len(found)} made")
    for file in found:
        if not re.match(rf"capsedge(_cuda)?-{re.escape(version)}(-|\.tar)", file.name):
            raise SystemExit(f"error: {file.name} is not of version {version}")
    print(_python("twine", "check", "--strict", *found), end="")
    for tag in wheels.TAGS.values():
        (wheel,) = (file for file in found if file.name.endswith(f"{tag}.whl"))
        if wheels.judged_tag(wheel) != tag:
            raise SystemExit(
                f"error: the libraries of {wheel.name} do not agree with its tag: they need "
                f"{wheels.judged_tag(wheel)}"
            )
        print(f"{wheel.name}: its libraries agree with its tag")


def check_speed(found: list[Path]) -> None:
    """Compare the wheel for this machine's processor with a local build.

    Raises:
        SystemExit: a bundled model is slower than `benchmarks.wheel` allows.
    """
    tag = wheels.TAGS.get(platform.machine(), "none")
    for wheel in (file for file in found if file.name.endswith(f"{tag}.whl")):
        print(_python("benchmarks.wheel", wheel), end="")


def write_checksums(folder: Path) -> Path:
    """``SHA256SUMS`` of everything in the folder, as ``sha256sum --check`` reads it."""
    lines = [
        f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n"
        for f in sorted(folder.iterdir())
        if f.is_file() and f.name != CHECKSUMS and not f.name.startswith(".")
    ]
    target = folder / CHECKSUMS
    target.write_text("".join(lines), encoding="ascii")
    return target


def write_sbom(folder: Path, wheel: Path, version: str) -> Path:
    """The components of an environment into which only the wheel with ``[cpu]`` was installed."""
    target = folder / f"capsedge-{version}.cdx.json"
    with tempfile.TemporaryDirectory(prefix="capsedge-sbom-") as name:
        environment = Path(name) / "env"
        _python("venv", "--without-pip", environment)
        python = environment / "bin" / "python"
        options = ["--quiet", "--disable-pip-version-check", "-c", wheels.ROOT / "constraints.txt"]
        _python("pip", "--python", python, "install", *options, f"{wheel}[cpu]")
        for file in environment.glob("lib/*/site-packages/capsedge-*.dist-info/direct_url.json"):
            file.unlink()  # it names a folder on this machine
        pyproject = ["--pyproject", wheels.ROOT / "pyproject.toml", "--mc-type", "library"]
        _python("cyclonedx_py", "environment", python, *pyproject, "--output-file", target)
    return target


def main() -> None:
    """Build, check, and list the result."""
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
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        parser.error(f"{folder} is not an empty folder: a release is built from nothing")
    release_checks.check_tools()
    version = release_checks.version(wheels.ROOT)
    problems = release_checks.problems(wheels.ROOT, version)
    if problems and options.upload:
        raise SystemExit("\n".join([f"error: {version} cannot be released:", *problems]))
    make(folder, version)
    found = distributions(folder)
    check_speed(found)
    if options.upload:
        _python("twine", "upload", *found)
        print(f"Uploaded: {len(found)} files of {version}.")
    elif problems:
        raise SystemExit("\n".join([f"Dry run: `--upload` would refuse {version}:", *problems]))
    else:
        print(f"Dry run: `--upload` would upload {len(found)} files of {version}.")


def make(folder: Path, version: str) -> None:
    """Fill an empty folder; if an error occurs, leave it empty.

    Raises:
        SystemExit: a distribution cannot be built, or fails a check.
    """
    try:
        for kind in wheels.KINDS:
            wheels.make(kind, folder)
        found = distributions(folder)
        check_distributions(found, version)
        write_sbom(folder, next(f for f in found if f.name.endswith("x86_64.whl")), version)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, subprocess.CalledProcessError):
            raise SystemExit(f"error: the build failed: {error}") from error
        raise
    print(write_checksums(folder).read_text(encoding="ascii"), end="")


if __name__ == "__main__":
    main()
