"""Every benchmark starts, does as little as its options allow, and writes what it is for."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.web import browser

FOLDER = ROOT / "benchmarks"
DATA, OUT, ZOO = "DATA", "OUT", str(ROOT / "capsedge" / "zoo")

# Words for each program; DATA is a small data set, OUT a folder.
PROGRAMS: dict[str, list[str]] = {
    "affine": [f"{DATA}/mnist", "--epochs", "1", "--limit", "32", "--json", f"{OUT}/document.json"],
    "cascade": [
        f"{ZOO}/digits-em.onnx", f"{ZOO}/digits-dynamic.onnx", f"{DATA}/mnist", "--images", "200",
        "--timed", "2", "--min-agreement", "0.5", "--cascade", f"{OUT}/cascade.onnx",
    ],
    "convolutions": [
        "--threads", "1", "--rounds", "1", "--batches", "1", "--layers", "1", "--width", "0",
        "--json", f"{OUT}/document.json",
    ],
    "ensembles": ["digits-em", "digits-dynamic", "--threads", "1", "--batch", "1"],
    "libcapsedge": ["--json", "--calls", "10", "--blocks", "2", "--starts", "1"],
    "moving_pictures": ["--sizes", "64x48", "--frames", "3", "--rounds", "1"],
    "operators": [
        "--threads", "1", "--seconds", "0.01", "--filter", "squash", "--json", f"{OUT}/document.json",
    ],
    "own_modules": ["--width", "16", "--types", "2", "--seconds", "0.02"],
    "page": ["--turns", "2", "-o", f"{OUT}/document.json"],
    "peers": [
        "--models", "em-smallnorb-small:1", "--batches", "1", "--threads", "1", "--rounds", "1",
        "--seconds", "0.01", "--peers", "capsedge fused", "torch eager", "-o", OUT,
    ],
    "portability": [
        "--models", "digits-em", "--runtimes", "onnxruntime", "tract", "--precisions", "fp32",
        "--seconds", "0.01", "-o", OUT,
    ],
    "profiling": [f"{ZOO}/digits-em.onnx", "--seconds", "0.02"],
    "pruning": [
        f"{ZOO}/digits-em.safetensors", f"{ZOO}/digits-em.onnx", "--batch", "1", "--threads", "1",
    ],
    "rewrites": ["--model", "em-smallnorb-small", "--iters", "1", "--threads", "1", "--runs", "2"],
    "segmentation": ["--model", "digits-clutter", "--size", "32", "--threads", "1", "--seconds", "0.05"],
    "startup": ["--rounds", "1"],
    "typical_input": [DATA, "--limit", "50"],
    "unfused": ["--children", "16", "--batches", "1", "--seconds", "0.02", "--networks", "1"],
}  # fmt: skip
LONG = ("affine", "own_modules")  # train or export several networks: half a minute or more
# Programs that the line below cannot start, and why.
LEFT_OUT = {
    "affine_photos": "trains on a GPU",
    "arm_convolutions": "builds and emulates for ARM, for minutes",
    "batch": "starts a cluster: make test-ray has what it needs",
    "cuda_counts": "executes nvcc's code: tests/native/test_cuda_counts.py",
    "export_time": "takes a minute for its smallest network: tests/benchmarks/test_export_time.py",
    "gpu": "needs an NVIDIA GPU: tests/native/test_cuda_benchmark.py",
    "gpu_models": "needs an NVIDIA GPU",
    "gpu_ops": "needs an NVIDIA GPU",
    "imported": "takes minutes: tests/importers compares these networks",
    "microcontroller": "needs compilers and QEMU for boards: tests/exporters/c/test_boards.py",
    "quantized": "needs minutes to calibrate its networks",
    "round_trip": "takes a minute for its smallest network",
    "serving": "tests/test_serving_benchmark.py",
    "serving_page": "writes the page of `serving`: tests/test_serving_benchmark.py",
    "serving_peer": "a server that `serving` starts, with FastAPI",
    "serving_stop": "tests/serving/test_stopping.py",
    "runtimes": "a worker that `peers` starts",
    "webassembly": "needs ziglang: tests/exporters/c/test_wasm.py",
    "wheel": "tests/test_wheel_benchmark.py",
}
# Tools that pages and the Makefile name.
TOOLS = (
    "tools.c_reference", "tools.docs.map", "tools.docs.messages", "tools.draw_photographs",
    "tools.draw_samples", "tools.gpu.__main__", "tools.lock",
    "tools.release", "tools.runtimes", "tools.speed", "tools.walks", "tools.wheels",
    "tools.zoo.__main__", "tools.zoo.train_photos",
)  # fmt: skip
NEEDED = {"page": browser.missing(), "operators": "" if shutil.which("c++") else "needs g++"}


def test_every_program_is_started_or_says_why_not() -> None:
    programs = {
        path.stem
        for path in FOLDER.glob("*.py")
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    }
    assert programs == PROGRAMS.keys() | LEFT_OUT.keys()
    assert not PROGRAMS.keys() & LEFT_OUT.keys()
    for reason in LEFT_OUT.values():
        for test in re.findall(r"tests/[\w/]+\.py", reason):
            assert (ROOT / test).is_file(), test


def test_every_module_that_a_page_starts_exists() -> None:
    """``python -m benchmarks.NAME`` and ``python -m tools.NAME``, in pages, docstrings and the Makefile."""
    places = [ROOT / "Makefile", *ROOT.glob("*.md")]
    for folder, ending in (("docs", "md"), ("benchmarks", "*"), ("tools", "py"), ("tests", "md")):
        places += (ROOT / folder).rglob(f"*.{ending}" if ending != "*" else "*.[mp][dy]")
    missing = {
        name
        for place in places
        for name in re.findall(r"-m ((?:benchmarks|tools)(?:\.\w+)+)", place.read_text("utf-8"))
        if importlib.util.find_spec(name) is None
    }
    assert not missing - {"benchmarks.NAME"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*LEFT_OUT, *TOOLS} - {"serving_peer"}))
def test_what_takes_more_says_how_it_is_used(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its imports and its options hold; what it does needs more than a test has."""
    module = name if "." in name else f"benchmarks.{name}"
    source = importlib.util.find_spec(module)
    assert source is not None
    assert source.origin is not None
    if "argparse" not in Path(source.origin).read_text(encoding="utf-8"):
        importlib.import_module(module)
        return
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(module, run_name="__main__")
    assert not end.value.code
    assert "usage:" in capsys.readouterr().out


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of MNIST: 256 images of bars, ten classes of places."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "mnist").mkdir()
    labels = np.arange(256, dtype=np.uint8) % 10
    images = np.zeros((256, 28, 28), np.uint8)
    for k, label in enumerate(labels):
        images[k, 4:24, 4 + 2 * label : 8 + 2 * label] = 255 - k % 50
    for split in ("train", "t10k"):
        for name, array, kind in (("images-idx3", images, 3), ("labels-idx1", labels, 1)):
            head = bytes([0, 0, 8, kind]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            with gzip.open(folder / "mnist" / f"{split}-{name}-ubyte.gz", "wb") as file:
                file.write(head + array.tobytes())
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in PROGRAMS]
)
def test_it_starts_and_writes_its_document(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if NEEDED.get(name):
        pytest.skip(NEEDED[name])
    pages = {path: path.stat().st_mtime_ns for path in (ROOT / "docs").rglob("*.*")}
    words = [w.replace(DATA, str(data)).replace(OUT, str(tmp_path)) for w in PROGRAMS[name]]
    monkeypatch.setattr(sys, "argv", [f"benchmarks.{name}", *words])
    code: object = None
    try:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    except SystemExit as end:
        code = end.code
    assert not code
    said = capfd.readouterr().out
    documents = [*tmp_path.glob("*.json")]
    for document in documents:
        assert json.loads(document.read_text(encoding="utf-8")), document.name
    assert documents or re.search(r"\d", said), said
    assert "Traceback" not in said
    assert pages == {path: path.stat().st_mtime_ns for path in pages}  # of docs, nothing is written


@pytest.mark.thorough
def test_a_peer_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Even the one that the others are compared with."""
    from benchmarks import peers

    monkeypatch.setattr(peers, "WORKER", (sys.executable, "-c", "raise SystemExit('no such peer')"))
    images = np.zeros((1, 1, 28, 28), np.float32)
    wanted = [peers.REFERENCE, "capsedge fused"]
    rows = peers.measure("digits-em:3", tmp_path, images, 1, wanted, 1, 0.01)
    assert [row["peer"] for row in rows] == wanted
    assert all(row["error"].startswith("failed: ") for row in rows)
    document = {"machine": peers.machine(), "date": "2026-11-30", "command": "x", "rows": rows}
    assert "failed: " in peers.markdown(document)
