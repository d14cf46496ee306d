"""Trying a model before a server gets it: the inputs of its warm-up, and whether it runs batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge import samples
from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.runtime.profiling.profiler import random_inputs
from capsedge.runtime.session import Session
from capsedge.runtime.tensors import fits, shape_text

Arrays = Mapping[str, NDArray[Any]]
Note = Callable[[str], None]
_SAMPLE = "digit-7.png"
_CHANNELS = (1, 3)  # of images that can be read


@dataclass(frozen=True)
class Trial:
    """What a model has run.

    Attributes:
        sample: one prepared image; None for a model of other inputs.
        noise: inputs drawn from a fixed seed, of one row; None where the model runs none.
        batched: whether inputs and outputs begin with one free dimension, the batch.
    """

    sample: Arrays | None
    noise: Arrays | None
    batched: bool


def tried(session: Session, note: Note) -> Trial:
    """Run a model on the inputs of its warm-up, and on a batch of two.

    Args:
        note: told what a person should know.

    Raises:
        UnsupportedModelError: an output has not the shape that the file declares.
    """
    sample, noise = _sample(session), _noise(session, note)
    if sample is not None:
        _check_outputs(session, session.run(sample))
    batched = _first_is_batch(session) and _runs_batches(session, noise, note)
    return Trial(sample, noise, batched)


def run_again(session: Session, trial: Trial) -> None:
    """Run the inputs of a warm-up in another session of the same model.

    Raises:
        CapsedgeError: the session does not run them.
    """
    for arrays in (trial.sample, trial.noise):
        if arrays is not None:
            session.run(arrays)


def _first_is_batch(session: Session) -> bool:
    """Whether every input and output begins with the same free dimension."""
    ports = (*session.inputs, *session.outputs)
    if not all(port.shape and not isinstance(port.shape[0], int) for port in ports):
        return False
    return len({port.shape[0] for port in ports if port.shape[0] is not None}) <= 1


def _noise(session: Session, note: Note) -> Arrays | None:
    """Random inputs that the model runs; whole numbers are zero where random ones are none of its indices."""
    try:
        drawn = random_inputs(session, session.backend.batches.fixed or 1)
        zeros = {
            name: np.zeros_like(values) if values.dtype.kind in "iu" else values
            for name, values in drawn.items()
        }
        try:
            found, outputs = drawn, session.run(drawn)
        except CapsedgeError:
            found, outputs = zeros, session.run(zeros)
    except CapsedgeError as error:
        note(f"{session.path} gets no warm-up with random inputs: {error.what} {error.why}")
        return None
    _check_outputs(session, outputs)
    return found


def _check_outputs(session: Session, found: Arrays) -> None:
    """Refuse a model whose outputs differ from what the server is told of them."""
    for port in session.outputs:
        shape = found[port.name].shape
        if not fits(shape, port.shape):
            raise UnsupportedModelError(
                f"Triton cannot serve {session.path}.",
                f"Its output '{port.name}' is declared as {shape_text(port.shape)} and has the shape "
                f"{shape_text(shape)}.",
                "Write the file again with the shapes of its outputs.",
            )


def _runs_batches(session: Session, noise: Arrays | None, note: Note) -> bool:
    """Whether a batch of two gives two rows; what the file declares may not be what it computes."""
    if noise is None:
        return True
    try:
        found = session.run({name: values.repeat(2, axis=0) for name, values in noise.items()})
    except CapsedgeError as error:
        note(
            f"{session.path} does not run a batch of two, and is served without batching: {error.why}"
        )
        return False
    wrong = [name for name, values in found.items() if values.shape[:1] != (2,)]
    if wrong:
        note(
            f"{session.path} is served without batching: '{wrong[0]}' of two inputs has not two rows"
        )
    return not wrong


def _sample(session: Session) -> Arrays | None:
    prepared = session.metadata.preprocessing if session.metadata else None
    if prepared is None or prepared.channels not in _CHANNELS or len(session.inputs) != 1:
        return None
    (port,) = session.inputs
    image = session.prepare(samples.folder() / _SAMPLE)[None].repeat(
        session.backend.batches.fixed or 1, 0
    )
    return {port.name: image.astype(port.dtype)} if fits(image.shape, port.shape) else None
