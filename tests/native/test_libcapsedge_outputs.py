"""C and Python predict the same from the same metadata."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from capsedge.runtime.load import load_bytes  # noqa: E402
from capsedge.runtime.metadata.metadata import Outputs, Preprocessing  # noqa: E402
from capsedge.runtime.onnx_file.wire import with_properties  # noqa: E402
from capsedge.runtime.user_metadata import Description, describe_model  # noqa: E402
from tests.runtime.models import capsule_model, foreign_model  # noqa: E402

from . import libcapsedge  # noqa: E402
from .libcapsedge import ARTEFACT, USAGE, Failed, Session, call  # noqa: E402

pytestmark = pytest.mark.skipif(
    libcapsedge.library_path() is None,
    reason="libcapsedge is not built: pip install -e . with a C++ compiler",
)

PREP = Preprocessing(8, 8, 1)
RNG = np.random.default_rng(11)
PICTURES = [RNG.integers(0, 256, (h, w, 1)).astype(np.uint8) for h, w in ((8, 8), (9, 20), (3, 3))]


def predict_both(data: bytes) -> tuple[list[Any], list[dict[str, Any]]]:
    return load_bytes(data).predict(PICTURES, layout="HWC"), Session(data).predict(PICTURES)


@pytest.mark.parametrize(
    ("shapes", "outputs"),
    [
        ({"angles": [3]}, Outputs(names=("yaw", "pitch", "roll"), units=("degrees",))),
        ({"roll": [], "yaw": [1]}, Outputs(names=("yaw", "roll"), units=("mm", ""))),
        ({"x": [2, 2], "y": [1], "z": [3]}, Outputs(values=("x", "y"))),
        ({"x": ["free"]}, Outputs(names=("a", "b", "Größe"))),
    ],
)
@pytest.mark.parametrize("batch", ["N", 2])
@pytest.mark.parametrize("per_image", ["", "standardize", "min-max"])
def test_values(shapes: Any, outputs: Outputs, batch: int | str, per_image: str) -> None:
    prep = Preprocessing(8, 8, 1, per_image=per_image)
    model = foreign_model(shapes, batch=batch).SerializeToString()
    made = describe_model(model, Description(None, prep, "regression", outputs))
    wanted, found = predict_both(made.data)
    assert [p["values"] for p in found] == [[v.value for v in p.values] for p in wanted]
    assert all(p["score_kind"] == "" and p["labels"] == [] for p in found)
    session = Session(made.data)
    names = [(value.name, value.unit) for value in wanted[0].values]
    assert session.value_names() == names
    about = session.describe()
    assert (about.task, about.value_count) == (b"regression", len(names))
    assert (about.class_count, about.score_kind) == (0, None)
    assert session.preprocessing().per_image == per_image.encode()


@pytest.mark.parametrize("kind", ["length", "logits", "probability"])
@pytest.mark.parametrize("task", ["single-label", "multi-label"])
@pytest.mark.parametrize("poses", ["", "capsules"])
@pytest.mark.parametrize("open_size", [False, True])
def test_scores_and_poses(kind: str, task: str, poses: str, open_size: bool) -> None:
    shapes: dict[str, list[int | str]] = {"s": ["free" if open_size else 3], "capsules": [3, 2, 2]}
    model = foreign_model(shapes, kinds={"s": "Identity" if kind == "logits" else "Sigmoid"})
    declared = Outputs(scores="s", kind=kind, poses=poses)
    data = describe_model(
        model.SerializeToString(), Description(["a", "b", "c"], PREP, task, declared)
    ).data
    wanted, found = predict_both(data)
    for python, c in zip(wanted, found, strict=True):
        assert (
            c["score_kind"]
            == python.score_kind
            == ("length" if kind == "length" else "probability")
        )
        assert c["scores"].tolist() == python.scores.tolist()
        assert c["poses"].tolist() == python.poses.tolist()
        labels = [(label.name, label.index, label.score) for label in python.labels]
        assert [label[:3] for label in c["labels"]] == labels


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("per_image", ["", "standardize", "min-max"])
def test_channels_last(channels: int, per_image: str) -> None:
    prep = Preprocessing(8, 8, channels, per_image=per_image, resize="pad", layout="NHWC")
    model = foreign_model({"o": [3]}, channels=channels, last=True).SerializeToString()
    data = describe_model(model, Description(None, prep, "regression")).data
    wanted, found = predict_both(data)
    assert [p["values"] for p in found] == [[v.value for v in p.values] for p in wanted]
    assert Session(data).preprocessing().channels_last == 1


def test_half_precision_values() -> None:
    model = foreign_model({"o": [3]})
    for value in model.graph.output:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    model.graph.node[-1].output[0] = "o32"
    model.graph.node.append(
        onnx.helper.make_node("Cast", ["o32"], ["o"], to=onnx.TensorProto.FLOAT16)
    )
    data = describe_model(model.SerializeToString(), Description(None, PREP, "regression")).data
    wanted, found = predict_both(data)
    assert [p["values"] for p in found] == [[v.value for v in p.values] for p in wanted]


def test_misuse() -> None:
    data = describe_model(
        foreign_model({"o": [2], "p": [1]}).SerializeToString(),
        Description(None, PREP, "regression", Outputs(values=("o",))),
    ).data
    session = Session(data)
    for options in ({"top_k": 1}, {"threshold": 0.5}):
        with pytest.raises(Failed, match="choose among classes") as failed:
            session.predict(PICTURES, **options)  # type: ignore[arg-type]
        assert failed.value.code == USAGE
    with pytest.raises(Failed, match="There is no value 2"):
        call("capsedge_value_name", session.handle, libcapsedge.ctypes.c_size_t(2), None, None)
    with pytest.raises(Failed, match="without its output 'o'") as failed:
        Session(data, outputs=["p"]).predict(PICTURES)
    assert failed.value.code == ARTEFACT
    assert Session(data, outputs=["o"]).predict(PICTURES)[0]["values"]
    classes = Session(capsule_model().SerializeToString())
    assert classes.describe().value_count == 0
    with pytest.raises(Failed, match="There is no value 0"):
        call("capsedge_value_name", classes.handle, libcapsedge.ctypes.c_size_t(0), None, None)


def test_not_a_number() -> None:
    made = describe_model(
        foreign_model({"o": [2]}).SerializeToString(), Description(None, PREP, "regression")
    )
    model = foreign_model({"o": [2]}, kinds={"o": "Log"}).SerializeToString()
    session = Session(with_properties(model, made.metadata.to_properties(), "capsedge."))
    with pytest.raises(Failed, match="NaN or infinite") as failed:
        session.predict([np.zeros((8, 8, 1), np.uint8)])
    assert failed.value.code == ARTEFACT
