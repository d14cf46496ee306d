"""The certificate: the artefacts compared, the software versions, the data, the outcome; as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from capsedge.errors import ParityError
from capsedge.metrics import DecisionsDocument, EstimatesDocument
from capsedge.runtime.files.writing import write_text
from capsedge.runtime.metadata.origin import SUMMARY_FIELDS
from capsedge.runtime.result_summary import Report, Table, outcome_word, shortened_name
from capsedge.runtime.session.masks import OverlapDocument, overlap_rows

if TYPE_CHECKING:
    from typing_extensions import NotRequired


SCHEMA = 1
LISTED = 10  # flips shown; `to_dict` lists more


class OutputDocument(TypedDict):
    """The differences of one output; ``worst_over_tolerance`` is None if it is infinite."""

    name: str
    atol: float
    rtol: float
    elements: int
    max_abs: float
    mean_abs: float
    relative: float
    nmse: float
    worst_over_tolerance: float | None
    worst_image: int | None
    over: int
    not_finite: int
    passed: bool


class ComparisonDocument(TypedDict):
    """The comparison of one set of inputs; ``estimates`` are those of a regression, ``masks`` of a
    segmentation."""

    outputs: list[OutputDocument]
    decisions: DecisionsDocument | None
    estimates: NotRequired[EstimatesDocument]
    masks: NotRequired[OverlapDocument]


class SamplesDocument(ComparisonDocument):
    """The samples; ``ignored`` names what of them was not used."""

    source: str
    split: str
    measured_on: str
    images: int
    sha256: str
    ignored: NotRequired[str]
    warnings: NotRequired[list[str]]


class HardCasesDocument(ComparisonDocument):
    """The hard cases."""

    names: list[str]
    noise_factor: float


class CellDocument(TypedDict):
    """The error of one kind of value of routing, None if it is not finite, and the allowed error."""

    error: float | None
    budget: float
    over: bool


class RoutingRowDocument(TypedDict):
    """One layer and iteration; None for values that the file does not show."""

    layer: str
    iteration: int
    couplings: CellDocument | None
    pose: CellDocument | None
    length: CellDocument | None


class RoutingErrorsDocument(TypedDict):
    """Where routing first deviates."""

    verdict: str
    note: str
    first: dict[str, Any] | None
    rows: list[RoutingRowDocument]


class MemberDocument(TypedDict):
    """A member beside the ensemble; without the agreement for a regression."""

    file: str
    agreement_with_ensemble: NotRequired[float]
    accuracy: NotRequired[float | None]


class LinkFacts(TypedDict, total=False):
    """What identifies a link of the chain besides its checksum."""

    architecture: str
    calibration: dict[str, Any]
    cascade: dict[str, Any]
    checkpoint_sha256: str
    claimed_origin: dict[str, str]
    claimed_parent: dict[str, str]
    code: str
    code_sha256: str
    compiler: str
    device: str
    gpu: str
    iterations: int | None
    ops: str
    parameters: int
    parity: dict[str, Any]
    precision: str
    routing: str
    tensorrt: str
    typical_input: str
    user_module: bool
    weights: str


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
    facts: LinkFacts = field(default_factory=LinkFacts)

    @property
    def words(self) -> str:
        """The checksum, and the facts for people."""
        facts, words = self.facts, [f"sha256 {self.sha256[:16]}" if self.sha256 else "in memory"]
        if facts.get("user_module"):
            words.append(f"the user's own {facts.get('code', 'module')}")
        named = (
            ("weights", facts.get("weights")),
            ("architecture", facts.get("architecture")),
            ("precision", facts.get("precision")),
            ("ops", facts.get("ops")),
            ("device", facts.get("device")),
            ("compiler", facts.get("compiler")),
        )
        words += [f"{name} {value}" for name, value in named if value]
        if cascade := facts.get("cascade"):
            share = f"{cascade['share']:.2%} of the images it was measured on"
            words.append(f"the large network decides {share}")
        if claim := facts.get("typical_input"):
            words.append(f"typical input: {claim}")
        if origin := facts.get("claimed_origin"):
            claim = f"family {origin['family']}, licence: {origin['licence']}"
            words.append(f"{SUMMARY_FIELDS}: {claim}, {origin['comparison']}")
        if parent := facts.get("claimed_parent"):
            claim = f"pruned from {parent['parent']}, sha256 {parent['sha256'][:16]}"
            words.append(f"{SUMMARY_FIELDS}: {claim}")
        return ", ".join(words)


class VerificationOutcome(Report):
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
        return outcome_word(self.passed)

    def rows(self) -> list[tuple[str, str]]:
        """Nothing: all is in the tables."""
        return []

    def closing(self) -> list[str]:
        """The failures and the verdict."""
        return [*self.failures, self.verdict]

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
class Certificate(VerificationOutcome):
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
    samples: SamplesDocument
    hard_cases: HardCasesDocument
    limits: dict[str, Any]
    failures: tuple[str, ...]
    routing_errors: RoutingErrorsDocument | None
    versions: dict[str, str]
    machine: dict[str, str]
    created: str

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the samples."""
        return tuple(self.samples.get("warnings", ()))

    def _lines(self) -> list[str]:
        chain = " -> ".join(shortened_name(link.file or link.kind) for link in self.chain)
        worst = max((o["max_abs"] for o in self.samples["outputs"]), default=0.0)
        measured = f"largest difference {worst:.2g}"
        if decisions := self.samples["decisions"]:
            measured += f", {decisions['agreement']:.2%} equal decisions"
        measured += f" on {self.samples['measured_on']}"
        return [f"{self.verdict}: {chain}", *self.failures[:1], measured]

    def tables(self) -> list[Table]:
        """The chain, the samples, the hard cases, and the errors of routing after a failure."""
        chain = [(link.kind, link.file, link.words) for link in self.chain]
        notes = []
        if self.chain[-1].kind == "cascade":
            notes.append(
                "The cascade is compared with its large network's reference, by decisions."
            )
        tables = [Table("Chain", ("", "", ""), chain, notes=notes)]
        samples, hard = self.samples, self.hard_cases
        tables += _comparison(f"Samples: {samples['measured_on']}", samples, _ignored(samples))
        if hard["names"]:
            tables += _comparison(f"Hard cases: {len(hard['names'])}", hard)
        else:
            none = "None of the hard cases lies within the range of the inputs."
            tables.append(Table("Hard cases", (), (), notes=[none]))
        if self.routing_errors is not None:
            tables.append(_routing_errors(self.routing_errors))
        return tables

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


