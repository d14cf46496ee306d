"""The public names are few, lazy and really there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import capsedge


def test_every_public_name_is_there():
    for name in capsedge.__all__:
        assert getattr(capsedge, name) is not None
    assert set(capsedge.__all__) <= set(dir(capsedge))


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'exprot'"):
        _ = capsedge.exprot  # type: ignore[attr-defined]


def test_onnxruntime_reports_nothing(tmp_path: Path):
    """From 1.29 it leaves an identifier in the home folder of who does not say no; who says yes is heard."""
    pytest.importorskip("onnxruntime")
    kept = {name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ}
    infer = [sys.executable, "-m", "capsedge", "infer", "capsedge/samples/digit-7.png"]
    subprocess.run(infer, check=True, env={**kept, "HOME": str(tmp_path)}, capture_output=True)
    assert [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name] == []
    said = [sys.executable, "-c", "import capsedge, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"]
    for given, wanted in ({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0"):
        run = subprocess.run(said, env={**kept, **given}, capture_output=True, text=True)
        assert run.stdout == f"{wanted}\n"


def test_import_is_light():
    code = "import sys, capsedge; print({m.split('.')[0] for m in sys.modules} & set(sys.argv[1:]))"
    heavy = ["torch", "onnx", "onnxruntime", "numpy", "PIL", "typer", "rich"]
    run = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True)
    assert run.stdout == "set()\n"
