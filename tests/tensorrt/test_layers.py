"""Layers of engines by the model's own names: `inspect --layers`, and times in `profile`. Over stand-ins."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capsedge
from capsedge.errors import CapsedgeError, UsageError
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.inspection import read_engine_layers
from capsedge.runtime.onnx_file.layer_map import (
    GROUPS,
    Location,
    engine_locations,
    merge_locations,
    node_name,
)
from capsedge.runtime.profiling.profile import profile
from capsedge.runtime.profiling.profile_options import ProfileOptions
from capsedge.runtime.zoo import default_model
from tests.tensorrt import fake
from tests.tensorrt.fixtures import cudart, gpu
from tests.tensorrt.test_engines import make, model, plugin


@pytest.mark.parametrize(
    "place",
    [
        Location("stem.0", "stem"),
        Location("classes", "votes"),
        Location("classes", "routing", 2),
        Location("classes", "routing", 1, 3),
        Location("", "classifier"),
        Location("decoder.layers.4", "decoder"),
    ],
)
def test_names_say_where_a_node_belongs(place: Location) -> None:
    name = node_name(place, "MatMul", 17)
    assert engine_locations(f"{name} + PWN(Relu_3)[ONNX Layer: other]") == [place]


def test_layers_of_several_nodes() -> None:
    nodes = [Location("a", "stem"), Location("b", "routing", 1), Location("b", "routing", 3)]
    words = "\x1e".join(f"[ONNX Layer: {node_name(p, 'Mul', k)}]" for k, p in enumerate(nodes))
    found = merge_locations(engine_locations(words))
    assert found == Location("a + b", "routing", 1, 3)
    assert found.label == "a + b, routing iterations 1..3 (fused)"
    assert merge_locations(engine_locations("__myl_Relu_7")) == Location()
    assert merge_locations([Location("b", "routing", 2)]).label == "b, routing iteration 2"


def labels(layers: list[Any]) -> set[str]:
    return {merge_locations(engine_locations(f"{x.name} {x.metadata}")).label for x in layers}


@pytest.mark.thorough
@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("mode", ["native", "fused"])
def test_engines_have_the_layers_of_the_file(make: Any, mode: str) -> None:
    """Those that `profile` names for the ONNX file, portable for native and fused for fused."""
    if find_library() is None:
        pytest.skip("the operator library is not built")
    built = make(model=default_model(), plugin=mode, batch=(1, 2, 4))
    ops = "portable" if mode == "native" else "fused"
    file = profile(
        capsedge.load(default_model(), ops=ops),
        ProfileOptions(duration=0.1, startup=False),
    )
    wanted = {row.name for row in file.runs[0].layers}
    assert labels(read_engine_layers(built.path)) == wanted
    assert len(wanted) > 4


@pytest.mark.thorough
def test_times_of_layers(make: Any, gpu: Any) -> None:
    built = make(model=default_model(), batch=(1, 2, 4))
    session = capsedge.load(built.path)
    session.run(np.ones((2, 1, 28, 28), np.float32))
    before = [gpu.fake_count(k) for k in range(3)]
    report = profile(session, ProfileOptions(batch=(2,), duration=0.1, startup=False))
    assert [gpu.fake_count(k) for k in range(3)] == before
    assert "undefined" not in fake.RECORDED
    (run,) = report.runs
    times = run.operators
    assert times is not None
    layers = read_engine_layers(built.path)
    assert [o.name for o in times.operators] == [x.name for x in layers]
    # The stand-in's layer k takes (k + 1) / 4 ms.
    assert [o.microseconds for o in times.operators] == [
        250.0 * (k + 1) for k in range(len(layers))
    ]
    assert times.sum_ms == pytest.approx(sum(0.25 * (k + 1) for k in range(len(layers))))
    assert {o.provider for o in times.operators} == {"TensorRT"}
    assert {row.name for row in run.layers} == labels(layers)
    assert {row.group for row in run.groups} <= set(GROUPS)
    assert run.named
    assert "classes, routing iteration 2" in report.to_markdown()
    assert json.dumps(report.to_dict())
    right = capsedge.load(default_model()).run(np.ones((2, 1, 28, 28), np.float32))
    found = session.run(np.ones((2, 1, 28, 28), np.float32))
    np.testing.assert_allclose(found["lengths"], right["lengths"], rtol=1e-3, atol=1e-5)


def test_foreign_files_keep_their_names(make: Any, tmp_path: Path) -> None:
    from tests.exporters.tensorrt.test_lowering import quantized

    source = tmp_path / "foreign.onnx"
    model = quantized(np.int8(0))
    for k, node in enumerate(model.graph.node):
        node.name = f"theirs_{k}"
    source.write_bytes(model.SerializeToString())
    built = make(model=source, target=tmp_path / "foreign.engine")
    found = read_engine_layers(built.path)
    assert all(re.search(r"theirs_\d", layer.metadata) for layer in found)
    assert labels(found) == {"(no layer named)"}


def test_the_command(make: Any, gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from capsedge.cli.inspect import command

    path = make(model=default_model()).path
    command(path, batch="1", layers=True)
    shown = capsys.readouterr().out
    assert "Layers, batch 1" in shown
    assert "routing iteration 3" in shown
    command(path, batch="1", layers=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["layers"][0]["belongs_to"] == "stem.0"
    assert {"name", "kind", "types", "kernel"} <= set(told["layers"][0])
    with pytest.raises(UsageError, match="Only TensorRT engines have layers to list"):
        command(default_model(), batch="1", layers=True)
    fake.FAIL["layers"] = ["a name and no more"]
    with pytest.raises(CapsedgeError, match="does not report the engine"):
        command(path, batch="1", layers=True)
