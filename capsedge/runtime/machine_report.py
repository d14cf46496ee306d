"""What the compiled operators compute here, for ``capsedge doctor --report``: one text for an issue.

Each SIMD level of the operator library runs cases with known outputs, and the bundled models on the bundled
images; the scores are compared with those that `tools/report_reference.py` has written.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import CapsedgeError
from capsedge.runtime.backends.native_library import NAME, VARIABLE, installed, named_library
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.backends.onnxruntime_session import CPU, SessionSettings, first_line
from capsedge.runtime.doctor import Diagnosis, diagnose
from capsedge.runtime.load import load
from capsedge.runtime.machine import simd_levels
from capsedge.runtime.result_summary import Report, Table, outcome_word
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.session.session import Session
from capsedge.runtime.zoo import MODELS, samples_folder, zoo_model
from capsedge.spec.fields import CONFIDENT
from capsedge.spec.version import VERSION

REFERENCE = Path(__file__).with_name("report_reference.npz")
LEVEL = "CAPSEDGE_SIMD"  # the operator library reads it when a session makes its operators
BODIES = "bodies"
# Largest difference of a score: rounding in FP32; in INT8, a value that lands on the other side of a step.
# On x86 without VNNI, it was at most 5e-7 in INT8; with products of bytes that saturate, 0.025 and 0.079 for
# the first two.
TOLERANCES = {"digits-small": 0.01, "digits-overlap": 0.01, "photos": 0.2}
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class CasesResult:
    """The operator cases at one SIMD level.

    Attributes:
        level: as the operator library names it.
        cases: how many ran.
        failed: the cases that are wrong, or do not run, and why.
        worst: the largest error of the others, as a share of what is allowed.
    """

    level: str
    cases: int
    failed: tuple[str, ...]
    worst: float


@dataclass(frozen=True)
class ScoresResult:
    """A bundled model on the bundled images.

    Attributes:
        model: its name.
        level: SIMD level of its operators, or ``bodies`` for the function bodies in its file.
        difference: largest difference of a score from the bundled ones; None if it does not run.
        classes: whether every image, or every pixel of a segmentation, has the class that it has there.
        problem: why it does not run; empty if it does.
    """

    model: str
    level: str
    difference: float | None
    classes: bool
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether classes agree, and scores within `TOLERANCES`."""
        limit = TOLERANCES.get(self.model, _TOLERANCE)
        return self.difference is not None and self.classes and self.difference <= limit


@dataclass(frozen=True, repr=False)
class MachineReport(Report):
    """A diagnosis, and what the operators and the bundled models compute here.

    Attributes:
        packages: version of capsedge, and the compiler of Python.
        levels: SIMD levels of the operator library, slowest first; empty if it is missing or does not open.
    """

    heading: ClassVar[str] = "Report"

    diagnosis: Diagnosis
    packages: Mapping[str, str]
    levels: tuple[str, ...]
    cases: tuple[CasesResult, ...]
    scores: tuple[ScoresResult, ...]

    @property
    def passed(self) -> bool:
        """Whether the base job works, and everything that ran is right."""
        right = all(s.passed for s in self.scores) and not any(c.failed for c in self.cases)
        return self.diagnosis.ready and right

    def _lines(self) -> list[str]:
        return self.closing()

    def rows(self) -> list[tuple[str, str]]:
        """The machine, the packages, and the parts that doctor checks."""
        home = str(Path.home())  # has the user's name
        checks = [
            (c.name, f"{c.status}: {c.found}".replace(home, "~"))
            for c in self.diagnosis.checks
            if c.job in ("infer", "faster")
        ]
        levels = ", ".join(self.levels) or "none: function bodies run"
        return [
            *self.diagnosis.machine.items(), *self.packages.items(), *checks, ("levels", levels)
        ]  # fmt: skip

    def tables(self) -> list[Table]:
        """Operator cases by level; scores by model and level."""
        cases = [
            (
                c.level,
                f"{c.cases - len(c.failed)} of {c.cases}",
                f"{c.worst:.2g} of what is allowed",
            )
            for c in self.cases
        ]
        scores = [
            (s.model, s.level, s.problem or f"{s.difference:.1e}", "same" if s.classes else "DIFFER",
             outcome_word(s.passed))
            for s in self.scores
        ]  # fmt: skip
        failed = [f"{c.level}: {line}" for c in self.cases for line in c.failed]
        return [
            Table("Operators: cases with known outputs",
                  ("level", "right", "largest error"), cases, notes=failed),
            Table("Bundled models: scores against the bundled ones",
                  ("model", "operators", "largest difference", "classes", ""), scores),
        ]  # fmt: skip

    def closing(self) -> list[str]:
        """The verdict, and what to do with the text."""
        wrong = sum(not s.passed for s in self.scores) + sum(len(c.failed) for c in self.cases)
        found = "everything that ran is right" if self.passed else f"{wrong} of the above are wrong"
        if not self.diagnosis.ready:
            found = "images cannot be classified here (`capsedge doctor` says why)"
        return [
            f"{outcome_word(self.passed)}: {found}",
            "Paste this text into an issue of capsedge.",
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "schema": 1,
            "passed": self.passed,
            "packages": dict(self.packages),
            "levels": list(self.levels),
            "cases": [asdict(c) for c in self.cases],
            "scores": [{**asdict(s), "passed": s.passed} for s in self.scores],
            "diagnosis": self.diagnosis.to_dict(),
        }


