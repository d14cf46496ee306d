"""What a server serves, and where: checked before the server is imported."""

from __future__ import annotations

from dataclasses import dataclass

from capsedge.deploy.naming import Named
from capsedge.runtime.session import Session
from capsedge.serving.batch_size import BatchSize


@dataclass(frozen=True)
class Served(Named):
    """A model of the command line, loaded.

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
