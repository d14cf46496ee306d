"""Check what a file states about its rows: that the result for one does not depend on the others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import CapsedgeError
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.session.session import Session

Arrays = dict[str, NDArray[np.generic]]

_LENGTH = 50  # of a free axis without a limit
_ROWS = 4  # of a batch that is checked
# Relative to the largest value of a row: what may change if the other rows are exchanged, which leaves all
# shapes as they are, and if there are none. Less than _ROUNDING may always.
_EXCHANGED, _ALONE = 1e-4, 1e-2
_ROUNDING = 1e-6


def random_rows(session: Session, size: int, seed: int) -> Arrays:
    """Rows for all inputs of a file; free axes have the longest length that it states, or 50.

    Floats are from 0 to 1. Indices are 0, since parts may index smaller tables than the file states; other
    integers are 1.
    """
    rng = np.random.default_rng(seed)
    engine = session.backend.engine_metadata
    length = engine.length[1] if engine is not None and engine.length else 0
    return {port.name: _rows_of(port, size, length, rng) for port in session.inputs}


def _rows_of(port: Port, size: int, length: int, rng: np.random.Generator) -> NDArray[np.generic]:
    """Rows of an input; ``length`` is that of free axes, 0 for the longest that the file states."""
    longest = port.longest or (0,) * len(port.shape)
    sizes = [
        s if isinstance(s, int) else length or most or _LENGTH
        for s, most in zip(port.shape[1:], longest[1:], strict=True)
    ]
    if port.entries is not None:
        return np.zeros((size, *sizes), port.dtype)
    if port.dtype.startswith("float"):
        return rng.random((size, *sizes)).astype(port.dtype)
    return np.ones((size, *sizes), port.dtype)


def contradiction(session: Session) -> str:
    """Why a file's statement that its rows are independent is wrong; empty if nothing speaks against it.

    A row must have the same results among other rows and, if the file takes a single one, by itself. This
    finds mistakes; a file that is made to deceive can behave on these rows.
    """
    batches = session.backend.batches
    size = max(batches.smallest, min(_ROWS, batches.largest or _ROWS))
    first, other = random_rows(session, size, 1), random_rows(session, size, 2)
    mixed = {name: np.concatenate([x[:1], other[name][1:]]) for name, x in first.items()}
    try:
        found = session.run(first)
        why = _difference(found, session.run(mixed), _EXCHANGED)
        if not why and batches.smallest == 1:
            alone = session.run({name: x[:1] for name, x in first.items()})
            why = _difference(found, alone, _ALONE)
    except CapsedgeError as error:
        return f"random rows cannot be run: {error.why.rstrip('.')}"
    return why


def _difference(one: Mapping[str, object], other: Mapping[str, object], tolerance: float) -> str:
    """The output whose first row differs between two runs; empty if none does."""
    for name in one:
        a, b = (np.asarray(run[name])[:1].astype(np.float64) for run in (one, other))
        if a.shape != b.shape:
            return f"output '{name}' of a row has another shape among other rows"
        both = np.isfinite(a) & np.isfinite(b)
        off = np.abs(a - b)[both].max(initial=0.0)
        if off > tolerance * np.abs(a[both]).max(initial=0.0) + _ROUNDING:
            return f"output '{name}' of a row differs by {off:.3g} among other rows"
    return ""
