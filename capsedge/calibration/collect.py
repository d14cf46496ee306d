"""Check calibration images, run a file on them, and record the ranges that 8 bits must cover."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from capsedge.calibration.ranges import BINS, Histogram
from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError, UsageError
from capsedge.graph.ir import copy_of, values_of
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.load import load_bytes
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.session.session import Session

# --- Runs on samples: one input or several, with a batch or without ---

Array = NDArray[Any]
BATCH = 32  # images per run, whose activations are all in memory


def runs_over_samples(
    session: Session, data: ImageSet, *, padded: bool = True
) -> Iterator[tuple[int, Mapping[str, Array], Mapping[str, Array]]]:
    """Samples, inputs and outputs of every run, in order.

    A file from another tool with a free batch runs on one sample at a time, because it does not state that
    the first axis of its outputs is the batch, or that samples of a batch are independent.

    Args:
        padded: whether, for a file with a fixed batch, an incomplete batch is filled up with its last sample;
            otherwise its samples are left out.
    """
    prepared = session.metadata is not None or data.preprocessing is not None
    if prepared and len(session.inputs) == 1:
        name = session.inputs[0].name
        fixed = session.backend.batches.fixed
        if not padded:
            data = data.first(len(data) - len(data) % (fixed or 1))
        for batch in data.batches(fixed or BATCH):
            if not padded:  # values inside the network need not have a row per image
                yield len(batch), {name: batch}, session.run({name: batch})
                continue
            for images, outputs in session.run_batches(batch, batch_size=BATCH):
                yield len(images), {name: images}, outputs
        return
    check_fits(session, data)
    size = samples_of_a_run(session, data)
    for start in range(0, len(data), size or 1):
        part = range(start, min(start + (size or 1), len(data)))
        if len(part) < (size or 1) and not padded:
            return
        feeds = {
            port.name: _feed(port, values, part, size) for port, values in _arrays(session, data)
        }
        yield len(part), feeds, session.run(feeds)


def samples_of_a_run(session: Session, data: ImageSet) -> int | None:
    """How many samples one run takes; None if the inputs have no axis for them."""
    if any(_whole(port, values) for port, values in _arrays(session, data)):
        return None
    return session.backend.batches.fixed or (1 if session.metadata is None else BATCH)


def check_fits(session: Session, data: ImageSet) -> None:
    """Refuse arrays that do not fit the inputs."""
    for port, values in _arrays(session, data):
        sample = values.shape if _whole(port, values) else (None, *values.shape[1:])
        wanted = (len(values), *port.shape) if _whole(port, values) else port.shape
        fits = not port.shape or (
            len(sample) == len(wanted)
            and all(
                not isinstance(w, int) or w == s
                for w, s in zip(wanted[1:], values.shape[1:], strict=True)
            )
        )
        kinds = {"f": "f", "i": "iu", "u": "iu", "b": "b"}
        kind = port.dtype[0] if port.dtype[0] in kinds else ""
        if not fits or (kind and values.dtype.kind not in kinds[kind]):
            free = ["N", *(d if isinstance(d, int) else "?" for d in wanted[1:])]
            raise UsageError(
                f"The arrays do not fit the model's input '{port.name}'.",
                f"They are {values.dtype} {list(values.shape)}; the model takes {port.dtype} "
                + f"{free}.".replace("'", ""),
                "Pass them in the model's layout, with samples along the first axis.",
            )


def _arrays(session: Session, data: ImageSet) -> list[tuple[Port, Array]]:
    first, *others = session.inputs
    return [(first, data.images), *((port, data.others[port.name]) for port in others)]


def _whole(port: Port, values: Array) -> bool:
    """Whether an input takes one sample as it is: it has one axis less than the array of all samples."""
    return values.ndim == len(port.shape) + 1


def _feed(port: Port, values: Array, part: range, size: int | None) -> Array:
    if size is None:
        sample = values[part.start]
        chosen = sample if _whole(port, values) else sample[None]
    else:
        chosen = values[[min(k, part[-1]) for k in range(part.start, part.start + size)]]
    return np.ascontiguousarray(chosen.astype(port.dtype, copy=False)).reshape(chosen.shape)


# --- Recording the activations of the FP32 file ---


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
    """
    copy = copy_of(model)
    known = {o.name for o in copy.graph.output} | {i.name for i in copy.graph.input}
    # Known shapes are declared, because ONNX Runtime uses them to fold constants and plan
    # memory.
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
            f"{len(data)} {data.noun} are too few for calibration.",
            f"The model has a fixed batch of {fixed} and cannot run fewer at once.",
            f"Give {fixed} or more, or export the model with a free batch.",
        )
    # The first dimension of inner tensors need not be the batch, so the padding of an incomplete batch could
    # not be removed from them.
    for count, feeds, outputs in runs_over_samples(session, data, padded=False):
        tensors_by_name = {**outputs, **feeds}
        yield count, {t: tensors_by_name[t] for t in tensors}


