"""Run the FP32 file on the calibration images and record its activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from capsedge.calibration.observers import BINS, Histogram
from capsedge.calibration.running import runs, samples_of_a_run
from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError, UsageError
from capsedge.graph.proto import copy_of
from capsedge.graph.shapes import values_of
from capsedge.runtime.load import load_bytes

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
        ops: as for ``capsedge.load``.

    Raises:
        UsageError: the file's fixed batch is larger than there are images.
    """
    copy = copy_of(model)
    known = {o.name for o in copy.graph.output} | {i.name for i in copy.graph.input}
    # With their shapes, as far as they are known: ONNX Runtime folds and plans by what outputs declare.
    values = values_of(model)
    copy.graph.output.extend(
        values.get(t, helper.make_tensor_value_info(t, TensorProto.FLOAT, None))
        for t in tensors
        if t not in known
    )
    session = load_bytes(copy.SerializeToString(), "the watched model", ops=ops)
    fixed = None if samples_of_a_run(session, data) is None else session.backend.batches.fixed
    if fixed is not None and len(data) < fixed:
        raise UsageError(
            f"{len(data)} images are too few to calibrate on.",
            f"The model has a fixed batch of {fixed} and cannot run fewer at once.",
            f"Give {fixed} or more, or export the model with a free batch.",
        )
    # The first dimension of inner tensors need not be the batch, so that the padding of an incomplete batch
    # could not be removed from them.
    for count, feeds, outputs in runs(session, data, padded=False):
        found = {**outputs, **feeds}
        yield count, {t: found[t] for t in tensors}


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
    rows = dict.fromkeys(
        tensors, 0
    )  # which are more than images where a batch is folded with positions
    done = 0
    for number, values in watch(model, tensors, data):
        for t in tensors:
            if values[t].ndim == 4:
                sums[t] = sums.get(t, 0) + values[t].mean(axis=(2, 3), dtype=np.float64).sum(0)
                rows[t] += len(values[t])
            low, high = limits[t]
            if high > low:
                counts[t] += np.histogram(values[t], BINS, (low, high))[0]
            else:
                counts[t][0] += values[t].size
        done += number
        if progress is not None:
            progress(done, len(data))
    none = np.zeros(0)
    return {
        t: Histogram(*limits[t], counts[t], sums.get(t, none) / max(rows[t], 1)) for t in tensors
    }


def magnitudes(
    model: onnx.ModelProto, tensors: list[str], data: ImageSet, finite: bool = True
) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of every tensor over all images; 0 and 0 for one without elements.

    Args:
        finite: False lets values be infinite, as masks are, or NaN: such a tensor has infinite limits.

    Raises:
        ArtefactError: a tensor has values that are NaN or infinite, and may not.
    """
    limits: dict[str, tuple[float, float]] = {}
    for _, values in watch(model, tensors, data):
        for t in tensors:
            if values[t].size == 0:
                continue
            low, high = float(values[t].min()), float(values[t].max())
            if not np.isfinite([low, high]).all():
                if not finite:
                    limits[t] = (-np.inf, np.inf)
                    continue
                raise ArtefactError(
                    "The model computes NaN or infinite values on the calibration images.",
                    f"The first is in the tensor '{t}'.",
                    "Check the images, and the file with `capsedge.verify`.",
                    command="Check the images, and the file with `capsedge verify`.",
                )
            seen = limits.get(t, (low, high))
            limits[t] = (min(low, seen[0]), max(high, seen[1]))
    return {t: limits.get(t, (0.0, 0.0)) for t in tensors}
