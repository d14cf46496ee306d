"""Sessions with the operator library, where this machine has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.profiling.worker import ops_argument
from capsedge.runtime.zoo import samples_folder
from tests.exports import Exports
from tests.runtime.models import SIDE, capsule_model, save

pytestmark = pytest.mark.skipif(
    find_library() is None,
    reason="the operator library is not built: install capsedge where there is a C++17 compiler",
)


def test_library_runs_and_agrees_with_the_bodies(tmp_path: Path):
    path = save(capsule_model(), tmp_path / "a.onnx")
    fused, portable = (
        capsedge.load(path),
        capsedge.load(path, ops="portable"),
    )
    assert (fused.backend.ops, portable.backend.ops) == ("fused", "portable")
    x = np.random.default_rng(0).random((5, 1, SIDE, SIDE), np.float32)
    found, wanted = fused.run(x), portable.run(x)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], atol=2e-6, rtol=2e-5)
    assert fused.run(x[:0])["lengths"].shape == (0, 3)


def test_bodies_are_not_needed(tmp_path: Path):
    """A file without function bodies can only run in the library: so the library really runs."""
    session = capsedge.load(
        save(capsule_model(function=False), tmp_path / "a.onnx"),
        ops="fused",
    )
    assert session.backend.ops == "fused"
    assert session.predict(np.full((SIDE, SIDE), 255, np.uint8))[0].score == pytest.approx(16 / 17)


def test_command_says_which_operators_run(tmp_path: Path):
    path = save(capsule_model(), tmp_path / "a.onnx")
    image = samples_folder() / "digit-1.png"
    run = subprocess.run(
        [sys.executable, "-m", "capsedge", "infer", image, "--model", path],
        capture_output=True,
        text=True,
    )
    assert "fused operators" in run.stdout


@pytest.mark.thorough
def test_corrupt_files_do_not_crash_the_library(tmp_path: Path):
    """In a process of its own: a crash would be seen as a signal, not as an exception."""
    code = """
import sys, pathlib, numpy as np, capsedge
whole = np.frombuffer(pathlib.Path(sys.argv[1]).read_bytes(), np.uint8)
rng, bad = np.random.default_rng(0), pathlib.Path(sys.argv[1]).with_name("bad.onnx")
for _ in range(200):
    content = whole.copy()
    content[rng.integers(0, len(content), 3)] = rng.integers(0, 256, 3)
    bad.write_bytes(content.tobytes())
    try:
        capsedge.load(bad).predict(np.zeros((8, 8), np.uint8))
    except capsedge.CapsedgeError:
        pass
"""
    path = save(capsule_model(), tmp_path / "a.onnx")
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize("family", ["dynamic", "attention"])
def test_routing_in_standard_operators_is_not_called_fused(exported: Exports, family: str):
    """With couplings as an output, routing is written in operators that the library does not run."""
    pytest.importorskip("torch")
    from tests.exporters.nets import EXTRAS, network

    for options, ops in (({}, "fused"), ({"extra_outputs": EXTRAS[family]}, "mixed")):
        path = exported(network(family), **options).path
        session = capsedge.load(path)
        assert session.backend.ops == ops
        again = capsedge.load(path, ops=ops_argument(session))
        assert again.backend.ops == ops
