"""The report of an export."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsedge.errors import ParityError
from capsedge.exporters.export_options import REWRITES
from capsedge.graph.fusion import FusionReport, by_reason
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.result_summary import Report, outcome_word, shortened_name
from capsedge.spec.vocabularies import LENGTHS, LOGITS, REGRESSION
from capsedge.tolerance import MAX_GROWTH


@dataclass(frozen=True)
class CaseParity:
    """One output of one input case: the exported file compared with the eager FP32 module.

    Attributes:
        case: name of the input case and its batch.
        output: name of the output.
        max_abs: largest absolute difference.
        max_rel: largest ``difference / size``, where the size is the largest magnitude along the reference's
            last axis (the pose), at least ``atol``.
        reference_error: largest difference between the module in FP32 and in FP64: how well FP32 defines the
            output. Zero if the comparison passes without it.
        excess: largest ``difference / tolerance`` (see `parity.compare`); the case passes up to 1.
        passed: whether it is within the tolerance.
        outside: whether the case lies outside the range of the user's own inputs; it is then not required to
            pass.
        ill_conditioned: whether it fails at a point where FP32 does not define the module's own output, which
            differs from FP64 by more than the largest tolerance (`tolerance.MAX_GROWTH`).
    """

    case: str
    output: str
    max_abs: float
    max_rel: float
    reference_error: float
    excess: float
    passed: bool
    outside: bool = False
    ill_conditioned: bool = False


@dataclass(frozen=True)
class ScoresOutput:
    """The output of an exported file that decides the class, and why it was chosen.

    Attributes:
        output: its name.
        kind: ``length``, ``logits`` or ``probability``.
        reason: why it was chosen.
    """

    output: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.output} ({self.kind}): {self.reason}"


def scores_output(stated: ModelMetadata | None, outputs: Sequence[str]) -> ScoresOutput | None:
    """The output that decides the class, as the file states it, or as its outputs are named."""
    if stated is None or stated.task == REGRESSION:
        return None
    chosen = stated.chosen_scores
    reason = chosen.reason if chosen else "the name of scores in files of capsedge"
    if stated.outputs is not None:
        return ScoresOutput(stated.outputs.scores, stated.outputs.kind, reason)
    named = {LENGTHS: "length", LOGITS: "logits"}
    name = next((n for n in outputs if n in named), None)
    return None if name is None else ScoresOutput(name, named[name], reason)


@dataclass(frozen=True, repr=False)
class ExportReport(Report):
    """The result of an export.

    Attributes:
        path: the file, which is not written if a comparison fails; None for a dry run.
        size: bytes of the file.
        opset, ir_version: opset and IR version of the file.
        ops: ``auto``, ``fused`` or ``portable``.
        inputs, outputs: name and shape; a string is a free dimension.
        operators: nodes by type.
        functions: function bodies in the file.
        rewrites: the effect of each exact rewrite.
        fusion: routing in a user's module that became capsule operators (``fused``), and what was left
            unchanged, with the reason (``not_fused``).
        notes: remarks for the user.
        atol, rtol: tolerances of the comparison.
        parity: every comparison made.
        scores: the output that decides the class; None if the file states none.
        unregistered: tensors that the module computes with and its state dict lacks, by name and shape.
        score_warnings: reasons why the scores may be meaningless.
    """

    path: Path | None
    size: int
    opset: int
    ir_version: int
    ops: str
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]
    operators: dict[str, int]
    functions: int
    rewrites: dict[str, str]
    fusion: FusionReport
    notes: tuple[str, ...]
    atol: float
    rtol: float
    parity: tuple[CaseParity, ...]
    scores: ScoresOutput | None = None
    score_warnings: tuple[str, ...] = ()
    unregistered: tuple[str, ...] = ()

    def _lines(self) -> list[str]:
        nodes = f"{sum(self.operators.values())} nodes, ops '{self.ops}'"
        name = "dry run" if self.path is None else shortened_name(self.path.name)
        difference = max((p.max_abs for p in self.required), default=0.0)
        lines = [
            f"{name}: {format_bytes(self.size)}, {nodes}",
            f"{outcome_word(self.passed)}, largest difference {difference:.2g} "
            f"in {len(self.parity)} comparisons",
        ]
        if self.unregistered:
            lines.append(f"not in the state dict: {', '.join(self.unregistered)}")
        return lines

    def rows(self) -> list[tuple[str, str]]:
        """The file, its operators, and its comparison with PyTorch."""
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.operators.items())
        return [
            ("file", "not written (dry run)" if self.path is None else str(self.path)),
            (
                "size",
                f"{self.size / 1e6:.2f} MB, opset {self.opset}, IR {self.ir_version}, ops {self.ops}",
            ),
            ("inputs", _shapes(self.inputs)),
            ("outputs", _shapes(self.outputs)),
            *([("scores", str(self.scores))] if self.scores else []),
            ("operators", f"{kinds}; function bodies: {self.functions}"),
            ("rewrites", self._rewrites()),
            ("parity", self._parity()),
            *self._fusion(),
            *(("unsaved", f"{name}: not in the state dict") for name in self.unregistered),
        ]

    def _rewrites(self) -> str:
        """Each rewrite and its effect, stated once if it is the same for all."""
        effects = set(self.rewrites.values())
        if len(effects) == 1 and "without effect" in (only := next(iter(effects))):
            return only
        return "; ".join(f"{name} {self.rewrites[key]}" for name, key in REWRITES.items())

    def _parity(self) -> str:
        worst = self.worst
        return (
            f"{len(self.parity)} comparisons with PyTorch; the worst ({worst.output}, {worst.case}) "
            f"at {100 * worst.excess:.0f} % of its tolerance (atol {self.atol:g}, rtol {self.rtol:g})"
        )

    def _fusion(self) -> list[tuple[str, str]]:
        """The user's own routing that became operators, what was left, and remarks."""
        rows = []
        for each in self.fusion.fused:
            read = ", ".join(f"{k} {v}" for k, v in each.parameters.items())
            rows.append(("fused", f"{each.operator}: {read}"))
        if left := [(each.tensor, each.reason) for each in self.fusion.not_fused]:
            for places, reason in by_reason(left):
                rows.append(("left", f"{places}, as standard operators: {reason}"))
        notes = dict.fromkeys((*self.notes, *(n for f in self.fusion.fused for n in f.notes)))
        return [*rows, *(("note", note) for note in notes)]

    @property
    def dry_run(self) -> bool:
        """Whether the file was left unwritten."""
        return self.path is None

    @property
    def passed(self) -> bool:
        """Whether every required comparison is within its tolerance; the file is written only then."""
        return all(p.passed or p.outside for p in self.parity)

    @property
    def ill_conditioned(self) -> bool:
        """Whether every failure is at a point where FP32 does not determine the module's output."""
        failed = [p for p in self.parity if not p.passed and not p.outside]
        return bool(failed) and all(p.ill_conditioned for p in failed)

    @property
    def required(self) -> tuple[CaseParity, ...]:
        """The comparisons that must pass: all of them if every case is outside the user's inputs."""
        return required_cases(self.parity)

    @property
    def worst(self) -> CaseParity:
        """The required comparison closest to its tolerance, or furthest beyond it."""
        return max(self.required, key=lambda p: p.excess)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each output that differs on hard cases outside the range of the user's inputs, and
        the warnings about the scores.
        """
        failed = [p for p in self.parity if p.outside and not p.passed]
        parts = []
        for name in dict.fromkeys(p.output for p in failed):
            cases = [p for p in failed if p.output == name]
            worst = max(cases, key=lambda p: p.excess)
            where = (
                f"'{name}' differs on {len(cases)} hard cases outside the range of your inputs, "
            )
            if math.isfinite(worst.max_abs):
                parts.append(
                    f"{where}at worst by {worst.max_abs:.3g} ({worst.case}, {worst.excess:.3g} times the "
                    "tolerance)"
                )
            else:
                parts.append(f"{where}and is not finite in the file on '{worst.case}'")
        return (*parts, *self.score_warnings)

    def check(self, cause: str = "") -> None:
        """Raise if a comparison failed.

        Args:
            cause: the origin of the difference, for the message.

        Raises:
            ParityError: a comparison failed; it states the worst one, and its ``report`` is this report.
        """
        failed = [p for p in self.parity if not p.passed and not p.outside]
        if not failed:
            return
        worst = max(failed, key=lambda p: p.excess)
        if not math.isfinite(worst.max_abs):
            found = "the file's values are not finite, or have a different shape"
        else:
            found = (
                f"largest difference {worst.max_abs:.3g}, {worst.excess:.3g} times the tolerance "
                f"(atol {self.atol:g}, rtol {self.rtol:g})"
            )
        what = "The exported model does not reproduce PyTorch's outputs; nothing was written."
        if self.ill_conditioned:
            what = "In FP32, the module's outputs are not well defined on all inputs; nothing was written."
            cause = (
                f"PyTorch's own result there differs by {worst.reference_error:.3g} between FP32 and FP64. "
                f"That is rounding, grown beyond what a tolerance may allow (1/{round(1 / MAX_GROWTH)} of "
                f"the "
                "largest value): the network is ill-conditioned on this input."
            )
        raise ParityError(
            what,
            f"Output '{worst.output}' on input '{worst.case}': {found}; "
            f"{len(failed)} of {len(self.parity)} comparisons failed.",
            "Raise the tolerance (--tolerance), or pass typical inputs with check_inputs= (--inputs).",
            report=self,
            details=[cause] if cause else [],
        )

    @property
    def max_abs(self) -> float:
        """Largest absolute difference over all outputs and required cases."""
        return max(p.max_abs for p in self.required)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        values = asdict(self)
        values["path"] = str(self.path) if self.path else None
        values["dry_run"] = self.dry_run
        values["parity"] = {
            "atol": self.atol,
            "rtol": self.rtol,
            "max_abs": _finite(self.max_abs),
            "cases": [{k: _finite(v) for k, v in case.items()} for case in values.pop("parity")],
        }
        del values["atol"], values["rtol"], values["score_warnings"]
        values["warnings"] = list(self.warnings)
        return values


def required_cases(parity: Sequence[CaseParity]) -> tuple[CaseParity, ...]:
    """The comparisons within the range of the user's inputs; all of them if none is."""
    return tuple(p for p in parity if not p.outside) or tuple(parity)


def _finite(value: Any) -> Any:
    """A JSON value; None for an infinite difference."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shapes(values: dict[str, list[int | str]]) -> str:
    return ", ".join(f"{name} {shape}".replace("'", "") for name, shape in values.items())
