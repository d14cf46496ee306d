"""Train on images with masks: the configuration by the folder, the loss, and Dice as the measure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsedge.datasets import ImageSet
from capsedge.datasets.image_set import divided, holdout_rule
from capsedge.datasets.mask_folders import IMAGES, MASKS, has_masks, labelled, read_masks
from capsedge.errors import UsageError
from capsedge.models import CapsuleModel
from capsedge.models.configs import ModelConfig
from capsedge.models.training import augment
from capsedge.models.training.evaluate import normalize_images, predict_all
from capsedge.models.training.recipe import Recipe
from capsedge.runtime.files.reading import FOLDER, path_kind
from capsedge.runtime.images.decoding import read_image, text_in_image
from capsedge.runtime.images.inputs import folder_images
from capsedge.runtime.metadata.origin import TrainingSplit
from capsedge.runtime.session.masks import CLASSES_KEY, MaskOverlap
from capsedge.spec import limits
from capsedge.spec.fields import CONFIDENT, UNKNOWN
from capsedge.spec.vocabularies import SEGMENTATION

_SAMPLE = 50  # images that are looked at for colours
_EPSILON = 1e-6  # lengths are kept away from 0 and 1, where the logarithm has no end
_SMOOTH = 1.0  # pixels added to both parts of Dice, so that images without a class count little

# --- The folder ---


def fitted(config: ModelConfig, data: Path, size: int | None) -> ModelConfig:
    """The configuration with the classes, the colours and the size of a folder of images with masks.

    The names of the classes are those in the first mask, as `capsedge infer` writes it; without them the
    model keeps its own.

    Raises:
        UsageError: it is not such a folder, or the model cannot take this size.
    """
    if not has_masks(data):
        raise UsageError(
            f"{data} has no masks.",
            f"The model {config.architecture} segments images.",
            f"Pass a folder with {IMAGES}/ and {MASKS}/ (docs/reference/data.md), or another --model.",
        )
    folder = data / "train" if path_kind(data / "train") == FOLDER else data
    images = folder_images(folder / IMAGES)
    colour = any(read_image(image).shape[2] > 2 for image in islice(images, _SAMPLE))
    p = config.preprocessing
    prep = replace(
        p,
        height=size or p.height,
        width=size or p.width,
        channels=3 if colour else 1,
        mean=(0.0,),
        std=(1.0,),
    )
    names = _names_in(folder_images(folder / MASKS)[0])
    return config.replace(preprocessing=prep, class_names=names or config.class_names)


def _names_in(mask: Path) -> tuple[str, ...]:
    """The names of the classes in a mask's file; none if it has none."""
    text = text_in_image(mask, CLASSES_KEY)
    try:
        names = json.loads(text[: limits.JSON_BYTES]) if text else []
    except ValueError:
        names = []
    known = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    return tuple(names) if known else ()


def read_sets(
    data: Path,
    config: ModelConfig,
    limit: int | None,
    seed: int,
    log: Callable[[str], None],
    shares: tuple[float, float],
) -> tuple[ImageSet, ImageSet, ImageSet, TrainingSplit]:
    """Training, validation and test images without overlap, and the rule of what was held out.

    Args:
        shares: of test and validation images, where the folder does not have them.
    """
    prep, names = config.preprocessing, config.class_names
    training = labelled(read_masks(data, "train", prep, names, limit))
    given = {
        name: read_masks(data, name, prep, names, limit)
        for name in ("test", "validation")
        if path_kind(data / name) == FOLDER
    }
    wanted = dict(zip(("test", "validation"), shares, strict=True))
    drawn_shares = {name: share for name, share in wanted.items() if name not in given}
    rule = holdout_rule(training, 1, drawn_shares, seed)
    drawn = divided(training, rule)
    sets = {"train": drawn["train"] if drawn_shares else training}
    for name, share in wanted.items():
        sets[name] = given.get(name, drawn[name])
        if name in given:
            sets[name] = sets[name].without(sets["train"])
            continue
        held = f"about {share:.0%}, drawn with seed {seed}"
        log(f"no {name} images: {len(sets[name])} training images are held out, {held}")
    return sets["train"], sets["validation"], sets["test"], rule


