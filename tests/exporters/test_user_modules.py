"""A user's own modules: routing recognized, traps taken or explained, the cause of a difference found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import capsedge
from capsedge.errors import ParityError, UnsupportedModelError, UsageError
from capsedge.exporters import parity
from capsedge.exporters.export_report import CaseParity, ExportReport
from capsedge.graph import ir, passes
from capsedge.graph.fusion import self_routing
from capsedge.graph.fusion.matcher import STANDARD
from capsedge.graph.merge import FreeAxis, GraphsDiffer, merge
from capsedge.models.user.code import on_cpu
from capsedge.tolerance import Tolerance
from tests.exporters import own_nets as nets
from tests.exporters.nets import network
from tests.exports import Exports, arguments
from tests.graph.fusion.self_routing_writings import SIDE, SelfRoutedNetwork

EXAMPLE = torch.rand(2, 4, generator=torch.Generator().manual_seed(1))


def exported(model: torch.nn.Module, path: Path, **more: object) -> ExportReport:
    return capsedge.export(model, path, example=EXAMPLE, **arguments(**more))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "outputs"),
    [
        (nets.Plain, {"output": ["N", 3]}),
        (nets.Repeated, {"output": ["N", 3]}),
        (nets.Moved, {"lengths": ["N", 3], "poses": ["N", 3, 5]}),
        (nets.Masked, {"lengths": ["N", 3], "more_0": ["N", 3, 5], "more_1": ["N", 6]}),
    ],
)
def test_recognized_with_a_free_batch(
    model: type[nets.Own], outputs: dict[str, list[object]], tmp_path: Path
) -> None:
    report = exported(model(), tmp_path / "m.onnx")
    assert report.outputs == outputs
    assert report.operators["capsedge::DynamicRouting"] == 1
    (routing,) = (f for f in report.fusion.fused if f.operator == "DynamicRouting")
    assert routing.parameters["iterations"] == "3"
    assert routing.parameters["epsilon"] == "1e-08"  # no optimiser deleted it
    assert not report.fusion.not_fused
    assert {p.case.rpartition(" ")[2] for p in report.parity} == {"1", "2", "5"}
    session = capsedge.load(tmp_path / "m.onnx")
    x = torch.rand(7, 4)
    with on_cpu(), torch.no_grad():
        result = model()(x)
    first = next(iter(result.values())) if isinstance(result, dict) else result
    first = first[0] if isinstance(first, tuple) else first
    found = session.run({session.inputs[0].name: x.numpy()})[next(iter(outputs))]
    np.testing.assert_allclose(found, first.numpy(), atol=1e-6)


@pytest.mark.thorough
def test_self_routing_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both layers, whatever the gain, with a free batch."""
    monkeypatch.setattr(self_routing, "estimated_gain", lambda *_: 2.0)
    model, path = SelfRoutedNetwork(), tmp_path / "m.onnx"
    x = torch.rand(4, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    report = capsedge.export(model, path, example=x[:1])
    assert report.fusion is not None
    assert [found.operator for found in report.fusion.fused] == [STANDARD] * 2
    assert not report.fusion.not_fused
    assert report.outputs == {"output": ["N", 5]}
    session = capsedge.load(path)
    for batch in (1, 4):
        with torch.no_grad():
            wanted = model(x[:batch]).numpy()
        found = session.run({session.inputs[0].name: x[:batch].numpy()})["output"]
        np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.thorough
def test_what_is_not_recognized_stays_and_is_said(tmp_path: Path) -> None:
    report = exported(nets.TanhAgreement(), tmp_path / "m.onnx")
    assert not any("Routing" in name for name in report.operators)
    assert report.fusion.not_fused[0].reason
    assert all("no capsule operator that routes" in v for v in report.rewrites.values())


@pytest.mark.thorough
def test_what_no_operator_computes_has_another_form(tmp_path: Path) -> None:
    report = exported(nets.OverChildrenPerElement(), tmp_path / "m.onnx")
    assert not any("Routing" in name for name in report.operators)
    assert "one logit for each element" in report.fusion.fused[0].notes[0]


@pytest.mark.thorough
def test_an_average_over_the_batch(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="depends on the other images") as caught:
        exported(nets.BatchMean(), tmp_path / "m.onnx")
    assert "own_nets.py:" in caught.value.details[0]
    assert "mean(dim=0" in caught.value.details[0]
    assert "--batch 1" in caught.value.fix
    report = exported(nets.BatchMean(), tmp_path / "m.onnx", batch=1)
    assert report.inputs == {"x": [1, 4]}
    assert report.operators["capsedge::DynamicRouting"] == 1


def test_a_branch_is_named_and_no_graph_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        UnsupportedModelError, match="branches on the values of its input"
    ) as caught:
        exported(nets.Branches(), tmp_path / "m.onnx")
    assert "if x.sum() > 0" in caught.value.why
    assert "torch.where" in caught.value.fix
    assert "def forward" not in "".join(capfd.readouterr())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "batch", "line"),
    [
        (nets.FixedBatch, 4, "view(self.batch_size"),
        (nets.LiteralBatch, 6, "view(6, CHILDREN"),
        (nets.NotAlone, 2, "flat.shape[1]"),
        (nets.OneAtATime, 1, "one image at a time"),
    ],
)
def test_a_module_without_a_free_batch_has_a_fixed_one_and_says_so(
    model: type[nets.Own], batch: int, line: str, tmp_path: Path
) -> None:
    path, said = tmp_path / "m.onnx", list[str]()
    report = exported(model(), path, progress=said.append)
    assert report.inputs == {"x": [batch, 4]}
    (note,) = (n for n in report.notes if n.startswith(f"the batch is fixed at {batch}: "))
    assert line in note
    assert note in report.to_dict()["notes"]
    assert f"fixing the batch at {batch}, since it cannot be free" in said
    images = torch.rand(7, 4).numpy()
    found = capsedge.load(path).run({"x": images[:batch]})["output"]
    rows = np.resize(images[:batch], (batch, 4))
    with torch.no_grad():
        np.testing.assert_allclose(found, model()(torch.from_numpy(rows)), atol=1e-6)
    assert capsedge.verify(model(), path, inputs={"x": images}).passed


