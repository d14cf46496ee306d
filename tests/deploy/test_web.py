"""`deploy_web`: which models the folder offers, what it refuses, and what it never destroys."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import capsedge
from capsedge.deploy import web
from capsedge.deploy import web as models
from capsedge.errors import (
    ArtefactError,
    CapsedgeError,
    EnvironmentProblem,
    UnsupportedModelError,
    UsageError,
)
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.onnx_file.wire import with_properties
from tests.paths.table import ZOO
from tests.runtime.models import capsule_model, metadata, save

CHECKSUM = "c" * 64


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page that stands for the built one."""
    folder = tmp_path / "site"
    for name, content in {
        "index.html": b"page",
        "worker.js": b"const VERSION = '@capsedge-version@';",
        "webgpu/x.wasm": bytes(1000),
        "runtime/ort.wasm": bytes(3000),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    monkeypatch.setattr(web, "SITE", folder)
    monkeypatch.setattr(web, "can_compile", lambda: False)
    return folder


def model(path: Path, **changes: Any) -> Path:
    """A small file with metadata of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    declared = replace(metadata(class_names=("a", "b", "c")), **changes)
    return Path(save(capsule_model(properties=declared.to_properties()), path))


def test_the_folder(tmp_path: Path) -> None:
    net, output = model(tmp_path / "net.onnx"), tmp_path / "out"
    made = capsedge.deploy_web(net, output)
    manifest = json.loads((output / "capsedge.json").read_text())
    assert (output / "models/net.onnx").read_bytes() == net.read_bytes()
    assert manifest["models"][0]["files"] == [
        {
            "iterations": made.to_dict()["models"][0]["files"][0]["iterations"],
            "path": "models/net.onnx",
        }
    ]
    found = {p.relative_to(output).as_posix() for p in output.rglob("*") if p.is_file()}
    assert (
        found == {*manifest["files"], "capsedge.json", "worker.js"} == {f.path for f in made.files}
    )
    for path, listed in manifest["files"].items():
        data = (output / path).read_bytes()
        assert listed == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert made.bytes - made.first_visit == 1000
    version = hashlib.sha256((output / "capsedge.json").read_bytes()).hexdigest()[:16]
    assert version in (output / "worker.js").read_text()


def test_without_the_extra_it_says_what_that_would_spare(tmp_path: Path) -> None:
    made = capsedge.deploy_web(model(tmp_path / "net.onnx"), tmp_path / "out")
    (note,) = made.notes
    assert "2.9 KiB of ONNX Runtime" in note
    assert "pip install 'capsedge[wasm]'" in note
    assert json.loads((tmp_path / "out/capsedge.json").read_text())["late"] == ["webgpu/"]


def compiling(
    monkeypatch: pytest.MonkeyPatch,
    refused: str = "",
    refusal: type[CapsedgeError] = UnsupportedModelError,
) -> None:
    """A compiler that writes the name of the file; it refuses one."""

    def compile_network(data: bytes, file: Path, prefix: str) -> SimpleNamespace:
        if file.name == refused:
            raise refusal("The node 'x' (If) cannot be written as C.", "Why.", "Fix.")
        return SimpleNamespace(data=f"compiled {file.name}".encode())

    monkeypatch.setattr(web, "can_compile", lambda: True)
    monkeypatch.setattr("capsedge.exporters.c.wasm.compile_network", compile_network)


@pytest.mark.parametrize("first", ["net", "photos"])
def test_photographs_wait_until_they_are_chosen(tmp_path: Path, first: str) -> None:
    """The network in the package, in INT8; where it comes first, it is fetched at once."""
    given = [model(tmp_path / "net.onnx"), "photos"]
    made = capsedge.deploy_web(given if first == "net" else given[::-1], tmp_path / "out")
    written = (tmp_path / "out/models/photos.onnx").read_bytes()
    assert written == (ZOO / "photos.onnx").read_bytes()
    assert ("models/photos.onnx" in made.late) == (first == "net")


@pytest.mark.parametrize("name", ["digits-clutter", "digits-clutter-int8"])
def test_a_segmentation_of_the_zoo_is_that_of_the_package(name: str, tmp_path: Path) -> None:
    """Its routing has no trace with one iteration, and the page shows masks alone."""
    capsedge.deploy_web(name, tmp_path / "out")
    written = (tmp_path / f"out/models/{name}.onnx").read_bytes()
    assert written == (ZOO / f"{name}.onnx").read_bytes()


def test_compiled_models_make_the_runtime_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling(monkeypatch)
    same: dict[str, Any] = {"checkpoint_sha256": CHECKSUM, "routing": "dynamic"}
    given = [model(tmp_path / f"net-it{n}.onnx", iterations=n, **same) for n in (1, 3)]
    made = capsedge.deploy_web(given, tmp_path / "out")
    manifest = json.loads((tmp_path / "out/capsedge.json").read_text())
    assert manifest["models"][0]["files"] == [
        {"iterations": n, "path": f"models/net-{n}.onnx", "compiled": f"models/net-{n}.wasm"}
        for n in (1, 3)
    ]
    assert manifest["late"] == ["webgpu/", "runtime/", "models/net-1.onnx", "models/net-3.onnx"]
    assert (tmp_path / "out/models/net-3.wasm").read_bytes() == b"compiled net-3.onnx"
    late = 4000 + sum(path.stat().st_size for path in (tmp_path / "out/models").glob("*.onnx"))
    assert made.bytes - made.first_visit == late
    assert made.notes == ()
    capsedge.deploy_web(given[:1], tmp_path / "out")  # which replaces all of it
    assert len(list((tmp_path / "out/models").iterdir())) == 2


@pytest.mark.parametrize("refusal", [UnsupportedModelError, ArtefactError, UsageError])
def test_a_model_that_cannot_be_compiled_keeps_the_runtime(
    refusal: type[CapsedgeError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling(monkeypatch, "second.onnx", refusal)
    given = [model(tmp_path / f"{name}.onnx") for name in ("first", "second")]
    made = capsedge.deploy_web(given, tmp_path / "out")
    manifest = json.loads((tmp_path / "out/capsedge.json").read_text())
    assert manifest["late"] == ["webgpu/", "models/first.onnx"]
    assert [m.compiled != {} for m in made.models] == [True, False]
    (note,) = made.notes
    assert note == "second runs in ONNX Runtime, as it cannot be compiled: Why."


def test_iterations_of_one_checkpoint_are_one_model(tmp_path: Path) -> None:
    same: dict[str, Any] = {"checkpoint_sha256": CHECKSUM, "routing": "dynamic"}
    given = [model(tmp_path / f"net-it{n}.onnx", iterations=n, **same) for n in (3, 1)]
    given.append(model(tmp_path / "other.onnx", iterations=1, checkpoint_sha256="d" * 64))
    given.append(model(tmp_path / "int8.onnx", iterations=1, precision="int8", **same))
    made = capsedge.deploy_web(given, tmp_path / "out")
    assert [(m.name, dict(m.files)) for m in made.models] == [
        ("net", {1: "models/net-1.onnx", 3: "models/net-3.onnx"}),
        ("other", {1: "models/other.onnx"}),
        ("int8", {1: "models/int8.onnx"}),
    ]


def test_files_of_unknown_weights_stay_apart(tmp_path: Path) -> None:
    given = [model(tmp_path / folder / "Net.onnx", iterations=k) for k, folder in enumerate("ab")]
    given.append(model(tmp_path / "c" / "net.onnx"))
    made = capsedge.deploy_web(given, tmp_path / "out")
    assert [m.name for m in made.models] == ["Net", "Net.2", "net.3"]  # names that differ anywhere


@pytest.mark.parametrize(
    "name", ["<img src=x>.onnx", "a b.onnx", "ü.onnx", "-.onnx", f"{'n' * 200}.onnx"]
)
def test_names_are_harmless_addresses(name: str, tmp_path: Path) -> None:
    made = capsedge.deploy_web(model(tmp_path / "x" / name), tmp_path / "out")
    (path,) = made.models[0].files.values()
    assert path.isascii()
    assert len(path) < 100
    assert not set(path) & set("<> %?#")


def test_a_folder_of_its_own_is_replaced_as_a_whole(tmp_path: Path) -> None:
    output = tmp_path / "out"
    capsedge.deploy_web(model(tmp_path / "first.onnx"), output)
    capsedge.deploy_web(model(tmp_path / "second.onnx"), output)
    assert [p.name for p in (output / "models").iterdir()] == ["second.onnx"]
    assert {p.name for p in tmp_path.iterdir()} == {"site", "out", "first.onnx", "second.onnx"}


@pytest.mark.parametrize("name", ["notes.txt", "models/mine.onnx", "capsedge.json.bak"])
def test_a_file_of_somebody_else_stops_it(name: str, tmp_path: Path) -> None:
    output, net = tmp_path / "out", model(tmp_path / "net.onnx")
    capsedge.deploy_web(net, output)
    (output / name).write_text("mine")
    with pytest.raises(UsageError, match=r"not written by an earlier run"):
        capsedge.deploy_web(net, output)
    assert (output / name).read_text() == "mine"
    assert (output / "index.html").is_file()


def test_a_folder_with_a_broken_manifest_is_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "capsedge.json").write_text("[]")
    with pytest.raises(UsageError, match="holds"):
        capsedge.deploy_web(model(tmp_path / "net.onnx"), tmp_path / "out")


def test_a_failure_leaves_the_earlier_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    capsedge.deploy_web(model(tmp_path / "net.onnx"), output)
    before = (output / "capsedge.json").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("capsedge.runtime.files.writing._write", full)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        capsedge.deploy_web(model(tmp_path / "other.onnx"), output)
    assert (output / "capsedge.json").read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"site", "out", "net.onnx", "other.onnx"}


@pytest.mark.slow
def test_a_model_of_the_zoo_is_exported_with_its_trace(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    made = capsedge.deploy_web("digits-attention", tmp_path / "out", iterations=[1])
    session = capsedge.load(tmp_path / "out" / made.models[0].files[1])
    assert session.metadata is not None
    assert session.metadata.trace is not None
    assert not any("trace" in note for note in made.notes)


def test_without_torch_it_is_taken_as_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    made = capsedge.deploy_web("digits-em", tmp_path / "out")
    assert "without a trace" in made.notes[0]
    data = (tmp_path / "out" / made.models[0].files[3]).read_bytes()
    assert data == (ZOO / "digits-em.onnx").read_bytes()
    with pytest.raises(UsageError, match="--iters needs torch"):
        capsedge.deploy_web("digits-em", tmp_path / "out", iterations=[1])


def test_what_a_browser_cannot_run(tmp_path: Path) -> None:
    bare = tmp_path / "bare.onnx"
    bare.write_bytes(with_properties((ZOO / "digits-em.onnx").read_bytes(), {}, ("capsedge",)))
    with pytest.raises(UnsupportedModelError, match="does not state its preprocessing"):
        capsedge.deploy_web(bare, tmp_path / "out")
    declared = ModelMetadata.from_properties(metadata(class_names=("a", "b", "c")).to_properties())
    assert declared is not None
    assert declared.preprocessing is not None
    five = model(tmp_path / "five.onnx", preprocessing=replace(declared.preprocessing, channels=5))
    with pytest.raises(UnsupportedModelError, match="5 channels"):
        capsedge.deploy_web(five, tmp_path / "out")
    fused = save(capsule_model(function=False), tmp_path / "fused.onnx")
    with pytest.raises(UnsupportedModelError, match="Squash have no function bodies"):
        capsedge.deploy_web(fused, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([], {}, "No model"),
        (["digits-emm"], {}, "Did you mean"),
        (["missing.onnx"], {}, "There is no file"),
        (["digits-em"], {"iterations": [0]}, "cannot run"),
        (["digits-em"], {"iterations": [101]}, "cannot run"),
        (["missing.onnx"], {"iterations": [1]}, "--iters applies only to zoo models"),
    ],
)
def test_refused(given: list[str], options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        capsedge.deploy_web(given, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_checkout_without_its_page(tmp_path: Path, site: Path) -> None:
    (site / "index.html").unlink()
    with pytest.raises(EnvironmentProblem, match="make web"):
        capsedge.deploy_web(model(tmp_path / "net.onnx"), tmp_path / "out")
