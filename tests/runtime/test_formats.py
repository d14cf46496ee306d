"""What a file is by its first bytes, whatever its name, and what the readers say of it."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import capsedge
from capsedge.calibration.ranges import CalibrationTable
from capsedge.cli import app
from capsedge.deploy import web
from capsedge.runtime.files.formats import identify_content, identify_path
from capsedge.runtime.metadata.engine_metadata import EngineMetadata
from capsedge.runtime.zoo import default_model, zoo_checkpoint
from capsedge.verification.certificate import Certificate


def _zip(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, b"...")
    return content.getvalue()


def _saved(save, *arguments: object) -> bytes:
    content = io.BytesIO()
    save(content, *arguments)
    return content.getvalue()


def _png() -> bytes:
    return _saved(lambda f: Image.new("L", (8, 8)).save(f, "PNG"))


def _safetensors(**metadata: str) -> bytes:
    header = {"__metadata__": metadata, "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4)


# As the tools write them; those of PyTorch itself are below.
FILES = {
    "onnx": default_model().read_bytes(),
    "checkpoint": zoo_checkpoint("digits-em").read_bytes(),
    "safetensors": _safetensors(),
    "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(40),
    "keras": _zip("metadata.json", "config.json", "model.weights.h5"),
    "tflite": b"\x1c\0\0\0TFL3" + bytes(40),
    "ort": b"\x1c\0\0\0ORTM" + bytes(40),
    "executorch": b"\x1c\0\0\0ET12" + bytes(40),
    "tensorrt": b"ftrt" + bytes(40),
    "npz": _saved(lambda f: np.savez(f, images=np.zeros(2))),
    "npy": _saved(lambda f: np.save(f, np.zeros(2))),
    "wasm": b"\0asm\1\0\0\0",
    "predictions": b"PAR1" + bytes(40) + b"PAR1",
    "c-folder": b'{\n  "schema": 1,\n  "kind": "capsedge-c"}',
    "wasm-folder": b'{"schema": 1, "kind": "capsedge-wasm"}',
    "engine-metadata": b'{"engine_bytes": 1, "engine_sha256": "0a"}',
    "certificate": b'{"schema": 1, "verdict": "PASSED", "chain": []}',
    "calibration": b'{"schema": 1, "model_sha256": "0a", "tensors": {}}',
    "page": b'{"schema": 1, "models": [], "late": []}',
    "image": _png(),
    "idx": bytes((0, 0, 8, 1, 0, 0, 0, 0)),
    "compressed": gzip.compress(b"model"),
    "zip": _zip("model.onnx"),
    "openvino": b'<?xml version="1.0"?>\n<net name="model" version="11">\n</net>',
    "xml": b"<svg></svg>",
    "coreml": b"\x08\x05\x12\x0b\n\x09\n\x05image\x12\x00" + bytes(20),
    "saved-model": b"\x08\x01\x12\x10\n\x0e\x12\x05\n\x03Add\"\x05serve",
    "ncnn": b"7767517\n75 83\nInput data 0 1 data 0\n",
    "torchscript": _zip("net/data.pkl", "net/code/__torch__.py", "net/constants.pkl"),
    "torch-export": _zip("model/archive_format", "model/models/model.json"),
    "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    "html": b"<!DOCTYPE html><html><body>404</body></html>",
    "json": b'{"a": 1}',
    "pickle": pickle.dumps({"a": [1]}),
    "text": "weights für das Netz\n".encode(),
    "empty": b"",
}  # fmt: skip


@pytest.mark.parametrize("key", FILES)
def test_by_its_bytes_and_not_by_its_name(key: str, tmp_path: Path) -> None:
    for name in ("model.onnx", "model.pt", "model"):
        path = tmp_path / name
        path.write_bytes(FILES[key])
        found = identify_path(path)
        assert found is not None
        assert found.key == key
        assert identify_content(FILES[key]) == found


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"")
    assert [f.key for f in (identify_path(tmp_path), identify_path(tmp_path / "saved")) if f] == [
        "folder",
        "saved-model",
    ]
    with pytest.raises(capsedge.ArtefactError, match="a TensorFlow SavedModel") as caught:
        capsedge.load(tmp_path / "saved")
    assert "tf2onnx.convert --saved-model" in caught.value.fix


def test_noise_and_cuts_are_nothing_or_something_but_no_error() -> None:
    rng = np.random.default_rng(0)
    for content in FILES.values():
        for end in range(0, min(len(content), 300), 7):
            identify_content(content[:end])
        noisy = bytearray(content[:400])
        for at in rng.integers(0, max(len(noisy), 1), 20):
            if noisy:
                noisy[at % len(noisy)] = int(rng.integers(256))
        identify_content(bytes(noisy))


def test_files_of_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(2, 2)
    state = layer.state_dict()
    torch.save(state, tmp_path / "pytorch")
    torch.save({"model": state}, tmp_path / "pytorch.onnx")
    torch.save({"config": {"routing": "em"}, "state_dict": state}, tmp_path / "checkpoint")
    torch.save(state, tmp_path / "pytorch-legacy", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.trace(layer, torch.rand(1, 2)), tmp_path / "torchscript")
    for path in tmp_path.iterdir():
        found = identify_path(path)
        assert found is not None
        assert found.key == path.stem
        assert identify_content(path.read_bytes()) == found


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (("net.c", "net.h", "net.json", "main.c"), "c-folder"),
        (("net.wasm", "net.mjs", "net.json"), "wasm-folder"),
        (("index.html", "capsedge.json", "digits.onnx"), "page"),
        (("last.pt", "history.jsonl", "model.safetensors"), "run"),
        (("_plan.json", "part-0.parquet"), "predictions"),
        (("0.png", "notes.json"), "folder"),
    ],
)
def test_folders_of_our_own(names: tuple[str, ...], key: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    found = identify_path(tmp_path)
    assert found is not None
    assert found.key == key
    for words in (("infer", "--model", tmp_path, tmp_path), ("deploy", "web", tmp_path, "-o", "x")):
        assert found.name in _message(*words), words


def test_what_we_write_is_what_is_told(tmp_path: Path) -> None:
    """The texts that tell documents apart are those that their writers write."""
    CalibrationTable("0a", "0a", "entropy", 1, "data").save(tmp_path / "table")
    found = identify_path(tmp_path / "table")
    assert found is not None
    assert found.key == "calibration"
    assert json.loads(FILES["page"]).keys() <= json.loads(web._manifest([], [], [])).keys()
    fields = {field.name for field in dataclasses.fields(EngineMetadata)}
    assert json.loads(FILES["engine-metadata"]).keys() <= fields
    assert json.loads(FILES["certificate"]).keys() <= {"schema", "verdict"} | {
        field.name for field in dataclasses.fields(Certificate)
    }


def _message(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, capsedge.CapsedgeError), (words, result.exception)
    return f"{result.exception.what} {result.exception.command}"


@pytest.mark.sample(18)
@pytest.mark.parametrize("key", sorted(FILES.keys() - {"onnx"}))
def test_every_verb_says_what_it_is(key: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "file.onnx"
    path.write_bytes(FILES[key])
    found = identify_path(path)
    assert found is not None
    image = tmp_path / "image.png"
    image.write_bytes(_png())
    data = tmp_path / "data.npz"
    np.savez(data, images=np.zeros((4, 1, 8, 8), np.float32))
    for words in (
        ("infer", "--model", path, image), ("inspect", path, "--forecast"), ("optimize", path),
        ("verify", path), ("profile", path), ("quantize", path, "--calib-data", data),
    ):  # fmt: skip
        if key != "tensorrt":  # which some of them run
            assert found.name in _message(*words), words
    if key not in ("image", "empty"):
        said = CliRunner().invoke(app, ["infer", str(path)])
        assert said.exit_code == 2
        assert found.name in said.stderr
    if key not in ("npz", "npy", "idx", "compressed", "zip", "image"):
        said = _message("quantize", default_model(), "--calib-data", path)
        assert found.name in said
    if key not in ("checkpoint", "safetensors", "zip", "torchscript", "empty"):
        assert found.name in _message("export", "--checkpoint", path)


def test_weights_that_are_not_ours_lead_to_the_module(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "capsnet.chkpt"
    torch.save({"state_dict": torch.nn.Linear(2, 2).state_dict()}, path)
    for words in (
        ("export", "--checkpoint", path),
        ("infer", "--model", path, path),
        ("inspect", path),
    ):
        said = _message(*words)
        assert f"capsedge export --module FILE.py:CLASS --weights {path}" in said, words
    with pytest.raises(capsedge.CapsedgeError) as caught:
        capsedge.load_checkpoint(path)
    assert "capsedge.export(module" in caught.value.fix
    assert "--" not in caught.value.fix
