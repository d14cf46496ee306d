"""The paths and names that pyproject.toml and .gitignore state are those of the tree."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from capsedge.deploy import web
from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOOL: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
BUILD: dict[str, Any] = TOOL["scikit-build"]
PAGE = web.SITE.relative_to(ROOT).as_posix()


def git(*words: str) -> subprocess.CompletedProcess[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def ignored() -> list[str]:
    return (ROOT / ".gitignore").read_text(encoding="utf-8").split()


def test_the_page_is_packed_and_ignored_where_the_code_looks_for_it() -> None:
    """git ignores it, so that nothing but the pattern brings it into the distributions."""
    assert f"{PAGE}/**" in BUILD["sdist"]["include"]
    assert f"/{PAGE}/" in ignored()
    assert git("check-ignore", "--quiet", f"{PAGE}/index.html").returncode == 0


def test_every_pattern_of_the_distributions_names_something() -> None:
    """A folder that was moved would leave its pattern behind, and be packed or missed in silence."""
    wheel, sdist = BUILD["wheel"], BUILD["sdist"]
    made = {f"{PAGE}/**"}  # by `make web`
    patterns = [*wheel["exclude"], *sdist["include"], *sdist["exclude"], *wheel["packages"]]
    assert [p for p in patterns if p not in made and not any(ROOT.glob(p.lstrip("/")))] == []
    assert (ROOT / BUILD["cmake"]["source-dir"] / "CMakeLists.txt").is_file()


def test_what_git_ignores_by_its_path_is_made_in_a_folder_of_the_tree() -> None:
    tracked = {
        f"/{folder}" for file in git("ls-files").stdout.split() for folder in Path(file).parents
    }
    paths = [line for line in ignored() if line.startswith("/")]
    assert paths
    above = {path: str(Path(path).parent) for path in paths}
    assert [p for p, folder in above.items() if folder != "/" and folder not in tracked] == []


def test_no_file_of_the_tree_is_ignored() -> None:
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard").stdout == ""


def test_every_name_of_the_package_in_pyproject_exists() -> None:
    """In the sections of tools that accept any name."""
    names = set(TOOL["ruff"]["lint"]["flake8-bugbear"]["extend-immutable-calls"])
    for override in TOOL["mypy"]["overrides"]:
        modules = (
            [override["module"]] if isinstance(override["module"], str) else override["module"]
        )
        names |= {name for name in modules if name.startswith("capsedge.")}
    assert names

    def exists(name: str) -> bool:
        module, _, attribute = name.rpartition(".")
        if (ROOT / f"{name.replace('.', '/')}.py").is_file():
            return True
        spec = find_spec(module)
        source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
        return bool(re.search(rf"^(class|def) {attribute}\b", source, re.MULTILINE))

    assert [name for name in sorted(names) if not exists(name)] == []
