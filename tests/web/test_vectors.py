"""The npm package reads ``spec/vectors`` as the vectors say, in one process of Node.js."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import vectors

SCRIPT = Path(__file__).with_name("vectors.mjs")


def test_reading(compiled: Path) -> None:
    assert cases(compiled, "read") > 400


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("table", "old", "new", "file"),
    [
        ("spec", "const NAME_CHARACTERS = 1024;", "const NAME_CHARACTERS = 3;", "metadata"),
        ("spec", '"multi-label", ', "", "metadata"),
        ("spec", "const NODE_TYPE = 4;", "const NODE_TYPE = 3;", "files"),
        ("metadata", "    licence: string,", "    license: string,", "metadata"),
    ],
)
def test_the_generated_tables_are_what_is_read(
    compiled: Path, tmp_path: Path, table: str, old: str, new: str, file: str
) -> None:
    """With a limit, a word, a field's number or name changed in them, cases fail."""
    package = tmp_path / "capsedge"
    shutil.copytree(compiled / "capsedge", package)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "capsedge").symlink_to(package)
    generated = package / "dist" / "generated" / f"{table}.js"
    text = generated.read_text()
    assert text.count(old) == 1
    generated.write_text(text.replace(old, new))
    *faults, _ = run(tmp_path, "read")
    assert any(line.startswith("files.json") == (file == "files") for line in faults)


@pytest.mark.thorough
def test_predictions(compiled: Path) -> None:
    assert cases(compiled, "predict") > 60


@pytest.mark.thorough
def test_masks(compiled: Path) -> None:
    assert cases(compiled, "segment") > 60


def cases(compiled: Path, part: str) -> int:
    """Run a part; the number of its cases."""
    *faults, summary = run(compiled, part)
    assert not faults, "\n".join(faults)
    return int(summary.split()[0])


def run(compiled: Path, part: str) -> list[str]:
    """The lines that the script prints: a fault each, and the number of cases."""
    shutil.copy(SCRIPT, compiled)
    done = subprocess.run(
        ["node", SCRIPT.name, str(vectors.FOLDER), part],
        cwd=compiled, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
