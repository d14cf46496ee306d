"""`tools.gpu`, rehearsed: what runs, what is resumed, what a report says, what is packed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks import gpu_ops
from capsedge.runtime.backends.native_library import find_library
from tests.conftest import ROOT
from tools.gpu import against_ptx, pack, report
from tools.gpu.running import State, run
from tools.gpu.steps import OUTPUT, STAGES, Step, steps
from tools.ptx import build


def _step(name: str, code: str, stage: str = "behaviour", **more: object) -> Step:
    return Step(name, stage, (sys.executable, "-c", code), 1, **{"limit": 20, **more})  # type: ignore[arg-type]


def _run(folder: Path, *chosen: Step, seconds: float = 30) -> tuple[State, list[str]]:
    state, said = State(folder), list[str]()
    run(state, chosen, seconds, {}, said.append)
    return state, said


def test_steps_have_names_of_their_own_and_come_by_stage() -> None:
    for small in (False, True):
        names = [step.name for step in steps(small)]
        assert len(set(names)) == len(names)
        order = [STAGES.index(step.stage) for step in steps(small)]
        assert order == sorted(order)
        left_out = {"provider"} if small else set()  # ONNX Runtime's own kernels need a GPU
        assert {STAGES[k] for k in order} == {*STAGES} - left_out


def test_verdicts(tmp_path: Path) -> None:
    (tmp_path / "inventory.result.json").write_text('{"found": {"ncu": "ncu is not installed"}}')
    chosen = [
        _step("good", "print('fine')"),
        _step("bad", "import sys; sys.exit('it broke')"),
        _step("lacking", "import sys; print('no tool'); sys.exit(3)"),
        _step("slow", "import time; time.sleep(30)", limit=0.2),
        _step("needy", "print()", needs=("ncu",)),
    ]
    state, _ = _run(tmp_path, *chosen)
    found = {step.name: state.result(step) for step in chosen}
    assert {name: row and (row["verdict"], row["why"]) for name, row in found.items()} == {
        "good": ("passed", ""),
        "bad": ("failed", "it broke"),
        "lacking": ("not available", "no tool"),
        "slow": ("stopped", "not finished after 0 s"),
        "needy": ("not available", "ncu is not installed"),
    }


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    chosen = [_step(name, f"open({str(log)!r}, 'a').write({name!r})") for name in "ab"]
    _run(tmp_path, chosen[0])
    _run(tmp_path, *chosen)
    assert log.read_text() == "ab"
    _, said = _run(tmp_path, *chosen)
    assert not said


def test_no_time_left_is_no_result(tmp_path: Path) -> None:
    step = _step("long", "import time; time.sleep(30)", timed=True)
    state, said = _run(tmp_path, step, seconds=0.2)
    assert state.result(step) is None
    assert said == ["long: no time left"]


def test_the_report(tmp_path: Path) -> None:
    code = "import json, sys; json.dump({'x': 1}, open(sys.argv[1], 'w'))"
    wrote = Step("wrote", "behaviour", (sys.executable, "-c", code, OUTPUT), 1, 20)
    failed = _step("bad", "import sys; sys.exit('a | b')")
    state, _ = _run(tmp_path, wrote, failed)
    report.write(state, [wrote, failed, _step("later", "")], emulated=True)
    document = json.loads((tmp_path / "report.json").read_text())
    assert [row["verdict"] for row in document["steps"]] == ["passed", "failed", "open"]
    assert document["steps"][0]["document"] == {"x": 1}
    page = (tmp_path / "report.md").read_text()
    assert "no time below is that of a GPU" in page
    assert "| behaviour | 1 | 1 | 0 | 0 | 1 |" in page
    assert "| bad | failed | a \\| b |" in page


def test_what_no_peer_could_measure_is_said_once() -> None:
    times = {"torch eager": {"median_ms": 1.5}, "TensorRT": {"failed": "not installed"}}
    models = [{"model": "m:3", "batch": batch, "times": times} for batch in (1, 32)]
    rows = [{"stage": "models", "verdict": "passed", "document": {"models": models}}]
    page = report.markdown({"emulated": False, "steps": rows})
    assert page.count("| torch eager | 1.500 |") == 2
    assert page.count("- TensorRT: not installed") == 1


def test_layers_in_torch_are_a_table() -> None:
    times = {"torch eager": {"median_ms": 1.5}, gpu_ops.FUSED: {"failed": "differs"}}
    row = {"layer": "classes", "operator": "EMRouting", "batch": 32, "times": times}
    steps = [
        {
            "stage": "torch",
            "verdict": "failed",
            "document": {"operators": [row]},
            "step": "t",
            "why": "",
        }
    ]
    page = report.markdown({"emulated": False, "steps": steps})
    assert "| classes | 32 | differs | - | 1.5000 | - | - |" in page


def test_counts_of_the_hardware_stand_beside_those_of_the_ptx() -> None:
    """Of the machine that both know: the same launches of the same code."""
    measured = json.loads((ROOT / "docs" / "benchmarks" / "h100.json").read_text())["steps"]
    facts = next(row["document"]["gpu"] for row in measured if row["stage"] == "inventory")
    counters = [row["document"] for row in measured if row["stage"] == "counters"]
    rows = [
        dict(zip(against_ptx.HEADER, row, strict=True)) for row in against_ptx.rows(facts, counters)
    ]
    assert len(rows) == 9
    for row in rows:
        assert "PTX" not in row["launches"] + row["grid"] + row["registers"], row
        assert 1 < float(row["warp instructions / PTX"]) < 2
    assert not list(against_ptx.rows({**facts, "multiprocessors": 24}, counters))
    page = report.markdown({"emulated": False, "steps": measured})
    assert "| digit | 128 | `tiled_kernel` | 3 | 4x64 | 128 | 1.17 | 7,083,818 |" in page
    assert "| digits-em | labels | equal |" in page


@pytest.mark.thorough
def test_the_archive_runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libcapsedge_cuda.so"
    for file in (library, library.with_name("capsedge.fatbin")):
        file.write_bytes(b"")
    monkeypatch.setenv("CAPSEDGE_CUDA_LIBRARY", str(library))
    monkeypatch.setattr(pack, "PART_BYTES", 1_000_000)
    wheel = tmp_path / "onnxruntime_gpu.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("onnxruntime/__init__.py", "")
        made.writestr("onnxruntime/capi/libonnxruntime_providers_tensorrt.so", "large")
    parts = pack.write(tmp_path / "parts", wheel)
    assert len(parts) > 1
    assert {part.stat().st_size for part in parts[:-1]} == {1_000_000}
    whole = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(fileobj=whole) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "capsedge-gpu"
    assert [path.name for path in folder.glob("provider/*/*")] == ["__init__.py"]
    assert (folder / "build" / "cuda" / library.name).is_file()
    assert (folder / "build" / "cuda" / "capsedge.fatbin").is_file()
    if find_library() is not None:
        assert (folder / "capsedge" / "runtime" / "_native" / "libcapsedge_ort.so").is_file()
    command = [sys.executable, "-m", "tools.gpu", "--plan"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "conformance: 12 steps" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_rehearsal(tmp_path: Path) -> None:
    """Latency, counters and models need a real GPU; all else passes."""
    if reason := build.unavailable():
        pytest.skip(reason)
    command = [sys.executable, "-m", "tools.gpu", "--device", "emulated"]
    done = subprocess.run(
        [*command, "--state", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    rows = json.loads((tmp_path / "report.json").read_text())["steps"]
    found = {row["step"]: row["verdict"] for row in rows}
    assert not {name for name, verdict in found.items() if verdict in ("failed", "open")}, (
        done.stderr
    )
    assert {name for name, verdict in found.items() if verdict == "passed"} >= {
        f"conformance-{scheme}-{dtype}" for scheme in ("auto", "tiled") for dtype in ("float32", "float16")
    }  # fmt: skip
