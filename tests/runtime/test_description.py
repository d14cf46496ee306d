"""What a person states of a network is checked against it, and written without touching anything else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from capsedge.errors import ArtefactError, UsageError  # noqa: E402
from capsedge.runtime.images.preprocessing import prepare  # noqa: E402
from capsedge.runtime.load import load_bytes  # noqa: E402
from capsedge.runtime.metadata.metadata import (  # noqa: E402
    FusedRouting,
    ModelMetadata,
    Outputs,
    Preprocessing,
    RoutedLayer,
)
from capsedge.runtime.onnx_file.wire import with_properties  # noqa: E402
from capsedge.runtime.user_metadata import Description, describe_model  # noqa: E402
from capsedge.runtime.zoo import zoo_model  # noqa: E402
from tests.runtime.models import capsule_model, foreign_model, metadata  # noqa: E402

PREP = Preprocessing(8, 8, 1)
PICTURE = np.random.default_rng(3).integers(0, 256, (8, 8)).astype(np.uint8)


def describe(model: onnx.ModelProto, **stated: Any) -> ModelMetadata:
    return describe_model(model.SerializeToString(), Description(**stated)).metadata


def test_only_the_metadata_changes():
    """The graph, the functions and the properties of others keep their bytes."""
    model = capsule_model(properties={"author": "somebody", "capsedge.schema": "old"})
    del model.metadata_props[:]
    plain = model.SerializeToString()
    onnx.helper.set_model_props(model, {"author": "somebody"} | metadata().to_properties())
    found = describe_model(model.SerializeToString(), Description(class_names=["a", "b", "c"])).data
    changed = onnx.load_from_string(found)
    kept = {p.key: p.value for p in changed.metadata_props if not p.key.startswith("capsedge.")}
    assert kept == {"author": "somebody"}
    del changed.metadata_props[:]
    assert changed.SerializeToString() == plain


def test_the_bytes_are_those_that_protobuf_writes():
    model = capsule_model(properties={})
    bare = model.SerializeToString()
    onnx.helper.set_model_props(model, metadata().to_properties())
    assert with_properties(bare, metadata().to_properties(), "capsedge.") == (
        model.SerializeToString()
    )
    assert with_properties(model.SerializeToString(), {}, "capsedge.") == bare


def test_a_file_of_ours_keeps_what_is_not_stated():
    found = describe(capsule_model(), preprocessing={"mean": (0.5,)}, task="multi-label")
    assert found.task == "multi-label"
    assert found.class_names == metadata().class_names
    assert found.preprocessing == Preprocessing(8, 8, 1, mean=(0.5,))
    assert found.outputs is None


@pytest.mark.parametrize(
    ("kind", "said"), [("Identity", "logits"), ("Sigmoid", "length"), ("Softmax", "probability")]
)
def test_scores_of_another_tool_are_found_and_their_kind_told(kind: str, said: str):
    model = foreign_model({"features": [7], "probs": [3]}, kinds={"probs": kind})
    found = describe(model, class_names=["a", "b", "c"], preprocessing=PREP)
    assert found.outputs == Outputs(scores="probs", kind=said)


def test_scores_and_poses_are_named():
    model = foreign_model({"a": [3], "b": [3], "capsules": [3, 4, 4]})
    declared = Outputs(scores="b", kind="length", poses="capsules")
    data = model.SerializeToString()
    made = describe_model(data, Description(["x", "y", "z"], PREP, "classification", declared))
    assert made.metadata.outputs == declared
    session = load_bytes(made.data)
    [prediction] = session.predict(PICTURE)
    outputs = session.run(prepare(PICTURE, PREP)[None])
    assert prediction.scores.tolist() == outputs["b"][0].tolist()
    assert prediction.poses.tolist() == outputs["capsules"].reshape(3, 16).tolist()
    assert prediction.label == "xyz"[int(outputs["b"].argmax())]


def test_outputs_without_poses_predict():
    made = describe_model(
        foreign_model({"out": [3]}).SerializeToString(),
        Description(("a", "b", "c"), PREP, "multi-label", Outputs(kind="logits")),
    )
    [prediction] = load_bytes(made.data).predict(PICTURE, top_k=3)
    assert prediction.score_kind == "probability"
    assert prediction.poses.shape == (3, 0)
    assert all(label.pose.size == 0 for label in prediction.labels)
    assert prediction.to_dict()["labels"][0]["pose"] == []


@pytest.mark.parametrize(
    ("shapes", "stated", "names"),
    [
        ({"angles": [3]}, Outputs(names=("yaw", "pitch", "roll")), ["yaw", "pitch", "roll"]),
        ({"yaw": [1], "roll": []}, Outputs(names=("roll", "yaw")), ["roll", "yaw"]),
        ({"x": [2], "y": [1]}, Outputs(names=("a", "b", "c")), ["a", "b", "c"]),
        ({"x": [2], "y": [1]}, Outputs(), ["x[0]", "x[1]", "y"]),
        ({"x": [2, 2], "y": [1]}, Outputs(values=("y",), names=("depth",)), ["depth"]),
        ({"x": ["free"]}, Outputs(names=("a", "b", "c")), ["a", "b", "c"]),
    ],
)
def test_values_are_named(shapes: Any, stated: Outputs, names: list[str]):
    model = foreign_model(shapes)
    made = describe_model(
        model.SerializeToString(), Description(None, PREP, "regression", stated), name="m.onnx"
    )
    session = load_bytes(made.data)
    [prediction] = session.predict(PICTURE)
    assert [value.name for value in prediction.values] == names
    outputs = session.run(prepare(PICTURE, PREP)[None])
    parts = [outputs[name].ravel() for name in session.roles.values]
    assert [value.value for value in prediction.values] == np.concatenate(parts).tolist()
    assert (prediction.label, prediction.score, prediction.labels) == (None, None, ())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, "side"])
def test_channels_last_are_told_from_the_shape(channels: int, side: int | str):
    """The same network with its channels first computes the same of the same pictures."""
    picture = np.random.default_rng(4).integers(0, 256, (9, 13, 3)).astype(np.uint8)
    changes = {"height": 8, "width": 8, "per_image": "min-max", "resize": "pad"}
    found = []
    for last in (False, True):
        model = foreign_model({"o": [3]}, channels=channels, side=side, last=last)
        declared = Description(None, changes, "regression")
        made = describe_model(model.SerializeToString(), declared)
        prep = made.metadata.preprocessing
        assert prep is not None
        assert prep.layout == ("NHWC" if last else "NCHW")
        assert prep.channels == channels
        session = load_bytes(made.data)
        assert session.prepare(picture).shape == prep.shape
        found.append([value.value for value in session.predict(picture)[0].values])
    assert np.allclose(*found, atol=1e-6)


def test_units_and_their_text():
    outputs = Outputs(names=("yaw", "depth", "age"), units=("degrees", "mm", ""))
    made = describe_model(
        foreign_model({"o": [3]}).SerializeToString(), Description(None, PREP, None, outputs)
    )
    assert made.metadata.task == "regression"
    values = load_bytes(made.data).predict(PICTURE)[0].values
    texts = [f"{v.value:.4g}" for v in values]
    assert [*map(str, values)] == [
        f"yaw {texts[0]}°", f"depth {texts[1]} mm", f"age {texts[2]}"
    ]  # fmt: skip
    assert values[1].to_dict() == {"name": "depth", "value": values[1].value, "unit": "mm"}


def test_one_unit_stands_for_all_and_names_stay():
    first = describe_model(
        foreign_model({"o": [2]}).SerializeToString(),
        Description(None, PREP, "regression", Outputs(names=("a", "b"))),
    )
    second = describe_model(first.data, Description(outputs=Outputs(units=("cm",))))
    assert second.metadata.outputs == Outputs(values=("o",), names=("a", "b"), units=("cm", "cm"))


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"class_names": ["a", "b"]}, "None of the outputs could hold the scores of 2 classes"),
        ({"class_names": ["a"]}, "None of the outputs could hold the scores of one class"),
        ({"class_names": []}, "no class is named"),
        ({"class_names": ["a", " ", "c"]}, "class 1 is empty"),
        ({"class_names": ["a", "b", 3]}, "class 2 is empty or not text"),
        ({"class_names": ["a", "b", "x" * 2000]}, "over 1024 characters"),
        ({"class_names": ["a", "b", "\ud800"]}, "surrogate"),
        ({"class_names": "abc"}, "a list of names"),
        ({"task": "guess"}, "task 'guess'"),
        ({"task": "regression", "class_names": ["a", "b", "c"]}, "not classes"),
        ({"task": "regression", "outputs": Outputs(scores="o")}, "belong to classes"),
        ({"task": "regression", "outputs": Outputs(names=("a",))}, "1 values are named"),
        ({"task": "regression", "outputs": Outputs(values=("q",))}, "no output q"),
        ({"task": "regression", "outputs": Outputs(units=("m", "s"))}, "2 units for 3 values"),
        ({"task": "classification", "outputs": Outputs(names=("a",))}, "belong to a regression"),
        ({"class_names": ["a", "b", "c"], "outputs": Outputs(scores="none")}, "no output none"),
        ({"class_names": ["a", "b", "c"], "outputs": Outputs(poses="o")}, "not a pose for each"),
        ({"class_names": ["a", "b", "c"], "outputs": Outputs(kind="odds")}, "kind of scores"),
        ({"preprocessing": Preprocessing(9, 8, 1)}, "takes"),
        ({"preprocessing": Preprocessing(8, 8, 3)}, "takes"),
        ({"preprocessing": {"mean": (1.0, 2.0)}}, "mean has 2 values"),
        ({"preprocessing": {"gamma": 2}}, "no gamma"),
        ({"preprocessing": {"height": "8"}}, "whole number"),
        ({"preprocessing": "28x28"}, "capsedge.Preprocessing"),
    ],
)
def test_what_does_not_fit_is_refused(stated: dict[str, Any], why: str):
    with pytest.raises(UsageError) as refused:
        describe(foreign_model({"o": [3]}), **stated)
    assert why in f"{refused.value.what} {refused.value.why}"


def test_two_outputs_that_could_hold_the_scores():
    with pytest.raises(UsageError, match="2 outputs could hold"):
        describe(foreign_model({"a": [3], "b": [3]}), class_names=["x", "y", "z"])


def test_a_size_that_the_graph_leaves_open_must_be_stated():
    model = foreign_model({"o": [3]}, side="side")
    with pytest.raises(UsageError, match="height, width"):
        describe(model, preprocessing={"scale": 1.0})
    found = describe(model, preprocessing={"height": 12, "width": 10})
    assert found.preprocessing == Preprocessing(12, 10, 1)


def test_not_images():
    model = foreign_model({"o": [3]})
    del model.graph.input[0].type.tensor_type.shape.dim[3:]
    model.graph.node[0].input[1] = "flat"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2]), "flat"))
    with pytest.raises(UsageError, match="does not take images"):
        describe(model, class_names=["a", "b", "c"])


def test_values_that_are_no_numbers_are_refused_at_the_run():
    model = foreign_model({"o": [2]}, kinds={"o": "Log"})
    made = describe_model(
        foreign_model({"o": [2]}).SerializeToString(), Description(None, PREP, "regression")
    )
    properties = made.metadata.to_properties()
    session = load_bytes(with_properties(model.SerializeToString(), properties, "capsedge."))
    with pytest.raises(ArtefactError, match="NaN or infinite"):
        session.predict(np.zeros((8, 8), np.uint8))


def test_a_regression_takes_no_top_k_and_no_reconstruction():
    made = describe_model(
        foreign_model({"o": [2], "reconstruction": [1]}).SerializeToString(),
        Description(None, PREP, "regression", Outputs(values=("o",))),
    )
    session = load_bytes(made.data)
    for options in ({"top_k": 1}, {"threshold": 0.5}):
        with pytest.raises(UsageError, match="choose among classes"):
            session.predict(PICTURE, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot reconstruct"):
        session.reconstruct(PICTURE)


@pytest.mark.parametrize("batch", ["N", 1, 3])
def test_any_batch(batch: int | str):
    made = describe_model(
        foreign_model({"o": [2]}, batch=batch).SerializeToString(),
        Description(None, PREP, "regression"),
    )
    pictures = np.random.default_rng(1).integers(0, 256, (7, 8, 8, 1)).astype(np.uint8)
    session = load_bytes(made.data)
    together = [[v.value for v in p.values] for p in session.predict(pictures)]
    alone = [[v.value for v in session.predict(picture)[0].values] for picture in pictures]
    assert np.allclose(together, alone, atol=1e-6)


names = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20
)  # half surrogates cannot be written
numbers = st.floats(-1e6, 1e6).map(float)


@st.composite
def written(draw: st.DrawFn) -> ModelMetadata:
    per_image = draw(st.sampled_from(["", "standardize", "min-max"]))
    channels = draw(st.integers(1, 4))
    changes: dict[str, Any] = {}
    if per_image != "standardize":
        changes["mean"] = tuple(draw(st.lists(numbers, min_size=channels, max_size=channels)))
        changes["std"] = (draw(numbers.filter(lambda v: v != 0)),)
    prep = Preprocessing(
        draw(st.integers(1, 64)), draw(st.integers(1, 64)), channels,
        scale=draw(numbers), per_image=per_image, layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        **changes,
    )  # fmt: skip
    task = draw(st.sampled_from(["single-label", "multi-label", "regression"]))
    if task == "regression":
        values = draw(st.lists(names, min_size=1, max_size=6))
        outputs = Outputs(
            values=tuple(draw(st.lists(names, min_size=1, max_size=3, unique=True))),
            names=tuple(values),
            units=tuple(
                draw(st.lists(st.just("") | names, min_size=len(values), max_size=len(values)))
            ),
        )
        return metadata(task=task, class_names=(), outputs=outputs, preprocessing=prep)
    scores, poses = draw(st.lists(names, min_size=2, max_size=2, unique=True))
    kind = draw(st.sampled_from(["length", "logits", "probability"]))
    declared = Outputs(scores=scores, kind=kind, poses=draw(st.sampled_from(["", poses])))
    return metadata(
        task=task,
        class_names=tuple(draw(st.lists(names, max_size=5))),
        outputs=draw(st.none() | st.just(declared)),
        preprocessing=draw(st.none() | st.just(prep)),
    )


@pytest.mark.thorough
@given(written())
@settings(max_examples=200, deadline=None)
def test_metadata_survives_the_file(stated: ModelMetadata):
    properties = stated.to_properties()
    assert ModelMetadata.from_properties(properties) == stated
    model = with_properties(_MODEL, properties, "capsedge.")
    again = {p.key: p.value for p in onnx.load_from_string(model).metadata_props}
    assert again == properties


_MODEL = foreign_model({"o": [1]}).SerializeToString()


@pytest.mark.parametrize("per_image", ["standardize", "min-max"])
def test_each_image_by_itself(per_image: str):
    """Against the formulas of TensorFlow and OpenCV, whatever the image's brightness and contrast."""
    p = Preprocessing(8, 8, 1, per_image=per_image)
    dim = (PICTURE // 4 + 40).astype(np.uint8)
    for picture in (PICTURE, dim):
        x = picture.astype(np.float64)
        if per_image == "standardize":
            wanted = (x - x.mean()) / max(x.std(), 255 / np.sqrt(x.size))
        else:
            wanted = (x - x.min()) / (x.max() - x.min())
        assert np.allclose(prepare(picture, p)[0], wanted, atol=1e-5)
    flat = np.full((8, 8), 77, np.uint8)
    assert not prepare(flat, p).any()


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_fused_routing_is_in_the_metadata(routing: str):
    """Of a file that states nothing, as of one's own network."""
    file = zoo_model(f"digits-{routing}")
    assert file is not None
    data = with_properties(file.read_bytes(), {}, "capsedge.")
    digits = Description([str(k) for k in range(10)], Preprocessing(28, 28, 1))
    found = describe_model(data, digits).metadata
    assert found.fused_routing is not None
    (layer,) = found.fused_routing.routed_layers
    assert layer.name
    assert (layer.routing, layer.iterations) == (found.routing, found.iterations) == (routing, 3)
    assert found.routing_text == f"{routing}, 3 iterations"


def test_a_model_of_the_package_keeps_its_own_routing():
    assert describe(capsule_model(), task="multi-label").fused_routing is None


def test_layers_that_differ_are_named_each():
    layers = RoutedLayer("first", "dynamic", 3), RoutedLayer("second", "dynamic", 1)
    both = replace(metadata(), iterations=0, fused_routing=FusedRouting(layers))
    assert both.routing_text == "first: dynamic, 3 iterations; second: dynamic, 1 iteration"
    assert replace(metadata(), routing="").routing_text == "not stated"
    assert ModelMetadata.from_properties(both.to_properties()) == both
