"""Sessions: loading, running, predicting, and every way in which a file or an array can be wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import capsedge
from capsedge.errors import ArtefactError, EnvironmentProblem, ShapeError, UsageError
from capsedge.runtime.backends import native_library
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.load import load_bytes
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.onnx_file import summary
from capsedge.spec import limits
from tests.runtime.models import SIDE, capsule_model, foreign_model, metadata, save

LEFT = np.zeros((SIDE, SIDE), np.uint8)
LEFT[:, : SIDE // 2] = 255
RIGHT = LEFT[:, ::-1].copy()


@pytest.fixture(autouse=True)
def _no_library(monkeypatch: pytest.MonkeyPatch):
    """Function bodies, whether or not this machine has the operator library."""
    monkeypatch.delenv(native_library.VARIABLE, raising=False)
    monkeypatch.setattr(native_library, "find_library", lambda: None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(capsule_model(), tmp_path / "capsules.onnx")


def plain_model() -> onnx.ModelProto:
    """What another tool writes: two inputs, of which one is of integers."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2]),
        helper.make_tensor_value_info("k", TensorProto.INT64, [1]),
    ]
    nodes = [
        helper.make_node("Cast", ["k"], ["kf"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "kf"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])]
    graph = helper.make_graph(nodes, "plain", inputs, outputs)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


# What works


def test_predict_reads_the_file(model: Path, tmp_path: Path):
    session = capsedge.load(model)
    (prediction,) = session.predict(LEFT)
    assert prediction.label == "left"
    assert prediction.score == pytest.approx(16 / 17)  # squash of 4
    assert prediction.score_kind == "length"
    assert prediction.poses.shape == (3, 4)
    np.testing.assert_allclose(prediction.labels[0].pose, (16 / 17, 0, 0, 0), atol=1e-6)
    Image.fromarray(RIGHT).save(tmp_path / "right.png")
    assert session.predict(tmp_path / "right.png")[0].label == "right"
    assert session.predict(str(tmp_path / "right.png"))[0].label == "right"
    assert session.predict(Image.fromarray(RIGHT))[0].label == "right"
    assert session.predict(LEFT, invert=True)[0].label == "right"


def test_predict_takes_sequences_and_batches(model: Path):
    session = capsedge.load(model)
    wanted = ["left", "right", "left"]
    images = [LEFT, RIGHT, LEFT]
    pixels = np.stack(images)[..., None]
    prepared = np.stack([session.prepare(image) for image in images])
    for batch in (images, tuple(images), pixels, prepared, prepared.astype(np.float64)):
        assert [p.label for p in session.predict(batch)] == wanted
    assert session.predict([]) == []
    assert session.predict(prepared[:0]) == []


def test_predict_more_images_than_one_run_takes(model: Path):
    found = capsedge.load(model).predict([LEFT, RIGHT] * 70)
    assert [p.label for p in found] == ["left", "right"] * 70


def test_fixed_batch_is_filled(tmp_path: Path):
    session = capsedge.load(save(capsule_model(batch=2), tmp_path / "two.onnx"))
    assert session.backend.batches.fixed == 2
    assert [p.label for p in session.predict([LEFT, RIGHT, RIGHT])] == ["left", "right", "right"]
    free = capsedge.load(save(capsule_model(), tmp_path / "free.onnx")).predict([RIGHT])[0]
    np.testing.assert_allclose(session.predict([RIGHT])[0].scores, free.scores, rtol=1e-6)


