"""The compiled npm package, and a process that runs it; tests that ask for it skip where it cannot run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import package


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed."""
    reason = package.missing()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("web")
    package.build(folder)
    return folder


@pytest.fixture(scope="session")
def web(compiled: Path) -> Iterator[package.Package]:
    """The package in Node.js."""
    running = package.Package(compiled)
    yield running
    running.close()