def test_images_that_depend_on_each_other_get_no_fixed_batch_by_themselves(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="depends on the other images") as caught:
        exported(nets.FixedAveraged(), tmp_path / "m.onnx")
    assert "--batch 4" in caught.value.fix
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_a_batch_of_one_in_the_code_is_free(tmp_path: Path) -> None:
    # One image at a time is enough for a free batch.
    report = exported(nets.FixedBatch(1), tmp_path / "one.onnx")
    assert report.inputs == {"x": ["N", 4]}
    assert report.operators["capsedge::DynamicRouting"] == 1
    images = torch.rand(3, 4)
    session = capsedge.load(tmp_path / "one.onnx")
    with torch.no_grad():
        wanted = torch.cat([nets.FixedBatch(1)(image[None]) for image in images])
    np.testing.assert_allclose(session.run({"x": images.numpy()})["output"], wanted, atol=1e-6)


def test_a_batch_norm_in_training_mode(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="A batch norm of the module is in") as caught:
        exported(nets.Normalized(), tmp_path / "m.onnx")
    assert any("nn.BatchNorm1d(6)(" in line for line in caught.value.details)
    assert "model.eval()" in caught.value.fix


def test_an_output_without_the_batch(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="does not begin with the batch"):
        exported(nets.Total(), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("caps.pt", "is a path; export takes a module"),
        (Path("caps.pt"), "load_state_dict"),
        ({"weight": torch.ones(2)}, "A state dict is not a module"),
        (nets.Plain, "Plain is a class"),
        (lambda x: x, "A value of type function is not a PyTorch module"),
    ],
)
def test_what_is_no_module(model: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        capsedge.export(model, tmp_path / "m.onnx", example=EXAMPLE)  # type: ignore[arg-type]
    assert "capsedge export" not in str(caught.value)  # Python's terms


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (EXAMPLE.numpy(), "torch.from_numpy"),
        ((EXAMPLE, EXAMPLE), "takes x"),
        ("1x28x28", "is a value of type str"),
        (torch.rand(2, 9), "fails on an example"),
    ],
)
def test_what_is_no_example(example: object, message: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, UnsupportedModelError), match=message):
        capsedge.export(nets.Plain(), tmp_path / "m.onnx", example=example)  # type: ignore[arg-type]