@pytest.mark.parametrize("batch", [None, 4])
def test_run_batches_gives_what_one_run_gives(tmp_path: Path, batch: int | None):
    session = capsedge.load(save(capsule_model(batch=batch), tmp_path / "m.onnx"))
    free = capsedge.load(save(capsule_model(), tmp_path / "free.onnx"))
    images = np.random.default_rng(0).random((10, 1, SIDE, SIDE), dtype=np.float32)
    wanted = free.run(images)
    for given in (images, images.astype(np.float64), iter(images), list(images)):
        runs = list(session.run_batches(given, batch_size=4))
        assert [len(batch) for batch, _ in runs] == [4, 4, 2]
        np.testing.assert_array_equal(np.concatenate([batch for batch, _ in runs]), images)
        for name, value in wanted.items():
            found = np.concatenate([outputs[name] for _, outputs in runs])
            np.testing.assert_allclose(found, value, rtol=1e-6)
    chosen = list(session.run_batches(images, ["poses"]))
    assert {name for _, outputs in chosen for name in outputs} == {"poses"}
    assert [len(batch) for batch, _ in chosen] == ([10] if batch is None else [4, 4, 2])
    assert list(session.run_batches(images[:0])) == []


def test_run_batches_refuses_in_words(model: Path, tmp_path: Path):
    session = capsedge.load(model)
    images = np.zeros((3, 1, SIDE, SIDE), np.float32)
    lost = images.copy()
    lost[1, 0, 0, 0] = np.nan
    for error, word, arguments in (
        (ShapeError, "shape", (images[:, :, 1:],)),
        (ShapeError, "shape", (images[0],)),
        (ShapeError, "different shapes", ([images[0], images[0, :, 1:]],)),
        (ShapeError, "type uint8", (images.astype(np.uint8),)),
        (UsageError, "NaN", (lost,)),
        (UsageError, "no output 'logits'", (images, ["logits"])),
        (UsageError, "batch_size is 0", (images, None, 0)),
    ):
        with pytest.raises(error, match=word):
            list(session.run_batches(*arguments))
    with pytest.raises(UsageError, match="2 inputs"):
        list(capsedge.load(save(plain_model(), tmp_path / "p.onnx")).run_batches(images))


def test_a_model_in_memory_is_the_same_model(model: Path, tmp_path: Path):
    session = load_bytes(model.read_bytes(), "mine")
    images = np.ones((2, 1, SIDE, SIDE), np.float32)
    found, wanted = session.run(images), capsedge.load(model).run(images)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    with pytest.raises(ArtefactError, match="mine"):
        load_bytes(b"nothing", "mine")


def test_top_k_and_threshold(model: Path):
    session = capsedge.load(model)
    both = np.full((SIDE, SIDE), 255, np.uint8)
    assert [c.name for c in session.predict(both, top_k=9)[0].labels] == ["left", "right", "none"]
    assert [c.name for c in session.predict(both, threshold=0.5)[0].labels] == ["left", "right"]
    assert [c.name for c in session.predict(both, 1, 0.5)[0].labels] == ["left"]
    typical = session.predict(np.zeros((SIDE, SIDE), np.uint8), threshold=0.5)[0]
    assert typical.labels == ()
    assert typical.label is None
    assert typical.score is None


def test_multi_label_models_have_a_threshold_of_their_own(tmp_path: Path):
    properties = metadata(task="multi-label").to_properties()
    session = capsedge.load(save(capsule_model(properties=properties), tmp_path / "m.onnx"))
    both = np.full((SIDE, SIDE), 255, np.uint8)
    assert [c.name for c in session.predict(both)[0].labels] == ["left", "right"]
    assert [c.name for c in session.predict(both, top_k=1)[0].labels] == ["left"]


def test_logits_become_probabilities(tmp_path: Path):
    session = capsedge.load(save(capsule_model(scores="logits"), tmp_path / "a.onnx"))
    logits = session.run(session.prepare(LEFT)[None])["logits"][0].astype(np.float64)
    prediction = session.predict(LEFT)[0]
    assert prediction.score_kind == "probability"
    np.testing.assert_allclose(prediction.scores, np.exp(logits) / np.exp(logits).sum())
    multi_label = metadata(task="multi-label").to_properties()
    model = capsule_model(scores="logits", properties=multi_label)
    prediction = capsedge.load(save(model, tmp_path / "b.onnx")).predict(LEFT)[0]
    np.testing.assert_allclose(prediction.scores, 1 / (1 + np.exp(-logits)))


def test_prediction_to_dict_is_json(model: Path):
    import json

    document = capsedge.load(model).predict(LEFT, top_k=2)[0].to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert [label["label"] for label in document["labels"]] == ["left", "none"]
    assert len(document["labels"][0]["pose"]) == 4


