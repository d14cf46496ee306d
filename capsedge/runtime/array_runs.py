"""Run a model on any number of rows of prepared arrays, such as ids of histories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.runner import run_size
from capsedge.runtime.session import Session


def run_rows(
    session: Session, arrays: Mapping[str, NDArray[Any]], batch_size: int | None = None
) -> dict[str, NDArray[Any]]:
    """Every output for every row.

    Args:
        arrays: all inputs by name, ``[n, ...]`` each; whole numbers are cast to the input's type if it holds
            them.
        batch_size: rows per run; None for 64. A file with a fixed batch uses that, and its last run is filled
            up.

    Returns:
        The outputs by name, ``[n, ...]``.

    Raises:
        UsageError, ShapeError: as `Session.run`; or the inputs have different numbers of rows, or none.
    """
    given = {port.name: _cast(arrays[port.name], port.dtype) for port in session.inputs}
    counts = {name: len(x) if x.ndim else 0 for name, x in given.items()}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UsageError(
            "The inputs do not have the same number of rows, or have none.",
            f"Rows: {told}.",
            "Pass one row of each input for every sample.",
        )
    rows = next(iter(counts.values()))
    size = run_size(session.backend.batches, batch_size)
    found: list[dict[str, NDArray[Any]]] = []
    for start in range(0, rows, size):
        at = np.arange(start, min(start + size, rows))
        filled = np.resize(at, max(len(at), session.backend.batches.smallest))
        outputs = session.run({name: x[filled] for name, x in given.items()})
        found.append({name: value[: len(at)] for name, value in outputs.items()})
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def _cast(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert numbers of the same kind to the type of an input; `Session.run` refuses any others."""
    kinds = {"f": "f", "i": "iu", "u": "iu"}.get(np.dtype(dtype).kind, "")
    if array.dtype.kind not in kinds:
        return array
    cast = array.astype(dtype, copy=False)
    return cast if array.dtype.kind == "f" or np.array_equal(cast, array) else array
