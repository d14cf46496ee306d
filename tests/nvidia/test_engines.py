"""Engines by NVIDIA's parser and builder: the zoo in full, the registry in FP32; precision read back."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="models are exported: pip install 'capsedge[export]'")

from capsedge.models.registry import MODELS
from capsedge.runtime.zoo import ROUTINGS
from tests.nvidia import models
from tests.nvidia.conftest import Build

pytestmark = pytest.mark.tensorrt_rtx

STATIC, DYNAMIC = (1, 1, 1), (1, 8, 32)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("precision", models.PRECISIONS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_zoo(build: Build, folder: Path, routing: str, precision: str) -> None:
    source = models.quantized(models.zoo(routing, folder), precision)
    for built in build([(source, {"batch": batch}) for batch in (STATIC, DYNAMIC)]):
        assert "error" not in built, built
        assert built["target"] == "tensorrt-rtx"
        assert built["compute_capabilities"] == ["8.6", "8.9", "12.0"]
        assert built["progress"]["monotonic"]
        assert built["progress"]["last"] == 1.0
        assert built["progress"]["told"] > 20
        # The precision that the file has is the one that was built; `build` has held it to that too.
        found, products = built["layers"], built["products"]
        if precision == "fp32":
            assert set(found) == set(products) == {"FP32"}
            assert built["precision"] == "fp32"
        elif precision == "fp16":
            assert products["FP16"] > 0
            assert "INT8" not in found
        else:
            assert built["precision"] == "int8"
            assert products["INT8"] == models.quantized_products(source)


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("digits-")])
def test_registry(build: Build, tmp_path: Path, name: str) -> None:
    """Every model of the registry, with random weights."""
    (built,) = build([(models.registered(name, tmp_path), {"batch": STATIC})])
    assert "error" not in built, built
    assert set(built["layers"]) == {"FP32"}
    assert built["products"]["FP32"] > 0


@pytest.mark.parametrize("each", [True, False])
def test_histories_of_any_length(build: Build, tmp_path: Path, each: bool) -> None:
    """Batch and length are free, one of them, or none."""
    source = models.recommender(tmp_path, each)
    sizes = [
        (batch, length) for batch in (STATIC, DYNAMIC) for length in ((1, 50, 200), (50, 50, 50))
    ]
    for built in build([(source, {"batch": b, "length": n}) for b, n in sizes]):
        assert "error" not in built, built
        assert set(built["layers"]) == {"FP32"}
        assert built["products"]["FP32"] > 0
