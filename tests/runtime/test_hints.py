"""What a prediction says of its image: nothing to see, or colours the other way round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from capsedge.datasets import ImageSet, typical_input_from  # noqa: E402
from capsedge.errors import UsageError  # noqa: E402
from capsedge.optimization.optimize import optimize  # noqa: E402
from capsedge.optimization.optimize_options import OptimizeOptions  # noqa: E402
from capsedge.runtime.load import load, load_bytes  # noqa: E402
from capsedge.runtime.metadata.metadata import Preprocessing  # noqa: E402
from capsedge.runtime.metadata.typical_input import TypicalInput, spans_of  # noqa: E402
from capsedge.runtime.session.classify import classify_files  # noqa: E402
from capsedge.runtime.session.predictions import INVERT, KEEP  # noqa: E402
from capsedge.runtime.session.session import Session  # noqa: E402
from capsedge.runtime.user_metadata import Description, describe_model  # noqa: E402
from tests.runtime.models import SIDE, capsule_model, foreign_model, metadata, save  # noqa: E402

PREP = Preprocessing(SIDE, SIDE, 1)
RNG = np.random.default_rng(2)
BLANK = np.zeros((SIDE, SIDE), np.uint8)
LESS = "less contrast than in any training image"


def spots(count: int) -> np.ndarray[Any, Any]:
    """Light spots off the frame of black images: pixels ``[N, SIDE, SIDE]``."""
    images = np.zeros((count, SIDE, SIDE), np.uint8)
    for image in images:
        row, column = RNG.integers(1, SIDE - 3, 2)
        image[row : row + 2, column : column + RNG.integers(1, 3)] = RNG.integers(100, 256)
    return images


PIXELS = spots(400)
CRITERION = typical_input_from(PIXELS, PREP)


@pytest.fixture(scope="module")
def session() -> Session:
    properties = metadata(typical_input=CRITERION).to_properties()
    return load_bytes(capsule_model(properties=properties).SerializeToString())


def test_a_blank_image_keeps_its_labels(session: Session) -> None:
    plain = load_bytes(capsule_model().SerializeToString())
    for image in (BLANK, PIXELS[0], 255 - PIXELS[0]):
        with_criterion, without = (s.predict(image)[0] for s in (session, plain))
        assert with_criterion.scores.tolist() == without.scores.tolist()
        assert [x.name for x in with_criterion.labels] == [x.name for x in without.labels]
    assert session.predict(BLANK)[0].atypical == LESS
    assert plain.predict(BLANK)[0].atypical == ""


def test_json(session: Session) -> None:
    document = session.predict(BLANK)[0].to_dict()
    assert (document["atypical"], document["hint"]) == (LESS, None)
    assert len(document["labels"]) == 1
    document = session.predict(PIXELS[0])[0].to_dict()
    assert (document["atypical"], document["hint"]) == (None, None)


def test_hints(session: Session) -> None:
    light = 255 - PIXELS[0]
    assert session.predict(light)[0].hint == INVERT
    assert session.predict(light, invert=True)[0].hint == ""
    assert session.predict(PIXELS[0], invert=True)[0].hint == KEEP


def test_hints_of_files(session: Session, tmp_path: Path) -> None:
    from PIL import Image

    for name, pixels in (("dark.png", PIXELS[0]), ("light.png", 255 - PIXELS[0])):
        Image.fromarray(pixels).save(tmp_path / name)
    files = [tmp_path / "dark.png", tmp_path / "light.png"]
    found = classify_files(session, files).predictions
    assert [found[k].hint for k in (0, 1)] == ["", INVERT]
    found = classify_files(session, files, invert=True).predictions
    assert [found[k].hint for k in (0, 1)] == [KEEP, ""]


def test_a_confident_answer_has_no_hint() -> None:
    light = np.full((SIDE, SIDE), 255, np.uint8)
    light[2:4, 2:6] = 0
    session = load_bytes(capsule_model(gain=40.0).SerializeToString())
    found = session.predict(light)[0]
    assert found.score is not None
    assert found.score > 0.9
    assert found.hint == ""


def test_colour_has_no_hint() -> None:
    prep = Preprocessing(SIDE, SIDE, 3)
    model = capsule_model(
        properties=metadata(preprocessing=prep).to_properties(), channels=3, gain=0.1
    )
    light = np.repeat((255 - PIXELS[0])[..., None], 3, axis=2)
    found = load_bytes(model.SerializeToString()).predict(light)[0]
    assert max(found.scores) < 0.5
    assert found.hint == ""


def test_a_regression() -> None:
    description = Description(None, PREP, "regression", typical=lambda _: CRITERION)
    model = foreign_model({"o": [2]}).SerializeToString()
    session = load_bytes(describe_model(model, description).data)
    blank, spot = session.predict(np.stack([BLANK, PIXELS[0]])[..., None])
    assert (blank.atypical, spot.atypical) == (LESS, "")
    assert blank.to_dict()["atypical"] == LESS
    assert len(blank.values) == 2


def test_every_form_of_images_gives_the_same_criterion(tmp_path: Path) -> None:
    prepared = (PIXELS.astype(np.float32) * np.float32(1 / 255))[:, None]
    np.savez(tmp_path / "train.npz", images=PIXELS)
    spans = [
        typical_input_from(data, PREP)
        for data in (
            PIXELS,
            PIXELS[..., None],
            prepared,
            ImageSet("x", PIXELS[..., None]),
            tmp_path / "train.npz",
            str(tmp_path / "train.npz"),
            CRITERION,
        )
    ]
    measured = [{k: v for k, v in s.to_dict().items() if k != "data_sha256"} for s in spans]
    assert all(m == measured[0] for m in measured)
    assert spans[0] == spans_of(prepared, data_sha256=CRITERION.data_sha256)
    assert len(CRITERION.data_sha256) == 64


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (PIXELS[:50], "50 images"),
        (np.zeros((200, 1, SIDE, SIDE + 1), np.float32), "images [1, 8, 9]"),
        (np.zeros((200, SIDE), np.uint8), "must be uint8 pixels"),
        ("nowhere.npz", "no nowhere.npz"),
        (3, "int"),
    ],
)
def test_wrong_images(data: Any, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        typical_input_from(data, PREP)
    assert why in str(refused.value)


def test_optimize_adds_a_criterion(tmp_path: Path) -> None:
    save(capsule_model(), tmp_path / "m.onnx")
    report = optimize(
        tmp_path / "m.onnx",
        tmp_path / "n.onnx",
        OptimizeOptions(measure=0),
        description=Description(typical=PIXELS),
    )
    assert any("spans of 400 images" in note for note in report.notes)
    assert load(tmp_path / "n.onnx").predict(BLANK)[0].atypical == LESS
    # Other statements leave it, another preprocessing does not.
    optimize(
        tmp_path / "n.onnx",
        tmp_path / "o.onnx",
        OptimizeOptions(measure=0),
        description=Description(class_names=["a", "b", "c"]),
    )
    found = load(tmp_path / "o.onnx").metadata
    assert found is not None
    assert found.typical_input == CRITERION
    changes = {"scale": 2 / 255, "mean": (1.0,)}
    optimize(
        tmp_path / "n.onnx",
        tmp_path / "p.onnx",
        OptimizeOptions(measure=0),
        description=Description(preprocessing=changes),
    )
    found = load(tmp_path / "p.onnx").metadata
    assert found is not None
    assert found.typical_input is None


def test_a_file_without_preprocessing_is_refused() -> None:
    model = foreign_model({"o": [2]}).SerializeToString()
    description = Description(["a", "b"], None, None, typical=lambda _: CRITERION)
    with pytest.raises(UsageError, match="does not fit the model") as refused:
        describe_model(model, description)
    assert "preprocessing" in refused.value.why


def test_nothing_there_is_said_before_the_work(tmp_path: Path) -> None:
    save(capsule_model(), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="There is no"):
        optimize(
            tmp_path / "m.onnx",
            description=Description(typical=tmp_path / "none"),
            options=OptimizeOptions(measure=0),
        )


def test_too_few_images_are_refused_in_their_own_words(tmp_path: Path) -> None:
    save(capsule_model(), tmp_path / "m.onnx")
    with pytest.raises(
        UsageError, match="does not determine what typical images look like"
    ) as refused:
        optimize(
            tmp_path / "m.onnx",
            description=Description(typical=PIXELS[:50]),
            options=OptimizeOptions(measure=0),
        )
    assert refused.value.why == "50 images are not blank; 100 are needed."


def test_the_criterion_is_a_plain_value() -> None:
    assert isinstance(CRITERION, TypicalInput)
    assert TypicalInput(**CRITERION.to_dict()) == CRITERION
