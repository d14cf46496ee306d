"""The shapes that a file states: of computed sizes, of every batch, and of what is exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from capsedge.errors import UnsupportedModelError  # noqa: E402
from capsedge.graph.ir import copy_of  # noqa: E402
from capsedge.graph.write_shapes import write_shapes  # noqa: E402
from capsedge.runtime.onnx_file.costs import NumericShapes  # noqa: E402
from capsedge.runtime.onnx_file.forecast import forecast  # noqa: E402
from capsedge.runtime.onnx_file.structure import read_structure  # noqa: E402


def computed(batch: int | str = "N", after: str = "") -> onnx.ModelProto:
    """x [N, 4]: a range over the batch, an expansion to it, and three rows of every image."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Range", ["zero", "n", "one"], ["rows"]),
        node("Reshape", ["rows", "column"], ["tall"]),
        node("Cast", ["tall"], ["floats"], to=TensorProto.FLOAT),
        node("Add", ["x", "floats"], ["sum"]),
        node("Concat", ["sum", "x", "x"], ["three"], axis=0),
        node("Reshape", ["three", "wide"], ["y"]),
    ]
    if after:
        nodes.insert(7, node(after, ["x"], ["where"]))
    numbers = {"zero": 0, "one": 1, "column": [-1, 1], "wide": [-1, 12]}
    stored = [onnx.numpy_helper.from_array(np.array(v, np.int64), k) for k, v in numbers.items()]
    x, y = (helper.make_tensor_value_info(n, 1, [batch, s]) for n, s in (("x", 4), ("y", 12)))
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def stated(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    return {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in model.graph.value_info
    }


def test_computed_sizes_are_numbers_the_batch_or_multiples_of_it() -> None:
    model = computed()
    nodes = list(model.graph.node)
    write_shapes(model)
    found = stated(model)
    assert found["rows"] == ["N"]
    assert found["tall"] == found["floats"] == ["N", 1]
    assert found["sum"] == ["N", 4]
    assert found["three"] == ["3*N", 4]
    assert list(model.graph.node) == nodes
    onnx.checker.check_model(model, full_check=True)


def test_a_fixed_batch_has_numbers_alone() -> None:
    model = computed(batch=6)
    write_shapes(model)
    assert stated(model)["three"] == [18, 4]


def test_sizes_that_depend_on_values_are_not_stated(tmp_path: Path) -> None:
    model = computed(after="NonZero")
    write_shapes(model)
    assert "where" not in stated(model)
    assert stated(model)["three"] == ["3*N", 4]
    onnx.save(model, tmp_path / "x.onnx")
    with pytest.raises(UnsupportedModelError, match="the shape of 1 value") as caught:
        forecast(tmp_path / "x.onnx")
    assert "capsedge profile" in caught.value.fix
    assert "optimize" not in caught.value.fix


def test_a_name_of_its_own_gives_way_to_the_batch() -> None:
    model = computed()
    model.graph.value_info.append(helper.make_tensor_value_info("sum", 1, ["unk__7", 4]))
    write_shapes(model)
    assert stated(model)["sum"] == ["N", 4]


def test_readers_know_the_multiples(tmp_path: Path) -> None:
    model = computed()
    write_shapes(model)
    onnx.save(model, tmp_path / "x.onnx")
    graph = read_structure(tmp_path / "x.onnx").graph
    assert NumericShapes(graph, 5).shape("three") == (15, 4)
    assert forecast(tmp_path / "x.onnx", 8).peak == 8 * forecast(tmp_path / "x.onnx", 1).peak


@pytest.mark.thorough
@pytest.mark.parametrize("ops", ["auto", "portable", "fused"])
def test_every_value_of_an_export_has_a_shape(ops: str, tmp_path: Path) -> None:
    """A mask by argmax, as students write it, and routing in every form of the file."""
    torch = pytest.importorskip("torch")
    import capsedge
    from tests.exporters.own_nets import CHILDREN, PARENTS, Own

    class Indexed(Own):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            v = self.routed(self.votes(x), torch.zeros(x.size(0), CHILDREN, PARENTS))
            lengths = v.norm(dim=-1)
            mask = torch.zeros(x.size(0), PARENTS)
            mask[torch.arange(x.size(0)), lengths.argmax(1)] = 1.0
            return lengths, (v * mask[..., None]).flatten(1)

    path = tmp_path / "own.onnx"
    capsedge.export(Indexed().eval(), path, example=torch.rand(1, 4), ops=ops)
    found = forecast(path, 3)
    assert found.operations > 0
    named = [layer.name for layer in found.layers]
    assert not any(name.startswith(",") or not name for name in named), named
    if ops != "portable":
        assert "routing_0, routing iterations 1..3 (fused)" in named
    graph = read_structure(path).graph
    known = NumericShapes(graph, 3).tensors()
    assert not [o for node in graph.nodes for o in node.outputs if o and o not in known]


def test_nothing_is_done_twice() -> None:
    model = computed()
    write_shapes(model)
    again = copy_of(model)
    write_shapes(again)
    assert again == model