# --- Tables ---


def _ignored(samples: SamplesDocument) -> list[str]:
    ignored = samples.get("ignored")
    return (
        [f"note: the {ignored} of the samples are not used, because the file is a regression"]
        if ignored
        else []
    )


def _comparison(title: str, compared: ComparisonDocument, notes: Sequence[str] = ()) -> list[Table]:
    """The outputs, the values of a regression, and the decisions; the notes are below the last table."""
    columns = (
        "output", "max abs", "mean abs", "relative", "NMSE", "atol", "rtol", "worst/allowed", "",
    )  # fmt: skip
    tables = [Table(title, columns, [_output_cells(each) for each in compared["outputs"]])]
    if "estimates" in compared:
        tables.append(
            Table(
                "Values",
                ("value", "unit", "mean error", "largest error", "range"),
                [
                    (
                        v["name"],
                        v["unit"],
                        f"{v['mean_error']:.3g}",
                        f"{v['largest_error']:.3g}",
                        f"{v['range']:.3g}",
                    )
                    for v in compared["estimates"]["values"]
                ],
            )
        )
    if "masks" in compared:
        masks = compared["masks"]
        changed = f"{masks['changed']:,} of {masks['pixels']:,} pixels change class"
        tables.append(Table(f"Masks: {changed}", ("class", "Dice", "IoU"), overlap_rows(masks)))
    if (decisions := compared["decisions"]) is not None:
        tables.append(Table("Decisions", ("", ""), _decision_rows(decisions)))
    tables[-1] = replace(tables[-1], notes=notes)
    return tables


def _output_cells(output: OutputDocument) -> tuple[str, ...]:
    worst = output["worst_over_tolerance"]
    return (
        output["name"],
        f"{output['max_abs']:.2e}",
        f"{output['mean_abs']:.2e}",
        f"{output['relative']:.2e}",
        f"{output['nmse']:.2e}",
        f"{output['atol']:g}",
        f"{output['rtol']:g}",
        "inf" if worst is None else f"{worst:.3f}",
        "ok" if output["passed"] else "over",
    )


def _decision_rows(decisions: DecisionsDocument) -> list[tuple[str, str]]:
    agreement = f"{100 * decisions['agreement']:.4g} % of {decisions['images']}"
    rows = [(f"{decisions['kind']} agreement", agreement), *flip_rows(decisions)]
    if "pose_angle_max_degrees" in decisions:
        angle = f"{decisions['pose_angle_max_degrees']:.2e} degrees"
        rows.append(("angle between poses, max", angle))
        rows.append(("length error, max", f"{decisions['length_error_max']:.2e}"))
    return rows + accuracy_rows(decisions, "reference", "artefact")


def accuracy_rows(
    decisions: DecisionsDocument, reference: str, artefact: str
) -> list[tuple[str, str]]:
    """The accuracy of both, by the names that they have; nothing without labels."""
    pairs = (
        (reference, decisions.get("accuracy_reference")),
        (artefact, decisions.get("accuracy_artefact")),
    )
    return [(f"accuracy of the {k}", f"{100 * v:.2f} %") for k, v in pairs if v is not None]


def flip_rows(decisions: DecisionsDocument) -> list[tuple[str, str]]:
    """The number of flips, and each with its image and its classes."""
    ties = f" (and {decisions['ties']} ties)" if decisions["ties"] else ""
    rows = [("flips", f"{decisions['flips']}{ties}")]
    for flip in decisions["flips_by_margin"][:LISTED]:
        margin = "-" if flip["margin"] is None else f"{flip['margin']:.3g}"
        before = _classes(flip["reference"], flip["reference_classes"])
        after = _classes(flip["artefact"], flip["artefact_classes"])
        image = flip.get("name", f"image {flip['image']}")
        rows.append((f"  {image}", f"{before} -> {after}, margin {margin}"))
    return rows


def _classes(numbers: Sequence[int], names: Sequence[str]) -> str:
    """The classes of a decision, such as `cat (3), dog (5)`; without names, their numbers."""
    pairs = zip(numbers, names, strict=True)
    return ", ".join(n if n == str(j) else f"{n} ({j})" for j, n in pairs) or "no class"


def _routing_errors(errors: RoutingErrorsDocument) -> Table:
    return Table(
        "Routing errors (error of the allowed error, against FP64; iteration 0: the layer's input)",
        ("layer", "iteration", "couplings", "pose", "length"),
        [
            (
                row["layer"],
                str(row["iteration"]),
                _cell(row["couplings"]),
                _cell(row["pose"]),
                _cell(row["length"]),
            )
            for row in errors["rows"]
        ],
        notes=list(dict.fromkeys(filter(None, (errors["verdict"], errors["note"])))),
    )


def _cell(value: CellDocument | None) -> str:
    if value is None:
        return "-"
    error = "not finite" if value["error"] is None else f"{value['error']:.2e}"
    return f"{error} of {value['budget']:.1e}" + (" OVER" if value["over"] else "")
