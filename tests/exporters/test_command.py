"""``capsedge export``: what it prints, what it refuses, and that nothing half-written stays."""

from __future__ import annotations

import errno
import json
import os
import pickle
from pathlib import Path

import onnx
import pytest
import torch

from capsedge import cli
from capsedge.models.checkpoint import save_checkpoint
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.metadata.metadata import ModelMetadata

from .nets import network


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.safetensors"
    save_checkpoint(network("dynamic"), path)
    return path


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """The exit code of the command, as the shell sees it."""
    monkeypatch.setattr("sys.argv", ["capsedge", "export", *map(str, arguments)])
    with pytest.raises(SystemExit) as done:
        cli.main()
    return int(done.value.code or 0)


@pytest.mark.thorough
def test_exports_a_checkpoint(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = checkpoint.with_name("tiny.onnx")
    code = _run(
        monkeypatch, "--checkpoint", checkpoint, "--routing", "dynamic", "--iters", "2",
        "--with", "reconstruction,couplings", "-o", target, "--json",
    )  # fmt: skip
    assert code == 0
    said = json.loads(capsys.readouterr().out)
    assert said["path"] == str(target)
    assert said["size"] == target.stat().st_size
    assert said["trained"] is True
    assert list(said["outputs"]) == ["lengths", "poses", "reconstruction", "couplings"]
    assert said["parity"]["max_abs"] < 1e-5
    assert said["next"] == [
        f"capsedge verify {target} --checkpoint {checkpoint}",
        f"capsedge infer --model {target} image.png",
    ]
    properties = {p.key: p.value for p in onnx.load(target).metadata_props}
    metadata = ModelMetadata.from_properties(properties)
    assert metadata is not None
    assert metadata.iterations == 2
    assert metadata.checkpoint_sha256 == sha256(checkpoint)


@pytest.mark.thorough
def test_text_and_dry_run(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = checkpoint.with_name("tiny.onnx")
    arguments = ("--checkpoint", checkpoint, "-o", target, "--dry-run", "--batch", "2")
    assert _run(monkeypatch, *arguments) == 0
    text = capsys.readouterr().out
    assert "not written (dry run)" in text
    assert "images [2, 1, 10, 10]" in text
    assert "1 capsedge::DynamicRouting" in text
    assert "comparisons with PyTorch; the worst (" in text
    assert not target.exists()


@pytest.mark.thorough
def test_untrained_weights_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = _run(
        monkeypatch,
        "--checkpoint",
        "capsnet-svhn",
        "-o",
        tmp_path / "m.onnx",
        "--dry-run",
        "--json",
    )
    assert code == 0
    printed = capsys.readouterr()
    assert "random initial weights" in printed.err
    assert json.loads(printed.out)["trained"] is False


@pytest.mark.thorough
def test_the_default_is_the_zoo(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("capsedge.runtime.zoo.checkpoint_of_routing", lambda routing: checkpoint)
    target = checkpoint.with_name("m.onnx")
    assert _run(monkeypatch, "--routing", "dynamic", "--iters", "3", "-o", target) == 0
    assert str(checkpoint) in capsys.readouterr().out
    assert target.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--iters", "0"], "Invalid --iters 0"),
        (["--checkpoint", "digits-dynamc"], "Did you mean digits-dynamic"),
        (["--checkpoint", "digits-em", "--routing", "dynamic"], "routes by em"),
        (["--routing", "emm"], "Unknown routing 'emm'"),
        (["--checkpoint", "missing.safetensors"], "There is no such file"),
        (["--checkpoint", "digits-em", "--opset", "13"], "Invalid --opset 13"),
        (["--checkpoint", "digits-em", "--ops", "fast"], "Invalid --ops fast"),
        (["--checkpoint", "digits-em", "--with", "votes"], "Invalid --with votes"),
        (["--checkpoint", "digits-em", "--with", "reconstruction"], "no decoder"),
    ],
)
def test_wrong_options(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run(monkeypatch, *arguments, "-o", "m.onnx") == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert not list(tmp_path.iterdir())


def test_errors_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, "--iters", "0", "--json") == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch owned",)


def test_checkpoint_with_a_pickle_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"config": {}, "state_dict": {}, "more": _Evil()}, "evil.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(_Evil()))
    for name in ("evil.pt", "raw.pt"):
        assert _run(monkeypatch, "--checkpoint", name, "-o", "m.onnx") == 6
        assert "Traceback" not in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evil.pt", "raw.pt"]


def test_damaged_checkpoint(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes()[:200])
    assert _run(monkeypatch, "--checkpoint", checkpoint, "-o", checkpoint.with_name("m.onnx")) == 6
    assert not checkpoint.with_name("m.onnx").exists()


@pytest.mark.parametrize("place", ["missing/m.onnx", "."])
def test_unwritable_output(
    place: str,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = _run(monkeypatch, "--checkpoint", checkpoint, "-o", checkpoint.parent / place)
    assert code == 2
    assert "Cannot write" in capsys.readouterr().err
    assert [p.name for p in checkpoint.parent.iterdir()] == [checkpoint.name]


@pytest.mark.thorough
def test_full_disk(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code = _run(monkeypatch, "--checkpoint", checkpoint, "-o", checkpoint.with_name("m.onnx"))
    assert code == 3
    assert "No space left" in capsys.readouterr().err
    assert [p.name for p in checkpoint.parent.iterdir()] == [checkpoint.name]


@pytest.mark.thorough
def test_parity_gate(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that differs from PyTorch is not written: here one agreement too few."""
    from capsedge.graph import passes
    from capsedge.graph.ir import operator_nodes

    attach = passes.attach_functions

    def wrong(model: onnx.ModelProto, rewrites: object = None) -> None:
        for node in operator_nodes(model):
            for attribute in node.attribute:
                if attribute.name == "iterations":
                    attribute.i -= 1
        attach(model)

    monkeypatch.setattr(passes, "attach_functions", wrong)
    target = checkpoint.with_name("m.onnx")
    assert _run(monkeypatch, "--checkpoint", checkpoint, "-o", target) == 4
    assert "nothing was written" in capsys.readouterr().err
    assert not target.exists()
