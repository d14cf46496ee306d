"""Running a file on a set of samples: one input or several, with a batch or without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import ImageSet
from capsedge.errors import UsageError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.session import Session

Array = NDArray[Any]
BATCH = 32  # images per run, whose activations are all in memory


def runs(
    session: Session, data: ImageSet, *, padded: bool = True
) -> Iterator[tuple[int, Mapping[str, Array], Mapping[str, Array]]]:
    """Samples, inputs and outputs of every run, in order.

    A file of another tool with a free batch runs on one sample at a time: nothing says that its outputs have
    the batch as their first axis, or that they do not depend on the other samples of a batch.

    Args:
        padded: whether an incomplete batch of a file with a fixed one is filled up with its last sample;
            otherwise its samples are left out.

    Raises:
        UsageError: the arrays do not fit the inputs.
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
    """How many samples one run takes; None where the inputs have no axis for them."""
    if any(_whole(port, values) for port, values in _arrays(session, data)):
        return None
    return session.backend.batches.fixed or (1 if session.metadata is None else BATCH)


def check_fits(session: Session, data: ImageSet) -> None:
    """Refuse arrays that the inputs do not take.

    Raises:
        UsageError: the type or the shape of one does not fit.
    """
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
                "Give them as the model takes them; the first axis counts the samples.",
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
