"""What the package computes, against Python: answers, poses, pictures and traces within 1e-5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import capsedge
from capsedge.runtime import zoo
from capsedge.runtime.load import load_bytes
from capsedge.runtime.session.decoder import extract_subgraph
from capsedge.runtime.zoo import MODELS, zoo_model
from tests.conftest import ROOT
from tests.runtime.models import CLASSES, POSE, SIDE, capsule_model, foreign_model, metadata

from .package import CLOSE, Package, Refused, Session, assert_close_poses

pytest.importorskip("onnxruntime")

SAMPLES = sorted((ROOT / "capsedge" / "zoo" / "samples").glob("*.png"))
TRACED = {
    "rtol": 1e-4,
    "atol": 1e-4,
}  # couplings of EM routing are exponentials of sums over whole poses


def pixels_of(path: Path) -> NDArray[np.uint8]:
    """``[H, W, C]``, as a browser would give them."""
    from PIL import Image

    return np.asarray(Image.open(path).convert("RGBA"))


def compare(
    python: capsedge.Session, session: Session, image: NDArray[Any], **options: Any
) -> None:
    """The whole answer for an image."""
    if python.roles.segmentation:
        compare_masks(python, session, image, **options)
        return
    wanted = python.predict(image, top_k=3, **options)[0]
    answer, (scores, poses, *_) = session.predict(image, top=3, **options)
    assert [each["label"] for each in answer["ranking"]] == [each.name for each in wanted.labels]
    assert answer["index"] == wanted.labels[0].index
    assert answer["label"] == wanted.label
    assert abs(answer["score"] - (wanted.score or 0)) < 1e-5
    np.testing.assert_allclose(scores, wanted.scores, **CLOSE)
    assert_close_poses(poses.reshape(answer["poses"]), wanted.poses)
    assert (answer["atypical"] or "") == wanted.atypical
    assert bool(answer["hint"]) == bool(wanted.hint)


def compare_masks(
    python: capsedge.Session, session: Session, image: NDArray[Any], **options: Any
) -> None:
    """The answer of a segmentation; a pixel on the edge may round to the other class."""
    (wanted,) = python.predict(image, **options)
    assert wanted.mask is not None
    answer, _ = session.predict(image, **options)
    found = np.array([*answer["mask"]["data"].values()]).reshape(wanted.mask.shape)
    assert (found != wanted.mask).mean() <= 2e-3
    assert (answer["atypical"] or "") == wanted.atypical


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("invert", [False, True])
def test_the_zoo_on_all_samples(web: Package, name: str, invert: bool) -> None:
    path = zoo_model(name)
    assert path is not None
    python, session = (
        capsedge.load(path, threads=1),
        web.load(path.read_bytes()),
    )
    blank, noise = (
        np.zeros((28, 28, 1), np.uint8),
        np.random.default_rng(0).integers(0, 256, (28, 28, 1)),
    )
    for image in [*map(pixels_of, SAMPLES), blank, noise.astype(np.uint8)]:
        compare(python, session, image, invert=invert)
    session.close()


def test_a_prepared_input_is_taken_as_it_is(web: Package) -> None:
    python, session = capsedge.load(), web.load(zoo.default_model().read_bytes())
    prepared = python.prepare(SAMPLES[3])
    answer, (scores, *_) = session.predict(prepared, pixels=False)
    np.testing.assert_allclose(scores, python.predict(SAMPLES[3])[0].scores, **CLOSE)
    assert answer["milliseconds"]["run"] > 0
    for wrong, message in (
        (prepared[:, 1:], "has 756 values"),
        (prepared * 255, "values from 0 to"),
        (np.full_like(prepared, np.nan), "NaN"),
        (np.full_like(prepared, 2.0**32), "2\\^32"),
    ):
        with pytest.raises(Refused, match=message) as error:
            session.predict(wrong, pixels=False)
        assert error.value.code == "input"
    session.close()


def test_pictures_of_poses(web: Package) -> None:
    python, session = capsedge.load(), web.load(zoo.default_model().read_bytes())
    poses = np.random.default_rng(1).uniform(-0.4, 0.4, (70, 10, 16)).astype(np.float32)
    np.testing.assert_allclose(session.decode(poses), python.decode(poses), **CLOSE)
    for index in (0, 7):
        one = np.ascontiguousarray(poses[:, index])
        np.testing.assert_allclose(session.decode(one, index), python.decode(one, index), **CLOSE)
    for wrong, index, message in (
        (poses[0, 0], None, "has 16 values|have 16 values"),
        (poses[:0], None, "have 0 values"),
        (poses[0], 10, "class is 10"),
        (poses[0] * np.float32(np.inf), None, "NaN"),
    ):
        with pytest.raises(Refused, match=message) as error:
            session.decode(wrong, index)
        assert error.value.code == "input"
    session.close()


def test_the_decoder_is_cut_as_python_cuts_it(web: Package) -> None:
    data = zoo.default_model().read_bytes()
    _, part = web.ask("extractSubgraph", data, start="poses", end="reconstruction")
    assert part == extract_subgraph(data, "poses", "reconstruction")


@pytest.mark.parametrize("name", ["digits-em", "digits-attention"])
def test_a_file_without_decoder_says_so(web: Package, name: str) -> None:
    session = web.load(zoo_model(name).read_bytes())  # type: ignore[union-attr]
    assert not session.known["description"]["hasDecoder"]
    with pytest.raises(Refused, match="no output 'reconstruction'") as error:
        session.decode(np.zeros((10, 16), np.float32))
    assert "--with reconstruction" in error.value.hint
    session.close()


def test_pictures_that_depend_on_more_than_poses(web: Package) -> None:
    """Here the scores are computed from the poses, so this one can be cut."""
    data = capsule_model(reconstruction=True).SerializeToString()
    python, session = load_bytes(data), web.load(data)
    poses = np.random.default_rng(2).normal(0, 1, (3, CLASSES, POSE)).astype(np.float32)
    np.testing.assert_allclose(session.decode(poses), python.decode(poses), **CLOSE)
    session.close()


@pytest.mark.parametrize("batch", [1, 4])
def test_a_fixed_batch_is_filled(web: Package, batch: int) -> None:
    data = capsule_model(batch=batch, reconstruction=True).SerializeToString()
    python, session = load_bytes(data), web.load(data)
    image = np.random.default_rng(3).integers(0, 256, (SIDE, SIDE, 1)).astype(np.uint8)
    compare(python, session, image)
    poses = np.random.default_rng(2).normal(0, 1, (5, CLASSES, POSE)).astype(np.float32)
    np.testing.assert_allclose(session.decode(poses), python.decode(poses), **CLOSE)
    session.close()


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
@pytest.mark.parametrize("scores", ["lengths", "logits"])
def test_tasks_and_scores(web: Package, task: str, scores: str) -> None:
    said = metadata(task=task).to_properties()
    data = capsule_model(properties=said, scores=scores).SerializeToString()
    python, session = load_bytes(data), web.load(data)
    rng = np.random.default_rng(4)
    for _ in range(5):
        image = rng.integers(0, 256, (SIDE, SIDE, 1)).astype(np.uint8)
        compare(python, session, image)
        chosen = [each.index for each in python.predict(image)[0].labels]
        assert [each["index"] for each in session.predict(image)[0]["ranking"]] == chosen
        answer, _ = session.predict(image, threshold=0.6)
        over = [each.index for each in python.predict(image, threshold=0.6)[0].labels]
        assert [each["index"] for each in answer["ranking"]] == over
    with pytest.raises(Refused, match="top is 0"):
        session.predict(image, top=0)
    session.close()


def test_a_regression(web: Package) -> None:
    outputs = capsedge.Outputs(values=("angles",), names=("yaw", "pitch"), units=("degrees", ""))
    said = metadata(task="regression", class_names=(), outputs=outputs).to_properties()
    data = foreign_model({"angles": [2]}, properties=said).SerializeToString()
    python, session = load_bytes(data), web.load(data)
    image = np.random.default_rng(5).integers(0, 256, (SIDE, SIDE, 1)).astype(np.uint8)
    wanted = python.predict(image)[0].values
    answer, _ = session.predict(image)
    assert [(v["name"], v["unit"]) for v in answer["values"]] == [(v.name, v.unit) for v in wanted]
    np.testing.assert_allclose(
        [v["value"] for v in answer["values"]], [v.value for v in wanted], **CLOSE
    )
    assert answer["label"] is None
    session.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_traces(web: Package, tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    model = capsedge.load_checkpoint(zoo_model(name).with_suffix(".safetensors"))  # type: ignore[union-attr]
    path = tmp_path / "traced.onnx"
    capsedge.export(model, path, extra_outputs=["trace"])
    python, session = (
        capsedge.load(path, threads=1),
        web.load(path.read_bytes()),
    )
    for sample in SAMPLES:
        wanted = python.trace(sample)
        answer, (_, _, *values) = session.predict(pixels_of(sample), trace=True)
        parts = iter(values)
        assert [layer["name"] for layer in answer["trace"]] == [layer.name for layer in wanted]
        for layer, of_python in zip(answer["trace"], wanted, strict=True):
            assert layer["iterations"] == of_python.iterations
            assert layer["grid"] == list(of_python.grid)
            for kind, dims in layer["outputs"]:
                expected = getattr(of_python, kind)[0]
                np.testing.assert_allclose(next(parts).reshape(dims), expected, **TRACED)
    session.close()


def test_a_file_without_trace_says_so(web: Package) -> None:
    session = web.load(zoo.default_model().read_bytes())
    with pytest.raises(Refused, match="no trace") as error:
        session.predict(pixels_of(SAMPLES[0]), trace=True)
    assert "--with trace" in error.value.hint
    session.close()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_other_precisions(web: Package, precision: str) -> None:
    """INT8 rounds at other places than Python's kernels; decisions are the same."""
    rng = np.random.default_rng(6)
    images = rng.integers(0, 256, (12, 28, 28)).astype(np.uint8)
    made = capsedge.quantize(
        zoo.default_model(),
        precision=precision,
        calib_data=images,
    )
    python, session = load_bytes(made.model), web.load(made.model)
    for sample in SAMPLES[:10]:
        wanted = python.predict(sample)[0]
        answer, (scores, poses, *_) = session.predict(pixels_of(sample))
        assert answer["label"] == wanted.label
        np.testing.assert_allclose(scores, wanted.scores, rtol=0, atol=2e-2)
        given = poses.reshape(1, *answer["poses"])
        np.testing.assert_allclose(session.decode(given), python.decode(given), rtol=0, atol=2e-2)
    session.close()


