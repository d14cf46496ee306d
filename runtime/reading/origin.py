"""Where a checkpoint's weights come from: what ``capsedge import`` wrote into its metadata.

Everything in it is a claim of the file until it is done again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capsedge.runtime.files.documents import decode, parse

ORIGIN_KEY = "capsedge.import"  # of a checkpoint's metadata
NOT_COMPARED = "not compared with its author's code"


@dataclass(frozen=True)
class Origin:
    """The origin of imported weights.

    Attributes:
        family, source, licence, dialect, differences: of the family (`capsedge.families`).
        file, file_sha256: the file that was imported.
        notes: what was assumed.
        compared: what a comparison with the author's code found; None if there was none.
    """

    family: str
    source: str
    licence: str
    dialect: str
    differences: tuple[str, ...]
    file: str
    file_sha256: str
    notes: tuple[str, ...] = ()
    compared: Mapping[str, Any] | None = None

    def facts(self) -> list[tuple[str, str]]:
        """Lines for a person."""
        return [
            ("imported from", f"{self.file}, sha256 {self.file_sha256}"),
            ("family", f"{self.family}: {self.dialect}"),
            ("source of the code", self.source),
            ("licence of the code", self.licence or "the repository states none"),
            *(("not as in the paper", text) for text in self.differences),
            *(("assumed", text) for text in self.notes),
            ("author's code", self.comparison),
        ]

    @property
    def comparison(self) -> str:
        """The comparison with the author's code in words."""
        if self.compared is None:
            return NOT_COMPARED
        c = self.compared
        return (
            f"claimed by the file: {c.get('inputs')} inputs, largest difference "
            f"{c.get('largest_difference')}, {c.get('flips')} flips"
        )


def read_origin(metadata: Mapping[str, str]) -> Origin | None:
    """The origin in a checkpoint's metadata; None if it was not imported.

    Raises:
        Malformed: it cannot be read.
    """
    if ORIGIN_KEY not in metadata:
        return None
    return decode(Origin, parse(metadata[ORIGIN_KEY]))
