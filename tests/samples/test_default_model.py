"""The model that comes with the package reads the images that come with it."""

from __future__ import annotations

import pytest

import capsedge
from capsedge.runtime.zoo import default_model
from capsedge.runtime.zoo import samples_folder as folder
from tools import draw_samples


@pytest.fixture(scope="module")
def session() -> capsedge.Session:
    return capsedge.load(default_model())


def test_ten_digits(session: capsedge.Session):
    found = session.predict([folder() / f"digit-{d}.png" for d in range(10)])
    assert [p.label for p in found] == [str(d) for d in range(10)]


def test_ink_on_paper(session: capsedge.Session):
    assert session.predict(folder() / "paper-5.png", invert=True)[0].label == "5"


@pytest.mark.thorough
def test_several_hands(session: capsedge.Session):
    pictures = draw_samples.many(each=1, seed=1)
    found = session.predict(list(pictures.values()))
    wrong = [n for n, p in zip(pictures, found, strict=True) if p.label != n.split("-")[1]]
    assert len(wrong) <= 2, wrong


def test_decoder_draws_the_digit_seen(session: capsedge.Session):
    """The picture of the right class is nearer to the input than that of any other class."""
    for d in range(10):
        path = folder() / f"digit-{d}.png"
        pictures, seen = session.reconstruct(path)[0], session.prepare(path)
        distance = ((pictures - seen) ** 2).mean(axis=(1, 2, 3))
        assert distance.argmin() == d