class _Rows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        return x.reshape(rows, 2, columns // 2).sum(2)


def test_an_example_that_states_the_batch_too(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"It runs on \[2, 4\]: leave the 1 out"):
        capsedge.export(_Rows(), tmp_path / "m.onnx", example=EXAMPLE[:, None])
    with pytest.raises(UnsupportedModelError, match="Check the shape"):  # it fails in any case
        capsedge.export(_Rows(), tmp_path / "m.onnx", example=EXAMPLE[:, None, None])


class _Loud(torch.nn.Module):
    """Differs from its own export where inputs are large: ``dropped`` is the number that capture saw."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nets.Plain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        limit = 1e9 if torch.compiler.is_compiling() else 2.0
        return self.inner(torch.clamp(torch.abs(x), max=limit))


@pytest.mark.thorough
def test_hard_cases_outside_the_users_range_warn(tmp_path: Path) -> None:
    own = {"x": np.random.default_rng(0).random((9, 4), np.float32)}
    with pytest.raises(ParityError) as caught:  # within the range nothing is forgiven
        exported(_Loud(), tmp_path / "m.onnx", check_inputs=20 * own["x"])
    assert "Rewrites have no part in it" in str(caught.value)
    assert not list(tmp_path.iterdir())
    report = exported(_Loud(), tmp_path / "m.onnx", check_inputs=own)
    assert report.warnings
    assert "outside the range" in report.warnings[0]
    assert any(p.case.startswith("your inputs") and p.passed for p in report.parity)


@pytest.mark.thorough
def test_the_words_of_a_failed_comparison(tmp_path: Path) -> None:
    """Lines are lines; rounding that no tolerance may allow is said to be the network's."""
    own = {"x": 20 * np.random.default_rng(0).random((9, 4), np.float32)}
    with pytest.raises(ParityError) as caught:
        exported(_Loud(), tmp_path / "m.onnx", check_inputs=own)
    assert "\\n" not in str(caught.value)
    assert len(caught.value.details) == 1
    with pytest.raises(ParityError, match="network is ill-conditioned on this input") as caught:
        exported(_IllConditioned(), tmp_path / "m.onnx")
    assert "In FP32, the module's outputs are not well defined" in caught.value.what
    assert "reproduce" not in str(caught.value)


class _IllConditioned(torch.nn.Module):
    """A difference of nearly equal sums, grown: FP32 leaves it no digit, and each order another one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = x.sum(1, keepdim=True)
        b = x[:, 2:3] + x[:, 1:2] + x[:, 3:4] + x[:, 0:1]
        return torch.sin(1e6 * (torch.sin(1e5 * a) - torch.cos(1e5 * b))).expand(-1, 3)


def test_the_worst_shown_is_one_that_counts(exported: Exports) -> None:
    """Not finite outside the range of the user's inputs: no "inf %" beside a file that is written."""
    report = exported(network("dynamic")).report
    inf = float("inf")
    outside = CaseParity("huge", "output", inf, inf, 0.0, inf, False, outside=True)
    shown = replace(report, parity=(*report.parity, outside))
    assert shown.passed
    assert "inf" not in dict(shown.rows())["parity"]
    assert "not finite in the file on 'huge'" in shown.warnings[0]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.ones((3, 5), np.float32), "does not fit the input 'x'"),
        (np.ones((3, 4), np.uint8), "whole numbers"),
        (np.full((3, 4), np.nan, np.float32), "NaN"),
        ({"a": np.ones(1), "b": np.ones(1)}, "has no arrays under the names of the model's inputs"),
    ],
)
def test_inputs_that_do_not_fit(inputs: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        exported(nets.Plain(), tmp_path / "m.onnx", check_inputs=inputs)


@pytest.mark.thorough
def test_the_operators_are_named_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recognition that finds another function: the gate refuses, and says whose fault it is."""
    right = passes.detach_functions

    def wrong(model: onnx.ModelProto) -> None:
        right(model)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "iterations":
                    attribute.i -= 1

    monkeypatch.setattr(passes, "detach_functions", wrong)
    with pytest.raises(ParityError, match="operators that replaced its routing"):
        exported(nets.Plain(2.0), tmp_path / "m.onnx")
    assert ir.detach_functions is right


@pytest.mark.thorough
def test_the_first_node_that_differs() -> None:
    """A node whose numbers were changed after capture is named with the user's line."""
    from capsedge.exporters.module_graph import to_graph
    from capsedge.exporters.user_inputs import of_module
    from capsedge.graph import Rewrites

    subject = of_module(nets.Plain().eval(), EXAMPLE, None).sized(2)
    graph = to_graph(subject, 20, 2, Rewrites.none(), fuse=False)
    model, program = graph.lowered.runnable, graph.program
    bias = next(t for t in model.graph.initializer if t.name.endswith("stem.bias"))
    moved = onnx.numpy_helper.to_array(bias) + 1
    bias.CopyFrom(onnx.numpy_helper.from_array(moved, bias.name))
    said = parity._first_node(model, program, [EXAMPLE], Tolerance(1e-5, 1e-4))
    assert "First to differ" in said
    assert "own_nets.py" in said


def test_variables_are_back_afterwards() -> None:
    with on_cpu():
        assert torch.autograd.Variable(torch.ones(2)).sum() == 2
    made = torch.autograd.Variable(torch.ones(2), requires_grad=True)
    assert made.requires_grad
    assert torch.ones(1).data.device.type == "cpu"


def _shaped(batch: int, extra: int = 0) -> onnx.ModelProto:
    shape = onnx.numpy_helper.from_array(np.array([batch * 2 + extra, 3], np.int64), "shape")
    node = onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 6])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None, 3])
    return onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y], [shape]))


def test_two_batches_are_merged() -> None:
    model = merge(_shaped(3), _shaped(5), FreeAxis("N", (3, 5)))
    assert onnx.numpy_helper.to_array(model.graph.initializer[0]).tolist() == [-1, 3]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    with pytest.raises(GraphsDiffer, match="does not follow N"):
        merge(_shaped(3), _shaped(5, 1), FreeAxis("N", (3, 5)))


class _WithTable(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.table = torch.linspace(0, 1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x) + self.table
        return y


@pytest.mark.thorough
def test_the_report_lists_tensors_outside_the_state_dict() -> None:
    report = capsedge.export(_WithTable(), None, example=EXAMPLE)
    assert report.unregistered == ("table [3]",)
    assert report.to_dict()["unregistered"] == ("table [3]",)
    assert "table [3]" in str(report)


def test_a_module_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    module = _WithTable()
    with torch.no_grad():
        module.layer.weight[1, 2] = torch.nan
    with pytest.raises(UsageError, match="not finite") as caught:
        capsedge.export(module, tmp_path / "a.onnx", example=EXAMPLE)
    assert caught.value.details == ("layer.weight [3, 4]: 1 of 12, the first is nan at [1, 2]",)
    assert not list(tmp_path.iterdir())
