"""The report of ``capsedge.cascade``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsedge.runtime.cascade import CONFIDENCE, Cascade
from capsedge.runtime.quantities import size
from capsedge.runtime.summary import Row, Summarized, Summary, short


@dataclass(frozen=True, repr=False)
class CascadeReport(Summarized):
    """What a cascade is, and what it was measured to do.

    Attributes:
        output: the file; None if none was requested, or the cascade did not pass.
        cascade: parents, thresholds and measurements, as the file states them.
        calibration_images: number of images that the thresholds were chosen on.
        small_agreement: share of the held-out images on which the small network alone decides like the large.
        deformation: strength of the deformed copies that the thresholds were chosen on, up to 1.
        deformed_agreement: share of deformed copies of the held-out images on which the cascade decides like
            the large network.
        data: the images that it was measured on, in words.
        max_share: largest share of images that was allowed to take the long way.
        failures: what is not met, in sentences; empty if it passed.
        warnings: warnings, and outputs that the cascade does not have.
        model: the file's bytes.
    """

    output: Path | None
    cascade: Cascade
    calibration_images: int
    small_agreement: float
    deformation: float
    deformed_agreement: float
    data: str
    max_share: float
    failures: tuple[str, ...]
    warnings: tuple[str, ...]
    model: bytes = field(repr=False)

    @property
    def passed(self) -> bool:
        """Whether the cascade reaches the agreement, and is more than the large network by a detour."""
        return not self.failures

    def _summary(self) -> Summary:
        told = f"{'PASSED' if self.passed else 'FAILED'}: {self.cascade.agreed}"
        rows = [Row(name, value) for name, value in self.rows()]
        rows += [Row("warning", warning) for warning in self.warnings]
        name = "not written" if self.output is None else self.output.name
        return Summary("CascadeReport", [f"{short(name)}: {size(len(self.model))}", told], rows)

    def rows(self) -> list[tuple[str, str]]:
        """Lines for a person."""
        file = "not written" if self.output is None else str(self.output)
        alone = f"{self.small_agreement:.4%} with the large network"
        return [
            ("file", f"{file}, {size(len(self.model))}"),
            *self.cascade.facts(),
            (
                "on deformed copies",
                f"{self.deformed_agreement:.4%}, deformed by {self.deformation:g}",
            ),
            ("small network alone", alone),
            ("measured on", f"{self.data}; the networks may have been trained on these images"),
            ("thresholds from", f"{self.calibration_images:,} other images and deformed copies"),
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "schema": 1,
            "output": None if self.output is None else str(self.output),
            "passed": self.passed,
            "failures": list(self.failures),
            "bytes": len(self.model),
            "cascade": self.cascade.to_dict(),
            "confidence": CONFIDENCE,
            "calibration_images": self.calibration_images,
            "small_agreement": self.small_agreement,
            "deformation": self.deformation,
            "deformed_agreement": self.deformed_agreement,
            "data": self.data,
            "max_share": self.max_share,
            "expected_time": self.cascade.expected,
            "worst_time": self.cascade.worst,
            "warnings": list(self.warnings),
        }