def test_run_gives_every_output(model: Path):
    session = capsedge.load(model)
    outputs = session.run({"images": np.zeros((5, 1, SIDE, SIDE), np.float32)})
    assert {name: value.shape for name, value in outputs.items()} == {
        "lengths": (5, 3),
        "poses": (5, 3, 4),
    }


def test_no_images_give_no_rows(model: Path, tmp_path: Path):
    """ONNX Runtime itself fails on an empty batch in some operators and keeps axes in others."""
    plain = save(capsule_model(capsedge_node=False), tmp_path / "plain.onnx")
    for path in (model, plain):
        outputs = capsedge.load(path).run(np.zeros((0, 1, SIDE, SIDE), np.float32))
        assert {name: value.shape for name, value in outputs.items()} == {
            "lengths": (0, 3),
            "poses": (0, 3, 4),
        }


def test_ports_and_metadata(model: Path):
    session = capsedge.load(model)
    (images,) = session.inputs
    assert (images.name, images.shape, images.dtype) == ("images", ("N", 1, 8, 8), "float32")
    assert [port.name for port in session.outputs] == ["lengths", "poses"]
    assert session.metadata == metadata()
    assert session.backend.batches.fixed is None


def test_reconstruct(tmp_path: Path):
    session = capsedge.load(save(capsule_model(reconstruction=True), tmp_path / "r.onnx"))
    pictures = session.reconstruct([LEFT, RIGHT])
    assert pictures.shape == (2, 3, 1, SIDE, SIDE)
    assert pictures[0, 0, 0, 0, 0] == pytest.approx(16 / 17)
    assert pictures[0, 0, 0, 0, -1] == 0


def test_reconstruct_without_decoder(model: Path):
    with pytest.raises(UsageError, match="'reconstruction'"):
        capsedge.load(model).reconstruct(LEFT)


def test_threads_do_not_change_the_answer(model: Path):
    x = np.random.default_rng(0).random((3, 1, SIDE, SIDE), np.float32)
    one, two = (capsedge.load(model, threads=n).run(x)["lengths"] for n in (1, 2))
    np.testing.assert_allclose(one, two, atol=1e-6)


