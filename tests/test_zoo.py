"""The trained models that come with the package: their cards, and parity on the whole MNIST test set."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

import capsedge
from capsedge.datasets import ImageSet, read_images, read_split
from capsedge.exporters.export import export
from capsedge.exporters.export_options import ExportOptions
from capsedge.models import CapsuleModel, get_config
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.training.evaluate import (
    evaluation_pairs,
    normalize_images,
    predict_all,
    to_input,
)
from capsedge.optimization.prune_criteria import multiply_adds
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.metadata.origin import pruned_of
from capsedge.runtime.session.masks import MaskOverlap
from capsedge.runtime.zoo import FILES, MODELS, ROUTINGS, zoo_checkpoint, zoo_model
from capsedge.spec.fields import CONFIDENT
from capsedge.spec.vocabularies import SEGMENTATION
from tools.zoo.clutter_images import SEEDS, draw

# Least accuracy on the 10,000 test images, or pairs of them, in images.
LEAST = {
    "digits-dynamic": 9955,
    "digits-em": 9920,
    "digits-attention": 9940,
    "digits-overlap": 9200,
    "digits-small": 9956,
    "photos": 9110,
}
CLASSIFYING = tuple(name for name in MODELS if get_config(name).task != SEGMENTATION)
LEAST_DICE = 0.95  # of digits-clutter
INT8 = ("digits-overlap", "digits-small", "photos")
# Largest difference of a length; of a logit, relative to the largest logit.
TOLERANCE = 1e-5

Scores = NDArray[np.float32]


@pytest.fixture(scope="module", params=ROUTINGS)
def routing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(routing: str) -> CapsuleModel:
    return load_checkpoint(zoo_checkpoint(f"digits-{routing}"))


@pytest.mark.parametrize("name", CLASSIFYING)
def test_the_card_tells_of_this_file(name: str) -> None:
    checkpoint = zoo_checkpoint(name)
    card = checkpoint.with_suffix(".md").read_text()
    assert sha256(checkpoint) in card
    accuracy = re.search(r"\*\*([\d.]+) %\*\* of (?:all )?10,000", card)
    assert accuracy
    assert round(float(accuracy[1]) * 100) >= LEAST[name]


def test_the_card_of_the_segmentation_tells_of_this_file() -> None:
    checkpoint = zoo_checkpoint("digits-clutter")
    card = checkpoint.with_suffix(".md").read_text()
    assert sha256(checkpoint) in card
    plain, int8 = (float(dice) for dice in re.findall(r"mean Dice (?:\*\*)?(0\.\d+)", card))
    assert plain >= LEAST_DICE
    assert int8 >= plain - 0.005


def test_weights_are_small_enough() -> None:
    files = [*map(zoo_checkpoint, MODELS), *(Path(str(zoo_model(name))) for name in FILES)]
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) <= 4_000_000
    assert sum(sizes) <= 15_000_000
    clutter = [file for file in files if file.stem.startswith("digits-clutter")]
    assert len(clutter) == 3
    assert sum(file.stat().st_size for file in clutter) <= 300_000
    small = [file for file in files if file.stem == "digits-small"]
    assert all(file.stat().st_size <= 1.2e6 for file in small)
    assert small[1].stat().st_size <= 1_000_000  # the INT8 file


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in MODELS if name not in INT8])
def test_the_file_is_the_export_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    """Node by node: what other options of the export add, such as a trace, is not in a file without them."""
    model = load_checkpoint(zoo_checkpoint(name))
    with capsedge.load(name, ops="portable") as shipped:
        metadata = shipped.metadata
    assert metadata is not None
    assert metadata.checkpoint_sha256 == sha256(zoo_checkpoint(name))
    assert metadata.routing == model.config.routing
    again = tmp_path / "again.onnx"
    extra = ("reconstruction",) if model.decoder is not None else ()
    export(model, again, ExportOptions(extra_outputs=extra))
    assert onnx.load(again).graph == onnx.load(str(zoo_model(name))).graph


@pytest.mark.parametrize("name", [*INT8, "digits-clutter-int8"])
def test_an_int8_file_names_its_checkpoint(name: str) -> None:
    with capsedge.load(name) as session:
        assert session.metadata is not None
        assert session.metadata.precision == "int8"
        checkpoint = zoo_checkpoint(name.removesuffix("-int8"))
        assert session.metadata.checkpoint_sha256 == sha256(checkpoint)


def test_the_small_model_is_pruned() -> None:
    checkpoint = zoo_checkpoint("digits-small")
    pruned = pruned_of(checkpoint)
    assert pruned is not None
    before, after = pruned.multiply_adds
    assert before / after >= 16
    assert multiply_adds(load_checkpoint(checkpoint).config) == after


def reference(model: CapsuleModel, data: ImageSet) -> tuple[torch.Tensor, Scores]:
    """Inputs and the scores of the eager FP32 model."""
    x = normalize_images(to_input(data.images, model.config), model.config)
    with torch.no_grad():
        scores = torch.cat([model(part).scores for part in x.split(250)])
    return x, scores.numpy()


def openvino_scores(path: Path, x: Scores, name: str) -> Scores:
    openvino = pytest.importorskip("openvino", reason="pip install openvino (a dev dependency)")
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    output = next(o for o in compiled.outputs if name in o.names)
    return np.concatenate(
        [compiled({"images": part})[output].copy() for part in np.array_split(x, len(x) // 250)]
    )


@pytest.mark.thorough
@pytest.mark.data
@pytest.mark.parametrize(
    "count", [500, pytest.param(10_000, marks=pytest.mark.slow)], ids=["first-500", "all-10000"]
)
def test_parity_on_mnist(
    routing: str, model: CapsuleModel, mnist: Path, tmp_path: Path, count: int
) -> None:
    """Identical top-1 on every image and lengths within 1e-5: function bodies, fused, portable, OpenVINO."""
    data = read_split(mnist, "test", model.config.preprocessing, count)
    x, wanted = reference(model, data)
    right = int((wanted.argmax(1) == data.labels).sum())
    assert right >= LEAST[f"digits-{routing}"] * count / 10_000 - (0 if count == 10_000 else 5)

    auto, portable = tmp_path / "auto.onnx", tmp_path / "portable.onnx"
    export(model, auto)
    export(model, portable, ExportOptions(ops="portable"))
    images, name = x.numpy(), model.score_name
    found: dict[str, Scores] = {}
    for kind, path, ops in (
        ("function bodies", auto, "portable"),
        ("operator library or bodies", auto, "auto"),
        ("portable file", portable, "portable"),
    ):
        session = capsedge.load(path, ops=ops)
        parts = np.array_split(images, len(images) // 250)
        found[kind] = np.concatenate([session.run(part)[name] for part in parts])
    found["OpenVINO"] = openvino_scores(portable, images, name)
    scale = 1.0 if name == "lengths" else np.abs(wanted).max()
    for kind, scores in found.items():
        assert np.array_equal(scores.argmax(1), wanted.argmax(1)), kind
        assert np.abs(scores - wanted).max() / scale <= TOLERANCE, kind


@pytest.mark.thorough
@pytest.mark.data
@pytest.mark.parametrize(
    "count", [500, pytest.param(10_000, marks=pytest.mark.slow)], ids=["first-500", "all-10000"]
)
def test_pairs_of_mnist(mnist: Path, tmp_path: Path, count: int) -> None:
    """The best two classes are the digits of a pair: the export finds PyTorch's, INT8 nearly all of them."""
    model = load_checkpoint(zoo_checkpoint("digits-overlap"))
    test = read_split(mnist, "test", model.config.preprocessing, count)
    right = same = 0
    plain = tmp_path / "plain.onnx"
    export(model, plain, ExportOptions())
    with (
        capsedge.load("digits-overlap") as session,
        capsedge.load(plain) as exported,
        torch.no_grad(),
    ):
        for canvases, owners in evaluation_pairs(test, model.config):
            x = normalize_images(canvases, model.config)
            wanted = model(x).scores.topk(2, 1).indices.numpy()
            of_export = exported.run(x.numpy())[model.score_name].argsort(1)[:, :-3:-1]
            assert np.array_equal(of_export, wanted)
            found = session.run(x.numpy())[model.score_name].argsort(1)[:, :-3:-1]
            same += int((np.sort(found) == np.sort(wanted)).all(1).sum())
            right += int((np.sort(found) == np.sort(owners.numpy())).all(1).sum())
    assert same >= 0.985 * count
    assert right >= LEAST["digits-overlap"] * count / 10_000 - (0 if count == 10_000 else 15)


