"""What a server serves, and where: checked before the server is imported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capsedge import zoo
from capsedge.errors import UsageError
from capsedge.runtime.files import opening
from capsedge.runtime.session import Session
from capsedge.serving.batch_size import BatchSize

_NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9._-]{1,80})(?::(?P<version>[A-Za-z0-9._-]{1,80}))?=(?P<file>.+)"
)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Named:
    """A model of the command line.

    Attributes:
        name: that clients use.
        version: of the name; empty if there is only one.
        file: a path, or a name of the zoo.
    """

    name: str
    version: str
    file: str


@dataclass(frozen=True)
class Served(Named):
    """The same, loaded.

    Attributes:
        session: of the file.
        batch: how many images run together.
    """

    session: Session
    batch: BatchSize


@dataclass(frozen=True)
class Ports:
    """TCP ports; 0 stands for a free one."""

    rest: int
    grpc: int
    metrics: int


@dataclass(frozen=True)
class Address:
    """Where a server answers.

    Attributes:
        host: IPv6 addresses in brackets.
        ports: that were taken.
    """

    host: str
    ports: Ports


@dataclass(frozen=True)
class Serving:
    """Everything that a server needs to know.

    Attributes:
        models: that are served.
        host: name or address of this machine to listen on.
        ports: to listen on.
        threads: of one inference.
        wait_ms: milliseconds that a batch waits for more requests.
        version: of capsedge.
    """

    models: tuple[Served, ...]
    host: str
    ports: Ports
    threads: int
    wait_ms: float
    version: str

    def find(self, name: str, version: str | None) -> Served:
        """The model of a name and a version."""
        return next(m for m in self.models if (m.name, m.version) == (name, version or ""))

    def known(self) -> frozenset[tuple[str, str]]:
        """Name and version of each model; an empty version is the default one."""
        return frozenset(pair for m in self.models for pair in ((m.name, ""), (m.name, m.version)))


def file_of(given: str | Path) -> Path:
    """The file that an argument such as ``digits=model.onnx`` names."""
    return Path(_parsed(str(given)).file)


def named(given: Sequence[str]) -> list[Named]:
    """The models that arguments name: ``model.onnx``, ``NAME=model.onnx`` or ``NAME:VERSION=model.onnx``.

    Raises:
        UsageError: two have the same name and version.
    """
    found = [_parsed(text) for text in given]
    seen: dict[tuple[str, str], str] = {}
    for model in found:
        key = model.name, model.version
        if key in seen:
            raise UsageError(
                f"{seen[key]} and {model.file} would both be the model '{model.name}'.",
                "",
                f"Name them: other={model.file}, or {model.name}:2={model.file} for a second version.",
            )
        seen[key] = model.file
    return found


def _parsed(given: str) -> Named:
    parts = _NAMED.fullmatch(given)
    if parts is not None and opening.kind(given) is None:
        return Named(parts["name"], parts["version"] or "", parts["file"])
    if given in zoo.MODELS:
        return Named(given, "", given)
    return Named(_NOT_IN_NAMES.sub("-", Path(given).stem).strip("-.")[:80] or "model", "", given)
