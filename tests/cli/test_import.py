"""``capsedge import``: from a file of weights to an ONNX file that classifies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import capsedge
from capsedge.cli import app
from capsedge.cli._output import log_error
from capsedge.errors import CapsedgeError, UsageError
from tests.importers.families import networks


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "trained.pt"
    torch.save({"state_dict": networks.XifengGuo().state_dict(), "epoch": 3}, path)
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(w) for w in words])


@pytest.mark.thorough
def test_a_walk(weights: Path, tmp_path: Path) -> None:
    checkpoint, model = tmp_path / "c.safetensors", tmp_path / "m.onnx"
    done = run(
        "import", weights, "--iters", 3, "--classes", "cat,dog,cow,hen,pig", "-o", checkpoint
    )
    assert done.exit_code == 0, done.output
    assert "xifengguo" in done.output
    assert "MIT" in done.output
    assert "not compared with its author's code" in done.output
    shown = run("inspect", checkpoint)
    assert "not compared with its author's code" in shown.output
    assert "MIT" in shown.output
    assert run("export", "--checkpoint", checkpoint, "-o", model).exit_code == 0
    verified = run("verify", model, "--checkpoint", checkpoint)
    assert verified.exit_code == 0, verified.output
    chain = [line for line in verified.output.splitlines() if "sha256" in line]
    assert len(chain) == 2
    assert all(
        "claimed by the file: family xifengguo, licence: MIT, not compared" in line
        for line in chain
    )
    shown = run("inspect", model)
    assert "claimed by the file" in shown.output
    assert "github.com/XifengGuo/CapsNet-Pytorch" in shown.output
    found = capsedge.load(model).predict("capsedge/zoo/samples/digit-7.png")[0].labels[0].name
    assert found in {"cat", "dog", "cow", "hen", "pig"}


def test_a_comparison_is_claimed_by_the_file(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capsedge.importers.reference_check.RANDOM", 8)
    monkeypatch.setattr("capsedge.importers.reference_check.STROKES", 8)
    (tmp_path / "author.py").write_text(
        "from tests.importers.families.networks import XifengGuo\ndef build(): return XifengGuo(3)\n"
    )
    checkpoint = tmp_path / "c.safetensors"
    words = ["--iters", 3, "--reference-code", f"{tmp_path / 'author.py'}:build", "-o", checkpoint]
    done = run("import", weights, *words, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["comparison"]["passed"]
    assert report["comparison"]["flips"] == 0
    shown = run("inspect", checkpoint).output
    assert "claimed by the file" in shown
    assert "on 33 inputs" in shown


def test_iterations_are_asked_for(weights: Path) -> None:
    done = run("import", weights)
    assert isinstance(done.exception, UsageError)
    assert "--iters" in str(done.exception)
    assert "--routings" in str(done.exception)
    assert not weights.with_suffix(".safetensors").exists()


def test_an_unknown_network_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.pt"
    torch.save({"conv1.weight": torch.zeros(2, 2), "evil\x1b[2Jname": torch.zeros(3)}, path)
    done = run("import", path)
    assert isinstance(done.exception, CapsedgeError)
    log_error(done.exception)
    said = capsys.readouterr().err
    assert said.count("2 x 2") == 1
    assert "evil" in said
    assert "\x1b" not in said


def test_families_are_listed() -> None:
    listed = run("import", "--list").output
    assert "xifengguo" in listed
    assert "BSD-3-Clause" in listed
    document = json.loads(run("import", "--list", "--json").stdout)
    assert {f["name"] for f in document["families"]} >= {"gram-ai", "timomernick"}


@pytest.mark.thorough
def test_where_the_author_averages_over_the_batch_it_is_fixed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(networks.TimoMernick().state_dict(), tmp_path / "m.pt")
    done = run("import", tmp_path / "m.pt")
    assert done.exit_code == 0, done.output
    assert "batch of the export is fixed at 1" in done.output
    model = capsedge.load_checkpoint(tmp_path / "m.safetensors")
    with pytest.raises(UsageError, match="only with batch 1"):
        capsedge.export(model, tmp_path / "m.onnx", batch=4)
    report = capsedge.export(model, tmp_path / "m.onnx")
    assert report.inputs == {"images": [1, 1, 28, 28]}


def test_the_input_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"")
    assert isinstance(run("import", tmp_path / "m.safetensors").exception, UsageError)


@pytest.mark.thorough
def test_what_a_file_claims_of_its_origin_is_shown_as_text(weights: Path, tmp_path: Path) -> None:
    report = capsedge.import_checkpoint(weights, iterations=3)
    assert report.model.origin is not None
    report.model.origin = replace(report.model.origin, licence="\x1b[2JMIT\n", notes=("\u202eno",))
    capsedge.export(report.model, tmp_path / "m.onnx")
    shown = run("inspect", tmp_path / "m.onnx").output
    assert "\\x1b[2JMIT\\n" in shown
    assert "\\u202eno" in shown
    assert not {"\x1b", "\u202e"} & set(shown)


@pytest.mark.thorough
def test_another_number_of_iterations_is_another_function(weights: Path, tmp_path: Path) -> None:
    """The comparison with the author's code does not hold for it; licence and source do."""
    model = capsedge.import_checkpoint(weights, iterations=3).model
    assert model.origin is not None
    model.origin = replace(model.origin, compared={"inputs": 1045})
    capsedge.export(model, tmp_path / "same.onnx")
    capsedge.export(model, tmp_path / "fewer.onnx", iterations=2)
    same, fewer = (capsedge.load(tmp_path / f"{n}.onnx").metadata for n in ("same", "fewer"))
    assert same is not None
    assert same.origin == model.origin
    assert fewer is not None
    assert fewer.origin == model.origin.changed("2 routing iterations instead of 3")
    assert fewer.origin.compared is None


def test_an_ensemble_and_what_it_asks_for(tmp_path: Path) -> None:
    """Files of several networks make one checkpoint, whose name has to be given."""
    from tests.importers.families.fsanet import FsaNet

    files = []
    for k, scoring in enumerate(("variance", "convolution")):
        torch.manual_seed(k)
        files.append(tmp_path / f"{k}.pth")
        torch.save(FsaNet(scoring).state_dict(), files[-1])
    with pytest.raises(UsageError, match="needs a name") as caught:
        app(["import", *map(str, files), "--variant", "omasaht"], standalone_mode=False)
    assert "-o" in caught.value.fix
    done = run("import", *files, "--variant", "omasaht", "-o", tmp_path / "both.safetensors")
    assert done.exit_code == 0, done.output
    assert "fsanet-ensemble" in done.output
    assert "the mean of 2 networks: variance, convolution" in " ".join(done.output.split())


def test_an_inverse_temperature_is_asked_for(tmp_path: Path) -> None:
    from tests.importers.families.clamped_em import YuxianMeng

    file = tmp_path / "m.pth"
    torch.save(YuxianMeng().state_dict(), file)
    words = ["import", str(file), "--iters", "1", "--size", "24x24", "--range", "0-1"]
    with pytest.raises(UsageError, match="lambda_") as caught:
        app(words, standalone_mode=False)
    assert "--inverse-temperature" in caught.value.command
    done = run(*words, "--inverse-temperature", 0.02)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "m.safetensors").exists()
