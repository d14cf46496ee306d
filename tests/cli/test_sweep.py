"""``capsedge sweep``: one point an iteration and precision."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="a sweep exports: pip install 'capsedge[export]'")

import capsedge
from capsedge.checkpoint import save_checkpoint
from capsedge.cli import app
from tests.exporters.nets import network


def _run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["sweep", *map(str, arguments)])
    if isinstance(result.exception, capsedge.CapsedgeError):
        return int(result.exception.exit_code), result.stdout, str(result.exception)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def place(tmp_path: Path) -> Path:
    save_checkpoint(network("dynamic"), tmp_path / "m.safetensors")
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for name in ("train", "test"):
        images = rng.integers(0, 256, (40, 10, 10), dtype=np.uint8)
        np.savez(tmp_path / "data" / f"{name}.npz", images=images, labels=np.arange(40) % 3)
    return tmp_path


def test_sweeps(place: Path) -> None:
    out, png = place / "s.json", place / "s.png"
    code, text, message = _run(
        "--checkpoint", place / "m.safetensors", "--data", place / "data", "--iters", "1..2",
        "--threads", 1, "-o", out, "--plot", png,
    )  # fmt: skip
    assert code == 0, message
    points = json.loads(out.read_text())["points"]
    assert [(p["iterations"], p["precision"]) for p in points] == [
        (n, p) for n in (1, 2) for p in ("fp32", "fp16", "int8")
    ]
    for n in (1, 2):
        sizes = [p["bytes"] for p in points if p["iterations"] == n]
        assert sizes == sorted(sizes, reverse=True)
    assert all(0 <= p["accuracy"] <= 1 and p["milliseconds"] > 0 for p in points)
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert "fp16" in text


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--iters", "0..3"), "--iters 0..3"),
        (("--iters", "x"), "--iters x"),
        (("--precision", "int4"), "Known: fp32"),
        (("--model", "capsnet-svhn"), "no trained weights"),
        (("-o", "/nonexistent/s.json"), "There is no folder"),
        (("--plot", "/nonexistent/s.png"), "There is no folder"),
    ],
)
def test_wrong_options(place: Path, arguments: tuple[str, str], word: str) -> None:
    more = () if "--model" in arguments else ("--checkpoint", place / "m.safetensors")
    code, _, message = _run("--data", place / "data", *more, *arguments)
    assert code == 2
    assert word in message
