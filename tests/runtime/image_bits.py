"""The bits of prepared images that the specification fixes, for other languages and machines."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.metadata import Preprocessing


@dataclass(frozen=True)
class Bits:
    """A picture, how it is prepared, and the start of the SHA-256 of the result in little-endian FP32."""

    size: tuple[int, int]
    target: tuple[int, int]
    rule: str
    invert: bool
    digest: str

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """RGBA: ``(i * i * 7 + i * 13) >> 3`` mod 256 over the flat index i."""
        i = np.arange(self.size[0] * self.size[1] * 4, dtype=np.int64)
        return (((i * i * 7 + i * 13) >> 3) & 255).astype(np.uint8).reshape(*self.size, 4)

    @property
    def preprocessing(self) -> Preprocessing:
        """To grey, normalized."""
        return Preprocessing(*self.target, 1, mean=(0.1307,), std=(0.3081,), resize=self.rule)

    def agree(self, found: bytes) -> bool:
        """Whether prepared bytes are the specification's."""
        return hashlib.sha256(found).hexdigest().startswith(self.digest)


BITS = (
    Bits((61, 47), (28, 28), "stretch", False, "8493b69b9b89d514"),
    Bits((61, 47), (28, 28), "pad", True, "3a27027240be2f98"),
    Bits((20, 131), (24, 36), "crop", False, "6c8f53b9092df6a7"),
    Bits((9, 7), (32, 32), "stretch", True, "5db4c7fb6eff8bc6"),
)
