"""What the tests of the distributions share: the distributions, and the tools that make and judge them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import NoReturn

import pytest

from capsedge.deploy.web import built_page
from capsedge.errors import EnvironmentProblem
from tools import release, release_checks, wheels

REQUIRED = "CAPSEDGE_REQUIRE_RELEASE"  # set by the targets that install all of it: a skip is then a failure
GIVEN = "CAPSEDGE_WHEELS"  # a folder with distributions to test, in place of new ones


def missing(why: str) -> NoReturn:
    """Skip; or fail, where a target of the Makefile has installed what is missing."""
    if os.environ.get(REQUIRED):
        pytest.fail(why)
    pytest.skip(why)


def need_zig() -> None:
    """The compiler of the wheels."""
    if importlib.util.find_spec("ziglang") is None:
        missing("zig compiles the libraries, and is not installed: make test-release")


def need_tools() -> None:
    """The packages of the extra ``release``, and the page that belongs into the wheels."""
    for module, package in release_checks.TOOLS.items():
        if importlib.util.find_spec(module) is None:
            missing(
                f"{package} makes or judges the wheels, and is not installed: make test-release"
            )
    try:
        built_page()
    except EnvironmentProblem:
        missing("wheels hold the page of `make web`, which is not built: make test-release")


def build_one(kind: str, factory: pytest.TempPathFactory) -> Path:
    """One distribution: the given one, or a new one."""
    given = os.environ.get(GIVEN)
    if given:
        return find(Path(given), kind)
    need_tools()
    return wheels.make(kind, factory.mktemp(kind))


def find(folder: Path, kind: str) -> Path:
    """The distribution of a kind in a folder."""
    patterns = {
        "sdist": "*.tar.gz",
        "pure": "capsedge-*-none-any.whl",
        "cuda": "capsedge_cuda-*.whl",
    }
    patterns |= {kind: f"capsedge-*{tag}.whl" for kind, tag in wheels.TAGS.items()}
    found = sorted(folder.glob(patterns[kind]))
    assert len(found) == 1, f"{folder} has {len(found)} files {patterns[kind]}: one was expected"
    return found[0]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All distributions, as `python -m tools.release` makes them."""
    given = os.environ.get(GIVEN)
    folder = Path(given) if given else tmp_path_factory.mktemp("dist")
    if not given:
        need_tools()
        release.make(folder, release_checks.version(wheels.ROOT))
    return {kind: find(folder, kind) for kind in wheels.KINDS}
