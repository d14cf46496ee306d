"""Each row of the picture varies the dimension that its number names, each column by the offset above it."""

from __future__ import annotations

import numpy as np
import pytest

import capsedge
from capsedge.runtime.session.classify import blend_class_pictures
from capsedge.viz import decoder_figures
from tests.viz.conftest import SAMPLES

pytest.importorskip("matplotlib")
FILES = [SAMPLES / "digit-4.png", SAMPLES / "digit-8.png"]


def test_rows_are_dimensions_and_columns_offsets(dynamic: capsedge.Session):
    figure = capsedge.viz.dimensions(dynamic, FILES)
    predictions = dynamic.predict(FILES)
    assert len(figure.axes) == 2
    for axis, prediction, of in zip(figure.axes, predictions, (4, 8), strict=True):
        assert len(axis.images) == 16 * 11
        # One by one, by the extent of each: not in the order in which they were drawn.
        step = axis.images[1].get_extent()[0]
        height = axis.images[11].get_extent()[3]
        for image in axis.images[:: 11 * 3 + 2]:
            left, _, _, top = image.get_extent()
            s, d = round(left / step), round(top / height)
            pose = prediction.poses[of].copy()
            pose[d] += (s - 5) * 0.05
            wanted = blend_class_pictures(dynamic.decode(pose, of), [0])
            assert np.abs(image.get_array().astype(int) - wanted).max() <= 1
        numbers = [t for t in axis.texts if t.get_text().isdigit()]
        assert [round(t.get_position()[1] / height - 0.4) for t in numbers] == list(range(16))
        assert [t.get_text() for t in numbers] == [str(d) for d in range(16)]


def test_the_middle_is_the_reconstruction(dynamic: capsedge.Session):
    found = decoder_figures.compute_dimensions(dynamic, FILES[0])
    whole = dynamic.reconstruct(FILES[0])[0, 4]
    for d in range(16):
        np.testing.assert_allclose(found.pictures[0, d, 5], whole, atol=1e-5)
    assert np.abs(found.pictures[0, :, 0] - whole).max(axis=(1, 2, 3)).min() > 0.01
    assert decoder_figures.STEPS.tolist() == [
        -0.25, -0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2, 0.25,
    ]  # fmt: skip


def test_another_class_can_be_varied(dynamic: capsedge.Session):
    found = decoder_figures.compute_dimensions(dynamic, FILES, of="7")
    assert found.names == ("7", "7")
    with pytest.raises(capsedge.UsageError, match="no class 'seven'"):
        decoder_figures.compute_dimensions(dynamic, FILES, of="seven")


def test_pictures_that_are_not_finite_are_refused(dynamic: capsedge.Session, monkeypatch):
    """Damaged weights are an error with a remedy, not a picture of black squares."""
    monkeypatch.setattr(dynamic, "decode", lambda *_: np.full((176, 1, 28, 28), np.nan))
    monkeypatch.setattr(
        dynamic, "reconstruct", lambda *_, **__: np.full((1, 10, 1, 28, 28), np.inf)
    )
    for picture in ("dimensions", "reconstructions", "segmentation"):
        with pytest.raises(capsedge.ArtefactError, match="NaN or infinite"):
            getattr(capsedge.viz, picture)(dynamic, FILES[0])


def test_without_a_decoder(plain: capsedge.Session):
    with pytest.raises(capsedge.UsageError, match="dict with 'reconstruction'"):
        capsedge.viz.dimensions(plain, np.zeros((8, 8), np.uint8))
