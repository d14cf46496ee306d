"""What is remembered of a tensor, which itself is not kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FEW = 1 << 14  # elements of a value that are kept


@dataclass(frozen=True)
class Seen:
    """What is kept of a value.

    Attributes:
        shape, kind, nbytes: of it; no kind of what is no tensor.
        few: evenly spaced elements, all of a small one; None of what is not FP32.
    """

    shape: tuple[int, ...]
    kind: np.dtype[Any] | None
    nbytes: int
    few: NDArray[Any] | None

    @classmethod
    def of(cls, value: Any) -> Seen:
        array = np.asarray(value)
        few = None
        if array.dtype == np.float32:
            few = array.reshape(-1)[:: max(1, array.size // _FEW)].copy()
        kind = array.dtype if isinstance(value, (np.ndarray, np.generic)) else None
        return cls(tuple(np.shape(value)), kind, array.nbytes, few)

    def resembles(self, other: Seen) -> bool:
        """Whether two values seem the same, but for rounding."""
        if self.few is None or other.few is None or self.shape != other.shape:
            return False
        near = 1e-6 * np.abs(other.few).max(initial=0)
        return bool(np.allclose(self.few, other.few, 1e-5, near))