def histograms(
    model: onnx.ModelProto,
    tensors: list[str],
    data: ImageSet,
    progress: Progress = silent,
) -> dict[str, Histogram]:
    """Histogram of every tensor over all images, in two runs: first the range, then the counts."""
    limits = magnitudes(model, tensors, data)
    counts = {t: np.zeros(BINS, np.int64) for t in tensors}
    sums: dict[str, NDArray[np.float64]] = {}
    rows = dict.fromkeys(tensors, 0)  # more than the images if the batch is merged with positions
    done = 0
    for number, values in watch(model, tensors, data):
        for t in tensors:
            if values[t].ndim == 4:
                sums[t] = sums.get(t, 0) + values[t].mean(axis=(2, 3), dtype=np.float64).sum(0)
                rows[t] += len(values[t])
            low, high = limits[t]
            if high > low:
                counts[t] += np.histogram(_exact(values[t], low, high), BINS, (low, high))[0]
            else:
                counts[t][0] += values[t].size
        done += number
        progress("calibrating", done, len(data))
    none = np.zeros(0)
    return {
        t: Histogram(*limits[t], counts[t], sums.get(t, none) / max(rows[t], 1)) for t in tensors
    }


def _exact(values: NDArray[Any], low: float, high: float) -> NDArray[Any]:
    """The values, in FP64 where FP32 does not tell the edges of the bins apart, as near 101,325 Pa."""
    step = np.spacing(np.float32(max(abs(low), abs(high))))
    return values.astype(np.float64) if high - low < 4 * BINS * step else values


def magnitudes(
    model: onnx.ModelProto, tensors: list[str], data: ImageSet, finite: bool = True
) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of every tensor over all images; 0 and 0 for one without elements.

    Args:
        finite: False lets values be infinite, as masks are, or NaN: such a tensor has infinite limits.
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


# --- Requirements on calibration and evaluation images ---


def check_calibration(
    data: ImageSet, subject: int | None = None, risk: str = "ranges may be too small"
) -> list[str]:
    """Refuse images without a useful range, and return warnings; they were drawn from ``subject``."""
    if len(data) < 2:
        one = data.noun.removesuffix("s")
        subject_text = f"One {one} is" if subject in (None, 1) else f"{subject} {data.noun} are"
        kept = (
            ""
            if subject in (None, 1)
            else f"Of the {subject}, 1 is left for calibration; the others are for the comparison. "
        )
        raise UsageError(
            f"{subject_text} not enough for calibration.",
            f"{kept}The range of every activation would come from a single {one}, and other {data.noun} "
            "would be clipped.",
            f"Provide 100 or more {data.noun} like those that the model will see.",
        )
    if all(float(np.ptp(batch)) == 0.0 for batch in data.batches(256)):
        raise UsageError(
            f"The calibration {data.noun} are constant.",
            f"Every value of the {len(data)} {data.noun} of {data.source} is the same within its batch.",
            f"Provide {data.noun} like those that the model will see.",
        )
    if len(data) < 32:
        return [f"only {len(data)} calibration {data.noun}: {risk}; use 100 or more"]
    return []


def check_disjoint(calibration: ImageSet, evaluation: ImageSet) -> None:
    """Refuse to report accuracy on calibration images."""
    common = int(evaluation.occurs_in(calibration).sum())
    if common:
        raise UsageError(
            "Accuracy would be reported on images that were used for calibration.",
            f"{common} of {len(evaluation)} evaluation images are among the {len(calibration)} "
            "calibration images.",
            "Pass other images as `data=`.",
            command="Pass other images with --data.",
        )
