"""Zoo, INT8, FP16 and frozen files, and bodies of equal shapes: right on every supported ONNX Runtime."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import capsedge
from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.onnxruntime_session import (
    OLDEST_VERSION,
    OVERLOADS_SINCE,
    TESTED_VERSIONS,
    parse_version,
    version_text,
)
from capsedge.spec.vocabularies import ZOO_ROUTINGS as ROUTINGS
from tests.runtimes import files
from tools.runtimes import folder

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = "installed"
ENVIRONMENT, ARTEFACT = 3, 6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runtimes")
    files.make(place)
    return place


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that are made in a second."""
    place = tmp_path_factory.mktemp("small")
    files.make_modules(place, ("two", "constants"))
    return place


def place_of(version: str) -> Path | None:
    """Folder of a version to put first on PYTHONPATH; None for the installed one."""
    if version == INSTALLED:
        return None
    place = folder(version)
    if not place.is_dir():
        pytest.skip(f"ONNX Runtime {version} is not in build/runtimes: make runtimes")
    if sys.version_info >= (3, 13) and parse_version(version) < (1, 20):
        pytest.skip(f"ONNX Runtime {version} has no package for this Python")
    return place


def run_worker(version: str, made: Path) -> dict[str, Any]:
    place = place_of(version)
    path = os.pathsep.join(str(p) for p in (place, ROOT) if p is not None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtimes.worker", str(made)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    if place is not None:
        assert report["version"] == version
        assert Path(report["place"]).is_relative_to(place.resolve())
    return report


@pytest.mark.thorough
@pytest.mark.runtimes
@pytest.mark.parametrize(
    "version",
    [
        TESTED_VERSIONS[0], INSTALLED,
        *(pytest.param(v, marks=pytest.mark.slow) for v in TESTED_VERSIONS[1:]),
    ],
)  # fmt: skip
def test_every_file_gives_the_same_answer(made: Path, version: str) -> None:
    report = run_worker(version, made)
    answers = report["answers"]
    assert len(answers) >= 2 * len(list(made.glob("*.onnx")))
    wrong = {k: a for k, a in answers.items() if "error" in a or a["excess"] > 1}
    assert not wrong


@pytest.mark.thorough
@pytest.mark.runtimes
@pytest.mark.parametrize("version", [*TESTED_VERSIONS, INSTALLED])
def test_older_files_are_right_or_refused(made: Path, version: str, tmp_path: Path) -> None:
    for name in ("two", "attention", "attention-int8-ort-cpu"):
        older = files.with_overloads(onnx.load(made / f"{name}.onnx"))
        (tmp_path / f"{name}.onnx").write_bytes(older.SerializeToString())
        (tmp_path / f"{name}.npz").write_bytes((made / f"{name}.npz").read_bytes())
    report = run_worker(version, tmp_path)
    honoured = parse_version(report["version"]) >= OVERLOADS_SINCE
    for key, answer in report["answers"].items():
        _, ops, language = key.split()
        if language == "bare" and not honoured:
            continue  # nothing of ours is asked
        if ops == "fused" or honoured:
            assert answer.get("excess", np.inf) <= 1, (key, answer)
        else:
            assert answer.get("code") == ARTEFACT, (key, answer)
            assert "would compute" in answer["error"]
            assert "capsedge export" in answer["error"]


@pytest.mark.thorough
@pytest.mark.runtimes
def test_the_check_sees_bodies_mixed_up(made: Path, tmp_path: Path) -> None:
    """Files with overloads, in a version that ignores them and with nothing to refuse them, are wrong."""
    older = files.with_overloads(onnx.load(made / "two.onnx"))
    (tmp_path / "two.onnx").write_bytes(older.SerializeToString())
    (tmp_path / "two.npz").write_bytes((made / "two.npz").read_bytes())
    answers = run_worker("1.26.0", tmp_path)["answers"]
    assert answers["two portable bare"]["excess"] > 100


@pytest.mark.parametrize("which", ["small", pytest.param("made", marks=pytest.mark.thorough)])
def test_bodies_have_names_of_their_own(which: str, request: pytest.FixtureRequest) -> None:
    paths = list(request.getfixturevalue(which).glob("*.onnx"))
    assert paths
    for path in paths:
        model = onnx.load(path)
        names = [(f.domain, f.name) for f in model.functions]
        assert len(names) == len(set(names))
        assert not any(n.overload for n in model.graph.node)
        assert not any(f.overload for f in model.functions)


@pytest.mark.parametrize(
    ("which", "name"),
    [
        ("small", "two"),
        ("small", "constants"),
        *(
            pytest.param("made", name, marks=pytest.mark.thorough)
            for name in ("many", *ROUTINGS, *(f"{routing}-portable" for routing in ROUTINGS))
        ),
    ],
)
def test_the_reference_implementation_agrees(
    which: str, name: str, request: pytest.FixtureRequest
) -> None:
    """Of the files with one routing, `tests/exporters/test_export.py` has small ones."""
    path = request.getfixturevalue(which) / f"{name}.onnx"
    evaluator = ReferenceEvaluator(str(path))
    with np.load(path.with_suffix(".npz")) as wanted:
        names = [n for n in wanted.files if n not in ("x", "tolerance")]
        found = evaluator.run(names, {evaluator.input_names[0]: wanted["x"]})
        for output, value in zip(names, found, strict=True):
            np.testing.assert_allclose(value, wanted[output], rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["onnxslim", "onnxsim"])
@pytest.mark.parametrize("name", ["dynamic", "em", "attention", "two", "attention-int8-ort-cpu"])
def test_optimizers_leave_files_right(
    made: Path, tmp_path: Path, optimizer: str, name: str
) -> None:
    module = pytest.importorskip(optimizer, reason=f"pip install {optimizer}")
    path = tmp_path / f"{name}.onnx"
    if optimizer == "onnxslim":
        onnx.save(module.slim(str(made / f"{name}.onnx")), path)
    else:
        simplified, _ = module.simplify(str(made / f"{name}.onnx"))
        onnx.save(simplified, path)
    (tmp_path / f"{name}.npz").write_bytes((made / f"{name}.npz").read_bytes())
    answers = run_worker(INSTALLED, tmp_path)["answers"]
    assert all(a.get("excess", np.inf) <= 1 for a in answers.values()), answers


def test_the_oldest_version_is_written_in_one_place() -> None:
    oldest = version_text(OLDEST_VERSION)
    project = (ROOT / "pyproject.toml").read_text()
    asked = re.findall(r'"onnxruntime(?:-gpu)?>=([\d.]+)', project)
    assert asked
    assert set(asked) == {oldest}
    header = (ROOT / "capsedge/runtime/native/onnxruntime/ort_abi.h").read_text()
    assert f"kOrtApiVersion = {OLDEST_VERSION[1]};" in header
    families = (ROOT / "capsedge/runtime/native/onnxruntime/instances.h").read_text()
    assert f"kOverloadsMinor = {OVERLOADS_SINCE[1]};" in families
    assert TESTED_VERSIONS[0].startswith(f"{oldest}.")
    for page in ("docs/explanation/kernels.md", "docs/how-to/libcapsedge.md"):
        for named in re.findall(
            r"(?<!rustc )\b(1\.\d+) or (?:later|newer)", (ROOT / page).read_text()
        ):
            assert named == oldest, page


@pytest.mark.thorough
def test_an_older_version_is_refused(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.18.1")
    with pytest.raises(EnvironmentProblem, match=r"1\.18\.1 is too old") as refused:
        capsedge.load(made / "two.onnx")
    assert refused.value.exit_code == ENVIRONMENT
