"""CapsBench: LoadGen's figures, submissions and their page."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("mlperf_loadgen", reason="pip install 'capsedge[capsbench]'")
from benchmarks.capsbench import page, power, rules, running, submission
from benchmarks.capsbench.files import DATA, PRECISIONS, RUNTIMES, Files
from benchmarks.capsbench.worker import System, details
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "benchmarks" / "capsbench.md"
PLAN = running.Plan((), (), ("fp32",), ("SingleStream", "Offline"), {}, {}, None, 1, 0.05, None)


@pytest.fixture
def files(tmp_path: Path) -> Any:
    """A network that doubles three numbers: its scores."""
    onnx = pytest.importorskip("onnx", reason="pip install 'capsedge[build]'")
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("Add", ["images", "images"], ["lengths"])],
        "graph",
        [helper.make_tensor_value_info("images", 1, ["n", 3])],
        [helper.make_tensor_value_info("lengths", 1, ["n", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    images = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    np.savez(tmp_path / "in.npz", images=images)
    return SimpleNamespace(
        inputs=tmp_path / "in.npz", outputs=["lengths", "poses"], images=images,
        labels=images.argmax(1), checkpoint=tmp_path / "m.onnx", trained=True,
        of=lambda runtime, precision: tmp_path / "m.onnx",
        model=SimpleNamespace(config=SimpleNamespace(iterations=3)),
    )  # fmt: skip


def measured(files: Any, runtime: str = "onnxruntime", **changes: Any) -> list[dict[str, Any]]:
    wanted = 2 * files.images
    return running._measure(replace(PLAN, **changes), "digits-em", runtime, "fp32", files, wanted)


@pytest.mark.thorough
def test_loadgen_drives_a_runtime(files: Any) -> None:
    rows = measured(files)
    assert [(r["scenario"], r["unit"]) for r in rows] == [
        ("SingleStream", "ns"),
        ("Offline", "images/s"),
    ]
    for row in rows:
        assert (row["accuracy"], row["agreement"], row["test_images"]) == (1.0, 1.0, 40)
        assert row["result"] > 0
        assert row["version"].startswith("onnxruntime ")
    assert rows[0]["queries"] == rows[0]["images"] >= rules.SINGLE.queries
    assert rows[1]["queries"] == 1 < rows[1]["images"]


@pytest.mark.thorough
def test_all_scenarios_and_answers_of_single_images(files: Any) -> None:
    """A runtime of batch 1 gets single images in all scenarios, and the accuracy is that of its answers."""
    files.labels = (files.labels + (np.arange(40) < 10)) % 3
    rows = measured(
        files, "tract" if _has("tract") else "onnxruntime", scenarios=("MultiStream", "Server")
    )
    assert [r["scenario"] for r in rows] == ["MultiStream", "Server"]
    assert rows[0]["images"] == rules.MULTI.samples * rows[0]["queries"]
    assert {r["accuracy"] for r in rows} == {0.75}


def _has(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def test_a_runtime_that_fails_is_a_row(files: Any, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    (row,) = measured(files)
    assert "scenario" not in row
    assert row["error"]
    assert submission_problems(document([row]), tmp_path) == []


def test_a_runtime_whose_scores_are_missing(files: Any) -> None:
    files.outputs = ["other"]
    wanted = np.zeros((40, 4), np.float32)
    (row,) = running._measure(PLAN, "digits-em", "onnxruntime", "fp32", files, wanted)
    assert "no output with 4 scores per image" in row["error"]


def test_a_worker_that_ends_is_a_row(
    files: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dying = tmp_path / "python"
    dying.write_text(f"#!{sys.executable}\nimport os; os.abort()\n")
    dying.chmod(0o755)
    monkeypatch.setattr(running, "interpreter", lambda runtime, folder: str(dying))
    (row,) = measured(files)
    assert "ended with code -6" in row["error"]


def test_scores_by_name_or_by_size() -> None:
    images = np.arange(6, dtype=np.float32).reshape(2, 3)
    for name in ("lengths", "renamed"):
        run = {"poses": np.zeros((2, 3, 4)), name: 2 * images}
        system = System(lambda feeds, run=run: run, "images", images, ["lengths"], 3)  # type: ignore[misc]
        assert (system.scores([0, 1]) == 2 * images).all()


def test_details_takes_the_last_value(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(':::MLLOG {"key": "a", "value": 1}\nother\n:::MLLOG {"key": "a", "value": 2}\n')
    assert details(log) == {"a": 2}


@pytest.mark.thorough
@pytest.mark.parametrize("precision", PRECISIONS)
def test_files_of_a_model(precision: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'capsedge[cpu]'")
    pytest.importorskip("torch", reason="pip install 'capsedge[export]'")
    files = Files("digits-em", None, None, tmp_path, 4)
    assert files.labels is None
    assert files.reference().shape == (4, 10)
    found = files.of("onnxruntime", precision)
    assert found == files.of("onnxruntime", precision)
    import capsedge

    session = capsedge.load(found)
    assert files.outputs == [o.name for o in session.outputs][:2]
    wanted = files.reference().argmax(1)
    if precision == "fp32":
        assert (session.run(files.images)[files.outputs[0]].argmax(1) == wanted).all()


def document(rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    found = {
        "capsbench": 1, "name": "m", "loadgen": "6", "seconds": rules.SECONDS, "images": None,
        "command": "c", "rows": rows,
        "machine": {"cpu": "c", "cores": 2, "system": "s", "python": "3"},
    }  # fmt: skip
    return found | changes


ROW: dict[str, Any] = {
    "model": "digits-em", "trained": True, "weights_sha256": "0" * 64, "iterations": 3,
    "runtime": "capsedge", "precision": "fp32", "threads": 2,
}  # fmt: skip
MEASURED: dict[str, Any] = ROW | {
    "version": "v", "first_answer_s": 0.1, "file_sha256": "1" * 64, "bytes": 5, "test_images": 10,
    "accuracy": 0.5, "agreement": 1.0, "scenario": "SingleStream", "valid": True, "reason": "",
    "result": 2e6, "unit": "ns", "percentiles_ns": {"50": 1, "90": 2, "99": 3}, "queries": 100,
    "images": 100, "energy_source": "", "joules_per_image": None,
}  # fmt: skip


def submission_problems(found: dict[str, Any], folder: Path) -> list[str]:
    submission.write(found, folder / "m.json")
    return submission.problems_of(folder / "m.json")


@pytest.mark.parametrize(
    ("rows", "changes", "problem"),
    [
        ([MEASURED], {}, ""),
        ([MEASURED, ROW | {"runtime": "ncnn", "error": "e"}], {}, ""),
        ([MEASURED], {"seconds": 59.0}, "runs of 59 s; the rules ask for 60"),
        ([MEASURED, MEASURED], {}, "measured twice"),
        ([MEASURED | {"accuracy": 1.5}], {}, "rows/0"),
        ([MEASURED | {"error": "e"}], {}, "rows/0"),
        ([ROW], {}, "rows/0"),
        ([MEASURED], {"name": "../m"}, "name"),
        ([MEASURED], {"more": 1}, "document"),
    ],
)
def test_check(rows: Any, changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    found = submission_problems(document(rows, **changes), tmp_path)
    assert bool(found) == bool(problem)
    assert problem in " ".join(found)


def test_a_changed_figure_is_found(tmp_path: Path) -> None:
    submission.write(document([MEASURED]), tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text()
    assert "2000000.0" in text
    (tmp_path / "m.json").write_text(text.replace("2000000.0", "1000000.0"))
    assert "checksum" in submission.problems_of(tmp_path / "m.json")[0]
    with pytest.raises(ValueError, match="checksum"):
        submission.read(tmp_path / "m.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.thorough
@settings(deadline=None, max_examples=40)
@given(key=st.sampled_from(sorted(document([]))), value=JSON)
def test_strange_documents_are_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    place = tmp_path_factory.mktemp("strange") / "m.json"
    submission.write(document([MEASURED]), place)
    found = json.loads(place.read_text())
    changed = value != found[key] or type(value) is not type(found[key])
    place.write_text(json.dumps(found | {key: value}))
    assert submission.problems_of(place) or not changed
    place.write_text(json.dumps(value))
    assert submission.problems_of(place)


def test_the_page_shows_what_was_measured(tmp_path: Path) -> None:
    failed = ROW | {"runtime": "ncnn", "error": "ValueError: a | b"}
    invalid = MEASURED | {
        "scenario": "Server",
        "valid": False,
        "reason": "too slow",
        "unit": "images/s",
    }
    submission.write(document([MEASURED, invalid, failed]), tmp_path / "m.json")
    target = tmp_path / "page.md"
    target.write_text(PAGE.read_text())
    page.write(target, tmp_path)
    text = target.read_text()
    assert "| capsedge, fp32 | 2.000 | invalid: too slow | 50.00 % | 100.00 % | 0 |" in text
    assert "| ncnn, fp32 | ValueError: a \\| b |" in text
    assert (tmp_path / "m.png").stat().st_size > 1000
    assert page.scenarios() in text


def test_the_page_states_the_rules() -> None:
    text = PAGE.read_text()
    assert page.scenarios() in text
    for figure in (
        f"at least {rules.SECONDS:.0f} s", f"{rules.WARM_UP:.0f} s of warm-up",
        f"batches of up to {rules.BATCH} images", f"within {1e3 * rules.SERVER_SECONDS:.0f} ms",
    ):  # fmt: skip
        assert figure in text


def test_submissions_are_correct() -> None:
    folder = PAGE.with_suffix("")
    for path in folder.glob("*.json"):
        assert submission.problems_of(path) == []
        assert f"## {path.stem}" in PAGE.read_text()
        assert path.with_suffix(".png").exists()


@pytest.mark.parametrize(
    ("end", "problem"),
    [("", ""), ("os.abort()", "ended with code -6"), ("time.sleep(60)", "no answer within 3 s")],
)
def test_what_was_said_before_a_failure_is_kept(end: str, problem: str) -> None:
    program = (
        f"import os, time; print('log'); print('{{\"a\": 1}}'); print('{{\"cut', flush=True); {end}"
    )
    assert running.said_by([sys.executable, "-c", program], 3.0) == ([{"a": 1}], problem)


def test_tables_name_what_there_is() -> None:
    from benchmarks.runtimes import LOADERS
    from capsedge.models import MODELS

    assert set(RUNTIMES) == set(LOADERS) - {"onnx.reference", "ort"}
    assert set(DATA) <= set(MODELS)


def rapl(folder: Path, microjoules: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text("package-0\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text("1000000\n")


@pytest.mark.parametrize(("after", "joules"), [(900_000, 0.4), (100_000, 0.6)])
def test_energy_of_rapl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, joules: float
) -> None:
    """The second case starts again at the counter's limit."""
    monkeypatch.setattr(power, "RAPL", tmp_path)
    rapl(tmp_path / "intel-rapl:0", 500_000)
    rapl(tmp_path / "intel-rapl:0:0", 0)  # a part of the package, which it holds already
    with power.measured() as energy:
        rapl(tmp_path / "intel-rapl:0", after)
    assert energy.joules == pytest.approx(joules)
    assert energy.source == "RAPL package-0"


def test_energy_of_a_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "RAPL", tmp_path / "none")
    monkeypatch.setattr(power, "MONITORS", tmp_path)
    monkeypatch.setattr(power, "PERIOD", 0.001)
    chip = tmp_path / "hwmon1"
    chip.mkdir()
    for number, rail in ((1, "VDD_IN"), (2, "VDD_CPU_CV")):
        (chip / f"in{number}_label").write_text(rail + "\n")
        (chip / f"in{number}_input").write_text("5000\n")
        (chip / f"curr{number}_input").write_text("2000\n")
    (chip / "in7_label").write_text("sum of shunt voltages\n")
    start = time.perf_counter()
    with power.measured() as energy:
        time.sleep(0.01)
    assert energy.source == "INA3221 VDD_IN"
    assert energy.joules is not None
    assert 0.1 <= energy.joules <= 10.0 * (time.perf_counter() - start)


def test_no_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "RAPL", tmp_path)
    monkeypatch.setattr(power, "MONITORS", tmp_path)
    with power.measured() as energy:
        pass
    assert (energy.source, energy.joules) == ("", None)
