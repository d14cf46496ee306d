"""What makes a file portable: the forms that stand in it, for every family, opset and batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import capsedge.models.ops as ops
from capsedge.exporters.export import export
from capsedge.exporters.export_options import ExportOptions
from capsedge.graph.ir import constants_of, inferred, shapes_of
from capsedge.graph.portable import COMPOSITE, merge_views, use_portable_forms
from tests.exports import Exports

from .evaluate import run
from .nets import CONFIGS, EXTRAS, OwnModule, network

# Every form at the opset by default, and another one of each opset.
FILES = [
    (20, "auto", None), (20, "portable", None), (20, "portable", 1), (20, "auto", 2),
    (18, "portable", 1), (19, "portable", None), (21, "portable", 1),
]  # fmt: skip


class Windows(nn.Module):
    """A user's module: routing over windows with strides, 3x3 poses, norms in several spellings."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.em = nn.Parameter(torch.randn(3, 2, 2, 3, 3, 3) / 3)
        self.attention = nn.Parameter(torch.randn(2, 2, 3, 4, 3, 3) / 3)
        self.dense = nn.Parameter(torch.randn(2, 3, 4, 2, 3, 3) / 3)
        self.scale = nn.Parameter(torch.rand(9) + 0.5)

    def forward(self, pose: Tensor) -> dict[str, Tensor]:
        a = pose.mean(-1).sigmoid()
        pose, a, _ = ops.em_routing(
            pose,
            a,
            self.em,
            torch.full((3,), 0.1),
            torch.zeros(3),
            strides=(2, 1),
            inverse_temperatures=(0.5, 0.7),
            coordinate_addition=True,
        )
        zero = torch.zeros(9)
        first, _ = ops.attention_routing(pose, None, self.attention, self.scale, zero)
        again, _ = ops.attention_routing(pose, first, self.attention, self.scale, zero)
        last, couplings = ops.attention_routing(again, None, self.dense, self.scale, zero)
        poses = last.flatten(1, 3)
        return {
            "lengths": poses.pow(2).sum(-1).sqrt(),
            "longest": poses.norm(dim=-1, keepdim=True),
            "sum": poses.abs().sum(dim=(1, 2)),
            "peak": torch.logsumexp(poses, -1),
            "activation": a.flatten(1).sum(-1),
            "couplings": couplings,
            "poses": poses,
        }


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of the graph and of its functions."""
    yield from model.graph.node
    for function in model.functions:
        yield from function.node


def targets_of(model: onnx.ModelProto) -> list[list[int]]:
    """The targets of all Reshapes, which are constants in every file."""
    found = []
    for nodes, constants in [
        (model.graph.node, constants_of(model)),
        *((f.node, {n.output[0]: n.attribute[0].t for n in f.node if n.op_type == "Constant"})
          for f in model.functions),
    ]:  # fmt: skip
        found += [
            numpy_helper.to_array(constants[n.input[1]]).tolist()
            for n in nodes
            if n.op_type == "Reshape"
        ]
    return found


def ranks(model: onnx.ModelProto) -> set[str]:
    """The types of the nodes that make a tensor of rank 5 or more inside the graph."""
    shapes = shapes_of(inferred(model))
    outputs = {o.name for o in model.graph.output}
    return {
        n.op_type
        for n in model.graph.node
        if any(len(shapes[o]) > 4 and o not in outputs for o in n.output)
    }


def check_forms(model: onnx.ModelProto, batch: int | None) -> None:
    assert not {n.op_type for n in nodes_of(model)} & {*COMPOSITE, "Squeeze", "Flatten"}
    for node in nodes_of(model):
        assert not (node.op_type == "Reshape" and node.attribute), "allowzero"
    targets = targets_of(model)
    assert targets
    for target in targets:
        assert 0 not in target
        assert target.count(-1) <= (1 if batch is None else 0)
    if batch is None:
        return
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for d in value.type.tensor_type.shape.dim:
            assert d.HasField("dim_value"), value.name
    assert not {n.op_type for n in nodes_of(model)} & {"Shape", "ConstantOfShape"}


def check_family(exports: Exports, family: str, opset: int, form: str, batch: int | None) -> None:
    options = {"extra_outputs": EXTRAS.get(family, ())} if opset == 20 else {"opset": opset}
    options |= {"batch": batch} if batch else {}
    model = onnx.load(exports(network(family), ops=form, **options).path)
    check_forms(model, batch)
    assert "ReduceSum" not in {n.op_type for n in nodes_of(model)}
    if form == "portable":
        # Votes of several places, or of a free batch, are transposed at rank 5.
        votes = {"Reshape", "Transpose"} if batch is None or family == "em" else set()
        assert ranks(model) <= votes


@pytest.mark.parametrize("form", ["auto", "portable"])
@pytest.mark.parametrize("family", ["dynamic", "em", "attention"])
def test_forms(exported: Exports, family: str, form: str) -> None:
    check_family(exported, family, 20, form, None)


@pytest.mark.thorough
@pytest.mark.parametrize(("opset", "form", "batch"), FILES)
@pytest.mark.parametrize("family", CONFIGS)
def test_forms_of_every_family(
    exported: Exports, family: str, opset: int, form: str, batch: int | None
) -> None:
    check_family(exported, family, opset, form, batch)


@pytest.mark.thorough
@pytest.mark.parametrize("batch", [None, 1, 3])
@pytest.mark.parametrize("form", ["auto", "portable"])
def test_forms_of_own_modules(tmp_path: Path, form: str, batch: int | None) -> None:
    torch.manual_seed(3)
    for name, module, example in (
        ("windows", Windows().eval(), (torch.randn(2, 7, 5, 2, 9),)),
        ("own", OwnModule().eval(), (torch.randn(2, 6, 3), torch.rand(2, 6))),
    ):
        path = tmp_path / f"{name}.onnx"
        export(module, path, example=example, options=ExportOptions(ops=form, batch=batch))
        model = onnx.load(path)
        check_forms(model, batch)
        count = batch or 4
        inputs = [torch.randn(count, *x.shape[1:]) for x in example]
        with torch.no_grad():
            wanted = module(*inputs)
        wanted = wanted if isinstance(wanted, dict) else wanted._asdict()
        feeds = {i.name: x.numpy() for i, x in zip(model.graph.input, inputs, strict=True)}
        for key, found in run(model, feeds).items():
            np.testing.assert_allclose(found, wanted[key], rtol=2e-4, atol=2e-5, err_msg=key)


def _model(nodes: list[onnx.NodeProto], size: list[object], **constants: object) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("axes", [[-1], [1], [0, 2], [1, 2, 3]])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("kind", [*COMPOSITE, "ReduceSum"])
def test_reductions_are_spelt_out(kind: str, keepdims: int, axes: list[int]) -> None:
    node = helper.make_node(kind, ["x", "axes"], ["y"], keepdims=keepdims)
    model = _model([node], ["N", 3, 4, 5], axes=axes)
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    x = np.abs(x) if kind == "ReduceLogSum" else x
    wanted = run(model, {"x": x})["y"]
    use_portable_forms(model)
    onnx.checker.check_model(model, full_check=True)
    kinds = {n.op_type for n in model.graph.node}
    assert not kinds & {*COMPOSITE}
    assert ("ReduceSum" in kinds) == (axes != [-1])
    np.testing.assert_allclose(run(model, {"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)


def test_logarithm_of_a_sum_keeps_infinities() -> None:
    node = helper.make_node("ReduceLogSumExp", ["x", "axes"], ["y"], keepdims=0)
    model = _model([node], [3, 2], axes=[1])
    use_portable_forms(model)
    x = np.array([[-np.inf, -np.inf], [np.inf, 1], [-np.inf, 2]], np.float32)
    assert run(model, {"x": x})["y"].tolist() == [-np.inf, np.inf, 2]


def test_a_norm_squares_what_its_poses_are_a_view_of() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["pose"]),
        helper.make_node("Reshape", ["pose", "flat"], ["poses"], allowzero=1),
        helper.make_node("ReduceL2", ["poses", "last"], ["y"], keepdims=0),
    ]
    model = _model(nodes, ["N", 3, 1, 4], flat=[-1, 3, 4], last=[-1])
    model.graph.output.append(
        helper.make_tensor_value_info("poses", TensorProto.FLOAT, ["N", 3, 4])
    )
    use_portable_forms(model)
    square = next(n for n in model.graph.node if n.op_type == "Mul")
    assert list(square.input) == ["pose", "pose"]
    assert sum("poses" in n.input for n in model.graph.node) == 0
    x = np.random.default_rng(0).random((2, 3, 1, 4)).astype(np.float32)
    np.testing.assert_allclose(
        run(model, {"x": x})["y"], np.linalg.norm(x[:, :, 0], axis=-1), rtol=1e-6
    )


def test_views_become_one() -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["x", "one"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0, 2, 3]),
        helper.make_node("Flatten", ["b"], ["c"], axis=2),
        helper.make_node("Reshape", ["c", "back"], ["d"], allowzero=1),
        helper.make_node("Transpose", ["d"], ["y"], perm=[0, 2, 1]),
    ]
    model = _model(nodes, [2, 3, 4], one=[1], back=[2, 3, 4])
    merge_views(model)
    assert [(n.op_type, list(n.input)) for n in model.graph.node] == [("Transpose", ["x"])]


def test_views_with_two_free_dimensions_stay() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["x", "shape"], ["z"]),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    model = _model(nodes, ["N", "M", 4])
    merge_views(model)
    assert [n.op_type for n in model.graph.node] == ["Shape", "Reshape", "Relu"]


def test_tensors_that_inner_graphs_use_stay() -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["view"], ["inner"])],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2, 3])],
    )
    nodes = [
        helper.make_node("Reshape", ["x", "target"], ["view"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch),
    ]
    model = _model(nodes, [2, 3], target=[2, 3], yes=True)
    merge_views(model)
    assert "view" in {o for n in model.graph.node for o in n.output}


class Permuted(nn.Module):
    """Squashes of poses whose batch is not the first axis: over each axis before, behind and beside it."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = {}
        for order in ((1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
            back = [order.index(k) for k in range(x.ndim)]
            for axis in (k for k in range(3) if order[k] != 0):
                y = ops.squash(x.permute(order), axis=axis)
                found["_".join(map(str, (*order, "over", axis)))] = y.permute(back)
        return found


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["auto", "portable"])
def test_squash_wherever_the_batch_is(tmp_path: Path, kind: str) -> None:
    """Export compares each output with PyTorch."""
    path = tmp_path / "m.onnx"
    report = export(
        Permuted().eval(), path, example=torch.rand(3, 4, 5), options=ExportOptions(ops=kind)
    )
    assert len(report.outputs) == 8
