"""What short commands import. How long they take is measured by `benchmarks.startup`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from capsedge.cli._verbs import VERBS
from tests.conftest import ROOT

_CODE = """
import sys
sys.argv = ["capsedge", *sys.argv[1:]]
from capsedge.__main__ import main
try:
    main()
except SystemExit:
    pass
print("\\n" + " ".join(sys.modules))
"""


def imported(*words: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *words], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.splitlines()[-1].split())


def verbs() -> set[str]:
    """The modules of the verbs."""
    return {f"capsedge.cli.{v.module.partition(':')[0]}" for v in VERBS.values() if v.module}


def test_version() -> None:
    heavy = {"numpy", "click", "rich", "inspect", "json", "capsedge.cli._commands"} | verbs()
    assert imported("--version") & heavy == set()


@pytest.mark.parametrize("words", [("--help",), ("deploy", "--help"), ("infr",)])
def test_help_imports_no_verb(words: tuple[str, ...]) -> None:
    heavy = {
        "numpy",
        "rich",
        "pydantic",
        "onnxruntime",
        "capsedge.runtime.metadata.metadata",
    } | verbs()
    assert imported(*words) & heavy == set()


def test_help_of_a_verb_imports_that_verb_alone() -> None:
    found = imported("infer", "--help")
    assert found & verbs() == {"capsedge.cli.infer"}
    assert found & {"numpy", "rich", "pydantic"} == set()


def test_help_of_verbs_needs_no_heavy_package() -> None:
    """What `--help` and completion of options import for any verb."""
    code = (
        "import sys\n"
        "from tools.docs.commands import verbs\n"
        "from capsedge.cli import app\n"
        "assert len([*verbs(app)]) > 20\n"
        "print(*{'numpy', 'onnx', 'onnxruntime', 'pydantic', 'rich', 'torch'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == []


def test_infer() -> None:
    pytest.importorskip("onnxruntime")
    found = imported("infer", "capsedge/zoo/samples/digit-7.png")
    assert found & verbs() == {"capsedge.cli.infer"}
    assert "PIL.PngImagePlugin" in found
    heavy = {
        "PIL.BmpImagePlugin", "PIL.GifImagePlugin", "PIL.JpegImagePlugin", "PIL.TiffImagePlugin",
        "concurrent.futures", "difflib", "html", "numpy.ma", "pydantic", "rich", "typer",
        "zipfile",
    }  # fmt: skip
    assert found & heavy == set()