def test_the_first_choice_is_named_where_it_is_not_taken(web: Package) -> None:
    session = web.load(zoo.default_model().read_bytes(), providers=["webgpu", "wasm"])
    assert session.known["provider"] == "wasm"
    assert "WebGPU" in session.known["fallback"]
    session.close()
    with pytest.raises(Refused, match="cannot load the model: webgpu") as error:
        web.load(zoo.default_model().read_bytes(), providers=["webgpu"])
    assert error.value.code == "runtime"
    with pytest.raises(Refused, match="provider is cuda"):
        web.load(zoo.default_model().read_bytes(), providers=["cuda"])


def test_calls_may_overlap(web: Package) -> None:
    """Predictions and pictures at once, and the session closed behind them."""
    data = zoo.default_model().read_bytes()
    other, session = web.load(data), web.load(data)
    seven = np.asarray(pixels_of(SAMPLES[7])[:, :, 0])
    answer, _ = web.ask(
        "together", seven.tobytes(), id=session.number, count=5, width=28, height=28
    )
    assert answer["labels"] == ["7"] * 5
    with pytest.raises(Refused, match="session is closed"):
        session.predict(pixels_of(SAMPLES[7]))
    assert other.predict(pixels_of(SAMPLES[7]))[0]["label"] == "7"
    other.close()


