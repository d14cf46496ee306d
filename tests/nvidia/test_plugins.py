"""The plugin library in NVIDIA's registry: engines with plugins, and what the plugins refuse in its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

pytest.importorskip("torch", reason="models are exported: pip install 'capsedge[export]'")

from capsedge.runtime.zoo import ROUTINGS
from tests.nvidia import headers, models
from tests.nvidia.conftest import Build
from tests.nvidia.test_engines import DYNAMIC, STATIC, folder  # noqa: F401

pytestmark = pytest.mark.tensorrt_rtx


@pytest.fixture(scope="session")
def newest() -> Path:
    return headers.plugin_library(headers.any_folders()[-1])


@pytest.fixture(scope="session")
def oldest() -> Path:
    """Against TensorRT 10.3: the oldest interface, which newer TensorRT takes too."""
    found = headers.any_folders()[0]
    if headers.version(found) != (10, 3):
        pytest.skip(f"none of the folders in {headers.VARIABLE} has the headers of 10.3")
    return headers.plugin_library(found)


def check(built: dict[str, Any]) -> None:
    assert "error" not in built, built
    assert built["plugin"] == "fused"
    assert built["progress"]["last"] == 1.0


@pytest.mark.parametrize("precision", models.PRECISIONS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_zoo(
    build: Build, newest: Path, folder: Path, routing: str, precision: str  # noqa: F811
) -> None:  # fmt: skip
    source = models.quantized(models.zoo(routing, folder), precision)
    jobs = [(source, {"batch": batch, "plugin": "fused"}) for batch in (STATIC, DYNAMIC)]
    for built in build(jobs, newest):
        check(built)
        if precision in ("int8", "mixed"):
            assert built["products"]["INT8"] == models.quantized_products(source)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_oldest_interface(
    build: Build, oldest: Path, folder: Path, routing: str  # noqa: F811
) -> None:  # fmt: skip
    source = models.zoo(routing, folder)
    for built in build(
        [(source, {"batch": b, "plugin": "fused"}) for b in (STATIC, DYNAMIC)], oldest
    ):
        check(built)


def test_a_free_number_of_children(build: Build, newest: Path, tmp_path: Path) -> None:
    """The plugin in a profile of lengths; with a mask, routing is in standard operators."""
    sizes = {"batch": DYNAMIC, "length": (1, 50, 200)}
    jobs = [
        (models.shared_weights(tmp_path), {**sizes, "plugin": "fused"}),
        (models.recommender(tmp_path, True), {**sizes, "plugin": "auto"}),
        (models.recommender(tmp_path, True), {**sizes, "plugin": "fused"}),
    ]
    fused, masked, refused = build(jobs, newest)
    check(fused)
    assert masked["plugin"] == "native", masked
    assert refused["error"] == "UsageError"
    assert "a mask" in refused["why"]


def test_self_attention(
    build: Build, oldest: Path, newest: Path, folder: Path  # noqa: F811
) -> None:  # fmt: skip
    """Efficient-CapsNet, which the zoo has not."""
    jobs = [
        (models.efficient_capsnet(folder), {"batch": batch, "plugin": "fused"})
        for batch in (STATIC, DYNAMIC)
    ]
    for library in (oldest, newest):
        for built in build(jobs, library):
            check(built)
            # The plugin; standard operators would be several layers.
            assert built["belongs_to"].count("model, routing iteration 1") == 1


def node(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, name="it", domain="capsedge", **attributes)


def one_node(
    path: Path,
    inputs: dict[str, tuple[int, ...]],
    weights: dict[str, tuple[int, ...]],
    one: onnx.NodeProto,
) -> Path:
    """A file of one operator, as nothing in the package would write it."""
    graph = helper.make_graph(
        [one],
        "one",
        [helper.make_tensor_value_info(name, T.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, T.FLOAT, None) for name in one.output],
        [numpy_helper.from_array(np.ones(s, np.float32), name) for name, s in weights.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("capsedge", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


DYNAMIC_INPUT = {"u": (1, 6, 8)}
DYNAMIC_WEIGHTS = {"W": (6, 3, 4, 8), "p": (6, 3), "b": (3, 4)}
EM_INPUTS = {"x": (1, 2, 2, 3, 16), "a": (1, 2, 2, 3)}
EM_WEIGHTS = {"W": (1, 1, 3, 2, 4, 4), "bu": (2,), "ba": (2,)}


def dynamic(
    path: Path, weights: dict[str, tuple[int, ...]] | None = None, **attributes: Any
) -> Path:
    given = {"iterations": 3, "leaky": 0, "epsilon": 1e-8, **attributes}
    stored = {**DYNAMIC_WEIGHTS, **(weights or {})}
    one = node("DynamicRouting", ["u", *stored], ["v"], **given)
    return one_node(path, DYNAMIC_INPUT, stored, one)


def em(path: Path, weights: dict[str, tuple[int, ...]] | None = None, **attributes: Any) -> Path:
    given = {
        "iterations": 1, "shared": 1, "coordinate_addition": 0, "strides": [1, 1],
        "inverse_temperatures": [0.1], "epsilon": 1e-6, **attributes,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    stored = {**EM_WEIGHTS, **(weights or {})}
    one = node("EMRouting", ["x", "a", *stored], ["p", "q"], **given)
    return one_node(path, EM_INPUTS, stored, one)


def self_attention(path: Path, weights: dict[str, tuple[int, ...]], epsilon: float = 1e-20) -> Path:
    given = {"W": (6, 3, 4, 8), "b": (6, 3), **weights}
    one = node("SelfAttentionRouting", ["u", "W", "b"], ["v"], epsilon=epsilon)
    return one_node(path, DYNAMIC_INPUT, given, one)


def squash(path: Path, axis: int) -> Path:
    return one_node(path, {"x": (2, 3)}, {}, node("Squash", ["x"], ["y"], axis=axis, epsilon=1e-8))


REFUSED = {
    "no iterations": (dynamic, {"iterations": 0}, "'iterations' is 0: wanted 1 to 64"),
    "iterations as a float": (dynamic, {"iterations": 3.0}, "'iterations' has the wrong type"),
    "leaky": (dynamic, {"leaky": 2}, "'leaky': wanted 0 or 1"),
    "epsilon": (dynamic, {"epsilon": 0.0}, "'epsilon' is not positive"),
    "weight": (dynamic, {"weights": {"W": (6, 3, 4, 7)}}, "[6, 3, 4, 7]: wanted [6, J, Pout, 8]"),
    "bias": (dynamic, {"weights": {"b": (3, 5)}}, "input 'bias' has shape [3, 5]"),
    "vote bias": (dynamic, {"weights": {"c": (5, 3, 4)}}, "input 'vote_bias' has shape [5, 3, 4]"),
    "coordinates": (em, {"weights": {"c": (2, 3, 16)}}, "input 'coordinates' has shape [2, 3, 16]"),
    "em without iterations": (em, {"iterations": None}, "'iterations' is missing"),
    "em temperatures": (em, {"iterations": 3}, "'inverse_temperatures' has 1 numbers"),
    "em window": (em, {"weights": {"W": (3, 3, 3, 2, 4, 4)}, "shared": 0}, "window is larger"),
    "self-attention epsilon": (self_attention, {"weights": {}, "epsilon": 0.0}, "'epsilon' is not positive"),
    "self-attention bias": (self_attention, {"weights": {"b": (3, 4)}}, "input 'bias' has shape [3, 4]"),
    "squash axis": (squash, {"axis": 9}, "'axis' lies outside"),
}  # fmt: skip


def test_optional_inputs(build: Build, oldest: Path, newest: Path, tmp_path: Path) -> None:
    """The parser and the builder give a plugin as many inputs as its node has."""
    files = [
        dynamic(tmp_path / "without.onnx"),
        dynamic(tmp_path / "one.onnx", {"c": (1, 3, 4)}),
        dynamic(tmp_path / "each.onnx", {"c": (6, 3, 4)}),
        em(tmp_path / "none.onnx"),
        em(tmp_path / "coordinates.onnx", {"c": (2, 2, 16)}),
    ]
    for library in (oldest, newest):
        for built in build([(file, {"plugin": "fused"}) for file in files], library):
            check(built)


def test_what_plugins_refuse(build: Build, newest: Path, tmp_path: Path) -> None:
    """The plugin's own words arrive through NVIDIA's logger, though its parser and its builder drop them.

    Most of these files are refused by the check of every file, so the plugin sees them only without it.
    """
    jobs = []
    for k, (make, given, _) in enumerate(REFUSED.values()):
        file = make(tmp_path / f"{k}.onnx", **given)
        jobs.append((file, {"plugin": "fused", "unchecked": True}))
    right = (dynamic(tmp_path / "right.onnx"), {"plugin": "fused"})
    *found, good = build([*jobs, right], newest)
    check(good)
    for (name, (_, _, words)), refused in zip(REFUSED.items(), found, strict=True):
        assert refused.get("error") == "UnsupportedModelError", (name, refused)
        assert "capsedge: " in refused["why"], (name, refused)
        assert words in refused["why"], (name, refused)
        assert not refused["written"]
