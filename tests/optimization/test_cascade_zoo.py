"""A cascade of trained networks, one of them in INT8, against the large network's checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="verify runs the checkpoint: pip install 'capsedge[export]'")

import capsedge
from capsedge.models.checkpoint import load_checkpoint
from capsedge.runtime.load import load_bytes
from capsedge.runtime.zoo import zoo_checkpoint, zoo_model
from tests.conftest import ROOT
from tools import draw_samples

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    return np.stack(list(draw_samples.many(each=6, seed=1).values()))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, pictures: np.ndarray) -> Path:
    folder = tmp_path_factory.mktemp("zoo")
    small, large = zoo_model("digits-em"), zoo_model("digits-dynamic")
    quantized = folder / "small.int8.onnx"
    capsedge.quantize(small, quantized, max_drop=100, calib_data=pictures[:200])
    capsedge.cascade(
        quantized,
        large,
        folder / "pair.onnx",
        min_agreement=0.95,
        data=pictures,
    )
    return folder / "pair.onnx"


def test_it_verifies_against_the_large_network(made: Path, pictures: np.ndarray, tmp_path: Path):
    np.savez(tmp_path / "pictures.npz", images=pictures)
    certificate = capsedge.verify(None, made, data=tmp_path / "pictures.npz")
    certificate.check()
    links = certificate.to_dict()["chain"]
    assert [link["kind"] for link in links] == ["checkpoint", "quantized", "onnx", "cascade"]
    assert links[0]["file"] == zoo_checkpoint("digits-dynamic").name
    assert [link["file"] for link in links[1:3]] == ["small.int8.onnx", "digits-dynamic.onnx"]
    assert certificate.limits["min_agreement"] <= 0.95
    assert "the large network decides" in certificate.chain[-1].words


def test_both_kinds_of_operators_decide_alike(made: Path):
    files = sorted((ROOT / "capsedge/zoo/samples").glob("digit-*.png"))
    found = [capsedge.load(made, ops=ops).predict(files) for ops in ("auto", "portable")]
    for one, other in zip(*found, strict=True):
        assert (one.label, one.escalated) == (other.label, other.escalated)
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)


def test_couplings_that_both_have(pictures: np.ndarray, tmp_path: Path):
    """Routing in standard operators is found in the branch too."""
    model = load_checkpoint(zoo_checkpoint("digits-dynamic"))
    capsedge.export(model, tmp_path / "with.onnx", extra_outputs=["couplings"])
    made = capsedge.cascade(
        tmp_path / "with.onnx",
        tmp_path / "with.onnx",
        min_agreement=0.95,
        data=pictures,
    )
    both, alone = load_bytes(made.model), capsedge.load(tmp_path / "with.onnx")
    assert (both.backend.ops, alone.backend.ops) in {("mixed", "mixed"), ("portable", "portable")}
    images = pictures[:5, None].astype(np.float32) / 255
    np.testing.assert_allclose(
        both.run(images)["couplings"], alone.run(images)["couplings"], atol=1e-6
    )