# --- The loss and the measure ---


def check(config: ModelConfig, recipe: Recipe) -> None:
    """Refuse a recipe for masks that pairs, rotates or zooms images."""
    for name, value in (
        ("pairs", recipe.pairs != "none"),
        ("rotate", recipe.rotate),
        ("zoom", recipe.zoom),
    ):
        if config.task == SEGMENTATION and value:
            raise UsageError(
                f"{name} does not apply to masks.",
                "Images with masks are only shifted and mirrored.",
                f"Leave out {name}.",
            )


def mask_loss(
    model: CapsuleModel, images: Tensor, masks: Tensor, recipe: Recipe, rng: torch.Generator
) -> Tensor:
    """Binary cross entropy of the lengths plus one minus soft Dice, each the mean over maps and images.

    Args:
        images: ``[N, C, H, W]`` in [0, 1].
        masks: ``[N, H, W]``; unknown pixels do not count.
    """
    # What a shift brings in is unknown: 1 is added, so that its zeros are not class 0.
    both = torch.cat([images, (masks.to(images.device).float() + 1).unsqueeze(1)], 1)
    both = augment.shift(both, recipe.shift, rng)
    both = augment.flip(both, rng) if recipe.flip else both
    x, shifted = both[:, :-1], both[:, -1].round().long() - 1
    known = ((shifted >= 0) & (shifted != UNKNOWN)).unsqueeze(1)
    lengths = model(normalize_images(x, model.config)).scores
    maps = lengths.shape[1]
    classes = torch.arange(maps, device=x.device) if maps > 1 else torch.ones(1, device=x.device)
    targets = ((shifted.unsqueeze(1) == classes.view(1, -1, 1, 1)) & known).float()
    scores = lengths.clamp(_EPSILON, 1 - _EPSILON)
    entropy = -(targets * scores.log() + (1 - targets) * (1 - scores).log())
    axes = (2, 3)
    seen = lengths * known
    overlap = 2 * (seen * targets).sum(axes) + _SMOOTH
    dice = overlap / (seen.sum(axes) + targets.sum(axes) + _SMOOTH)
    pixels = known.sum().clamp(min=1) * maps
    loss: Tensor = (entropy * known).sum() / pixels + 1 - dice.mean()
    return loss


def masks_of(model: CapsuleModel, data: ImageSet) -> NDArray[np.uint8]:
    """A network's masks of the images of a set, in the size of its input ``[N, H, W]``."""
    lengths = predict_all(model, data).numpy()
    found = lengths[:, 0] >= CONFIDENT if lengths.shape[1] == 1 else lengths.argmax(1)
    return found.astype(np.uint8)


def overlap_of(model: CapsuleModel, data: ImageSet) -> MaskOverlap:
    """The overlap of a network's masks with those of a set."""
    assert data.masks is not None  # `read_masks` has them
    return overlap_between(model.config, data.masks, masks_of(model, data))


def overlap_between(
    config: ModelConfig, reference: NDArray[np.uint8], found: NDArray[np.uint8]
) -> MaskOverlap:
    """The overlap of two sets of masks ``[N, H, W]`` of a network's classes."""
    overlap = MaskOverlap(config.class_names, background=config.classes == 2)
    overlap.update(reference, found)
    return overlap


def targets_of(data: ImageSet) -> NDArray[np.int64] | NDArray[np.uint8]:
    """What a network learns: masks ``[N, H, W]``, or classes ``[N]``."""
    return data.classes if data.masks is None else data.masks


def report(model: CapsuleModel, test: ImageSet, log: Callable[[str], None]) -> float:
    """Report Dice and IoU of each class on the test images; returns the mean Dice."""
    overlap = overlap_of(model, test)
    log(f"mean Dice {overlap.mean_dice:.4f}, mean IoU {overlap.mean_iou:.4f} ({test.described})")
    for name, dice, iou in zip(overlap.names, overlap.dice, overlap.iou, strict=True):
        log(f"{name}: Dice {dice:.4f}, IoU {iou:.4f}")
    return overlap.mean_dice
