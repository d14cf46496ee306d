"""A deployed folder and its server, for the tests that play with the page in Chromium."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import capsedge
from capsedge.runtime.zoo import MODELS
from capsedge.serving.deploy.preview_server import FolderServer
from tests.page import browser


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zoo with 1 and 2 iterations."""
    reason = browser.missing()
    if reason:
        pytest.skip(reason)
    output = tmp_path_factory.mktemp("page") / "folder"
    capsedge.deploy_web(MODELS, output, iterations=[1, 2])
    return output


@pytest.fixture
def server(folder: Path) -> Iterator[FolderServer]:
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    with FolderServer(folder, files) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