@pytest.mark.parametrize("kind", ["FLOAT16", "DOUBLE", "UINT8"])
def test_inputs_of_other_types(web: Package, kind: str) -> None:
    """What is prepared is cast when it runs."""
    model = capsule_model(gain=400.0 if kind == "UINT8" else 4.0)
    model.graph.input[0].type.tensor_type.elem_type = getattr(TensorProto, kind)
    for node in model.graph.node:
        node.input[:] = ["floats" if name == "images" else name for name in node.input]
    model.graph.node.insert(
        0, helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT)
    )
    data = model.SerializeToString()
    python, session = load_bytes(data), web.load(data)
    image = np.random.default_rng(8).integers(0, 256, (SIDE, SIDE, 1)).astype(np.uint8)
    image[:3] = 255  # 1 once prepared, which whole numbers hold
    compare(python, session, image)
    session.close()


def test_a_model_that_computes_nan(web: Package) -> None:
    session = web.load(capsule_model(gain=float("nan")).SerializeToString())
    with pytest.raises(Refused, match="NaN or infinite") as error:
        session.predict(np.zeros((SIDE, SIDE, 1), np.uint8))
    assert error.value.code == "file"
    session.close()


@pytest.mark.parametrize(("batch", "fine"), [("N", True), (2, True), (0, False), (2**40, False)])
def test_decoders_with_strange_batches(web: Package, batch: int | str, fine: bool) -> None:
    """The value behind the poses is what the decoder reads, in the shape that the file states."""
    model = capsule_model(reconstruction=True)
    for node in model.graph.node:
        node.output[:] = ["inner" if name == "poses" else name for name in node.output]
        node.input[:] = ["inner" if name == "poses" else name for name in node.input]
    model.graph.node.append(helper.make_node("Identity", ["inner"], ["poses"]))
    declared = helper.make_tensor_value_info("inner", TensorProto.FLOAT, [batch, CLASSES, POSE])
    model.graph.value_info.append(declared)
    answer, _ = web.ask("decoder", model.SerializeToString())
    assert fine == (not answer["lacking"])