@pytest.mark.data
@pytest.mark.slow
def test_the_small_file_on_mnist(mnist: Path) -> None:
    model = load_checkpoint(zoo_checkpoint("digits-small"))
    data = read_images(mnist, model.config.preprocessing, "test")
    with capsedge.load("digits-small") as session:
        assert session.roles.scores is not None
        images = np.stack(list(data.inputs()))
        found = [
            o[session.roles.scores] for _, o in session.run_batches(images, [session.roles.scores])
        ]
    assert int((np.concatenate(found).argmax(1) == data.classes).sum()) >= LEAST["digits-small"]


@pytest.mark.data
@pytest.mark.parametrize(
    "count", [100, pytest.param(2000, marks=pytest.mark.slow)], ids=["first-100", "all-2000"]
)
def test_digits_in_clutter(mnist: Path, count: int) -> None:
    """The masks of PyTorch, of the FP32 and of the INT8 file, against those known by construction."""
    model = load_checkpoint(zoo_checkpoint("digits-clutter"))
    digits = read_split(mnist, "test", Preprocessing(28, 28, 1), count).images[..., 0]
    random = np.random.default_rng(SEEDS["test"])
    images, masks = (
        np.stack(each) for each in zip(*(draw(ink, random) for ink in digits), strict=True)
    )
    found = {}
    for name in ("digits-clutter", "digits-clutter-int8"):
        with capsedge.load(name, threads=1) as session:
            found[name] = [prediction.mask for prediction in session.predict(list(images))]
    data = ImageSet("clutter", images[..., None], preprocessing=model.config.preprocessing)
    lengths = predict_all(model, data).numpy()[:, 0]
    assert (np.stack(found["digits-clutter"]) != (lengths >= CONFIDENT)).mean() <= 1e-5
    dice = {}
    for name, each in found.items():
        overlap = MaskOverlap(model.config.class_names, background=True)
        overlap.update(masks, each)
        dice[name] = overlap.mean_dice
    assert dice["digits-clutter"] >= LEAST_DICE
    assert dice["digits-clutter-int8"] >= dice["digits-clutter"] - 0.005
