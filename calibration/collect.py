"""Run the FP32 file on the calibration images and record its activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from capsedge.calibration.observers import BINS, Histogram
from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError, UsageError
from capsedge.graph.proto import copy_of
from capsedge.runtime.loading import load_bytes

BATCH = 32  # images per run, whose activations are all in memory
Progress = Callable[[int, int], None]


def watch(
    model: onnx.ModelProto,
    tensors: list[str],
    data: ImageSet,
    ops: str = "auto",
) -> Iterator[tuple[int, dict[str, NDArray[np.float32]]]]:
    """Values of some tensors, batch by batch, with the number of images.

    If the file has a fixed batch, images beyond a multiple of it are left out.

    Args:
        ops: as for ``runtime.loading.load``.

    Raises:
        UsageError: the file's fixed batch is larger than there are images.
    """
    copy = copy_of(model)
    known = {o.name for o in copy.graph.output} | {i.name for i in copy.graph.input}
    copy.graph.output.extend(
        helper.make_tensor_value_info(t, TensorProto.FLOAT, None) for t in tensors if t not in known
    )
    source = copy.graph.input[0].name
    session = load_bytes(copy.SerializeToString(), "the watched model", ops=ops)
    fixed = session.batch
    if fixed is not None and len(data) < fixed:
        raise UsageError(
            f"{len(data)} images are too few to calibrate on.",
            f"The model was exported with `--batch {fixed}` and cannot run fewer at once.",
            f"Give {fixed} or more, or export the model with a free batch.",
        )
    # The first dimension of inner tensors need not be the batch, so that the padding of an incomplete batch
    # could not be removed from them.
    whole = data.first(len(data) - len(data) % (fixed or 1))
    for images, outputs in session.run_batches(whole.inputs(), batch_size=BATCH):
        found = {**outputs, source: images}
        yield len(images), {t: found[t] for t in tensors}


def histograms(
    model: onnx.ModelProto,
    tensors: list[str],
    data: ImageSet,
    progress: Progress | None = None,
) -> dict[str, Histogram]:
    """Histogram of every tensor over all images, in two runs: first the range, then the counts.

    Raises:
        ArtefactError: a tensor has values that are NaN or infinite.
    """
    limits = magnitudes(model, tensors, data)
    counts = {t: np.zeros(BINS, np.int64) for t in tensors}
    sums: dict[str, NDArray[np.float64]] = {}
    done = 0
    for number, values in watch(model, tensors, data):
        for t in tensors:
            if values[t].ndim == 4:
                sums[t] = sums.get(t, 0) + values[t].mean(axis=(2, 3), dtype=np.float64).sum(0)
            low, high = limits[t]
            if high > low:
                counts[t] += np.histogram(values[t], BINS, (low, high))[0]
            else:
                counts[t][0] += values[t].size
        done += number
        if progress is not None:
            progress(done, len(data))
    none = np.zeros(0)
    return {t: Histogram(*limits[t], counts[t], sums.get(t, none) / max(done, 1)) for t in tensors}


def magnitudes(
    model: onnx.ModelProto, tensors: list[str], data: ImageSet
) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of every tensor over all images.

    Raises:
        ArtefactError: a tensor has values that are NaN or infinite.
    """
    limits: dict[str, tuple[float, float]] = {}
    for _, values in watch(model, tensors, data):
        for t in tensors:
            if values[t].size == 0:
                continue
            low, high = float(values[t].min()), float(values[t].max())
            if not np.isfinite([low, high]).all():
                raise ArtefactError(
                    "The model computes NaN or infinite values on the calibration images.",
                    f"The first is in the tensor '{t}'.",
                    "Check the file with `capsedge verify`, and the images.",
                )
            seen = limits.get(t, (low, high))
            limits[t] = (min(low, seen[0]), max(high, seen[1]))
    return limits
