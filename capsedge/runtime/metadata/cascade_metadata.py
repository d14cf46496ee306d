"""A cascade: a small network decides, and escalates the images that it is unsure of to a large one.

docs/how-to/cascade.md explains it; docs/reference/metadata.md specifies what a file states.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from capsedge.spec import limits

CASCADE_KEY = "capsedge.cascade"  # key in an ONNX file's metadata
CONFIDENCE = 0.95  # confidence of the lower bound on the agreement


@dataclass(frozen=True)
class CascadeParent:
    """A file that a cascade was made from.

    Attributes:
        file, sha256, bytes: its name, checksum and size.
        precision: precision of its weights.
        checkpoint_sha256: checksum of its checkpoint; empty if it states none.
    """

    file: str
    sha256: str
    bytes: int
    precision: str = "fp32"
    checkpoint_sha256: str = ""

    def __post_init__(self) -> None:
        if (
            max(len(self.file), len(self.sha256), len(self.checkpoint_sha256))
            > limits.NAME_CHARACTERS
        ):
            raise ValueError("the name or checksum of a parent is too long")

    def __str__(self) -> str:
        return f"{self.file} ({self.precision}, sha256 {self.sha256[:16]})"


@dataclass(frozen=True)
class Cascade:
    """The criterion of a cascade, and what it was measured to do.

    Attributes:
        small, large: the files it was made from.
        margin: an image is escalated if the small network's best score exceeds its second best by less (for
            several labels: if a score is closer than this to the threshold).
        score: an image is also escalated if its best score is below this; None for no such criterion.
        min_agreement: agreement with the large network that was asked for.
        agreement: share of the held-out images on which both decided alike.
        agreement_at_least: one-sided lower bound on it, of 95 % confidence (Clopper and Pearson 1934).
        share: share of the held-out images that were escalated.
        images: number of held-out images.
        data_sha256: checksum of these images.
        cost: time of the small network for an image, relative to the large one's, as measured when it was
            made. An escalated image takes ``1 + cost``.
    """

    small: CascadeParent
    large: CascadeParent
    margin: float
    score: float | None
    min_agreement: float
    agreement: float
    agreement_at_least: float
    share: float
    images: int
    data_sha256: str
    cost: float

    def __post_init__(self) -> None:
        shares = (self.min_agreement, self.agreement, self.agreement_at_least, self.share)
        if not all(0.0 <= share <= 1.0 for share in shares):
            raise ValueError("an agreement or share is not from 0 to 1")
        thresholds = (self.margin, 0.0 if self.score is None else self.score)
        if not all(map(math.isfinite, (*thresholds, self.cost))) or self.cost < 0:
            raise ValueError(
                "the thresholds and the cost must be finite, and the cost not negative"
            )
        if self.images < 1 or len(self.data_sha256) > 64:
            raise ValueError("the held-out images are not stated as a number and a checksum")

    @property
    def expected(self) -> float:
        """Expected time of an image, relative to the large network alone."""
        return self.cost + self.share

    @property
    def worst(self) -> float:
        """Time of an escalated image, for which both networks run, relative to the large network alone."""
        return 1.0 + self.cost

    @property
    def criterion(self) -> str:
        """Escalated are images with ..."""
        margin = f"margin below {self.margin:.6g}"
        return margin if self.score is None else f"{margin}, or best score below {self.score:.6g}"

    def facts(self) -> list[tuple[str, str]]:
        """Lines of text for the user."""
        return [
            ("cascade", f"{self.small.file}, then {self.large.file} for escalated images"),
            ("small network", str(self.small)),
            ("large network", str(self.large)),
            ("escalated if", self.criterion),
            ("agreement", self.agreed),
            ("escalated", f"{self.share:.2%} of these images"),
            ("time", self.times),
        ]

    @property
    def agreed(self) -> str:
        """The agreement, its bound, and what was asked for."""
        return (
            f"{self.agreement:.4%} with the large network on {self.images:,} images, at least "
            f"{self.agreement_at_least:.4%} with {CONFIDENCE:.0%} confidence; wanted {self.min_agreement:.4%}"
        )

    @property
    def times(self) -> str:
        """The expected and the worst time, relative to the large network alone."""
        return (
            f"{self.expected:.2f} of the large network's expected; at worst {self.worst:.2f}, if all images "
            "are escalated and both networks run"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)
