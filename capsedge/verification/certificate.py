"""The certificate: the artefacts compared, the software versions, the data, and the outcome."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsedge.errors import ParityError
from capsedge.runtime.files.writing import write_text
from capsedge.runtime.result_summary import Row, Summarized, Summary, short

SCHEMA = 1


@dataclass(frozen=True)
class Link:
    """One artefact of the chain checkpoint -> ONNX -> quantized -> engine.

    Attributes:
        kind: ``checkpoint``, ``module`` (in memory, without a file), ``onnx``, ``quantized``,
            ``cascade``, ``engine``, ``c``.
        file: its name; a certificate does not name folders of the machine that made it.
        sha256: checksum of the file; empty for a module in memory.
        facts: further identification: model, precision, the path that ran.
    """

    kind: str
    file: str
    sha256: str
    bytes: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


class Verdict(Summarized):
    """The outcome of a verification.

    Attributes:
        failures: the requirements that are not met, in sentences; empty if it passed.
    """

    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether all requirements are met."""
        return not self.failures

    @property
    def verdict(self) -> str:
        """``PASSED`` or ``FAILED``."""
        return "PASSED" if self.passed else "FAILED"

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""

    def save(self, path: Path | str) -> None:
        """Write the certificate as JSON, completely or not at all.

        Raises:
            UsageError: the path cannot be written.
            EnvironmentProblem: the disk is full.
        """
        write_text(path, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def check(self) -> None:
        """Raise if the verification failed.

        Raises:
            ParityError: it failed; the error's ``report`` is the certificate.
        """
        if not self.passed:
            raise ParityError(
                "The file does not reproduce its reference.",
                " ".join(self.failures),
                "The routing errors in the certificate name the first layer and iteration beyond "
                "the tolerance.",
                report=self,
            )


@dataclass(frozen=True, repr=False)
class Certificate(Verdict):
    """The outcome of ``capsedge.verify``.

    Attributes:
        chain: the artefacts, beginning with the source of all others.
        samples: data (``sha256`` is its `ImageSet.digest`), per-output metrics and decisions on the samples.
        hard_cases: the same on the hard cases, with an allowance for FP32's own error, measured against FP64.
        limits: the requirements.
        failures: the requirements that are not met, in sentences; empty if it passed.
        routing_errors: where the routing first deviates; only after a failure.
        versions, machine: the software and the machine of the comparison.
        created: UTC time.
    """

    chain: tuple[Link, ...]
    samples: dict[str, Any]
    hard_cases: dict[str, Any]
    limits: dict[str, Any]
    failures: tuple[str, ...]
    routing_errors: dict[str, Any] | None
    versions: dict[str, str]
    machine: dict[str, str]
    created: str

    def _summary(self) -> Summary:
        chain = " -> ".join(short(link.file or link.kind) for link in self.chain)
        worst = max((o["max_abs"] for o in self.samples.get("outputs", ())), default=0.0)
        measured = f"largest difference {worst:.2g}"
        decisions = self.samples.get("decisions")
        if decisions:
            measured += f", {decisions['agreement']:.2%} equal decisions"
        if images := self.samples.get("measured_on"):
            measured += f" on {images}"
        rows = [Row("chain", chain), Row("samples", measured)]
        rows += [Row("failure", failure) for failure in self.failures]
        rows += [Row("created", self.created)]
        return Summary(
            "Certificate", [f"{self.verdict}: {chain}", *self.failures[:1], measured], rows
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "failures": list(self.failures),
            "chain": [
                {
                    "kind": link.kind,
                    "file": link.file,
                    "sha256": link.sha256,
                    "bytes": link.bytes,
                    **link.facts,
                }
                for link in self.chain
            ],
            "limits": self.limits,
            "samples": self.samples,
            "hard_cases": self.hard_cases,
            "routing_errors": self.routing_errors,
            "versions": self.versions,
            "machine": self.machine,
            "created": self.created,
        }
