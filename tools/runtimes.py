"""Install the other ONNX Runtime versions that tests/runtimes uses, each in a folder of build/runtimes.

    python -m tools.runtimes

A folder holds only the package ``onnxruntime``; placed first on PYTHONPATH, it replaces the installed one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from capsedge.runtime.backends.onnxruntime_session import TESTED_VERSIONS

ROOT = Path(__file__).resolve().parent.parent


def folder(version: str) -> Path:
    """The folder of a version."""
    return ROOT / "build" / "runtimes" / f"onnxruntime-{version}"


def main() -> None:
    """Install the missing versions."""
    for version in TESTED_VERSIONS:
        place = folder(version)
        if (place / "onnxruntime").is_dir():
            continue
        partial = place.with_name(f"{place.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "--no-deps", "--target", str(partial), f"onnxruntime=={version}"], check=True
        )
        partial.rename(place)
        print(f"onnxruntime {version} in {place.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
