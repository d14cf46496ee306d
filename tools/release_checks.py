"""Check the conditions for a release: tools, a clean and tagged commit, one version, a dated changelog."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

from tools import plugin_libraries

TOOLS = {
    "auditwheel": "auditwheel", "build": "build", "cyclonedx_py": "cyclonedx-bom", "twine": "twine",
    "wheel": "wheel", "ziglang": "ziglang",
}  # fmt: skip
_IN_A_LOCK = r'"name": "capsedge",\n +"version": "([^"]+)"'
# Every place with the version. Edit the one in capsedge; `python -m tools.spec` writes the others.
PLACES = {
    "pyproject.toml": r'^version = "([^"]+)"$',
    "capsedge/spec/version.py": r'^VERSION = "([^"]+)"$',
    "capsedge/runtime/native/libcapsedge/include/capsedge.h": r'^#define CAPSEDGE_VERSION "([^"]+)"$',
    "capsedge/runtime/web/package.json": r'^  "version": "([^"]+)",$',
    "capsedge/runtime/web/package-lock.json": _IN_A_LOCK,
    "capsedge/runtime/web/page/package-lock.json": _IN_A_LOCK,
}


def check_tools() -> None:
    """Refuse to start without the packages needed to build and check.

    Raises:
        SystemExit: one is missing.
    """
    missing = [TOOLS[module] for module in TOOLS if importlib.util.find_spec(module) is None]
    if missing:
        raise SystemExit(
            f"error: not installed: {', '.join(missing)}\nRun: pip install -e '.[release]'"
        )


def version(root: Path) -> str:
    """The version of pyproject.toml.

    Raises:
        SystemExit: it is missing, or another place repeats a different one.
    """
    found = {}
    for place, pattern in PLACES.items():
        match = re.search(pattern, (root / place).read_text(encoding="utf-8"), re.MULTILINE)
        found[place] = match[1] if match else "none"
    if len(set(found.values())) > 1 or "none" in found.values():
        lines = "".join(f"\n  {place}: {value}" for place, value in found.items())
        raise SystemExit(f"error: the places that state the version differ:{lines}")
    return found["pyproject.toml"]


def problems(root: Path, release: str) -> list[str]:
    """Reasons why this state of the repository cannot be released: what to fix, one sentence each."""
    left_out = plugin_libraries.left_out(plugin_libraries.headers())
    return [
        *_commit(root, release),
        *_changelog(root / "CHANGELOG.md", release),
        *([left_out] if left_out else []),
    ]


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words],
            capture_output=True, encoding="utf-8", errors="replace", check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _commit(root: Path, release: str) -> list[str]:
    changed = _git(root, "status", "--porcelain")
    if changed is None:
        return [f"{root} is not a git checkout; release from one."]
    found = []
    if changed:
        files = changed.splitlines()
        found.append(
            f"The tree has {len(files)} uncommitted changes, such as `{files[0].strip()}`; "
            "commit or remove them."
        )
    tags = (_git(root, "tag", "--points-at", "HEAD") or "").splitlines()
    if f"v{release}" not in tags:
        found.append(f"The commit has no tag v{release}: git tag -a v{release} -m v{release}.")
    return found


def _changelog(path: Path, release: str) -> list[str]:
    text = path.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## \[([^\]]+)\](.*)$", text, re.MULTILINE))
    if release not in sections:
        return [
            f"CHANGELOG.md has no section {release}: rename [Unreleased] to "
            f"`## [{release}] - YYYY-MM-DD`."
        ]
    if not re.fullmatch(r" - \d{4}-\d{2}-\d{2}", sections[release]):
        return [f"CHANGELOG.md does not date {release}: write `## [{release}] - YYYY-MM-DD`."]
    unreleased = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if unreleased and unreleased[1].strip():
        return [f"CHANGELOG.md has unreleased changes: move them to {release}."]
    return []
