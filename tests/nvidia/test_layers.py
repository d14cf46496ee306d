"""What NVIDIA's builder tells of the names that nodes were given: an engine's layers by the model's."""

from __future__ import annotations

import pytest

from capsedge.runtime.onnx_file.layer_map import Location
from capsedge.runtime.zoo import default_model
from tests.nvidia.conftest import Build

pytestmark = pytest.mark.tensorrt_rtx


@pytest.mark.parametrize("batch", [(1, 1, 1), (1, 8, 32)])
def test_layers_belong_to_those_of_the_model(build: Build, batch: tuple[int, int, int]) -> None:
    """However it fused their nodes: all but a few that only move data have a place."""
    (built,) = build([(default_model(), {"batch": batch})])
    labels = built["belongs_to"]
    assert labels.count(Location().label) <= len(labels) // 5
    for wanted in ("stem.0", "primary", "decoder.4"):
        assert wanted in labels
    for iteration in (1, 2, 3):
        assert f"classes, routing iteration {iteration}" in labels
