"""Evaluate a network on images: accuracy, confused classes, and properties of its training images."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsedge.datasets import ImageSet, typical_input_from
from capsedge.errors import UsageError
from capsedge.models import CapsuleModel
from capsedge.models.configs import ModelConfig
from capsedge.models.ops import fused
from capsedge.models.training import augment
from capsedge.runtime.files.text import printable
from capsedge.runtime.metadata.typical_input import TypicalInput
from capsedge.runtime.result_summary import check_chart, escape_formulas, new_figure, save_figure

# --- Accuracy, on images in the network's input form ---

_BATCH = 64  # the votes of the papers' models for 256 images would fill a GPU
_TEST_SEED = 2017  # seed of the pairs that networks are tested on


def to_input(images: NDArray[np.uint8] | Tensor, config: ModelConfig) -> Tensor:
    """uint8 images ``[N, H, W, C]`` scaled to [0, 1] as ``[N, C, H, W]``."""
    x = images if isinstance(images, Tensor) else torch.from_numpy(images.copy())
    if x.shape[3] != config.preprocessing.channels:
        raise UsageError(
            f"The images have {x.shape[3]} channels.",
            f"The model takes {config.preprocessing.channels}.",
        )
    scaled: Tensor = x.permute(0, 3, 1, 2).float() * config.preprocessing.scale
    return scaled


def normalize_images(images: Tensor, config: ModelConfig) -> Tensor:
    """Subtract the mean and divide by the deviation of the model's preprocessing."""
    p = config.preprocessing
    mean, std = (
        torch.tensor(values, device=images.device).view(1, -1, 1, 1) for values in (p.mean, p.std)
    )
    return (images - mean) / std


