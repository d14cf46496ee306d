"""A deployed folder and its server, for the tests that play with the page in Chromium."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import capsedge
from capsedge.deploy import web
from capsedge.deploy.preview_server import FolderServer
from capsedge.runtime.zoo import DIGITS, zoo_model
from tests.page import browser


@pytest.fixture(scope="session", params=["compiled", "general"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zoo, its digits with 1 and 2 iterations, with the extra ``wasm`` and as without it."""
    reason = browser.missing()
    if not reason and request.param == "compiled" and not web.can_compile():
        reason = "needs ziglang: pip install 'capsedge[wasm]'"
    if reason:
        pytest.skip(reason)
    output = tmp_path_factory.mktemp("page") / "folder"
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "general":
            patched.setattr(web, "can_compile", lambda: False)
        capsedge.deploy_web([*DIGITS, str(zoo_model("photos"))], output, iterations=[1, 2])
    return output


def manifest_of(folder: Path) -> dict[str, Any]:
    """What the folder says of itself."""
    found: dict[str, Any] = json.loads((folder / "capsedge.json").read_text())
    return found


@pytest.fixture
def server(folder: Path) -> Iterator[FolderServer]:
    with served(folder) as running:
        yield running


@contextmanager
def served(folder: Path) -> Iterator[FolderServer]:
    """The server of a deployed folder."""
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    with FolderServer(folder, files) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()
