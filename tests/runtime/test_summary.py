"""What results show of themselves: little, harmless, and readable on light and dark pages."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import capsedge
from capsedge.calibration.accuracy import Outcome
from capsedge.runtime.files.text import printable
from capsedge.runtime.result_summary import LINES, Report, Row, Summarized, Summary, distinct_names
from capsedge.runtime.session.predictions import Label, Prediction, RegressionValue
from capsedge.verification.certificate import Certificate, Link
from tests.runtime.models import capsule_model, metadata, save
from tests.runtime.pictures import LEFT, quick

SHOWN = (
    "BatchReport", "BuildReport", "CascadeReport", "Certificate", "EngineInspection", "Ensemble",
    "EnsembleCertificate", "ExportReport", "ImportReport", "Inspection", "KServeDeployment",
    "OptimizationReport", "Prediction", "ProfileReport", "PruningReport", "QuantizationReport",
    "Session", "SweepReport", "Trace", "TritonDeployment", "WebDeployment",
)  # fmt: skip
HOSTILE = "<script>alert(1)</script>\x1b[31m\n\u202e&\"'" * 9
NONE = np.zeros((3, 0), np.float32)


class Page(HTMLParser):
    """A page whose tags, attributes and texts are collected; every tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(value: Summarized) -> Page:
    """The page of a result, whose text and page have been checked."""
    text = repr(value)
    assert text.startswith(f"<{type(value).__name__} ")
    assert text.count("\n") < LINES
    assert all(len(line) < 140 for line in text.splitlines())
    assert all(printable(line) == line for line in text.split("\n"))
    page = value._repr_html_()
    found = Page(page)
    assert set(found.tags) <= {"div", "b", "table", "tr", "th", "td", "span"}
    assert found.attributes <= {"style"}
    assert not re.search(r"#[0-9a-f]{3}|rgb|url\(|black|white", page), "colours are the page's own"
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_every_result_shows_itself(name: str) -> None:
    kind = getattr(capsedge, name)
    assert issubclass(kind, Summarized)
    assert kind.__repr__ is Summarized.__repr__
    assert kind._summary is not Summarized._summary


def test_reports_are_shown_by_their_rows_and_tables() -> None:
    """What the command line prints is what a notebook shows."""
    kinds = (getattr(capsedge, name) for name in SHOWN)
    reports = [kind for kind in kinds if hasattr(kind, "to_dict") and kind is not Prediction]
    assert all(issubclass(kind, Report) for kind in reports)
    assert {kind._summary for kind in reports} == {Report._summary}


def test_there_is_no_other_result() -> None:
    results = {n for n in capsedge.__all__ if hasattr(getattr(capsedge, n), "to_dict")}
    assert results <= {*SHOWN, "Preprocessing"}


def test_a_session(tmp_path: Path) -> None:
    session = capsedge.load(save(capsule_model(), tmp_path / "net.onnx"))
    assert repr(session).splitlines() == [
        f"<Session net.onnx: {session.backend.ops} operators, cpu",
        "  images [N, 1, 8, 8] -> lengths [N, 3], poses [N, 3, 4]>",
    ]
    assert "3: left, right, none" in shown(session).text
    session.close()
    assert "net.onnx: closed" in repr(session)


def test_names_in_a_file_are_harmless(tmp_path: Path) -> None:
    properties = metadata(class_names=(HOSTILE, "b", "c")).to_properties()
    session = capsedge.load(save(capsule_model(properties=properties), tmp_path / "<b>.onnx"))
    assert "<b>.onnx" in shown(session).text
    (prediction,) = session.predict(LEFT)
    assert prediction.label == HOSTILE
    assert "<script>" in shown(prediction).text
    assert "\\x1b" in repr(prediction.labels[0])


