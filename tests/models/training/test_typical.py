"""When an image has nothing to see for a network that was trained on pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capsedge.datasets import ImageSet
from capsedge.models import get_config
from capsedge.models.training import augment
from capsedge.models.training.evaluate import normalize_images, to_input, typical_input_of_training
from capsedge.runtime.metadata.typical_input import TypicalInput, measure_all
from tools import draw_samples

CONFIG = get_config("digits-overlap")


def digits(each: int, seed: int) -> ImageSet:
    drawn = draw_samples.many(each=each, seed=seed)
    labels = np.array([int(key.split("-")[1]) for key in drawn])
    return ImageSet("drawn", np.stack(list(drawn.values()))[..., None], labels)


def refused(found: TypicalInput, images: torch.Tensor) -> int:
    values = measure_all(images.numpy(), CONFIG.preprocessing.layout)
    return sum(found.atypical_reason(v) != "" for v in values)


@pytest.mark.thorough
def test_pairs_and_single_digits_are_to_be_seen() -> None:
    found = typical_input_of_training(digits(6, seed=1), CONFIG, "overlap")
    assert found is not None
    data = digits(3, seed=2)
    canvases, _, each = augment.overlap(
        to_input(data.images, CONFIG), torch.as_tensor(data.classes), (36, 36),
        torch.Generator().manual_seed(5), diverse=False,
    )  # fmt: skip
    assert refused(found, normalize_images(canvases, CONFIG)) <= 2
    assert refused(found, normalize_images(each[:, 0], CONFIG)) <= 2
    assert refused(found, normalize_images(torch.zeros(3, 1, 36, 36), CONFIG)) == 3
    assert refused(found, normalize_images(torch.rand(50, 1, 36, 36), CONFIG)) == 50
