"""Networks that others published, where their files are at hand; nothing of them is in the repository."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from capsedge.graph.fusion.optimize_graph import optimize_model

FOLDER = "CAPSEDGE_FOREIGN_FILES"
FSANET = "fsanet_capsule.onnx"  # github.com/xuhao1/FOXTracker, assets/


def file(name: str) -> Path:
    path = Path(os.environ.get(FOLDER, ""), name)
    if not os.environ.get(FOLDER) or not path.exists():
        pytest.skip(f"{name} is not here: name a folder that holds it in {FOLDER}")
    return path


def test_a_head_pose_network_with_a_loop() -> None:
    """FSA-Net by tf2onnx, opset 8: 395 nodes, routing as a Loop."""
    improved = optimize_model(file(FSANET).read_bytes())
    (found,) = improved.fusion.fused
    assert (found.operator, found.parameters["children"]) == ("DynamicRouting", "21 of 64")
    assert found.parameters["iterations"] == "2"
    assert not improved.fusion.not_fused
    # Each of its four Sigmoids takes eight nodes more, written exactly.
    assert any("4 Sigmoids written exactly" in note for note in improved.notes)
    assert improved.nodes - 4 * 8 < 0.6 * improved.nodes_before
    assert improved.batch == "free"
    kinds = {n.op_type for n in onnx.load_from_string(improved.model).graph.node}
    assert not kinds & {"Loop", "BatchNormalization", "Cast", "Shape"}
