"""The exported file: what stands in it, that it runs everywhere, and that a wrong one is never written."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

from capsedge.errors import EnvironmentProblem, ParityError, UnsupportedModelError, UsageError
from capsedge.exporters import module_graph as to_onnx
from capsedge.exporters import subject as modules
from capsedge.exporters.export import export
from capsedge.exporters.export_options import REWRITES, ExportOptions
from capsedge.exporters.export_report import ExportReport
from capsedge.graph import Rewrites, ir, passes
from capsedge.graph.ir import shapes_of
from capsedge.graph.passes import TORCH_DOMAIN, check_operators
from capsedge.runtime.load import load
from capsedge.runtime.metadata.metadata import ModelMetadata, Outputs, Preprocessing
from capsedge.runtime.user_metadata import Description
from capsedge.spec.operators import operator_of
from tests.exports import Exports

from .evaluate import run
from .nets import EXTRAS, OwnModule, network

FAMILIES = ("dynamic", "em", "attention")
IMAGES = np.random.default_rng(9).random((4, 1, 10, 10)).astype(np.float32)


def _exported(
    exports: Exports, family: str, **options: object
) -> tuple[ExportReport, onnx.ModelProto, dict[str, np.ndarray]]:
    path, _, report = exports(network(family), **options)
    return (
        report,
        onnx.load(path),
        run(path.read_bytes(), {"images": IMAGES[: options.get("batch", 4)]}),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_file_holds_operators_with_bodies(exported: Exports, family: str) -> None:
    report, model, found = _exported(exported, family)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 20), ("capsedge", 1)]
    assert model.ir_version == 10
    nodes = ir.operator_nodes(model)
    assert nodes
    bodies = [(f.domain, f.name) for f in model.functions]
    assert len(bodies) == len(set(bodies))
    assert {(n.domain, n.op_type) for n in nodes} == set(bodies)
    assert not any(item.overload for item in (*model.graph.node, *model.functions))
    assert all(check_operators(model) == [] for _ in nodes)
    assert not any("/" in p.value for n in model.graph.node for p in n.metadata_props)
    source = network(family)
    scores, poses, _ = source(torch.from_numpy(IMAGES))
    np.testing.assert_allclose(found[source.score_name], scores.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["poses"], poses.detach(), rtol=1e-4, atol=1e-5)
    assert report.inputs == {"images": ["N", 1, 10, 10]}
    assert report.outputs[source.score_name] == ["N", 3]
    assert report.size == report.path.stat().st_size
    # Batches 1 and 3, eight kinds of input, two outputs.
    assert len(report.parity) == 2 * 8 * 2
    metadata = ModelMetadata.from_properties({p.key: p.value for p in model.metadata_props})
    assert metadata is not None
    assert metadata.class_names == ("a", "b", "c")
    assert metadata.parity["max_abs"] == report.max_abs
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_portable_file_needs_no_functions_and_runs_in_openvino(
    exported: Exports, family: str
) -> None:
    openvino = pytest.importorskip("openvino", reason="pip install openvino")
    report, model, found = _exported(exported, family, ops="portable", extra_outputs=EXTRAS[family])
    assert not model.functions
    assert {o.domain for o in model.opset_import} == {""}
    assert not {"Cast", "CastLike", "Constant", "Einsum", "Loop"} & {
        n.op_type for n in model.graph.node
    }
    # OpenVINO computes in bfloat16 by itself where the CPU has it.
    single = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.compile_model(str(report.path), "CPU", single)
    result = compiled(IMAGES)
    for output, value in found.items():
        np.testing.assert_allclose(result[output], value, rtol=2e-4, atol=2e-5)


def test_fused_file_has_no_bodies(exported: Exports) -> None:
    path, _, report = exported(network("dynamic"), ops="fused", task="multi-label")
    model = onnx.load(path)
    assert report.functions == len(model.functions) == 0
    assert [n.op_type for n in ir.operator_nodes(model)] == ["Squash", "DynamicRouting"]
    metadata = ModelMetadata.from_properties({p.key: p.value for p in model.metadata_props})
    assert metadata is not None
    assert metadata.task == "multi-label"


def test_weight_layouts_are_folded_in_portable_files(exported: Exports) -> None:
    """No transpose or reshape of a constant is left to run time."""
    _, model, _ = _exported(exported, "em", ops="portable", extra_outputs=EXTRAS["em"])
    constants = ir.constants_of(model)
    late = [n for n in model.graph.node if n.input and all(i in constants for i in n.input)]
    assert late == []


@pytest.mark.parametrize(
    ("ops", "family"),
    [
        *(("portable", family) for family in FAMILIES),
        ("auto", "dynamic"),
        ("auto", "attention"),
        pytest.param("auto", "em", marks=pytest.mark.thorough),
    ],
)
def test_couplings_are_an_output_in_standard_operators(
    exported: Exports, family: str, ops: str
) -> None:
    _, model, found = _exported(exported, family, extra_outputs=EXTRAS[family], ops=ops)
    wanted = network(family)(torch.from_numpy(IMAGES)).couplings.detach().numpy()
    assert [o.name for o in model.graph.output][-1] == "couplings"
    np.testing.assert_allclose(found["couplings"], wanted, rtol=1e-4, atol=1e-5)
    assert "DynamicRouting" not in {operator_of(n.op_type) for n in ir.operator_nodes(model)}


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_iteration_and_its_couplings(exported: Exports, family: str) -> None:
    _, _, found = _exported(exported, family, iterations=1, extra_outputs=("couplings",))
    output = network(family, iterations=1)(torch.from_numpy(IMAGES))
    np.testing.assert_allclose(found["poses"], output.poses.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["couplings"], output.couplings.detach(), rtol=1e-4, atol=1e-5)


def test_reconstruction_is_an_output(exported: Exports) -> None:
    _, _, found = _exported(exported, "dynamic", extra_outputs=("reconstruction",))
    model = network("dynamic")
    wanted = model.reconstruct(model(torch.from_numpy(IMAGES)).poses).detach().numpy()
    assert found["reconstruction"].shape == (4, 3, 1, 10, 10)
    np.testing.assert_allclose(found["reconstruction"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("opset", [18, 19, 20, 21])
def test_opsets(exported: Exports, opset: int) -> None:
    _, model, _ = _exported(exported, "dynamic", **({} if opset == 20 else {"opset": opset}))
    assert model.opset_import[0].version == opset
    assert {f.opset_import[0].version for f in model.functions} == {opset}


def test_fixed_batch(exported: Exports) -> None:
    report, _, found = _exported(exported, "attention", batch=1)
    assert report.inputs == {"images": [1, 1, 10, 10]}
    assert found["poses"].shape == (1, 3, 4)


@pytest.mark.thorough
def test_every_rewrite_off_is_the_same_function(exported: Exports) -> None:
    report, _, found = _exported(exported, "attention", no_rewrite=tuple(REWRITES))
    assert set(report.rewrites.values()) == {"off"}
    assert report.operators["capsedge::AttentionRouting"] == 6
    _, _, wanted = _exported(exported, "attention")
    np.testing.assert_allclose(found["poses"], wanted["poses"], rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_each_submodule_keeps_its_mode(tmp_path: Path) -> None:
    model = network("dynamic").train()
    model.stem.eval()  # frozen, as for fine-tuning
    before = {name: module.training for name, module in model.named_modules()}
    export(model, None)
    assert {name: module.training for name, module in model.named_modules()} == before


@pytest.mark.thorough
def test_export_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = network("dynamic").train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    export(model, None, ExportOptions(iterations=2))
    assert model.training
    assert model.config.iterations == 3
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.thorough
def test_own_module(tmp_path: Path) -> None:
    """Two nodes of one operator with other shapes and attributes carry other bodies."""
    path = tmp_path / "own.onnx"
    module = OwnModule()
    report = export(module, path, example=(torch.rand(1, 6, 3), torch.rand(1, 6)))
    assert report.inputs == {"children": ["N", 6, 3], "scale": ["N", 6]}
    assert report.outputs == {"pose": ["N", 2, 6], "share": ["N", 4, 2]}
    children, scale = torch.randn(5, 6, 3), torch.rand(5, 6)
    with torch.no_grad():
        wanted = module(children, scale)
    found = run(path.read_bytes(), {"children": children.numpy(), "scale": scale.numpy()})
    np.testing.assert_allclose(found["pose"], wanted.pose, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["share"], wanted.share, rtol=1e-4, atol=1e-6)
    model = onnx.load(path)
    names = [f.name for f in model.functions if operator_of(f.name) == "Squash"]
    assert names == ["Squash", "Squash_2"]
    assert ModelMetadata.from_properties({p.key: p.value for p in model.metadata_props}) is None


@pytest.mark.thorough
def test_own_output_names(tmp_path: Path) -> None:
    example = (torch.rand(2, 6, 3), torch.rand(2, 6))
    report = export(
        OwnModule(), None, example=example, options=ExportOptions(output_names=("v", "c"))
    )
    assert list(report.outputs) == ["v", "c"]
    with pytest.raises(UsageError, match="2 outputs: pose, share"):
        export(
            OwnModule(),
            tmp_path / "own.onnx",
            example=example,
            options=ExportOptions(output_names=("v",)),
        )
    assert not list(tmp_path.iterdir())


def test_public_name() -> None:
    import capsedge

    assert capsedge.export is export


class _Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if bool(x.sum() > 0) else x - 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"iterations": 0}, UsageError, "from 1 to 100"),
        ({"opset": 17}, UsageError, "opset 17"),
        ({"ops": "fast"}, UsageError, "auto, fused, portable"),
        ({"batch": 0}, UsageError, "batch 0"),
        ({"tolerance": (0.0, 0.0)}, UsageError, "not positive"),
        ({"tolerance": (float("nan"), 0.0)}, UsageError, "not positive"),
        ({"extra_outputs": ["votes"]}, UsageError, "extra_outputs votes"),
        pytest.param(
            {"tolerance": (1e-12, 0.0)}, ParityError, "--tolerance", marks=pytest.mark.thorough
        ),
    ],
)
def test_refused(
    tmp_path: Path, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export(network("em"), tmp_path / "m.onnx", ExportOptions(**options))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_reconstruction_needs_a_decoder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no decoder"):
        export(network("em"), tmp_path / "m.onnx", ExportOptions(extra_outputs=["reconstruction"]))


@pytest.mark.thorough
def test_a_wrong_graph_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate finds an error of the exporter: here a body with one iteration too few."""
    attach = passes.attach_functions

    def wrong(model: onnx.ModelProto, rewrites: Rewrites | None = None) -> None:
        for node in ir.operator_nodes(model):
            for attribute in node.attribute:
                if attribute.name == "iterations":
                    attribute.i -= 1
        attach(model, rewrites)

    monkeypatch.setattr(passes, "attach_functions", wrong)
    with pytest.raises(ParityError, match=r"Output '(lengths|poses)' on input") as caught:
        export(network("dynamic"), tmp_path / "m.onnx")
    assert caught.value.exit_code == 4
    assert not list(tmp_path.iterdir())


