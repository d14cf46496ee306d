"""The calibration table: the range and the histogram of every activation, and what they were taken from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from capsedge.calibration.observers import Histogram, observer
from capsedge.errors import ArtefactError
from capsedge.runtime.files import write_text
from capsedge.runtime.reading import opened

SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """One tensor: the range that its 8 bits cover, and the histogram that the range was taken from."""

    low: float
    high: float
    histogram: Histogram


@dataclass(frozen=True)
class Table:
    """Ranges of activations.

    Attributes:
        model_sha256: of the FP32 file.
        data_sha256: of the calibration inputs.
        method: ``minmax``, ``percentile``, ``entropy`` or ``mse``.
        images: how many were calibrated on.
        source: where they came from.
        entries: by tensor name.
    """

    model_sha256: str
    data_sha256: str
    method: str
    images: int
    source: str
    entries: dict[str, Entry] = field(default_factory=dict)

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
        """Choose every range by the method."""
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
        """Refuse a table of another model, other data, or another method, or without one of the tensors.

        Raises:
            ArtefactError: the table is stale or not whole.
        """
        for name, mine, wanted in (
            ("model", self.model_sha256, model_sha256),
            ("calibration data", self.data_sha256, data_sha256),
            ("method", self.method, method),
        ):
            if mine != wanted:
                raise ArtefactError(
                    f"The calibration table {path} is stale.",
                    f"It was made for another {name}: {mine[:16]}, wanted {wanted[:16]}.",
                    f"Delete it to calibrate anew: rm {path}",
                )
        missing = [name for name in tensors if name not in self.entries]
        if missing:
            raise _damaged(path, f"It has no entry for '{missing[0]}'")

    def save(self, path: Path | str) -> None:
        """Write the table as JSON.

        Raises:
            UsageError: the place cannot be written.
        """
        document: dict[str, Any] = {
            "schema": SCHEMA,
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
        with opened(path) as file:
            data = file.read()
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _damaged(path, str(error)) from error
        try:
            if document["schema"] != SCHEMA:
                raise ValueError(f"schema {document['schema']}, wanted {SCHEMA}")
            entries = {}
            for name, e in document["tensors"].items():
                h = e["histogram"]
                counts = np.asarray(h["counts"], np.int64)
                means = np.asarray(h["means"], np.float64)
                numbers = [float(v) for v in (e["low"], e["high"], h["low"], h["high"])]
                if counts.ndim != 1 or means.ndim != 1 or (counts < 0).any():
                    raise ValueError(f"the histogram of '{name}'")
                if not np.isfinite([*numbers, *means]).all():
                    raise ValueError(f"the entry of '{name}'")
                entries[str(name)] = Entry(
                    numbers[0], numbers[1], Histogram(numbers[2], numbers[3], counts, means)
                )
            texts = [str(document[k]) for k in ("model_sha256", "data_sha256", "method")]
            return cls(
                texts[0],
                texts[1],
                texts[2],
                int(document["images"]),
                str(document["source"]),
                entries,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, f"{type(error).__name__}: {error}") from error


def _damaged(path: Path | str, why: str) -> ArtefactError:
    return ArtefactError(
        f"{path} is no calibration table that can be read.", f"{why}.", f"Delete it: rm {path}"
    )
