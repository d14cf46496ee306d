"""What ``capsedge.deploy_web`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.runtime import quantities
from capsedge.runtime.summary import Row, Summarized, Summary

ON_DEMAND = "webgpu/"  # what lies there is fetched when it is first used


@dataclass(frozen=True)
class DeployedFile:
    """A file of the folder: its path in it, ``/`` between names, bytes, and SHA-256 in hexadecimal."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class WebModel:
    """A model that the page offers.

    Attributes:
        name: as the page shows it.
        routing: ``dynamic``, ``em`` or ``attention``; empty if its file does not state it.
        precision: ``fp32``, ``fp16``, ``int8`` or ``mixed``.
        files: path of the file for each number of routing iterations.
    """

    name: str
    routing: str
    precision: str
    files: Mapping[int, str]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        files = [{"iterations": count, "path": path} for count, path in self.files.items()]
        return {**vars(self), "files": files}


@dataclass(frozen=True, repr=False)
class WebDeployment(Summarized):
    """A folder that any web server can host.

    Attributes:
        output: the folder.
        models: in the order in which the page offers them.
        files: what it holds.
        notes: what a person should know.
    """

    output: Path
    models: tuple[WebModel, ...]
    files: tuple[DeployedFile, ...]
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def first_visit(self) -> int:
        """Bytes that a first visit loads: all but what is fetched when it is first used."""
        return sum(file.bytes for file in self.files if not file.path.startswith(ON_DEMAND))

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "output": str(self.output),
            "bytes": self.bytes,
            "bytes_of_first_visit": self.first_visit,
            "models": [model.to_dict() for model in self.models],
            "files": [vars(file) for file in self.files],
            "notes": list(self.notes),
        }

    def _summary(self) -> Summary:
        line = f"{self.output}: {len(self.models)} models, {quantities.size(self.bytes)}"
        rows = [Row(m.name, f"iterations {', '.join(map(str, m.files))}") for m in self.models]
        return Summary("WebDeployment", [line], rows)
