"""The report of an export."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsedge.errors import ParityError
from capsedge.graph.recognize.report import Recognition
from capsedge.runtime.quantities import size
from capsedge.runtime.summary import Row, Summarized, Summary, short


@dataclass(frozen=True)
class CaseParity:
    """One output of one input case: exported file against the eager FP32 module.

    Attributes:
        case: name of the input case and its batch.
        output: name of the output.
        max_abs: largest absolute difference.
        max_rel: largest ``difference / size``, where the size is the largest magnitude along the reference's
            last axis (the pose), at least ``atol``.
        reference_error: largest difference of the module from itself in FP64: how well FP32 defines the
            output. Zero if the comparison passes without it.
        excess: largest ``difference / tolerance`` (see ``checks.compare``); the case passes up to 1.
        passed: whether it is within the tolerance.
        outside: whether the case lies outside the range of the user's own inputs; it is then not required to
            pass.
    """

    case: str
    output: str
    max_abs: float
    max_rel: float
    reference_error: float
    excess: float
    passed: bool
    outside: bool = False


@dataclass(frozen=True)
class ScoresTaken:
    """The output that decides the class.

    Attributes:
        output: its name.
        kind: ``length``, ``logits`` or ``probability``.
        reason: why this one.
    """

    output: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.output} ({self.kind}): {self.reason}"


@dataclass(frozen=True, repr=False)
class ExportReport(Summarized):
    """The result of an export.

    Attributes:
        path: the file; it is not written by a dry run or if a comparison fails.
        size: bytes of the file.
        opset, ir_version: of the file.
        ops: ``auto``, ``fused`` or ``portable``.
        inputs, outputs: name and shape; a string is a free dimension.
        operators: nodes by type.
        functions: function bodies in the file.
        rewrites: the effect of each exact rewrite.
        recognition: routing of a user's own module that became capsule operators (``found``), and what
            stayed as it was, with the reason (``left``).
        notes: what a person should know of it.
        atol, rtol: tolerances of the comparison.
        parity: every comparison made.
        dry_run: whether the file was left unwritten.
        scores: the output that decides the class; None where the file states none.
        doubts: why the scores may say nothing.
    """

    path: Path
    size: int
    opset: int
    ir_version: int
    ops: str
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]
    operators: dict[str, int]
    functions: int
    rewrites: dict[str, str]
    recognition: Recognition
    notes: tuple[str, ...]
    atol: float
    rtol: float
    parity: tuple[CaseParity, ...]
    dry_run: bool = False
    scores: ScoresTaken | None = None
    doubts: tuple[str, ...] = ()

    def _summary(self) -> Summary:
        verdict = "PASSED" if self.passed else "FAILED"
        difference = max((p.max_abs for p in self.parity), default=0.0)
        written = "not written (dry run)" if self.dry_run else str(self.path)
        proof = f"{verdict}, largest difference {difference:.2g} in {len(self.parity)} comparisons"
        rows = [
            Row("file", f"{written}, {size(self.size)}"),
            Row("against PyTorch", proof),
            *([Row("scores", str(self.scores))] if self.scores else []),
            Row("operators", ", ".join(f"{n} {kind}" for kind, n in self.operators.items())),
            *(Row(name, effect) for name, effect in self.rewrites.items()),
            *(Row("note", note) for note in (*self.notes, *self.warnings)),
        ]
        nodes = f"{sum(self.operators.values())} nodes, ops '{self.ops}'"
        first = f"{short(self.path.name)}: {size(self.size)}, {nodes}"
        return Summary("ExportReport", [first, proof], rows)

    @property
    def passed(self) -> bool:
        """Whether every required comparison is within its tolerance; the file is written only then."""
        return all(p.passed or p.outside for p in self.parity)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each output that differs on hard cases outside the range of the user's inputs, and
        the doubts about the scores."""
        failed = [p for p in self.parity if p.outside and not p.passed]
        said = []
        for name in dict.fromkeys(p.output for p in failed):
            cases = [p for p in failed if p.output == name]
            worst = max(cases, key=lambda p: p.excess)
            said.append(
                f"'{name}' differs on {len(cases)} hard cases outside the range of your inputs, at worst by "
                f"{worst.max_abs:.3g} ({worst.case}, {worst.excess:.3g} times the tolerance)"
            )
        return (*said, *self.doubts)

    def check(self, cause: str = "") -> None:
        """Raise if a comparison failed.

        Args:
            cause: where the difference comes from, for the message.

        Raises:
            ParityError: a comparison failed; it states the worst one, and its ``report`` is this report.
        """
        failed = [p for p in self.parity if not p.passed and not p.outside]
        if not failed:
            return
        worst = max(failed, key=lambda p: p.excess)
        raise ParityError(
            "The exported model does not reproduce PyTorch's outputs; nothing was written.",
            f"Output '{worst.output}' on input '{worst.case}': largest difference {worst.max_abs:.3g}, "
            f"{worst.excess:.3g} times the tolerance (atol {self.atol:g}, rtol {self.rtol:g}); "
            f"{len(failed)} of {len(self.parity)} comparisons failed."
            + (f"\n{cause}" if cause else ""),
            "Allow more with atol= or rtol= (--atol, --rtol), or state the range that matters with inputs= "
            "(--inputs).",
            report=self,
        )

    @property
    def max_abs(self) -> float:
        """Largest absolute difference over all outputs and cases."""
        return max(p.max_abs for p in self.parity)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        values = asdict(self)
        values["path"] = str(self.path)
        values["parity"] = {
            "atol": self.atol,
            "rtol": self.rtol,
            "max_abs": self.max_abs,
            "cases": values.pop("parity"),
        }
        del values["atol"], values["rtol"], values["doubts"]
        values["warnings"] = list(self.warnings)
        return values
