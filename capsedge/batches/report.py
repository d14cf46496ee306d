"""What ``capsedge.batch`` returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from capsedge.runtime.summary import Row, Summarized, Summary


@dataclass(frozen=True, repr=False)
class BatchReport(Summarized):
    """A finished table of answers.

    Attributes:
        model: its path, name or address.
        source: where the images are.
        output: the table: a file, or a folder of parts.
        kind: of the source: ``folder``, ``parquet``, ``tar``, ``idx``, ``npz`` or ``npy``.
        images: rows of the table.
        failed: rows with an error.
        nothing: rows of images with nothing to see.
        parts: parts that the source was read in.
        resumed: those of them that an earlier run had finished.
        seconds: time that this run took.
        warnings: why the model's scores may say nothing.
    """

    model: str
    source: str
    output: str
    kind: str
    images: int
    failed: int
    nothing: int
    parts: int
    resumed: int
    seconds: float
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def _summary(self) -> Summary:
        line = f"{self.output}: {self.images:,} images, {self.failed:,} with an error"
        rows = [
            Row("model", self.model), Row("source", f"{self.source} ({self.kind})"),
            Row("images", f"{self.images:,}"), Row("with an error", f"{self.failed:,}"),
            Row("nothing to see", f"{self.nothing:,}"),
            Row("resumed", f"{self.resumed} of {self.parts} parts"), Row("seconds", f"{self.seconds:.1f}"),
            *(Row("warning", warning) for warning in self.warnings),
        ]  # fmt: skip
        return Summary("BatchReport", [line], rows)