def test_predictions() -> None:
    labels = tuple(Label(f"class {k}", k, 0.9 - k / 10, np.zeros(16, np.float32)) for k in range(8))
    prediction = Prediction(labels, np.zeros(8), NONE, "length")
    found = shown(prediction)
    assert repr(prediction).startswith("<Prediction 'class 0' 0.900, 'class 1' 0.800")
    assert found.text.endswith("and 3 more")
    assert repr(replace(prediction, labels=())).startswith("<Prediction without a label")
    values = tuple(RegressionValue(f"v{k}", k / 3, "degrees") for k in range(9))
    estimate = Prediction((), np.zeros(0), NONE, "", values)
    assert "v1 0.3333°" in repr(estimate)
    assert "and 4 more" in shown(estimate).text
    odd = Label("x", 0, float("nan"), np.zeros(0, np.float32))
    shown(replace(prediction, labels=(odd, replace(odd, score=-1.0), replace(odd, score=9.0))))


def test_certificates() -> None:
    output = dict.fromkeys(("mean_abs", "relative", "nmse", "atol", "rtol"), 0.0)
    flip = {
        "image": 3, "name": HOSTILE, "reference": [1], "reference_classes": [HOSTILE],
        "artefact": [], "artefact_classes": [], "margin": None,
    }  # fmt: skip
    samples = {
        "measured_on": "net.npz, all 5 images",
        "outputs": [
            {"name": HOSTILE, **output, "max_abs": 1e-7, "worst_over_tolerance": None, "passed": False}
        ],
        "decisions": {
            "kind": "top-1", "images": 5, "agreement": 0.8, "flips": 1, "ties": 0,
            "flips_by_margin": [flip],
        },
    }  # fmt: skip
    hard = {"names": [], "outputs": [], "decisions": None}
    chain = (Link("checkpoint", "a.safetensors", ""), Link("module", "", ""))
    passed = Certificate(chain, samples, hard, {}, (), None, {}, {}, "2026")
    assert repr(passed).splitlines() == [
        "<Certificate PASSED: a.safetensors -> module",
        "  largest difference 1e-07, 80.00% equal decisions on net.npz, all 5 images>",
    ]
    failed = replace(passed, failures=("Decisions differ on 1 of 5 images.", HOSTILE))
    assert "FAILED" in repr(failed)
    assert "Decisions differ" in repr(failed)
    page = shown(failed).text
    assert page.count("<script>") >= 4
    assert "None of the hard cases" in page
    assert page.endswith("FAILED")


def test_outcomes() -> None:
    assert str(Outcome(10, 0.98, 0.99, 0.97, 0.1)) == "accuracy 98.00%, 99.00% in FP32"
    assert str(Outcome(10, None, None, 0.97, 0.1)) == "97.00% of the decisions are those of FP32"


@pytest.mark.thorough
def test_a_profile(tmp_path: Path) -> None:
    with capsedge.load(save(capsule_model(), tmp_path / "net.onnx")) as session:
        report = capsedge.profile(
            session,
            batch=(1, 2, 3, 4),
            duration=0.01,
            startup=False,
            operators=False,
        )
    assert len(repr(report).splitlines()) == 3
    assert repr(report).endswith("and 2 more runs>")
    assert "net.onnx4" in shown(report).text  # the model and its batch
    assert "\n" not in repr(report.runs[0])


@pytest.mark.thorough
@quick
@given(
    lines=st.lists(st.text(), min_size=1, max_size=5),
    rows=st.lists(st.builds(Row, st.text(), st.text(), st.none() | st.floats())),
)
def test_any_text_is_harmless(lines: list[str], rows: list[Row]) -> None:
    class Result(Summarized):
        def _summary(self) -> Summary:
            return Summary("Result", lines, rows)

    shown(Result())


def test_files_of_one_name_are_told_apart_by_the_shortest_path() -> None:
    paths = [
        Path(p) for p in ("/r/a/model.onnx", "/r/b/model.onnx", "/r/c.onnx", "/s/a/model.onnx")
    ]
    assert distinct_names(paths) == ["r/a/model.onnx", "b/model.onnx", "c.onnx", "s/a/model.onnx"]
    assert distinct_names(paths[:3], suffix=False) == ["a/model", "b/model", "c"]
    assert distinct_names([Path("/x.onnx"), Path("/x.onnx"), Path("/a/x.onnx")]) == [
        "/x.onnx", "/x.onnx", "a/x.onnx",
    ]  # fmt: skip
