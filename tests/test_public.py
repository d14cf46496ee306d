"""The public names are few, lazy and really there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import capsedge


def test_every_public_name_is_there():
    for name in capsedge.__all__:
        assert getattr(capsedge, name) is not None
    assert set(capsedge.__all__) <= set(dir(capsedge))


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'exprot'"):
        _ = capsedge.exprot  # type: ignore[attr-defined]


def test_import_is_light():
    code = "import sys, capsedge; print({m.split('.')[0] for m in sys.modules} & set(sys.argv[1:]))"
    heavy = ["torch", "onnx", "onnxruntime", "numpy", "PIL", "typer", "rich"]
    run = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True)
    assert run.stdout == "set()\n"
