"""Which rooms of the package stand on which: exporters and calibration on graph, neither on the other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "capsedge"
BARRED = {
    "schema": ("capsedge.", "numpy", "onnx", "torch"),
    "graph": ("capsedge.calibration", "capsedge.cli", "capsedge.exporters", "torch"),
    "calibration": ("capsedge.cli", "capsedge.exporters", "torch"),
    "exporters": ("capsedge.calibration", "capsedge.cli"),
}


def imported(file: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", BARRED)
def test_a_room_stands_on_those_below_only(room: str) -> None:
    files = list((PACKAGE / room).rglob("*.py"))
    assert files
    for file in files:
        wrong = {
            name
            for name in imported(file)
            if any(f"{name}.".startswith(f"{barred.rstrip('.')}.") for barred in BARRED[room])
            and not name.startswith(f"capsedge.{room}.")
        }
        assert not wrong, file