def crop_or_pad_to_input(images: Tensor, config: ModelConfig) -> Tensor:
    """Crop or pad to the model's input size, centred."""
    h, w = config.preprocessing.height, config.preprocessing.width
    dy, dx = h - images.shape[2], w - images.shape[3]
    return nn.functional.pad(images, (dx // 2, dx - dx // 2, dy // 2, dy - dy // 2))


@torch.no_grad()
@fused()
def predict_all(model: CapsuleModel, data: ImageSet) -> Tensor:
    """Scores ``[N, J]`` of all images in evaluation mode, computed on the model's device.

    On a GPU, routing runs as CUDA kernels if they are installed.
    """
    model.eval()
    device = next(model.parameters()).device
    scores = []
    for start in range(0, len(data), _BATCH):
        x = crop_or_pad_to_input(
            to_input(data.images[start : start + _BATCH], model.config), model.config
        )
        scores.append(model(normalize_images(x.to(device), model.config)).scores.cpu())
    return torch.cat(scores)


def count_correct(model: CapsuleModel, test: ImageSet, pairs: str) -> Tensor:
    """Which test images are classified correctly ``[N]``; for pairs, both best classes must be right."""
    if pairs == "none":
        return predict_all(model, test).argmax(1) == torch.as_tensor(test.classes)
    right = []
    device = next(model.parameters()).device
    for canvases, owners in evaluation_pairs(test, model.config, diverse=pairs == "diverse"):
        with torch.no_grad(), fused():
            scores = model.eval()(normalize_images(canvases.to(device), model.config)).scores
        best = scores.cpu().topk(2, 1).indices
        right.append((best.sort(1).values == owners.sort(1).values).all(1))
    return torch.cat(right)


def evaluation_pairs(
    test: ImageSet, config: ModelConfig, *, diverse: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs that a network trained on pairs is tested on: the same ones every time.

    Each test image is the first of one pair; partners and positions come from a fixed seed.

    Yields:
        Canvases ``[n, C, H, W]`` in [0, 1], and the two classes on each ``[n, 2]``.

    Source: Sabour et al. 2017, section 6.1: a pair counts as wrong unless both classes are found.
    """
    rng = torch.Generator().manual_seed(_TEST_SEED)
    size = (config.preprocessing.height, config.preprocessing.width)
    canvases, owners, _ = augment.overlap(
        to_input(test.images, config), torch.as_tensor(test.classes), size, rng, diverse=diverse
    )
    for start in range(0, len(canvases), _BATCH):
        yield canvases[start : start + _BATCH], owners[start : start + _BATCH]


# --- The typical input of the training images ---

_PAIRS = 20_000
_SEED = 1


def typical_input_of_training(
    data: ImageSet, config: ModelConfig, pairs: str = "none"
) -> TypicalInput | None:
    """The range of the training images before augmentation; for pairs, of canvases and of each digit alone.

    Args:
        pairs: as in a recipe.

    Returns:
        The criterion; None if the images are too few or blank.
    """
    if pairs == "none":
        return _measured(data, config)
    few = torch.arange(min(len(data), _PAIRS))
    canvases, _, each = augment.overlap(
        to_input(data.images[few], config),
        torch.as_tensor(data.classes)[few],
        (config.preprocessing.height, config.preprocessing.width),
        torch.Generator().manual_seed(_SEED),
        diverse=pairs == "diverse",
    )
    return _measured(normalize_images(torch.cat([canvases, each[:, 0]]), config), config)


def _measured(images: ImageSet | torch.Tensor, config: ModelConfig) -> TypicalInput | None:
    given = images if isinstance(images, ImageSet) else images.numpy()
    try:
        return typical_input_from(given, config.preprocessing)
    except UsageError:
        return None


_LINES = 25  # how many classes, the least accurate, have a line of text
_WRITTEN = 25  # more classes than this make the cells too small for counts
_INCHES = (4.0, 0.36, 16.0)  # of the picture's side: without classes, for each class, at most
_LONGEST = 24  # characters of a name in the picture


def confusion(
    classes: NDArray[np.int64], found: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """How often each class was predicted for each true class ``[J, J]``; rows are true classes.

    Args:
        classes, found: the true and the predicted class of each image ``[N]``.
        count: J, the number of classes.
    """
    matrix = np.zeros((count, count), np.int64)
    np.add.at(matrix, (classes, found), 1)
    return matrix


def by_class(names: Sequence[str], matrix: NDArray[np.int64]) -> list[str]:
    """One line per class: images classified correctly, and the commonest error.

    The least accurate class comes first; if there are many classes, the most accurate have no line.
    """
    rows = []
    for label, name in enumerate(names):
        row = matrix[label]
        total, right = int(row.sum()), int(row[label])
        if not total:
            rows.append((math.inf, f"  {printable(name)}: not tested"))
            continue
        line = f"  {printable(name)}: {right} of {total}"
        wrong = row.copy()
        wrong[label] = 0
        if most := int(wrong.max()):
            line += f"; {most} taken for {printable(names[int(wrong.argmax())])}"
        rows.append((right / total, line))
    lines = ["right, by class:", *(line for _, line in sorted(rows)[:_LINES])]
    if len(rows) > _LINES:
        lines.append(f"  and {len(rows) - _LINES} more classes, none less accurate")
    return lines


def draw_confusion(names: Sequence[str], matrix: NDArray[np.int64], path: Path) -> None:
    """Write the confusion matrix as a picture; the shade of a cell is its share of the true class.

    Raises:
        EnvironmentProblem: matplotlib is not installed, or the disk is full.
        UsageError: the path cannot be written.
    """
    check_chart(path)
    least, each, most = _INCHES
    side = min(least + each * len(names), most)
    figure = new_figure(side, side)
    axes = figure.add_subplot()
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    size = min(9.0, 60 * side / len(names))
    short = [escape_formulas(n if len(n) <= _LONGEST else f"{n[: _LONGEST - 1]}…") for n in names]
    ticks = range(len(names))
    axes.set_xticks(ticks, short, rotation=90, fontsize=size)
    axes.set_yticks(ticks, short, fontsize=size)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if len(names) <= _WRITTEN:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if share[row, column] > 0.5 else "black"
                axes.text(
                    column, row, str(count), ha="center", va="center", color=colour, fontsize=8
                )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # letters that the font lacks
        save_figure(figure, path)
