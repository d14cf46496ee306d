"""Run the FP32 file on the calibration images and watch its activations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from capsedge.calibration.data import Images
from capsedge.calibration.observers import BINS, Histogram
from capsedge.errors import ArtefactError
from capsedge.runtime.session import load

BATCH = 32
Progress = Callable[[int, int], None]


def watch(
    model: onnx.ModelProto, tensors: list[str], data: Images, batch: int | None = None
) -> Iterator[tuple[int, dict[str, NDArray[np.float32]]]]:
    """Values of some tensors, batch by batch, with the number of images.

    Args:
        batch: of a file with a fixed batch; the images beyond a multiple of it are left out.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {o.name for o in copy.graph.output} | {i.name for i in copy.graph.input}
    copy.graph.output.extend(
        helper.make_tensor_value_info(t, TensorProto.FLOAT, None) for t in tensors if t not in known
    )
    source = copy.graph.input[0].name
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "watched.onnx"
        path.write_bytes(copy.SerializeToString())
        session = load(path)
    for images in data.batches(batch or BATCH):
        if batch is not None and len(images) < batch:
            return
        found = {**session.run(images), source: images}
        yield len(images), {t: found[t] for t in tensors}


def histograms(
    model: onnx.ModelProto,
    tensors: list[str],
    data: Images,
    batch: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Histogram]:
    """Histogram of every tensor over all images, in two runs: first the range, then the counts.

    Raises:
        ArtefactError: a tensor has values that are NaN or infinite.
    """
    limits = magnitudes(model, tensors, data, batch)
    counts = {t: np.zeros(BINS, np.int64) for t in tensors}
    sums: dict[str, NDArray[np.float64]] = {}
    done = 0
    for number, values in watch(model, tensors, data, batch):
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
    model: onnx.ModelProto, tensors: list[str], data: Images, batch: int | None = None
) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of every tensor over all images.

    Raises:
        ArtefactError: a tensor has values that are NaN or infinite.
    """
    limits: dict[str, tuple[float, float]] = {}
    for _, values in watch(model, tensors, data, batch):
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
