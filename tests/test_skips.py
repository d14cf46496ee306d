"""Skipped tests are told by the tool that is missing, in one line each."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import skips
from tests.conftest import ROOT

# Tests that skip for another reason than something to install: a property of the case or of the machine.
PROPERTY = re.compile(
    r"epsilon is zero|one routed layer|of EM routing|accumulated logits"
    r"|this (ONNX Runtime|version|compiler|nvcc)"
    r"|has no (package|second)|x86|only|Windows|are Unix's|other systems lack|superuser|/dev/full"
    r"|is installed here|has TensorRT|as on Linux"
    r"|no release|another build|there is a GPU|has an NVIDIA GPU|begin with compute|counted with"
    r"|the table is empty|(are|is) Linux's|needs Linux"
    r"|runs its models as a whole|runs on no arrays|report operator times"
    r"|nothing on this page|older x86|TensorRT 11|headers of 10\.3|not a checkout|Python \{|for this Python"
)


def reasons() -> set[str]:
    """The literal reasons of all skips in the tests; what a format inserts is left as {}."""
    found = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr == "skip" and node.args:
                given = node.args[0]
            elif node.func.attr in ("skipif", "importorskip"):
                named = [k.value for k in node.keywords if k.arg == "reason"]
                given = named[0] if named else ast.Constant("could not import 'x'")
            else:
                continue
            parts = given.values if isinstance(given, ast.JoinedStr) else [given]
            text = "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in parts)
            if text.replace("{}", "").strip():
                found.add(text)
    return found


@pytest.mark.thorough
def test_what_is_missing_has_a_line() -> None:
    known = {line for _, line in skips.TOOLS}
    unknown = [
        reason
        for reason in sorted(reasons())
        if skips.lines([reason])[0].removeprefix("skipped 1: ") not in known
        and not PROPERTY.search(reason)
    ]
    assert unknown == []


def test_one_line_for_each_tool() -> None:
    told = skips.lines(
        ["Skipped: needs Node.js: https://nodejs.org, or apt-get install nodejs"] * 2
        + ["Skipped: needs Node.js 20.19 or newer, this is v18.0.0", "Skipped: of EM routing"]
        + [f"Skipped: ONNX Runtime 1.{n} is not in build/runtimes: make runtimes" for n in range(5)]
    )
    assert told == [
        "skipped 5: other versions of ONNX Runtime are missing; run `make runtimes`",
        "skipped 3: Node.js 20.19 or later is missing; install it and run `make web`",
        "skipped 1: of EM routing",
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_what_pytest_prints(workers: str, tmp_path: Path) -> None:
    """Also for whole files, and from the processes of xdist."""
    (tmp_path / "conftest.py").write_text(
        "from tests.skips import register\ndef pytest_configure(config):\n    register(config)\n"
    )
    (tmp_path / "test_a.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_web(n):\n    pytest.skip('needs the built page: make web')\n"
        "def test_fine():\n    pass\n"
    )
    (tmp_path / "test_b.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    command = [sys.executable, "-m", "pytest", "-n", workers, "-p", "no:cacheprovider", "-rfE"]
    options = {
        "cwd": tmp_path,
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
        "capture_output": True,
        "text": True,
    }
    done = subprocess.run(command, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout
    assert [x for x in done.stdout.splitlines() if x.startswith("skipped ")] == [
        "skipped 2: the npm package and the page are not built; run `make web`",
        "skipped 1: Python packages are missing; `make test` installs them",
    ]
