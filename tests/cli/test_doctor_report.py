"""``capsedge doctor --report``: what the operators and the bundled models compute here, as one text."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from capsedge.cli import app
from capsedge.runtime import doctor, machine_report
from capsedge.runtime.machine_report import (
    BODIES,
    REFERENCE,
    CasesResult,
    MachineReport,
    ScoresResult,
)
from capsedge.runtime.zoo import MODELS

_GOOD = MachineReport(
    diagnosis=doctor.Diagnosis(
        {"cpu": "a processor"}, (doctor.Check("python", "infer", "ok", "3"),)
    ),
    packages={"capsedge": "1"},
    levels=("plain",),
    cases=(CasesResult("plain", 9, (), 0.5),),
    scores=(ScoresResult("digits-em", "plain", 1e-6, True),),
)


@pytest.fixture(scope="module")
def reference() -> Mapping[str, Any]:
    with np.load(REFERENCE, allow_pickle=False) as file:
        return dict(file)


def _printed(
    report: MachineReport, monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str]:
    monkeypatch.setattr(machine_report, "make_report", lambda: report)
    done = CliRunner().invoke(app, ["doctor", "--report", *words])
    return done.exit_code, done.stdout


@pytest.mark.thorough
def test_all_is_right_here_without_torch_and_onnx() -> None:
    code = (
        "import sys; sys.modules.update(torch=None, onnx=None)\n"
        "from capsedge.__main__ import main; sys.argv = ['capsedge', 'doctor', '--report', '--json']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["passed"]
    assert [c["level"] for c in said["cases"]] == said["levels"]
    assert all(c["cases"] > 50 and not c["failed"] and 0 < c["worst"] <= 1 for c in said["cases"])
    ran = {(s["model"], s["level"]) for s in said["scores"]}
    assert ran == {(m, level) for m in MODELS for level in (BODIES, *said["levels"])}
    assert all(s["passed"] for s in said["scores"])


def test_the_text_says_what_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = _printed(_GOOD, monkeypatch)
    assert code == 0
    for words in (
        "a processor",
        "9 of 9",
        "1.0e-06",
        "PASSED: everything that ran is right",
        "issue",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cases": (CasesResult("plain", 9, ("Squash(...): 3 times what is allowed",), 0.5),)},
         ("8 of 9", "plain: Squash(...): 3 times", "FAILED: 1 of the above are wrong")),
        ({"scores": (ScoresResult("digits-em", "plain", 2e-4, True),)}, ("2.0e-04", "FAILED: 1 of")),
        ({"scores": (ScoresResult("digits-em", "plain", 1e-6, False),)}, ("DIFFER", "FAILED: 1 of")),
        ({"scores": (ScoresResult("digits-em", "plain", None, False, "it crashed"),)}, ("it crashed",)),
        ({"diagnosis": doctor.Diagnosis({}, (doctor.Check("python", "infer", "broken", "old"),))},
         ("FAILED: images cannot be classified here",)),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_ends_with_code_3(
    wrong: dict[str, Any], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = replace(_GOOD, **wrong)
    code, text = _printed(report, monkeypatch)
    assert code == 3
    assert all(w in text for w in words), text
    code, text = _printed(report, monkeypatch, "--json")
    assert code == 3
    assert json.loads(text)["passed"] is False


def test_a_pixel_of_another_class_is_found(reference: Mapping[str, Any]) -> None:
    wanted = reference["scores/digits-clutter"].copy()
    assert machine_report._run_model("digits-clutter", BODIES, wanted).passed
    wanted[1, 0, 5, 7] = 1 - wanted[1, 0, 5, 7]
    found = machine_report._run_model("digits-clutter", BODIES, wanted)
    assert (found.passed, found.classes) == (False, False)


def test_a_wrong_score_or_class_is_found(reference: Mapping[str, Any]) -> None:
    wanted = reference["scores/digits-em"]
    assert machine_report._run_model("digits-em", BODIES, wanted).passed
    other = np.roll(wanted, 1, axis=1)
    found = machine_report._run_model("digits-em", BODIES, other)
    assert (found.passed, found.classes) == (False, False)


@pytest.mark.skipif(not machine_report.simd_levels(), reason="the operator library is not built")
def test_a_wrong_case_is_found(reference: Mapping[str, Any]) -> None:
    cases = json.loads(reference["cases"].tobytes())
    (name,) = cases[0]["outputs"]
    assert machine_report._error(0, cases[0], reference) <= 1
    off = {**reference, f"0/out/{name}": reference[f"0/out/{name}"] + np.float32(0.01)}
    assert machine_report._error(0, cases[0], off) > 1


@pytest.mark.thorough
def test_the_bundled_cases_are_those_of_the_conformance_tests(reference: Mapping[str, Any]) -> None:
    """If not: python -m tools.report_reference."""
    pytest.importorskip("onnx")
    from capsedge.spec.operators import OPERATORS
    from tools import report_reference

    wanted = [str(case) for case in report_reference.chosen()]
    found = json.loads(reference["cases"].tobytes())
    assert [case["case"] for case in found] == wanted
    assert {case["operator"] for case in found} == {*OPERATORS}


def test_the_level_is_set_for_the_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine_report.LEVEL, "plain")
    with machine_report._at_level("other"):
        assert machine_report.os.environ[machine_report.LEVEL] == "other"
    assert machine_report.os.environ[machine_report.LEVEL] == "plain"
