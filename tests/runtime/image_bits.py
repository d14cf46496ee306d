"""The images of ``spec/vectors/images.json``: how they are prepared, and the bits of the results."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.metadata.metadata import Preprocessing
from tests.vectors import read


@dataclass(frozen=True)
class Bits:
    """A picture, how it is prepared, and the SHA-256 of the result in little-endian FP32."""

    height: int
    width: int
    invert: bool
    preprocessing: Preprocessing
    sha256: str

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """RGBA: ``(i * i * 7 + i * 13) >> 3`` mod 256 over the flat index i."""
        i = np.arange(self.height * self.width * 4, dtype=np.int64)
        values = (((i * i * 7 + i * 13) >> 3) & 255).astype(np.uint8)
        return values.reshape(self.height, self.width, 4)

    def agree(self, found: NDArray[np.float32] | bytes) -> bool:
        """Whether prepared values, or their bytes, are the specification's."""
        data = found if isinstance(found, bytes) else found.astype("<f4").tobytes()
        return hashlib.sha256(data).hexdigest() == self.sha256


def _bits(case: dict[str, Any]) -> Bits:
    return Bits(**{**case, "preprocessing": Preprocessing(**case["preprocessing"])})


BITS = tuple(map(_bits, read("images.json")["cases"]))
