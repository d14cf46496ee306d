"""The calibration table: range and histogram of every activation, and their origin."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.calibration.observers import Histogram, observer
from capsedge.errors import ArtefactError
from capsedge.runtime.files import documents
from capsedge.runtime.files.documents import Malformed, decode
from capsedge.runtime.files.writing import write_text

SCHEMA = 2
PREPARED_DIGEST = 1  # in this schema data_sha256 is the digest of prepared inputs
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Entry:
    """One tensor: the range that its 8 bits cover, and the histogram that the range was chosen from."""

    low: float
    high: float
    histogram: Histogram


@dataclass(frozen=True)
class Table:
    """Ranges of activations.

    Attributes:
        model_sha256: of the FP32 file.
        data_sha256: of the calibration images, as computed by `ImageSet.digest`.
        method: ``minmax``, ``percentile``, ``entropy`` or ``mse``.
        images: number of calibration images.
        source: where the images came from.
        entries: entries by tensor name.
        schema: schema of the file that the table was read from.
    """

    model_sha256: str
    data_sha256: str
    method: str
    images: int
    source: str
    entries: dict[str, Entry] = field(default_factory=dict)
    schema: int = SCHEMA

    @classmethod
    def from_histograms(
        cls,
        model_sha256: str,
        data_sha256: str,
        method: str,
        images: int,
        source: str,
        histograms: dict[str, Histogram],
    ) -> Table:
        """Choose every range with a method."""
        choose = observer(method)
        entries = {name: Entry(*choose(h), h) for name, h in histograms.items()}
        return cls(model_sha256, data_sha256, method, images, source, entries)

    def check(
        self,
        model_sha256: str,
        data_sha256: str,
        method: str,
        tensors: Iterable[str],
        path: Path | str,
    ) -> None:
        """Refuse a table for another model, other data or another method, or without one of the tensors.

        Raises:
            ArtefactError: the table is stale or incomplete, or its digest of the data is of an older kind.
        """
        _check_same("model", self.model_sha256, model_sha256, path)
        _check_same("method", self.method, method, path)
        if self.schema == PREPARED_DIGEST:
            raise ArtefactError(
                f"The calibration table {path} cannot be matched to these images.",
                "It has an older digest, of prepared inputs instead of stored images and labels. "
                "Model and method are the same.",
                _anew(path),
            )
        _check_same("calibration data", self.data_sha256, data_sha256, path)
        missing = [name for name in tensors if name not in self.entries]
        if missing:
            raise _damaged(path, f"It has no entry for '{missing[0]}'")

    def save(self, path: Path | str) -> None:
        """Write the table as JSON.

        Raises:
            UsageError: the path cannot be written.
        """
        document: dict[str, Any] = {
            "schema": self.schema,
            "model_sha256": self.model_sha256,
            "data_sha256": self.data_sha256,
            "method": self.method,
            "images": self.images,
            "source": self.source,
            "tensors": {
                name: {
                    "low": e.low,
                    "high": e.high,
                    "histogram": {
                        "low": e.histogram.low,
                        "high": e.histogram.high,
                        "counts": e.histogram.counts.tolist(),
                        "means": e.histogram.means.tolist(),
                    },
                }
                for name, e in self.entries.items()
            },
        }
        write_text(path, json.dumps(document) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> Table:
        """Read a table.

        Raises:
            UsageError: there is no such file.
            ArtefactError: it is damaged or of another schema.
        """
        try:
            document = decode(_Document, documents.read(Path(path)))
            if document.schema not in (PREPARED_DIGEST, SCHEMA):
                raise Malformed(f"schema {document.schema}; known: {PREPARED_DIGEST} and {SCHEMA}")
        except Malformed as error:
            raise _damaged(path, str(error)) from error
        return cls(
            document.model_sha256,
            document.data_sha256,
            document.method,
            document.images,
            document.source,
            {name: entry.read() for name, entry in document.tensors.items()},
            document.schema,
        )


@dataclass(frozen=True)
class _StoredHistogram:
    low: float
    high: float
    counts: list[int]
    means: list[float]

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)
        if any(abs(mean) > _LARGEST for mean in self.means):
            raise ValueError("a mean beyond the range of FP32")
        if not self.counts or min(self.counts) < 0 or sum(self.counts) >= 2**63:
            raise ValueError("bad counts")


@dataclass(frozen=True)
class _StoredEntry:
    low: float
    high: float
    histogram: _StoredHistogram

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def read(self) -> Entry:
        """The entry, with arrays."""
        h = self.histogram
        counts, means = np.array(h.counts, np.int64), np.array(h.means, np.float64)
        return Entry(self.low, self.high, Histogram(h.low, h.high, counts, means))


@dataclass(frozen=True)
class _Document:
    """A table as stored in its file."""

    schema: int
    model_sha256: str
    data_sha256: str
    method: str
    images: int
    source: str
    tensors: dict[str, _StoredEntry]


def _check_same(name: str, mine: str, current: str, path: Path | str) -> None:
    if mine != current:
        raise ArtefactError(
            f"The calibration table {path} is stale.",
            f"It was made for another {name}: {mine[:16]}, now {current[:16]}.",
            _anew(path),
        )


def _anew(path: Path | str) -> str:
    return f"Delete it to calibrate anew: rm {shlex.quote(str(path))}"


def _check_range(low: float, high: float) -> None:
    if not -_LARGEST <= low <= high <= _LARGEST:
        raise ValueError(f"the range {low:g} to {high:g}")


def _damaged(path: Path | str, why: str) -> ArtefactError:
    return ArtefactError(
        f"{path} is not a readable calibration table.",
        f"{why}.",
        f"Delete it: rm {shlex.quote(str(path))}",
    )
