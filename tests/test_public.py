"""The public names are few, lazy and really there."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import capsedge


def test_every_public_name_is_there():
    for name in capsedge.__all__:
        assert getattr(capsedge, name) is not None
    assert set(capsedge.__all__) <= set(dir(capsedge))


@pytest.mark.parametrize("name", [name for name in capsedge.__all__ if name != "__version__"])
def test_public_names_are_documented_and_typed(name: str):
    """Docstrings say what goes in, what comes out, what is raised, with an example; nothing is untyped."""
    value = getattr(capsedge, name)
    text = inspect.getdoc(value)
    assert text
    if not inspect.isfunction(value):
        return
    for section in ("Args:", "Returns:", "Raises:", "Example:"):
        assert section in text, section
    signature = inspect.signature(value)
    assert signature.return_annotation is not signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not parameter.empty, parameter.name
        assert re.search(rf"^ +(\w+, )*{parameter.name}(, \w+)*:", text, re.MULTILINE), (
            parameter.name
        )


def test_type_checkers_know_the_same_names():
    """What is imported for type checkers, what is loaded lazily and ``__all__`` agree."""
    tree = ast.parse(Path(capsedge.__file__).read_text())
    checked = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "typing"
        for alias in node.names
    }
    modules = {name: path.rpartition(".")[0] for name, path in capsedge._MODULES.items()}
    assert checked == {**capsedge._HOMES, **modules}
    assert {*checked, "__version__"} == set(capsedge.__all__)


def test_every_public_name_is_on_the_page():
    page = (Path(capsedge.__file__).parents[1] / "docs/reference/python.md").read_text()
    for name in capsedge.__all__:
        assert f"`{name}" in page or f"`capsedge.{name}" in page, name


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'exprot'"):
        _ = capsedge.exprot  # type: ignore[attr-defined]


def test_onnxruntime_reports_nothing(tmp_path: Path):
    """From 1.29 it leaves an identifier in the home folder of who does not say no; who says yes is heard."""
    pytest.importorskip("onnxruntime")
    kept = {name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ}
    infer = [sys.executable, "-m", "capsedge", "infer", "capsedge/zoo/samples/digit-7.png"]
    subprocess.run(infer, check=True, env={**kept, "HOME": str(tmp_path)}, capture_output=True)
    assert [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name] == []
    said = [sys.executable, "-c", "import capsedge, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"]
    for given, wanted in ({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0"):
        run = subprocess.run(said, env={**kept, **given}, capture_output=True, text=True)
        assert run.stdout == f"{wanted}\n"


def test_import_is_light():
    code = "import sys, capsedge; print({m.split('.')[0] for m in sys.modules} & set(sys.argv[1:]))"
    heavy = ["torch", "onnx", "onnxruntime", "numpy", "PIL", "click", "rich"]
    run = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True)
    assert run.stdout == "set()\n"
