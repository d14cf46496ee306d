"""Files in training mode do not run, in the words of `optimize`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="makes the files: pip install 'capsedge[export]'")
from onnx import helper, numpy_helper  # noqa: E402

import capsedge  # noqa: E402
from capsedge.deploy import web  # noqa: E402
from capsedge.errors import UnsupportedModelError  # noqa: E402
from capsedge.runtime.onnx_file.summary import summarize  # noqa: E402
from capsedge.runtime.onnx_file.training_mode import refuse_training  # noqa: E402
from tests.graph.test_random_nodes import DRAWING, HARMLESS, file, node  # noqa: E402
from tests.runtime.models import SIDE, capsule_model, save  # noqa: E402

IMAGE = np.zeros((SIDE, SIDE), np.uint8)


def normalizing(training: int) -> onnx.ModelProto:
    model = capsule_model()
    stored = {"scale": 1, "shift": 0, "mean": 0, "variance": 1}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.full(1, value, np.float32), name)
        for name, value in stored.items()
    )
    outputs = ["normal", "mean_now", "variance_now"] if training else ["normal"]
    norm = helper.make_node(
        "BatchNormalization", ["images", *stored], outputs, name="norm", training_mode=training
    )
    model.graph.node[0].input[0] = "normal"
    model.graph.node.insert(0, norm)
    return model


def dropping(stored_mode: bool = True) -> onnx.ModelProto:
    model = capsule_model(properties=None if stored_mode else {})
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "ratio"))
    if stored_mode:
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), "mode"))
    else:
        model.graph.input.append(helper.make_tensor_value_info("mode", onnx.TensorProto.BOOL, []))
    model.graph.node[0].input[0] = "dropped"
    drop = helper.make_node("Dropout", ["images", "ratio", "mode"], ["dropped"], name="drop")
    model.graph.node.insert(0, drop)
    return model


@pytest.mark.parametrize(
    ("make", "words", "label"),
    [
        (lambda: normalizing(1), "depends on the others of its batch", "'norm' (BatchNormalization)"),
        (dropping, "draws random numbers", "'drop' (Dropout)"),
    ],
)  # fmt: skip
def test_a_session_refuses_it_as_optimize_does(
    make: Callable[[], onnx.ModelProto], words: str, label: str, tmp_path: Path
) -> None:
    path = save(make(), tmp_path / "m.onnx")
    said = []
    for use in (capsedge.load, capsedge.optimize, lambda path: web._read(path, "m")):
        with pytest.raises(UnsupportedModelError, match=words) as caught:
            use(path)
        assert label in caught.value.why
        said.append((caught.value.what, caught.value.why, caught.value.fix))
    assert said == said[:1] * 3


def test_evaluation_mode_runs(tmp_path: Path) -> None:
    with capsedge.load(save(normalizing(0), tmp_path / "m.onnx")) as session:
        assert session.predict(IMAGE)


def test_a_mode_that_is_an_input_is_the_choice_of_the_caller(tmp_path: Path) -> None:
    with capsedge.load(save(dropping(stored_mode=False), tmp_path / "m.onnx")) as session:
        feeds = {"images": np.ones((1, 1, SIDE, SIDE), np.float32), "mode": np.array(False)}
        assert session.run(feeds)["lengths"].shape == (1, 3)


def test_before_opset_14_several_outputs_are_training() -> None:
    for outputs, named in ((["y"], []), (["y", "m", "v"], ["norm"])):
        norm = helper.make_node("BatchNormalization", ["x", *"abcd"], outputs, name="norm")
        model = file(norm)
        model.opset_import[0].version = 9
        assert summarize(model.SerializeToString()).training == named


def branch_that_drops() -> onnx.ModelProto:
    def graph(name: str, inner: onnx.NodeProto) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(inner.output[0], onnx.TensorProto.FLOAT, [2, 3])
        return helper.make_graph([inner], name, [], [out])

    drop, plain = node("Dropout", ["x", "half", "true"], "a"), node("Relu", ["x"], "b")
    choice = node("If", ["true"], "y", then_branch=graph("t", drop), else_branch=graph("e", plain))
    return file(choice)


def test_dropouts_are_found_wherever_they_reach_an_output() -> None:
    drops = {name: make for name, make in DRAWING.items() if "training" in name}
    drops["branch"] = branch_that_drops
    drops["passed on"] = lambda: file(
        node("Identity", ["true"], "on"), node("Dropout", ["x", "half", "on"], "y")
    )
    harmless = HARMLESS | {
        "nothing reads it": lambda: file(
            node("Dropout", ["x", "half", "true"], "r"), node("Relu", ["x"], "y")
        ),
        "an output without a name": lambda: file(helper.make_node("Dropout", ["x"], ["y", ""])),
        "its shape": lambda: file(
            node("Dropout", ["x", "half", "true"], "r"),
            node("Shape", ["r"], "s"),
            node("Reshape", ["x", "s"], "y"),
        ),
        "passed on": lambda: file(
            node("Identity", ["false"], "off"), node("Dropout", ["x", "half", "off"], "y")
        ),
    }
    assert [name for name, make in drops.items() if not refused(make())] == []
    assert [name for name, make in harmless.items() if refused(make())] == []
    assert len(drops) == 5


def refused(model: onnx.ModelProto) -> bool:
    data = model.SerializeToString()
    try:
        refuse_training(data, summarize(data), "m.onnx")
    except UnsupportedModelError:
        return True
    return False