def test_concurrent_runs(model: Path):
    session = capsedge.load(model, threads=1)
    failures: list[str] = []

    def work(image: np.ndarray, wanted: str) -> None:
        for _ in range(50):
            if session.predict(image)[0].label != wanted:
                failures.append(wanted)

    jobs = [
        threading.Thread(target=work, args=pair) for pair in ((LEFT, "left"), (RIGHT, "right")) * 2
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert not failures


# Which operators run


def test_bodies_run_without_a_library(model: Path):
    for ops in ("auto", "portable"):
        session = capsedge.load(model, ops=ops)
        assert session.backend.ops == "portable"
        assert session.predict(LEFT)[0].label == "left"


def test_fused_without_a_library(model: Path):
    with pytest.raises(EnvironmentProblem, match=r"operator library(.|\n)*compiler"):
        capsedge.load(model, ops="fused")


def test_file_without_capsedge_nodes_is_portable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save(capsule_model(capsedge_node=False), tmp_path / "p.onnx")
    monkeypatch.setattr(native_library, "find_library", lambda: tmp_path / "unused.so")
    assert capsedge.load(path).backend.ops == "portable"
    with pytest.raises(UsageError, match="no capsedge nodes"):
        capsedge.load(path, ops="fused")


def test_nodes_without_bodies_need_the_library(tmp_path: Path):
    path = save(capsule_model(function=False), tmp_path / "f.onnx")
    for ops in ("auto", "portable"):
        with pytest.raises(EnvironmentProblem, match=r"Squash nodes have no function body"):
            capsedge.load(path, ops=ops)


def test_library_that_does_not_load(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    library = tmp_path / "libcapsedge_ort.so"
    library.write_bytes(b"not a library")
    monkeypatch.setattr(native_library, "find_library", lambda: library)
    for ops in ("auto", "fused"):
        with pytest.raises(EnvironmentProblem, match=r"cannot be loaded(.|\n)*--ops portable"):
            capsedge.load(model, ops=ops)
    assert capsedge.load(model, ops="portable").backend.ops == "portable"
    assert capfd.readouterr() == ("", "")


def test_find_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import capsedge.runtime

    monkeypatch.setattr(capsedge.runtime, "__path__", [str(tmp_path / "a"), str(tmp_path / "b")])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    assert find_library() is None
    installed = tmp_path / "b" / "_native" / native_library.NAME
    installed.parent.mkdir(parents=True)
    installed.write_bytes(b"")
    assert find_library() == installed
    shutil.move(tmp_path / "b", tmp_path / "site" / "capsedge" / "runtime")  # where a wheel puts it
    found = find_library()
    assert found is not None
    assert found.is_relative_to(tmp_path / "site")
    monkeypatch.setenv(native_library.VARIABLE, str(tmp_path / "mine.so"))
    with pytest.raises(EnvironmentProblem, match="CAPSEDGE_OPS_LIBRARY"):
        find_library()
    (tmp_path / "mine.so").write_bytes(b"")
    assert find_library() == tmp_path / "mine.so"


# Wrong arguments


@pytest.mark.parametrize("arguments", [{"ops": "fast"}, {"threads": 0}, {"threads": 10**6}])
def test_wrong_arguments(model: Path, arguments: dict[str, object]):
    with pytest.raises(UsageError, match=str(next(iter(arguments.values())))):
        capsedge.load(model, **arguments)  # type: ignore[arg-type]


def test_other_devices_are_refused(model: Path):
    with pytest.raises(EnvironmentProblem, match="CUDAExecutionProvider"):
        capsedge.load(model, device="cuda")


def test_engines_without_metadata_are_refused(tmp_path: Path):
    (tmp_path / "a.engine").write_bytes(b"x")
    with pytest.raises(ArtefactError, match="no metadata file"):
        capsedge.load(tmp_path / "a.engine")


@pytest.mark.parametrize("arguments", [{"top_k": 0}, {"threshold": 1.5}, {"threshold": -1}])
def test_wrong_choice(model: Path, arguments: dict[str, object]):
    with pytest.raises(UsageError):
        capsedge.load(model).predict(LEFT, **arguments)  # type: ignore[arg-type]


def test_onnxruntime_missing(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'capsedge\[cpu\]'"):
        capsedge.load(model)


# Wrong arrays


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 3, 8, 8), (1, 1, 9, 8), (8, 8, 8, 8, 8)])
def test_wrong_shape(model: Path, shape: tuple[int, ...]):
    session = capsedge.load(model)
    with pytest.raises(ShapeError) as caught:
        session.run(np.zeros(shape, np.float32))
    assert caught.value.what == f"Input 'images' has the shape {list(shape)}."
    assert caught.value.why == "Expected: [N, 1, 8, 8]."


@pytest.mark.parametrize("dtype", ["float64", "uint8", "float16", "O"])
def test_wrong_type(model: Path, dtype: str):
    with pytest.raises(ShapeError, match=r"Input 'images' has the type(.|\n)*Expected: float32"):
        capsedge.load(model).run(np.zeros((1, 1, SIDE, SIDE), dtype))


def test_not_an_array(model: Path):
    with pytest.raises(ShapeError, match="Input 'images' has the type list"):
        capsedge.load(model).run([[1, 2]])  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_array(model: Path, bad: float):
    session = capsedge.load(model)
    x = np.zeros((2, 1, SIDE, SIDE), np.float32)
    x[1, 0, 3, 3] = bad
    for call in (session.run, session.predict):
        with pytest.raises(UsageError, match=r"'images' has values that are NaN(.|\n)*1 of 128"):
            call(x)  # type: ignore[operator]


