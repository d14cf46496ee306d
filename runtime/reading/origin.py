"""Where a checkpoint's weights come from: what ``capsedge import`` wrote into its metadata.

Everything in it is a claim of the file until it is done again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.errors import ArtefactError
from capsedge.runtime.files.documents import Malformed, decode, parse
from capsedge.runtime.files.opening import opened
from capsedge.runtime.files.safetensors_file import read_header

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
            *(("note", text) for text in self.notes),
            ("author's code", self.comparison),
        ]

    @property
    def comparison(self) -> str:
        """The comparison with the author's code in words."""
        if self.compared is None:
            return NOT_COMPARED
        c = self.compared
        fixed = f", fixed there: {c['fixed']}" if c.get("fixed") else ""
        return (
            f"claimed by the file: {c.get('inputs')} inputs, largest difference "
            f"{c.get('largest_difference')}, {c.get('flips')} flips{fixed}"
        )


def origin_of(path: Path | str) -> Origin | None:
    """The origin of a checkpoint; None if it was not imported, or is no safetensors file.

    Raises:
        UsageError, ArtefactError: it cannot be read.
    """
    if Path(path).suffix != ".safetensors":
        return None
    try:
        with opened(path) as file:
            return read_origin(read_header(file).metadata)
    except Malformed as error:
        raise ArtefactError(
            f"{path} does not tell where its weights come from.", f"{error}.", "Import it again."
        ) from error


def read_origin(metadata: Mapping[str, str]) -> Origin | None:
    """The origin in a checkpoint's metadata; None if it was not imported.

    Raises:
        Malformed: it cannot be read.
    """
    if ORIGIN_KEY not in metadata:
        return None
    return decode(Origin, parse(metadata[ORIGIN_KEY]))
