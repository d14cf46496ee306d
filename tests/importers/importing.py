"""Import with the answers of a test, which are options or belong to the description."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import capsedge
from capsedge.importers.import_options import ImportOptions


def import_with(
    file: Path | Sequence[Path], path: Path | None = None, **answers: Any
) -> capsedge.ImportReport:
    """`capsedge.import_checkpoint` with fields of `ImportOptions` and `Description` as keywords."""
    options = {k: answers.pop(k) for k in ImportOptions.__dataclass_fields__ if k in answers}
    return capsedge.import_checkpoint(
        file,
        path,
        **options,
        description=capsedge.Description(**answers),
    )