def make_report() -> MachineReport:
    """Examine this machine and run everything that can be run. Findings never raise an error."""
    found = {"capsedge": VERSION, "python build": platform.python_compiler()}
    levels = tuple(simd_levels())
    cases: tuple[CasesResult, ...] = ()
    scores: tuple[ScoresResult, ...] = ()
    diagnosis = diagnose()
    if diagnosis.ready:
        with np.load(REFERENCE, allow_pickle=False) as reference:
            cases = tuple(_run_cases(level, reference) for level in levels)
            scores = tuple(
                _run_model(name, level, reference[f"scores/{name}"])
                for name in MODELS
                for level in (BODIES, *levels)
            )
    return MachineReport(diagnosis, found, levels, cases, scores)


@contextmanager
def _at_level(level: str) -> Iterator[None]:
    """Sessions that are made in the block use this level."""
    before = os.environ.get(LEVEL)
    os.environ[LEVEL] = level
    try:
        yield
    finally:
        if before is None:
            del os.environ[LEVEL]
        else:
            os.environ[LEVEL] = before


# --- Cases of the operators ---


def _run_cases(level: str, reference: Mapping[str, NDArray[Any]]) -> CasesResult:
    cases = json.loads(reference["cases"].tobytes())
    failed, worst = [], 0.0
    with _at_level(level):
        for number, case in enumerate(cases):
            try:
                error = _error(number, case, reference)
            except Exception as problem:  # ONNX Runtime's have no common public base
                failed.append(f"{case['case']}: {first_line(problem)}")
                continue
            if error <= 1:
                worst = max(worst, error)
            else:
                failed.append(f"{case['case']}: {error:.3g} times what is allowed")
    return CasesResult(level, len(cases), tuple(failed), worst)


def _error(number: int, case: Mapping[str, Any], reference: Mapping[str, NDArray[Any]]) -> float:
    """The largest error of an output as a multiple of what is allowed; infinite for a NaN."""
    ort = import_onnxruntime()
    library = named_library(VARIABLE, "operator library") or installed(NAME)
    settings = SessionSettings(threads=1, library=library, nodes=(case["operator"],))
    session = ort.InferenceSession(
        reference[f"{number}/model"].tobytes(), settings.session_options(ort), providers=[CPU]
    )
    feeds = {port.name: reference[f"{number}/in/{port.name}"] for port in session.get_inputs()}
    worst = 0.0
    for (name, (atol, rtol)), value in zip(
        case["outputs"].items(), session.run(None, feeds), strict=True
    ):
        wanted = reference[f"{number}/out/{name}"].astype(np.float64)
        error = np.abs(value.astype(np.float64) - wanted) / (atol + rtol * np.abs(wanted))
        found = float(np.max(error))
        worst = max(worst, found if np.isfinite(found) else float("inf"))
    return worst


# --- Scores of the bundled models ---


def sample_files(model: str) -> list[Path]:
    """The bundled images that a bundled model is for, in order of their names."""
    folder = samples_folder()
    if model == "photos":
        return sorted(folder.with_name("photographs").glob("*.jpg"))
    if model == "digits-clutter":
        return sorted(folder.with_name("clutter").glob("*.png"))
    if model == "digits-overlap":
        return [folder / "overlapping-2-4.png"]
    return sorted(folder.glob("digit-?.png"))


def scores_of(session: Session, files: list[Path]) -> NDArray[np.float32]:
    """The scores ``[images, classes]``, or maps ``[images, 1, H, W]``, of a model: its first output."""
    name = session.outputs[0].name
    batches = session.image_input.batches(files, 1)
    found = [session.run(batch)[name] for batch in batches]
    return np.concatenate(found).astype(np.float32)


def _run_model(name: str, level: str, wanted: NDArray[Any]) -> ScoresResult:
    path = zoo_model(name)
    assert path is not None
    options = RuntimeOptions(ops="portable" if level == BODIES else "fused", threads=1)
    try:
        with _at_level("plain" if level == BODIES else level), load(path, options) as session:
            found = scores_of(session, sample_files(name))
    except (CapsedgeError, OSError) as error:
        return ScoresResult(name, level, None, False, str(error).splitlines()[0])
    difference = float(np.abs(found - wanted).max()) if np.isfinite(found).all() else float("inf")
    same = np.array_equal(_classes(found), _classes(wanted))
    return ScoresResult(name, level, difference, same)


def _classes(scores: NDArray[np.float32]) -> NDArray[Any]:
    """The class of each image, or of each pixel of a single map."""
    return scores >= CONFIDENT if scores.shape[1] == 1 else scores.argmax(axis=1)
