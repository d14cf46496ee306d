"""Models that several tests of native code run."""

from __future__ import annotations

from pathlib import Path

import pytest

from capsedge.zoo import ROUTINGS, default_model, zoo_checkpoint


@pytest.fixture(scope="session", params=["default", *ROUTINGS])
def zoo_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "default":
        return default_model()
    pytest.importorskip("torch", reason="exporting the zoo's checkpoints needs torch")
    from capsedge.checkpoint import load_checkpoint
    from capsedge.exporters import export

    path = tmp_path_factory.mktemp("zoo") / f"{request.param}.onnx"
    export(load_checkpoint(zoo_checkpoint(request.param)), path)
    return path
