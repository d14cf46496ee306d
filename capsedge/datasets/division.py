"""Divide one set of images into training, validation and test images, in a way that can be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from capsedge.datasets.image_set import ImageSet
from capsedge.runtime.training_split import SAMPLE, TrainingSplit, key_of, sample_of, thresholds


def rule_of(
    images: ImageSet, classes: int, shares: Mapping[str, float], seed: int
) -> TrainingSplit:
    """The rule that holds out shares of each class; of a class with one image, none.

    Args:
        shares: of ``test`` and ``validation``, the latter of the images that remain.
    """
    keys = np.array([key_of(checksum, seed) for checksum in images.checksums], np.int64)
    limits = {"test": [0] * classes, "validation": [0] * classes}
    for label in range(classes):
        members = np.sort(keys[images.classes == label]).tolist()
        for name, share in shares.items():
            count = max(1, round(share * len(members))) if len(members) > 1 else 0
            if count:
                limits[name][label] = members[count - 1] + 1
            members = members[count:]
    rule = TrainingSplit(seed, thresholds(limits["test"]), thresholds(limits["validation"]), "")
    trained = divided(images, rule)["train"].checksums
    chosen = sorted(trained, key=lambda checksum: key_of(checksum, seed))[:SAMPLE]
    return replace(rule, sample="".join(map(sample_of, chosen)))


def divided(images: ImageSet, rule: TrainingSplit) -> dict[str, ImageSet]:
    """The images by split. Those with equal pixels stay together: in the training images, or in the last set.

    Every part says how many of the images it is.
    """
    parts = np.array([
        rule.part(checksum, int(label))
        for checksum, label in zip(images.checksums, images.classes, strict=True)
    ])  # fmt: skip
    found: dict[str, ImageSet] = {}
    for name in ("train", "validation", "test"):
        part = replace(images.take(np.flatnonzero(parts == name)), split=name)
        for other in found.values():
            part = part.without(other)
        which = "trained on" if name == "train" else "held out from training"
        share = f"{len(part):,} of {len(images):,} images, {which}"
        found[name] = replace(part, share=share)
    return found
