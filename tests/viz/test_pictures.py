"""What is drawn is what was computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.datasets import ImageSet
from capsedge.runtime.session.classify import blend_class_pictures
from capsedge.viz import decoder_figures, evidence_figures
from tests.runtime.models import SIDE, capsule_model, metadata, save
from tests.viz.conftest import SAMPLES

pytest.importorskip("matplotlib")


def texts(axis) -> list[str]:
    return [text.get_text() for text in axis.texts]


def test_each_class_stands_under_its_name_with_its_score(dynamic: capsedge.Session):
    files = [SAMPLES / "digit-7.png", SAMPLES / "digit-1.png"]
    (axis,) = capsedge.viz.reconstructions(dynamic, files).axes
    pictures = dynamic.reconstruct(files)
    predictions = dynamic.predict(files)
    assert len(axis.images) == 2 * 11
    for n in range(2):
        for j in range(10):
            drawn = axis.images[n * 11 + 1 + j].get_array()
            assert np.array_equal(drawn, blend_class_pictures(pictures[n], [j]))
    found = texts(axis)
    assert found[:10] == [f"{s:.3f}" for s in predictions[0].scores]
    assert [t for t in found if t in "0123456789"] == list("0123456789")
    framed = [patch.get_x() for patch in axis.patches]
    step = axis.images[1].get_extent()[0]
    assert framed == pytest.approx([(1 + 7) * step, (1 + 1) * step])


@pytest.mark.parametrize(
    "name", ["pair-2-7.png", "a-long-name-of-a-file.png", "WWWWWWWWWWWWWWWWWW"]
)
@pytest.mark.parametrize("picture", [capsedge.viz.reconstructions, capsedge.viz.segmentation])
def test_names_of_rows_are_inside_the_figure(
    picture, name: str, tmp_path: Path, dynamic: capsedge.Session
):
    file = tmp_path / name
    file.write_bytes((SAMPLES / "overlapping-2-4.png").read_bytes())
    figure = picture(dynamic, file)
    figure.draw_without_rendering()
    (axis,) = figure.axes
    (named,) = (t for t in axis.texts if t.get_ha() == "right")
    box, whole = named.get_window_extent(), figure.bbox
    assert whole.x0 < box.x0 < box.x1 < axis.transData.transform((0, 0))[0]


def test_many_classes_are_limited_and_it_is_said(tmp_path: Path, dynamic: capsedge.Session):
    found = decoder_figures.compute_reconstructions(dynamic, SAMPLES)  # a folder
    assert len(found.examples) == 12
    assert found.notes == ()
    found = decoder_figures.compute_reconstructions(dynamic, [SAMPLES / "digit-1.png"] * 13)
    assert found.notes == ("Only the first 12 images are shown.",)
    assert found.examples.names == ("digit-1.png",) * 12


def test_segmentation_knows_right_from_wrong(dynamic: capsedge.Session):
    image = SAMPLES / "overlapping-2-4.png"
    (found,) = decoder_figures.compute_segmentation(dynamic, image, labels=[("4", "2")]).per_image
    assert set(found.predicted) == {2, 4}
    assert found.right is True
    assert found.forced[0] == found.predicted[0]
    assert found.forced[1] not in (2, 4)
    (wrong,) = decoder_figures.compute_segmentation(
        dynamic, image, labels=[("4", "3")], forced=("5", "7")
    ).per_image
    assert wrong.right is False
    assert wrong.forced == (5, 7)
    (unknown,) = decoder_figures.compute_segmentation(dynamic, image).per_image
    assert unknown.right is None


def test_colours_tell_the_two_apart():
    pixels = np.zeros((1, 4, 3), np.uint8)
    pixels[0, :, :] = [[255], [255], [255], [0]]
    first = np.array([[[1.0, 0.0, 0.0, 1.0]]], np.float32)
    second = np.array([[[0.0, 1.0, 0.0, 1.0]]], np.float32)
    both = decoder_figures.ImageSegmentation((0, 1), None, (0, 1), {0: first, 1: second}, {}, {})
    drawn = decoder_figures.overlay_pair(pixels, both, (0, 1))[0].tolist()
    assert drawn == [[255, 140, 26], [0, 115, 230], [128, 128, 128], [255, 255, 255]]


@pytest.mark.parametrize(
    ("labels", "says"),
    [([("2",)], "not a pair"), ([("2", "2")], "not a pair"), ([("2", "x")], "no class 'x'"),
     ([("1", "2"), ("3", "4")], "2 pairs of labels for 1 images")],
)  # fmt: skip
def test_bad_pairs_are_refused(dynamic: capsedge.Session, labels, says: str):
    with pytest.raises(capsedge.UsageError, match=says):
        decoder_figures.compute_segmentation(dynamic, SAMPLES / "digit-1.png", labels=labels)


def test_capsules_draw_scores_and_poses(plain: capsedge.Session):
    left = np.zeros((SIDE, SIDE), np.uint8)
    left[:, : SIDE // 2] = 255
    image, bars, table, _ = capsedge.viz.capsules(plain, left).axes
    prediction = plain.predict(left)[0]
    assert np.array_equal(image.images[0].get_array()[..., 0], left)
    assert [bar.get_width() for bar in bars.patches] == prediction.scores.tolist()
    assert np.array_equal(table.images[0].get_array(), prediction.poses)
    assert [label.get_text() for label in bars.get_yticklabels()] == ["left", "right", "none"]


def test_the_hardest_images_come_first(plain: capsedge.Session):
    images = np.zeros((4, SIDE, SIDE, 1), np.uint8)
    for n, column in enumerate((4, 5, 3, 1)):  # more and less of the left half
        images[n, :, :column] = 255
        images[n, :, 4 : 4 + 4 - column] = 255
    data = ImageSet("made", images, np.array([0, 1, 1, 1]), plain.metadata.preprocessing)
    found = evidence_figures.compute_hardest(plain, data, count=3)
    scores = np.stack([p.scores for p in plain.predict(images)])
    margins = scores[[0, 1, 2, 3], [0, 1, 1, 1]] - np.array(
        [np.delete(row, t).max() for row, t in zip(scores, [0, 1, 1, 1], strict=True)]
    )
    assert found.numbers_in_set.tolist() == np.argsort(margins)[:3].tolist()
    assert found.margins.tolist() == sorted(margins)[:3]
    assert found.mistakes == int((scores.argmax(axis=1) != [0, 1, 1, 1]).sum())
    (axis,) = found.draw().axes
    assert np.array_equal(axis.images[0].get_array()[..., :1], images[found.numbers_in_set[0]])
    assert "right → left" in texts(axis)


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0], None])
def test_data_that_does_not_fit_is_refused(plain: capsedge.Session, labels):
    images = np.zeros((2, SIDE, SIDE, 1), np.uint8)
    given = None if labels is None else np.array(labels)
    with pytest.raises(capsedge.UsageError, match=r"labels|label"):
        evidence_figures.compute_hardest(
            plain, ImageSet("made", images, given, plain.metadata.preprocessing)
        )


def test_colour_images_keep_their_colours(tmp_path: Path):
    from capsedge.runtime.metadata.metadata import Preprocessing

    properties = metadata(preprocessing=Preprocessing(SIDE, SIDE, 3)).to_properties()
    model = save(capsule_model(channels=3, properties=properties), tmp_path / "colour.onnx")
    red = np.zeros((SIDE, SIDE, 3), np.uint8)
    red[..., 0] = 200
    with capsedge.load(model) as session:
        image = capsedge.viz.capsules(session, red).axes[0]
    assert np.array_equal(image.images[0].get_array(), red)


def test_a_model_without_decoder_says_how_to_get_one(plain: capsedge.Session):
    for picture in (capsedge.viz.reconstructions, capsedge.viz.segmentation):
        with pytest.raises(capsedge.UsageError, match="dict with 'reconstruction'"):
            picture(plain, np.zeros((SIDE, SIDE), np.uint8))


def test_figures_do_not_depend_on_the_settings_of_the_user(plain: capsedge.Session):
    import matplotlib

    image = np.zeros((SIDE, SIDE), np.uint8)
    with matplotlib.rc_context({"text.usetex": True, "font.size": 30, "axes.facecolor": "black"}):
        figure = capsedge.viz.capsules(plain, image)
        assert matplotlib.rcParams["font.size"] == 30
    assert not figure.axes[1].title.get_usetex()
    assert figure.axes[1].get_facecolor() == (1, 1, 1, 1)
