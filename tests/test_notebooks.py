"""The notebooks are run: their cells one after another, as one program each, in a folder of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import capsedge
from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
# A cell that ends with a figure draws it, as a notebook would.
SHOWN = (
    "import io\nfrom matplotlib.figure import Figure\n"
    "shown = [v for v in found if isinstance(v, Figure)]\n"
    "assert shown\n"
    "for figure in shown:\n    figure.savefig(io.BytesIO(), format='png')\n"
)


def cells(notebook: Path, kind: str) -> list[str]:
    document: dict[str, Any] = json.loads(notebook.read_text())
    assert document["nbformat"] == 4
    return ["".join(c["source"]) for c in document["cells"] if c["cell_type"] == kind]


def program(notebook: Path) -> str:
    """The code of a notebook; the last expression of each cell is collected."""
    lines = ["import ast", "found, names = [], {}"]
    for cell in cells(notebook, "code"):
        code = "\n".join(line for line in cell.splitlines() if not line.startswith("%"))
        lines += [
            f"tree = ast.parse({code!r})",
            "last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None",
            "exec(compile(tree, 'cell', 'exec'), names)",
            "if last: found.append(eval(compile(ast.Expression(last.value), 'cell', 'eval'), names))",
        ]
    return "\n".join([*lines, SHOWN])


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(notebook: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", program(notebook)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_names_only_what_is_public(notebook: Path) -> None:
    named = re.findall(r"\bcapsedge\.([A-Z]\w+)", "\n".join(cells(notebook, "code")))
    assert set(named) <= set(capsedge.__all__)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_stored_without_outputs(notebook: Path) -> None:
    """Outputs would show the machine that ran them, and change with every run."""
    document = json.loads(notebook.read_text())
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_both_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["checkpoint", "own-network"]
