"""Verify an ensemble: every member against its source, and the averages against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsedge.datasets import ImageSet
from capsedge.errors import UsageError
from capsedge.metrics import Decisions, DecisionsDocument, EstimatesDocument, RegressionErrors
from capsedge.options import takes_options
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.load import load
from capsedge.runtime.machine import machine
from capsedge.runtime.metadata.origin import joint_training_split
from capsedge.runtime.metadata.scores import scores_of
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.result_summary import Table, shortened_name
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.session.ensemble import Ensemble, mean
from capsedge.runtime.session.session import Session
from capsedge.verification.certificate import (
    Certificate,
    MemberDocument,
    VerificationOutcome,
    accuracy_rows,
    flip_rows,
)
from capsedge.verification.reference import Arrays
from capsedge.verification.requirements import Requirements, drop_failures
from capsedge.verification.verify import ReferenceRun, certify, software_versions
from capsedge.verification.verify_options import VerifyOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import VerifyKeywords

SCHEMA = 1


@dataclass(frozen=True, repr=False)
class EnsembleCertificate(VerificationOutcome):
    """The outcome of ``capsedge.verify_ensemble``.

    Attributes:
        members: the certificate of each member, compared with its own source, with checksums of all files.
        averaged: what is averaged: ``length``, ``probability`` or ``values``.
        images, measured_on: number of samples, and which they are.
        decisions: of the ensemble against the ensemble of the sources; None for a regression.
        estimates: of a regression, the errors of the averaged values; otherwise None.
        alone: for each member, its file, its agreement with the ensemble and, with labels, its accuracy.
        limits: the requirements of the ensemble.
        failures: the requirements that are not met, in sentences; empty if it passed.
        versions, machine: the software and the machine of the comparison.
        created: UTC time.
    """

    members: tuple[Certificate, ...]
    averaged: str
    images: int
    measured_on: str
    decisions: DecisionsDocument | None
    estimates: EstimatesDocument | None
    alone: tuple[MemberDocument, ...]
    limits: dict[str, Any]
    failures: tuple[str, ...]
    versions: dict[str, str]
    machine: dict[str, str]
    created: str

    def _lines(self) -> list[str]:
        files = " + ".join(shortened_name(member.chain[-1].file) for member in self.members)
        measured = f"mean {self.averaged}"
        if self.decisions is not None:
            measured += f", {self.decisions['agreement']:.2%} equal decisions"
        return [f"{self.verdict}: {files}", *self.failures[:1], f"{measured} on {self.measured_on}"]

    def tables(self) -> list[Table]:
        """The members and the ensemble."""
        labelled = any("accuracy" in row for row in self.alone)
        columns = ["file", "sha256", "checkpoint", "against its source", "as the ensemble"]
        members = [
            _member_cells(member, row) for member, row in zip(self.members, self.alone, strict=True)
        ]
        return [
            Table(
                f"Members; accuracy on {self.measured_on}" if labelled else "Members",
                [*columns, *(["accuracy"] if labelled else [])],
                members,
            ),
            Table(
                f"Ensemble: mean {self.averaged}; {self.measured_on}",
                ("", ""),
                self._ensemble_rows(),
            ),
        ]

    def _ensemble_rows(self) -> list[tuple[str, str]]:
        if self.estimates is not None:
            return [
                (v["name"], f"mean error {v['mean_error']:.3g} {v['unit']} of {v['range']:.3g}")
                for v in self.estimates["values"]
            ]
        decided = self.decisions
        assert decided is not None  # of everything but a regression
        agreement = f"{decided['kind']} agreement with the sources"
        return [
            (agreement, f"{100 * decided['agreement']:.4g} %"),
            *flip_rows(decided),
            *accuracy_rows(decided, "sources", "ensemble"),
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "schema": SCHEMA,
            "kind": "ensemble",
            "verdict": self.verdict,
            "failures": list(self.failures),
            "averaged": self.averaged,
            "images": self.images,
            "measured_on": self.measured_on,
            "decisions": self.decisions,
            "estimates": self.estimates,
            "alone": list(self.alone),
            "limits": self.limits,
            "members": [member.to_dict() for member in self.members],
            "versions": self.versions,
            "machine": self.machine,
            "created": self.created,
        }


def _member_cells(member: Certificate, alone: MemberDocument) -> list[str]:
    first, last = member.chain[0], member.chain[-1]
    agreement, accuracy = alone.get("agreement_with_ensemble"), alone.get("accuracy")
    return [
        last.file,
        last.sha256[:16],
        first.file,
        member.verdict,
        "-" if agreement is None else f"{100 * agreement:.4g} %",
        *([] if accuracy is None else [f"{100 * accuracy:.2f} %"]),
    ]


@dataclass
class _MemberOutputs:
    """The scores ``[N, J]`` or values ``[N, K]`` of a member and of its source, batch by batch."""

    session: Session
    expected: list[NDArray[np.float64]] = field(default_factory=list)
    artefact: list[NDArray[np.float64]] = field(default_factory=list)
    labels: list[NDArray[np.int64]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def observe(self, expected: Arrays, artefact: Arrays, samples: ImageSet) -> None:
        self.expected.append(self._read(expected))
        self.artefact.append(self._read(artefact))
        self.names += samples.names
        if samples.labels is not None:
            self.labels.append(samples.labels)

    def _read(self, outputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        name = self.session.roles.scores
        if name is None:
            return self.session.roles.estimates(outputs)
        return scores_of(outputs[name], self.session.roles.kind, self.session.roles.multi_label)[0]


@takes_options(VerifyOptions)
def verify_ensemble(
    references: Sequence[ReferenceRun] | None,
    ensemble: Ensemble | Sequence[Path | str],
    options: VerifyOptions = VerifyOptions(),
    *,
    data: Path | str | None = None,
    progress: Progress = silent,
    **_keywords: Unpack[VerifyKeywords],
) -> EnsembleCertificate:
    """Compare every member of an ensemble with its PyTorch source, and the ensemble with that of the sources.

    Each member must pass what `verify` asks of it alone. Then the averaged answers of the members decide as
    those of the sources do, and lose no more accuracy than the gates of quantized members allow.

    The options apply to each member as in `verify`. The agreement is also that of the ensemble; by default,
    the least of its members'.

    Args:
        references: checkpoints, in any order: each member takes the one that it names by its checksum; or
            modules, one for each member in order. None takes the package's checkpoints.
        ensemble: a loaded ensemble, or its files.
        data: a data set folder, an npz file, idx files, or images; by default the package's samples.
        progress: called with (images done, total images).

    Returns:
        The certificate: ``passed`` is the outcome; ``check()`` raises a ParityError if it failed.

    Raises:
        UsageError: an argument or the data is wrong, or the files do not fit each other.
        ArtefactError: a file is damaged, or was not exported from its checkpoint.

    Example:
        >>> certificate = capsedge.verify_ensemble(None, ["digits-dynamic", "digits-em"])
        >>> certificate.check()
    """
    if isinstance(ensemble, (str, Path, Session)):
        raise UsageError(
            "verify_ensemble takes an ensemble.",
            "This is a single file or session.",
            "Use capsedge.verify, or pass a list of files.",
        )
    loaded = (
        ensemble
        if isinstance(ensemble, Ensemble)
        else load(ensemble, RuntimeOptions(ops=options.ops, device=options.device))
    )
    members, count = loaded.members, len(loaded.members)
    sources = _sources(references, members)
    found = [_MemberOutputs(member) for member in members]
    limits = [Requirements.of(member, options) for member in members]
    # Members must be compared on the same images, which none was trained on.
    rule = joint_training_split(
        m.metadata.training_split for m in members if m.metadata is not None
    )
    certificates: list[Certificate] = []
    for number, member in enumerate(members):

        def step(stage: str, done: int = 0, total: int | None = None, number: int = number) -> None:
            progress(stage, number * (total or 0) + done, total and count * total)

        certificates.append(
            certify(
                sources[number], member, data, limits[number],
                limit=options.limit, progress=step, observe=found[number].observe, rule=rule,
            )
        )  # fmt: skip
    return _averaged_failures(loaded, certificates, found, limits, options.min_agreement)


def _averaged_failures(
    ensemble: Ensemble,
    certificates: Sequence[Certificate],
    observed: Sequence[_MemberOutputs],
    limits: Sequence[Requirements],
    min_agreement: float | None,
) -> EnsembleCertificate:
    """The verdict on the averages, and on each member."""
    failures = [
        f"{certificate.chain[-1].file}: {failure}"
        for certificate in certificates
        for failure in certificate.failures
    ]
    answers = [np.concatenate(each.artefact) for each in observed]
    expected = mean([np.concatenate(each.expected) for each in observed])
    averaged = mean(answers)
    labels = np.concatenate(observed[0].labels) if observed[0].labels else None
    names = [path.name for path in ensemble.paths]
    least = min(each.min_agreement for each in limits) if min_agreement is None else min_agreement
    drops = [each.max_drop for each in limits if each.max_drop is not None]
    errors = RegressionErrors.of(ensemble.members[0])
    decisions = None
    if errors is not None:
        errors.update(expected, averaged)
        alone: list[MemberDocument] = [{"file": name} for name in names]
    else:
        decisions = _decided(ensemble, expected, averaged, labels)
        alone = [
            _alone(name, _decided(ensemble, averaged, each, labels))
            for name, each in zip(names, answers, strict=True)
        ]
        if decisions.agreement < least:
            failures.append(
                f"The ensemble: {len(decisions.flips)} of {decisions.images} decisions flipped; agreement "
                f"{decisions.agreement:.6f}, wanted {least:g}."
            )
        failures += drop_failures(decisions, max(drops)) if drops else []
    return EnsembleCertificate(
        members=tuple(certificates),
        averaged=ensemble.score_kind or "values",
        images=len(averaged),
        measured_on=certificates[0].samples["measured_on"],
        decisions=None
        if decisions is None
        else decisions.to_dict(observed[0].names, ensemble.class_name),
        estimates=None if errors is None else errors.to_dict(),
        alone=tuple(alone),
        limits={"min_agreement": least, "max_drop_points": max(drops) if drops else None},
        failures=tuple(failures),
        versions=software_versions(),
        machine=machine(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _decided(
    ensemble: Ensemble,
    reference: NDArray[np.float64],
    found: NDArray[np.float64],
    labels: NDArray[np.int64] | None,
) -> Decisions:
    decisions = Decisions(ensemble.multi_label)
    decisions.update(reference, found, labels)
    return decisions


def _alone(name: str, decisions: Decisions) -> MemberDocument:
    """A member beside the ensemble, which is the reference here."""
    row: MemberDocument = {"file": name, "agreement_with_ensemble": decisions.agreement}
    if decisions.labelled:
        row["accuracy"] = decisions.accuracy_artefact
    return row


def _sources(
    references: Sequence[ReferenceRun] | None, members: Sequence[Session]
) -> list[ReferenceRun]:
    """The source of each member; None for one that the package has to have.

    Raises:
        UsageError: there are too many or too few, or a checkpoint belongs to no member.
    """
    if references is None:
        return [None] * len(members)
    paths = [Path(r) for r in references if isinstance(r, (str, Path))]
    if len(paths) == len(references):
        return _by_checksum(paths, members)
    if len(references) != len(members):
        raise UsageError(
            f"There are {len(references)} references for {len(members)} members.",
            "The references correspond to the members in order.",
            "Pass one for each member, or None for a checkpoint of the package.",
        )
    return list(references)


def _by_checksum(paths: Sequence[Path], members: Sequence[Session]) -> list[ReferenceRun]:
    """Each member's checkpoint; members that state no checksum take the others in order."""
    by_sum = {sha256(path): path for path in paths}
    declared = [m.metadata.checkpoint_sha256 if m.metadata else "" for m in members]
    left = [path for checksum, path in by_sum.items() if checksum not in declared]
    found: list[ReferenceRun] = []
    for checksum in declared:
        open_place = not checksum and left
        found.append(left.pop(0) if open_place else by_sum.get(checksum))
    if left:
        raise UsageError(
            f"No member of the ensemble was exported from {left[0]}.",
            "Members record their checkpoints by checksum.",
            "Pass the checkpoints that the members were exported from.",
        )
    return found