def test_wrong_names(model: Path, tmp_path: Path):
    x = np.zeros((1, 1, SIDE, SIDE), np.float32)
    with pytest.raises(UsageError, match=r"Missing: images; unknown: pictures"):
        capsedge.load(model).run({"pictures": x})
    with pytest.raises(UsageError, match="2 inputs"):
        capsedge.load(save(plain_model(), tmp_path / "p.onnx")).run(x)


def test_prepared_arrays_cannot_be_inverted(model: Path):
    with pytest.raises(UsageError, match="inverted"):
        capsedge.load(model).predict(
            np.zeros((1, 1, SIDE, SIDE), np.float32), invert=True, prepared=True
        )


def test_bad_image_of_a_sequence_is_named(model: Path):
    with pytest.raises(UsageError, match=r"image 1 has the shape \[8, 8, 5\]"):
        capsedge.load(model).predict([LEFT, np.zeros((8, 8, 5), np.uint8)])


# Wrong files


def test_foreign_file_runs_and_does_not_predict(tmp_path: Path):
    session = capsedge.load(save(plain_model(), tmp_path / "p.onnx"))
    assert session.metadata is None
    assert session.backend.ops == "portable"
    found = session.run({"x": np.ones((3, 2), np.float32), "k": np.array([5])})
    np.testing.assert_array_equal(found["y"], np.full((3, 2), 5))
    for call in (session.predict, session.reconstruct, session.prepare):
        with pytest.raises(ArtefactError, match="states neither its classes nor its preprocessing"):
            call(LEFT)  # type: ignore[operator]


def test_file_without_preprocessing_takes_prepared_arrays(tmp_path: Path):
    properties = metadata(preprocessing=None).to_properties()
    session = capsedge.load(save(capsule_model(properties=properties), tmp_path / "m.onnx"))
    assert session.predict(LEFT[None, None].astype(np.float32))[0].label == "left"
    with pytest.raises(ArtefactError, match="no preprocessing"):
        session.predict(LEFT)


def test_classes_without_names_are_numbers(tmp_path: Path):
    properties = metadata(class_names=()).to_properties()
    session = capsedge.load(save(capsule_model(properties=properties), tmp_path / "m.onnx"))
    assert session.predict(RIGHT)[0].label == "1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"class_names": ("a", "b")}, "names 2 classes"),
        ({"preprocessing": Preprocessing(9, 8, 1)}, "[1, 9, 8]"),
    ],
)
def test_metadata_that_does_not_fit_the_graph(
    tmp_path: Path, changes: dict[str, object], said: str
):
    path = save(capsule_model(properties=metadata(**changes).to_properties()), tmp_path / "m.onnx")
    with pytest.raises(ArtefactError) as caught:
        capsedge.load(path)
    assert said in caught.value.why


def test_metadata_on_a_foreign_graph(tmp_path: Path):
    model = plain_model()
    helper.set_model_props(model, metadata().to_properties())
    with pytest.raises(ArtefactError, match="does not fit its graph"):
        capsedge.load(save(model, tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("preprocessing", '{"height": 1e9, "width": 8, "channels": 1}'),
        ("preprocessing", '{"height": 1000000000, "width": 1000000000, "channels": 1}'),
        ("preprocessing", '{"height": 8, "width": 8, "channels": 1, "std": [0]}'),
        ("preprocessing", '{"height": 8, "width": 8, "channels": 1, "scale": NaN}'),
        ("preprocessing", '{"height": 8}'),
        ("class_names", "7"),
        ("class_names", "[" * 100000),
        ("schema", "99"),
        ("task", '"guess"'),
        ("surprise", "1"),
    ],
)
def test_damaged_metadata(tmp_path: Path, key: str, value: str):
    properties = metadata().to_properties() | {f"capsedge.{key}": value}
    with pytest.raises(ArtefactError, match="metadata"):
        capsedge.load(save(capsule_model(properties=properties), tmp_path / "m.onnx"))


def test_missing_file_and_folder(tmp_path: Path):
    with pytest.raises(UsageError, match="There is no file"):
        capsedge.load(tmp_path / "none.onnx")
    with pytest.raises(UsageError, match="is a folder"):
        capsedge.load(tmp_path)


