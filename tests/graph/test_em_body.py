"""The function body of EM routing keeps the digits that FP32 can keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from capsedge.graph.bodies import function_body
from capsedge.models.ops.em import em_routing

ort = pytest.importorskip("onnxruntime")

INVERSE, EPSILON = (1e-3, 1e-3), 1e-8


def errors(scale: float, side: int) -> tuple[float, float]:
    """Largest error of the couplings against FP64: the body's and eager PyTorch's.

    One window over side² cells of 16 types, so 16·side² children; poses of magnitude ``scale``.
    """
    rng = np.random.default_rng(3)
    base = rng.normal(size=(1, 1, 1, 16, 16))
    inputs: dict[str, NDArray[np.float32]] = {
        "pose": (scale * (base + 0.02 * rng.normal(size=(4, side, side, 16, 16)))).astype("f4"),
        "a": rng.uniform(0.2, 1, (4, side, side, 16)).astype("f4"),
        "weight": (rng.normal(size=(1, 1, 16, 12, 4, 4)) / 4).astype("f4"),
        "beta_u": rng.normal(size=12).astype("f4"),
        "beta_a": rng.normal(size=12).astype("f4"),
    }

    def eager(dtype: torch.dtype) -> NDArray[np.float64]:
        given = [torch.from_numpy(x).to(dtype) for x in inputs.values()]
        couplings = em_routing(*given, inverse_temperatures=INVERSE, shared=True, epsilon=EPSILON)[
            2
        ]
        return couplings.double().numpy()

    attributes = {
        "iterations": 2, "strides": (1, 1), "inverse_temperatures": INVERSE,
        "coordinate_addition": 0, "shared": 1, "epsilon": EPSILON,
    }  # fmt: skip
    names = ["pose_out", "a_out", "couplings"]
    shapes = [x.shape for x in inputs.values()]
    body = function_body("EMRouting", shapes, attributes, couplings=True)
    node = helper.make_node("EMRouting", [*inputs], names, domain=body.domain, **attributes)
    ends = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in each]
        for each in (
            [(n, x.shape) for n, x in inputs.items()],
            [(n, None) for n in names],
        )
    ]
    opsets = [*body.opset_import, helper.make_opsetid(body.domain, 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", *ends),
        functions=[body],
        opset_imports=opsets,
        ir_version=10,
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    exact = eager(torch.float64)
    found = session.run(["couplings"], inputs)[0]
    return float(np.abs(found - exact).max()), float(np.abs(eager(torch.float32) - exact).max())


@pytest.mark.parametrize(
    ("scale", "side", "share"),
    [(1000.0, 2, 0.5), (1e-3, 2, 0.5), (1.0, 9, 1.0)],
    ids=["large variances", "small variances", "many children"],
)
def test_couplings_are_nearer_to_fp64_than_eager(scale: float, side: int, share: float) -> None:
    body, eager = errors(scale, side)
    assert body <= share * eager, (body, eager)
