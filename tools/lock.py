"""Write constraints.lock: every package of constraints.txt with the SHA-256 of the index's files for it.

    .venv/bin/python tools/lock.py                # renews the file
    pip install --require-hashes -r constraints.lock && pip install --no-deps --no-build-isolation -e .

pip itself resolves the packages and reports the hashes (``pip install --dry-run --report``) from its
configured index; nothing is installed. The hashes belong to files for this machine's Python and processor;
for another platform, renew the file there.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "constraints.lock"


def resolve(constraints: Path) -> list[dict[str, Any]]:
    """The packages that pip would install for the constraints, from its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                "--dry-run", "--ignore-installed", "--no-deps", "--report", str(report),
                "-r", str(constraints),
            ],
            check=True,
        )  # fmt: skip
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return found


def lock(packages: list[dict[str, Any]]) -> str:
    """The lines of the file; it lists versions and hashes, without their origin."""
    python = ".".join(platform.python_version_tuple()[:2])
    lines = [
        f"# constraints.txt with hashes, for Python {python} on {sys.platform} {platform.machine()}; "
        "written by tools/lock.py.",
        "# pip install --require-hashes -r constraints.lock",
    ]
    for package in sorted(packages, key=lambda p: p["metadata"]["name"].lower()):
        meta, archive = package["metadata"], package["download_info"].get("archive_info", {})
        digest = archive.get("hashes", {}).get("sha256", "")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise SystemExit(f"error: pip tells no SHA-256 for {meta['name']} {meta['version']}")
        # A local build is requested by its public version; its hash alone identifies the build.
        version, _, local = meta["version"].partition("+")
        if local:
            lines.append(
                f"# The build '{local}' of an index that has one; others have other hashes."
            )
        lines.append(f"{meta['name']}=={version} \\\n    --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Write constraints.lock from constraints.txt.")
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    options = parser.parse_args()
    options.output.write_text(lock(resolve(ROOT / "constraints.txt")), encoding="utf-8")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
