"""A user's program is checked with the package's types, however the package was installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest.importorskip("mypy")
PROGRAM = """
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

import capsedge
from capsedge.datasets import ImageSet


def frames() -> Iterator[bytes]:
    yield b""


with capsedge.load("digits-em", threads=1) as session:
    reveal_type(session)
    reveal_type(session(Path("a.png")))
    reveal_type(session.predict(["a.png", b"", np.zeros((2, 2)), Image.new("L", (2, 2))], layout="HW"))
    reveal_type(next(session.stream(frames())).label)
    reveal_type(session.run(np.zeros((1, 1, 28, 28)))["lengths"])
    reveal_type(capsedge.profile(session))
    session.predict(3)
    session.predict([3])
    session.predict("a.png", prepare=True)
reveal_type(capsedge.load)
reveal_type(capsedge.inspect)
reveal_type(capsedge.quantize)
reveal_type(ImageSet("noise", np.zeros((1, 2, 2, 1))).labels)
try:
    capsedge.load("none.onnx")
except capsedge.ArtefactError as error:
    reveal_type(error.fix)
"""
TYPES = [
    'type is "capsedge.runtime.session.session.Session"',
    'type is "list[capsedge.runtime.session.predictions.Prediction]"',
    'type is "list[capsedge.runtime.session.predictions.Prediction]"',
    'type is "str | None"',
    'type is "numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]"',
    'type is "capsedge.runtime.profiling.profile.ProfileReport"',
    'Argument 1 to "predict" of "LoadedModel" has incompatible type "int"',
    'List item 0 has incompatible type "int"',
    'Unexpected keyword argument "prepare" for "predict"',
    "capsedge.runtime.session.session.Session",
    "capsedge.runtime.inspection_report.Inspection",
    "capsedge.calibration.quantization_report.QuantizationReport",
    "numpy.dtype[numpy.signedinteger",
    'type is "str"',
]


def check(python: Path | str, folder: Path) -> None:
    """Check the program strictly in another folder, with the packages of an interpreter."""
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    words = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "program.py"]
    run = subprocess.run(
        [*words, "--python-executable", python], capture_output=True, text=True, cwd=folder
    )
    said = [
        line for line in run.stdout.splitlines() if "note: Revealed" in line or "error:" in line
    ]
    assert len(said) == len(TYPES), run.stdout + run.stderr
    for line, wanted in zip(said, TYPES, strict=True):
        assert line.startswith("program.py:")
        assert wanted in line


@pytest.mark.thorough
def test_in_this_environment(tmp_path: Path) -> None:
    check(sys.executable, tmp_path)


CALLS = ROOT / "tests" / "keyword_calls.py"
MYPY = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-warn-unused-ignores"]


@pytest.mark.thorough
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_options_are_known_as_keyword_arguments(checker: str, tmp_path: Path) -> None:
    """Exactly the wrong calls are errors, each on its line."""
    if checker == "pyright" and shutil.which("pyright") is None:
        pytest.skip("needs pyright: npm install --global pyright")
    program = shutil.copy(CALLS, tmp_path)
    words = MYPY if checker == "mypy" else ["pyright", "--pythonpath", sys.executable]
    run = subprocess.run([*words, program], capture_output=True, text=True, cwd=tmp_path)
    found = {int(line) for line in re.findall(r":(\d+):(?:\d+ -)? error: ", run.stdout)}
    lines = CALLS.read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert found == wrong, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--editable"], []], ids=["editable", "wheel"])
def test_in_a_fresh_environment(how: list[str], tmp_path: Path) -> None:
    if find_spec("scikit_build_core") is None or shutil.which("cmake") is None:
        pytest.skip("builds the package: pip install scikit-build-core cmake")
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    others = [p for p in sys.path if p.endswith("-packages")]
    others = list(dict.fromkeys([sysconfig.get_path("purelib"), *others]))
    (site / "others.pth").write_text("\n".join(others) + "\n", encoding="utf-8")
    words = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "bin" / "python",
        "install",
        "--quiet",
    ]
    words += ["--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", *how, ROOT]
    subprocess.run(words, check=True)
    check(folder / "bin" / "python", tmp_path)


def test_every_package_is_marked() -> None:
    """One marker at the top covers all packages below it (PEP 561)."""
    assert (ROOT / "capsedge" / "py.typed").is_file()
    for top in ("runtime", "exporters", "calibration"):
        assert (ROOT / top).resolve() == ROOT / "capsedge" / top
