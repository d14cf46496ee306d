"""Small trained-like models of the three families, exported once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the reference: pip install 'capsedge[export]'")

import capsedge  # noqa: E402
from capsedge.checkpoint import save_checkpoint  # noqa: E402
from capsedge.models import build, get_config  # noqa: E402
from capsedge.models.config import CapsuleConv, Conv  # noqa: E402
from capsedge.runtime.files.writing import sha256  # noqa: E402

_STEM = (Conv(8, 5, 2), Conv(8, 3, 1))


def _config(routing: str):
    if routing == "dynamic":
        return replace(
            get_config("digits-dynamic"),
            stem=(Conv(8, 9, 2),),
            primary_types=4,
            primary_kernel=5,
            decoder=(),
        )
    return replace(
        get_config(f"digits-{routing}"),
        stem=_STEM,
        primary_types=4,
        capsule_layers=(CapsuleConv(4, 3, 2), CapsuleConv(3, 3, 1)),
        iterations=3,
    )


class Exported:
    """A checkpoint and the files exported from it."""

    def __init__(self, folder: Path, routing: str) -> None:
        torch.manual_seed(7)
        self.folder, self.routing = folder, routing
        self.model = build(_config(routing)).eval()
        with torch.no_grad():
            for p in self.model.parameters():
                if p.ndim == 1:  # biases and betas that nothing has trained would hide a lost one
                    p.add_(0.1 * torch.randn_like(p))
        self.checkpoint = folder / f"{routing}.safetensors"
        save_checkpoint(self.model, self.checkpoint)
        self._files: dict[tuple, Path] = {}

    def onnx(self, ops: str = "auto", **options) -> Path:
        key = (ops, *sorted(options.items()))
        if key not in self._files:
            path = self.folder / f"{self.routing}-{len(self._files)}.onnx"
            capsedge.export(
                self.model, path, ops=ops, checkpoint_sha256=sha256(self.checkpoint), **options
            )
            self._files[key] = path
        return self._files[key]


@pytest.fixture(scope="session")
def families(tmp_path_factory) -> dict[str, Exported]:
    folder = tmp_path_factory.mktemp("verify")
    return {routing: Exported(folder, routing) for routing in ("dynamic", "em", "attention")}


@pytest.fixture
def dynamic(families) -> Exported:
    return families["dynamic"]
