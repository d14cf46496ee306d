"""``capsedge quantize``: files, gate, exit codes, what it refuses."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from PIL import Image

torch = pytest.importorskip(
    "torch", reason="the files are exported: pip install 'capsedge[export]'"
)

import capsedge  # noqa: E402
from capsedge.cli import app  # noqa: E402
from capsedge.models.checkpoint import save_checkpoint  # noqa: E402
from capsedge.runtime.files.writing import sha256  # noqa: E402
from capsedge.runtime.metadata.metadata import ModelMetadata  # noqa: E402
from capsedge.spec.operators import operator_of  # noqa: E402
from tests.exporters.nets import network, wide  # noqa: E402
from tests.exports import Exports  # noqa: E402


@pytest.fixture(scope="module")
def place(tmp_path_factory, exported: Exports) -> Path:
    """A folder with a checkpoint, the file exported from it, and labelled images."""
    folder = tmp_path_factory.mktemp("quantize")
    made = exported(wide("dynamic"))
    shutil.copyfile(made.checkpoint, folder / "m.safetensors")
    shutil.copyfile(made.path, folder / "m.onnx")
    rng = np.random.default_rng(0)
    (folder / "data").mkdir()
    for name, count in (("train", 80), ("test", 60)):
        images = rng.integers(0, 256, (count, 10, 10), dtype=np.uint8)
        session = capsedge.load(folder / "m.onnx")
        labels = [p.labels[0].index for p in session.predict(list(images))]
        np.savez(folder / "data" / f"{name}.npz", images=images, labels=np.array(labels))
    return folder


def _run(*arguments: object, verb: str = "quantize") -> tuple[int, str, str]:
    """Exit code, standard output, error message."""
    result = CliRunner().invoke(app, [verb, *map(str, arguments)])
    if isinstance(result.exception, capsedge.CapsedgeError):
        return int(result.exception.exit_code), result.stdout, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def _metadata(path: Path) -> ModelMetadata:
    found = ModelMetadata.from_properties({p.key: p.value for p in onnx.load(path).metadata_props})
    assert found is not None
    return found


@pytest.mark.parametrize(
    "precision", ["int8", "fp16", pytest.param("mixed", marks=pytest.mark.thorough)]
)
def test_quantizes(place: Path, precision: str, tmp_path: Path) -> None:
    out = tmp_path / "q.onnx"
    arguments = ("--calib-data", place / "data", "--calib-images", 40, "--max-drop", 5)
    png = ("--picture", tmp_path / "p.png") if precision == "mixed" else ()
    code, text, message = _run(
        place / "m.onnx", "--precision", precision, *arguments, *png, "-o", out, "--json"
    )
    assert code == 0, message
    said = json.loads(text)
    assert said["passed"] is True
    assert said["bytes"] == out.stat().st_size < (place / "m.onnx").stat().st_size
    assert said["executed_precision"]
    assert said["outcome"]["images"] == 60
    meta = _metadata(out)
    assert meta.precision == precision
    assert meta.calibration["source"]["sha256"] == sha256(place / "m.onnx")
    assert meta.calibration["evaluation"]["max_drop"] == 5
    assert capsedge.load(out).predict(np.zeros((10, 10), np.uint8))[0].label in ("a", "b", "c")
    if precision == "mixed":
        assert said["search"]["pareto"]
        assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"


def test_text_and_default_name(place: Path) -> None:
    code, text, message = _run(place / "m.onnx", "--calib-data", place / "data", "--max-drop", 9)
    assert code == 0, message
    assert (place / "m.int8.onnx").exists()
    for word in ("points lost", "Executed by ONNX Runtime", "capsedge::QuantizedConv", "int8"):
        assert word in text, word


def test_the_gate_keeps_the_file_aside(place: Path, tmp_path: Path, monkeypatch) -> None:
    from capsedge.calibration import accuracy

    # As if a third of the decisions had gone to another class.
    right = accuracy.criterion_outputs
    monkeypatch.setattr(
        accuracy,
        "criterion_outputs",
        lambda session, *rest: (
            right(session, *rest)
            if session.path == place / "m.onnx"
            else {"lengths": [_spoiled(np.concatenate(right(session, *rest)["lengths"]))]}
        ),
    )
    out = tmp_path / "q.onnx"
    code, _, message = _run(
        place / "m.onnx", "--calib-data", place / "data", "-o", out, "--max-drop", 0.1
    )
    assert code == 4, message
    assert "points" in message
    assert ".rejected" in message
    assert not out.exists()
    assert (tmp_path / "q.onnx.rejected").exists()


def _spoiled(scores: np.ndarray) -> np.ndarray:
    """Every third row turned by one class."""
    spoiled = scores.copy()
    spoiled[::3] = np.roll(spoiled[::3], 1, axis=1)
    return spoiled


@pytest.mark.thorough
def test_the_table_is_kept_and_a_stale_one_refused(place: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.json"
    arguments = ("--calib-data", place / "data", "--table", table, "--max-drop", 9)
    out = ("-o", tmp_path / "q.onnx")
    assert _run(place / "m.onnx", *arguments, *out)[0] == 0
    first = table.read_bytes()
    assert _run(place / "m.onnx", *arguments, *out)[0] == 0
    assert table.read_bytes() == first
    for more in (("--method", "minmax"), ("--seed", 3, "--calib-images", 20)):
        code, _, message = _run(place / "m.onnx", *arguments, *out, *more)
        assert code == 6, message
        assert "stale" in message


@pytest.mark.thorough
def test_sensitivity(place: Path) -> None:
    code, text, message = _run(
        place / "m.onnx", "--calib-data", place / "data", "--sensitivity", "--json"
    )
    assert code == 0, message
    names = [d["name"] for d in json.loads(text)["damage"]]
    assert "classes, iteration 2" in names
    assert "primary.conv" in names
    assert (
        "Damage of each"
        in _run(place / "m.onnx", "--calib-data", place / "data", "--sensitivity")[1]
    )


def test_accuracy_is_never_reported_on_calibration_images(place: Path, tmp_path: Path) -> None:
    train = place / "data" / "train.npz"
    code, _, message = _run(
        place / "m.onnx", "--calib-data", place / "data", "--data", train, "-o", tmp_path / "q.onnx"
    )
    assert code == 2
    assert "used for calibration" in message
    # One file only: what is not drawn is evaluated on.
    code, text, message = _run(
        place / "m.onnx", "--calib-data", train, "--calib-images", 30, "--json", "--max-drop", 9,
        "-o", tmp_path / "q.onnx",
    )  # fmt: skip
    assert code == 0, message
    counts = {"calibration": 30, "search": 0, "evaluation": 50}
    assert json.loads(text)["images"] == counts | {
        "evaluated_on": "train.npz, 50 images; cannot tell whether they trained the model"
    }


@pytest.mark.thorough
def test_bad_input(place: Path, tmp_path: Path) -> None:
    model, data = place / "m.onnx", place / "data"
    (tmp_path / "empty").mkdir()
    folder = tmp_path / "unlabelled"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(40):
        Image.fromarray(rng.integers(0, 256, (10, 10), dtype=np.uint8)).save(folder / f"{k}.png")
    np.savez(tmp_path / "one.npz", images=rng.integers(0, 256, (1, 10, 10), dtype=np.uint8))
    np.savez(tmp_path / "same.npz", images=np.full((40, 10, 10), 9, np.uint8))
    np.savez(tmp_path / "nan.npz", images=np.full((40, 1, 10, 10), np.nan, np.float32))
    test = data / "test.npz"
    proto = onnx.load(model)
    meta = _metadata(model)
    onnx.helper.set_model_props(proto, {})
    onnx.save(proto, tmp_path / "bare.onnx")
    onnx.helper.set_model_props(proto, dataclasses.replace(meta, precision="int8").to_properties())
    onnx.save(proto, tmp_path / "again.onnx")
    out = ("-o", tmp_path / "q.onnx")
    for arguments, code, word in (
        ((model, "--calib-data", tmp_path / "empty"), 2, "no data"),
        ((model, "--calib-data", tmp_path / "one.npz", "--data", test), 2, "One image"),
        ((model, "--calib-data", tmp_path / "same.npz", "--data", test), 2, "constant"),
        ((model, "--calib-data", tmp_path / "nan.npz", "--data", test), 2, "NaN"),
        ((model, "--calib-data", tmp_path / "no"), 2, "There is no"),
        ((tmp_path / "bare.onnx", "--calib-data", data), 2, "does not state the preprocessing"),
        ((tmp_path / "bare.onnx", "--calib-data", test), 2, "pixels cannot be prepared"),
        ((tmp_path / "again.onnx", "--calib-data", data), 6, "already quantized"),
        ((tmp_path / "none.onnx", "--calib-data", data), 2, "none.onnx"),
        ((model, "--calib-data", data, "--precision", "int2"), 2, "Invalid --precision int2"),
        ((model, "--calib-data", data, "--method", "median"), 2, "one of: minmax"),
        ((model, "--calib-data", data, "--target", "npu"), 2, "Invalid --target npu"),
        ((model, "--calib-data", data, "--max-drop", "-1"), 2, "from 0 to 100"),
        (
            (model, "--calib-data", data, "--picture", tmp_path / "p.png"),
            2,
            "--picture needs --precision mixed",
        ),
        (
            (model, "--calib-data", data, "--precision", "mixed", "--picture", tmp_path / "p.pdf"),
            2,
            "neither a .png nor an .svg",
        ),
    ):
        found, _, message = _run(*arguments, *out)
        assert found == code, (arguments, message)
        assert word in message, (arguments, message)
    assert not (tmp_path / "q.onnx").exists()
    # An unlabelled folder calibrates, where labelled images are named to judge on.
    found, _, message = _run(model, "--calib-data", folder, "--data", test, "--max-drop", 9, *out)
    assert found == 0, message


def test_the_chain_of_a_quantized_file(place: Path, tmp_path: Path) -> None:
    out, certificate = tmp_path / "q.onnx", tmp_path / "c.json"
    arguments = ("--calib-data", place / "data", "--max-drop", 5, "-o", out)
    assert _run(place / "m.onnx", *arguments)[0] == 0
    code, text, message = _run(
        out, "--checkpoint", place / "m.safetensors", "--data", place / "data", "-o", certificate,
        "--min-agreement", 0.9, verb="verify",
    )  # fmt: skip
    assert code == 0, (text, message)
    document = json.loads(certificate.read_text())
    assert [link["kind"] for link in document["chain"]] == ["checkpoint", "onnx", "quantized"]
    assert document["chain"][1]["sha256"] == sha256(place / "m.onnx")
    assert document["chain"][2]["precision"] == "int8"
    assert document["limits"]["criterion"] == "decisions"
    assert document["limits"]["max_drop_points"] == 5
    # A tolerance that is given is judged.
    code, text, _ = _run(
        out, "--checkpoint", place / "m.safetensors", "--limit", 4,
        "--tolerance", "lengths:0,0", verb="verify",
    )  # fmt: skip
    assert code == 4
    assert text.splitlines()[-1] == "FAILED"


@pytest.mark.thorough
def test_frozen_couplings(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.onnx"
    arguments = ("--checkpoint", place / "m.safetensors", "-o", out)
    code, _, message = _run(*arguments, "--freeze-couplings", verb="export")
    assert code == 2
    assert "must be used together" in message
    code, text, message = _run(
        *arguments, "--freeze-couplings", "--calib-data", place / "data", "--calib-images", 40,
        verb="export",
    )  # fmt: skip
    assert code == 0, message
    assert "approximation" in text
    assert f"{out.stat().st_size / 1e6:.2f} MB" in text
    measured = _metadata(out).calibration["frozen_couplings"]
    assert measured["averaged_images"] == 40
    assert measured["agreement"] > 0.5
    assert measured["layers"]["classes"]["uniform"] == pytest.approx(1 / 3)
    routing = [n for n in onnx.load(out).graph.node if operator_of(n.op_type) == "DynamicRouting"]
    assert [a.i for n in routing for a in n.attribute if a.name == "iterations"] == [1]


@pytest.mark.thorough
def test_em_couplings_are_not_frozen(place: Path, tmp_path: Path) -> None:
    save_checkpoint(network("em"), tmp_path / "em.safetensors")
    code, _, message = _run(
        "--checkpoint", tmp_path / "em.safetensors", "-o", tmp_path / "em.onnx",
        "--freeze-couplings", "--calib-data", place / "data", verb="export",
    )  # fmt: skip
    assert code == 5
    assert not (tmp_path / "em.onnx").exists()  # nor a file that routes under that name
    assert "EM routing" in message


@pytest.mark.parametrize("beside", [True, False])
def test_says_what_verifies_it(place: Path, tmp_path: Path, beside: bool) -> None:
    model = place / "m.onnx"
    if not beside:
        model = shutil.copyfile(model, tmp_path / "m.onnx")
    arguments = ("--calib-data", place / "data", "--calib-images", 40, "--max-drop", 100)
    out = tmp_path / "of a name.onnx"
    code, _, message = _run(model, *arguments, "-o", out)
    assert code == 0, message
    option = f"--checkpoint {place / 'm.safetensors'}" if beside else "--checkpoint CHECKPOINT"
    assert f"capsedge verify '{out}' {option} --data {place / 'data'}" in message


@pytest.mark.parametrize(
    ("missing", "code"),
    [pytest.param("torch", 0, marks=pytest.mark.thorough), ("onnxscript", 3)],
)
def test_needs_onnxscript_but_no_torch(
    place: Path, tmp_path: Path, missing: str, code: int
) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from capsedge.cli import main; main()"
    arguments = [
        "quantize", place / "m.onnx", "--calib-data", place / "data", "--calib-images", "40",
        "--max-drop", "100", "-o", tmp_path / "q.onnx",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "q.onnx").exists() == (code == 0)
    assert ("capsedge[build]" in done.stderr) == (code == 3)
