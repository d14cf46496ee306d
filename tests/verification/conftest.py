"""Small networks of the three families, and the files exported from them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the reference: pip install 'capsedge[export]'")

from tests.exporters.nets import digits  # noqa: E402
from tests.exports import Exports  # noqa: E402


class Exported:
    """A network, its checkpoint and its files."""

    def __init__(self, exports: Exports, routing: str) -> None:
        self._exports = exports
        self.model = digits(routing)

    @property
    def checkpoint(self) -> Path:
        return self._exports(self.model).checkpoint

    def onnx(self, ops: str = "auto", **options) -> Path:
        chosen = options if ops == "auto" else {"ops": ops} | options
        return self._exports(self.model, **chosen).path


@pytest.fixture(scope="session")
def families(exported: Exports) -> dict[str, Exported]:
    return {routing: Exported(exported, routing) for routing in ("dynamic", "em", "attention")}


@pytest.fixture
def dynamic(families) -> Exported:
    return families["dynamic"]