def test_half_modules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is float16 on cpu"):
        export(network("dynamic").half(), tmp_path / "m.onnx")


def test_control_flow_on_data_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="cannot capture") as caught:
        export(_Branches(), tmp_path / "m.onnx", example=torch.rand(2, 3))
    assert caught.value.exit_code == 5


def test_own_module_needs_an_example(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="example"):
        export(OwnModule(), tmp_path / "m.onnx")


@pytest.mark.thorough
def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    old = b"the file of yesterday"
    (tmp_path / "m.onnx").write_bytes(old)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentProblem, match="No space left") as caught:
        export(network("dynamic"), tmp_path / "m.onnx")
    assert caught.value.exit_code == 3
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_bytes() == old


def test_translation_can_be_asked_for_twice() -> None:
    from capsedge.exporters.capture import translation_table

    assert translation_table().keys() == translation_table().keys()


@pytest.mark.thorough
def test_an_unknown_shape_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the function that lowers and by export; an error of another kind is not taken for one."""
    subject = modules.of_capsule_model(network("dynamic"), ("couplings",), None, "")

    def without_poses(model: onnx.ModelProto) -> dict[str, tuple[int | None, ...]]:
        unknown = {n.input[0] for n in ir.operator_nodes(model, TORCH_DOMAIN)}
        return {k: v for k, v in shapes_of(model).items() if k not in unknown}

    monkeypatch.setattr(passes, "shapes_of", without_poses)
    with pytest.raises(
        UnsupportedModelError, match=r"(?s)unknown shape.*no shape for the input '.+' of"
    ):
        to_onnx.to_graph(subject, 20, None, Rewrites())

    def broken(model: onnx.ModelProto) -> dict[str, tuple[int | None, ...]]:
        raise KeyError("a bug")

    monkeypatch.setattr(passes, "shapes_of", broken)
    with pytest.raises(KeyError, match="a bug"):
        to_onnx.to_graph(subject, 20, None, Rewrites())


def test_lowering_needs_shapes() -> None:
    node = helper.make_node("Squash", ["x"], ["y"], domain=TORCH_DOMAIN, axis=-1, epsilon=1e-8)
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ("x", "y")]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(TORCH_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    with pytest.raises(UnsupportedModelError, match="no shape for the input 'x' of Squash"):
        passes.lower(model, Rewrites(), "auto", outputs=1, passes=0)


@pytest.mark.thorough
def test_metadata_that_readers_would_refuse_is_not_written(tmp_path: Path) -> None:
    """By the same checks as when it is read."""
    path = tmp_path / "m.onnx"
    with pytest.raises(UsageError, match="12 classes are named"):
        export(
            network("dynamic"),
            path,
            description=Description(class_names=[str(k) for k in range(12)]),
        )

    class Scores(nn.Module):
        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"scores": images.mean((2, 3)), "other": images.sum((1, 2, 3))}

    example = torch.rand(2, 3, 8, 8)
    prep = Preprocessing(8, 8, 3)
    with pytest.raises(UsageError, match="the input takes"):
        export(
            Scores(),
            path,
            example=example,
            description=Description(preprocessing=Preprocessing(9, 8, 3)),
        )
    assert not path.exists()
    export(
        Scores(),
        path,
        example=example,
        description=Description(class_names=["a", "b", "c"], preprocessing=prep),
    )
    declared = load(path).metadata
    assert declared is not None
    assert declared.outputs == Outputs(scores="scores", kind="length")
    assert declared.parity["comparisons"] > 0
