"""Files in FP16 and with quantized convolutions: recognized, types kept, no less exact."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from torch import Tensor, nn

from capsedge.graph.fusion.edit import store_halves, widened
from capsedge.graph.fusion.execution import session_of
from capsedge.graph.fusion.optimize_graph import OptimizedGraph, optimize_model
from tests.graph.fusion import attention_writings as A  # noqa: N812
from tests.graph.fusion import dynamic_writings as D  # noqa: N812
from tests.graph.fusion import em_writings as E  # noqa: N812
from tests.graph.fusion.making import exported

FEATURES = torch.randn(3, D.CHILDREN, D.SIZE_IN, generator=torch.Generator().manual_seed(0))


class Ends(nn.Module):
    """FP16 inside, FP32 outside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.half()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.half()).float()


def in_half(module: nn.Module, example: Tensor, ends: bool = False) -> onnx.ModelProto:
    torch.set_default_dtype(torch.float16)  # what the module makes inside
    try:
        return exported(Ends(module), example) if ends else exported(module.half(), example.half())
    finally:
        torch.set_default_dtype(torch.float32)


def check(improved: OptimizedGraph, original: onnx.ModelProto, x: np.ndarray) -> None:
    """The same types, and no further from FP32 than the original."""
    model = onnx.load_from_string(improved.model)
    kinds = [
        [v.type.tensor_type.elem_type for v in (*m.graph.input, *m.graph.output)]
        for m in (model, original)
    ]
    assert kinds[0] == kinds[1]
    truth = session_of(widened(original)).run(None, {"x": x.astype(np.float32)})[0]
    name = original.graph.input[0].type.tensor_type.elem_type
    x = x.astype(onnx.helper.tensor_dtype_to_np_dtype(name))
    old, new = (
        np.abs(session_of(m).run(None, {"x": x})[0] - truth).max() for m in (original, model)
    )
    assert new <= old + 2**-11 * np.abs(truth).max()


@pytest.mark.sample(2)
@pytest.mark.parametrize("ends", [False, True], ids=["throughout", "between casts"])
@pytest.mark.parametrize("writing", [D.Batched, D.Leaky, D.Windows])
def test_dynamic_routing_in_fp16(writing: type[D.Writing], ends: bool) -> None:
    original = in_half(writing(), FEATURES, ends)
    improved = optimize_model(original.SerializeToString())
    assert [f.operator for f in improved.fusion.fused] == ["DynamicRouting"]
    check(improved, original, FEATURES.half().numpy())


@pytest.mark.slow
def test_em_and_attention_routing_in_fp16() -> None:
    for writing, wanted in (
        (E.Paper(), {"EMRouting": 2}),
        (A.Sequential(), {"AttentionRouting": 2, "UniformRouting": 2}),
    ):
        example = (E if "EMRouting" in wanted else A).Writing.example(3)
        original = in_half(writing, example)
        improved = optimize_model(original.SerializeToString())
        assert Counter(f.operator for f in improved.fusion.fused) == wanted
        check(improved, original, example.half().numpy())


@pytest.mark.thorough
def test_weights_in_fp16_stay_so() -> None:
    """FP16 weights behind casts, FP32 computation: what is written has the size of what came."""

    class Larger(D.Batched):
        def make(self) -> None:
            self.w = self.weight(1, D.PARENTS, 24 * D.CHILDREN, D.SIZE_OUT, D.SIZE_IN)

        def route(self, u: Tensor) -> Tensor:
            votes = torch.matmul(self.w, u.repeat(1, 24, 1)[:, None, :, :, None]).squeeze(-1)
            v = D.squash_added(
                (torch.zeros(len(u), D.PARENTS, 24 * D.CHILDREN, 1).softmax(1) * votes).sum(2)
            )
            c = torch.matmul(votes, v[..., None]).softmax(1)
            return D.squash_added((c * votes).sum(2))

    model = exported(Larger(), FEATURES)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            value = numpy_helper.to_array(tensor).astype("f2").astype("f4")
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    store_halves(model)
    improved = optimize_model(model.SerializeToString())
    assert [f.operator for f in improved.fusion.fused] == ["DynamicRouting"]
    assert len(improved.model) < 1.1 * len(model.SerializeToString())


class Network(nn.Module):
    """Convolutions that are quantized, routing that is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.primary = nn.Conv2d(1, 8, 5, stride=2), nn.Conv2d(8, 16, 5, stride=2)
        self.w = nn.Parameter(0.3 * torch.randn(1, 5, 18, 6, 8))

    def forward(self, x: Tensor) -> Tensor:
        u = D.squash_added(self.primary(torch.relu(self.stem(x))).reshape(x.shape[0], -1, 8))
        votes = torch.matmul(self.w, u[:, None, :, :, None]).squeeze(-1)
        b = votes.new_zeros(votes.shape[0], 5, 18, 1)
        for i in range(3):
            v = D.squash_added((b.softmax(1) * votes).sum(2))
            if i < 2:
                b = b + torch.matmul(votes, v.unsqueeze(-1))
        return v.norm(dim=-1)


def quantized(folder: Path, operators: list[str]) -> onnx.ModelProto:
    class Reader(CalibrationDataReader):  # type: ignore[misc]
        images = iter([{"x": np.random.default_rng(0).random((3, 1, 21, 21)).astype("f4")}])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.images, None)

    onnx.save(exported(Network(), torch.rand(3, 1, 21, 21)), folder / "fp32.onnx")
    quantize_static(
        folder / "fp32.onnx", folder / "int8.onnx", Reader(), quant_format=QuantFormat.QDQ,
        op_types_to_quantize=operators, per_channel=True,
    )  # fmt: skip
    return onnx.load(folder / "int8.onnx")


@pytest.mark.thorough
def test_routing_between_quantized_convolutions(tmp_path: Path) -> None:
    original = quantized(tmp_path, ["Conv"])
    improved = optimize_model(original.SerializeToString())
    assert Counter(f.operator for f in improved.fusion.fused) == {
        "DynamicRouting": 1,
        "Squash": 1,
    }
    model = onnx.load_from_string(improved.model)
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    for name in ("stem.weight_quantized", "primary.weight_quantized"):
        assert kinds[name] == TensorProto.INT8
    x = np.random.default_rng(1).random((4, 1, 21, 21)).astype("f4")
    found, wanted = (session_of(m, True).run(None, {"x": x})[0] for m in (model, original))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_routing_that_is_quantized_itself_is_left(tmp_path: Path) -> None:
    improved = optimize_model(quantized(tmp_path, ["Conv", "MatMul"]).SerializeToString())
    assert "DynamicRouting" not in {f.operator for f in improved.fusion.fused}
    assert all("quantized inside" in each.reason for each in improved.fusion.not_fused)


def test_a_routing_weight_in_integers(tmp_path: Path) -> None:
    """Its numbers are read off as they are, and that is said."""
    model = exported(D.Batched(), FEATURES)
    (tensor,) = (t for t in model.graph.initializer if len(t.dims) == 5)
    value = numpy_helper.to_array(tensor)
    scale = np.float32(np.abs(value).max() / 127)
    integers = np.rint(value / scale).astype(np.int8)
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(integers, f"{name}/integers"))
    model.graph.initializer.append(numpy_helper.from_array(scale, f"{name}/scale"))
    inputs = [f"{name}/integers", f"{name}/scale"]
    model.graph.node.insert(0, onnx.helper.make_node("DequantizeLinear", inputs, [name]))
    (found,) = optimize_model(model.SerializeToString()).fusion.fused
    assert found.operator == "DynamicRouting"
    assert any("stored in integers" in note for note in found.notes)