def test_empty_file(tmp_path: Path):
    (tmp_path / "e.onnx").write_bytes(b"")
    with pytest.raises(ArtefactError, match="0 bytes"):
        capsedge.load(tmp_path / "e.onnx")


def test_truncated_file_at_every_length(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    whole = model.read_bytes()
    cut = tmp_path / "cut.onnx"
    graph_ends = whole.index(b"Squash", whole.rindex(b"lengths"))  # functions follow the graph
    for length in range(1, graph_ends, 13):
        cut.write_bytes(whole[:length])
        # Between two fields a cut leaves a whole message: only its function is missing then.
        with pytest.raises((ArtefactError, EnvironmentProblem)):
            capsedge.load(cut)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "content", [b"\x00" * 100, b"\xff" * 100, b"PK\x03\x04 a zip", b"ORTM" * 9]
)
def test_other_bytes(tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "x.onnx").write_bytes(content)
    with pytest.raises(ArtefactError, match=r"not a complete ONNX file|not an ONNX file: it is"):
        capsedge.load(tmp_path / "x.onnx")
    assert capfd.readouterr() == ("", "")


def test_corrupt_files_never_raise_anything_else(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    rng = np.random.default_rng(0)
    whole = np.frombuffer(model.read_bytes(), np.uint8)
    bad = tmp_path / "bad.onnx"
    refused = 0
    for _ in range(200):
        content = whole.copy()
        content[rng.integers(0, len(content), 3)] = rng.integers(0, 256, 3)
        bad.write_bytes(content.tobytes())
        try:
            capsedge.load(bad).predict(LEFT)
        except (ArtefactError, EnvironmentProblem):
            refused += 1
    assert refused > 20
    assert capfd.readouterr() == ("", "")


def test_too_large_file(tmp_path: Path):
    path = tmp_path / "large.onnx"
    with path.open("wb") as f:
        f.truncate(limits.FILE_BYTES + 1)  # sparse: takes no room
    with pytest.raises(ArtefactError, match="too large"):
        capsedge.load(path)


@pytest.mark.parametrize("place", ["initializer", "attribute", "subgraph", "function"])
def test_external_data_is_refused(tmp_path: Path, place: str):
    """A file must not make the runtime open other files, wherever the reference hides."""
    model = capsule_model()
    secret = numpy_helper.from_array(np.zeros(4, np.float32), "secret")
    secret.ClearField("raw_data")
    secret.data_location = TensorProto.EXTERNAL
    entry = secret.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    constant = helper.make_node("Constant", [], ["unused"], value=secret)
    if place == "initializer":
        model.graph.initializer.append(secret)
    elif place == "attribute":
        model.graph.node.append(constant)
    elif place == "function":
        model.functions[0].node.append(constant)
    else:
        out = helper.make_tensor_value_info("unused", TensorProto.FLOAT, [4])
        branch = helper.make_graph([constant], "branch", [], [out])
        model.graph.node.append(
            helper.make_node("If", ["flag"], ["r"], then_branch=branch, else_branch=branch)
        )
    with pytest.raises(ArtefactError, match="external"):
        capsedge.load(save(model, tmp_path / "m.onnx"))


def test_unknown_operator(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    model = plain_model()
    model.graph.node[1].op_type = "Teleport"
    with pytest.raises(ArtefactError, match=r"cannot load(.|\n)*Teleport"):
        capsedge.load(save(model, tmp_path / "m.onnx"))
    assert capfd.readouterr() == ("", "")


def test_nested_graphs_are_limited(monkeypatch: pytest.MonkeyPatch):
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [1])
    graph = helper.make_graph([], "g", [], [out])
    for _ in range(20):
        node = helper.make_node("If", ["c"], ["o"], then_branch=graph)
        graph = helper.make_graph([node], "g", [], [out])
    data = helper.make_model(graph).SerializeToString()
    summary.summarize(data)
    monkeypatch.setattr(limits, "WIRE_DEPTH", 10)
    with pytest.raises(ArtefactError, match="nested"):
        summary.summarize(data)


def test_nan_weights_are_reported(tmp_path: Path):
    session = capsedge.load(save(capsule_model(gain=float("nan")), tmp_path / "m.onnx"))
    with pytest.raises(ArtefactError, match="lengths that are NaN"):
        session.predict(LEFT)


# Without torch and onnx


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "onnx", "onnxscript", "click", "rich", "safetensors"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
import numpy as np, capsedge
print(capsedge.load(sys.argv[1]).predict(sys.argv[2])[0].label)
"""


def test_device_needs_neither_torch_nor_onnx(model: Path, tmp_path: Path):
    Image.fromarray(LEFT).save(tmp_path / "left.png")
    run = subprocess.run(
        [sys.executable, "-c", BLOCKED, model, tmp_path / "left.png"],
        capture_output=True,
        text=True,
    )
    assert (run.stdout, run.stderr) == ("left\n", "")


@pytest.mark.parametrize("batch", [3_000_000, 2**40])
def test_a_fixed_batch_that_is_too_large(tmp_path: Path, batch: int):
    with pytest.raises(ArtefactError, match="fixes sizes that are too large"):
        capsedge.load(save(capsule_model(batch=batch), tmp_path / "large.onnx"))


@pytest.mark.parametrize("task", ["classes", "values"])
@pytest.mark.parametrize(
    ("operator", "constant"),
    [("Concat", None), ("Gather", [0]), ("Reshape", [1, -1]), ("Tile", [3, 1])],
)
def test_other_rows_than_images(
    tmp_path: Path, operator: str, constant: list[int] | None, task: str
) -> None:
    """A file may compute more or fewer rows than it has images, whatever it declares."""
    from tests.fuzz.readers import VALUES

    model = (
        capsule_model()
        if task == "classes"
        else foreign_model({"o": [1], "p": [1]}, properties=VALUES.to_properties())
    )
    name = "lengths" if task == "classes" else "o"
    for node in model.graph.node:
        node.output[:] = ["inner" if output == name else output for output in node.output]
    inputs = ["inner", "inner"] if constant is None else ["inner", "constant"]
    if constant is not None:
        model.graph.initializer.append(numpy_helper.from_array(np.array(constant), "constant"))
    axis = {"axis": 0} if operator in ("Concat", "Gather") else {}
    model.graph.node.append(helper.make_node(operator, inputs, [name], **axis))
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    session = capsedge.load(save(model, tmp_path / "m.onnx"))
    with pytest.raises(ArtefactError, match="number of rows"):
        session.predict([LEFT, RIGHT])
    with pytest.raises(ArtefactError, match="number of rows"):
        list(session.run_batches(np.stack([session.prepare(image) for image in (LEFT, RIGHT)])))


def test_poses_of_other_classes(tmp_path: Path) -> None:
    model = capsule_model()
    for node in model.graph.node:
        node.output[:] = ["inner" if output == "poses" else output for output in node.output]
        node.input[:] = ["inner" if given == "poses" else given for given in node.input]
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
    model.graph.node.append(helper.make_node("Gather", ["inner", "first"], ["poses"], axis=1))
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    with pytest.raises(ArtefactError, match=r"computed 1 poses of an image"):
        capsedge.load(save(model, tmp_path / "m.onnx")).predict(LEFT)


@pytest.mark.parametrize("value", [2.0**32, -1e38])
def test_values_whose_squares_overflow(tmp_path: Path, value: float):
    """One answer for all backends, which differ in where they overflow; other tools' models may need them."""
    image = np.full((1, 1, 8, 8), value, np.float32)
    session = capsedge.load(save(capsule_model(), tmp_path / "m.onnx"))
    with pytest.raises(UsageError, match=r"2\^32"):
        session.run(image)
    session.run(np.full_like(image, np.nextafter(np.float32(2**32), np.float32(0))))
    for array in (image, image.astype(np.float64)):
        with pytest.raises(UsageError, match=r"2\^32"):
            session.predict(array)
    capsule = capsule_model()
    del capsule.metadata_props[:]
    capsedge.load(save(capsule, tmp_path / "foreign.onnx")).run(image)
