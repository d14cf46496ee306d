"""Divide one set of images into training, validation and test images, and find which trained a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from capsedge.datasets.image_set import ImageSet
from capsedge.runtime.metadata.origin import (
    SAMPLE,
    AnySplit,
    TrainingSplit,
    key_of,
    sample_of,
    thresholds,
)

UNTRAINED = "held out from training"


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


def divided(images: ImageSet, rule: AnySplit) -> dict[str, ImageSet]:
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
        which = "trained on" if name == "train" else UNTRAINED
        found[name] = replace(part, known=which, total=len(images))
    return found


def part_of(
    images: ImageSet, split: str, limit: int | None, rule: AnySplit | None
) -> ImageSet | None:
    """The part of a set that a model's training held out, or kept; None if the rule does not divide it."""
    if rule is None or images.labels is None or images.images.dtype != np.uint8:
        return None
    applying = rule.applying(images.checksums, images.labels.tolist())
    part = None if applying is None else divided(images, applying)[split]
    return part if part is None or limit is None else part.draw(limit)


def marked(
    images: ImageSet, rule: AnySplit | None, checksums: Sequence[bytes] | None = None
) -> ImageSet:
    """The images with what the rule tells about whether they trained the model.

    Args:
        checksums: of their pixels at the model's size, if the set holds something else.
    """
    if rule is None or (checksums is None and images.images.dtype != np.uint8):
        return images
    checksums = images.checksums if checksums is None else checksums
    labels = None if images.labels is None else images.labels.tolist()
    applying = None if labels is None else rule.applying(checksums, labels)
    if applying is None or labels is None:
        trained = [rule.known([each]) > 0 for each in checksums]
        return replace(images, trained=np.array(trained, bool), least=not rule.complete)
    trained = [
        applying.part(checksum, label) == "train"
        for checksum, label in zip(checksums, labels, strict=True)
    ]
    return replace(images, trained=np.array(trained, bool))
