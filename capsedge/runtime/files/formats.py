"""Tell what a file is by its first bytes, and which command takes it.

Only the standard library is used: every reader asks here when a file is not what it expected. Nothing
is unpacked or interpreted: an archive is judged by the names of its members, and a PyTorch file by
whether it names a configuration.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capsedge.runtime.files.reading import FILE, FOLDER, list_folder, open_regular_file, path_kind
from capsedge.spec import limits
from capsedge.spec.fields import C_KIND, MANIFEST, WASM_KIND
from capsedge.spec.signatures import NAMES, SIGNATURES

HEAD_BYTES = 4096
_ENGINE_SUFFIX = ".engine"
_CONFIG_KEY = b"capsedge.config"  # in the header of our safetensors checkpoints


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        key: a short name for programs.
        name: as text, with its article: ``a Keras model (HDF5)``.
        fix: what to do with it, in Python; ``{path}`` stands for its name.
        command: what to do with it, on the command line; ``{path}`` stands for its name.
    """

    key: str
    name: str
    fix: str
    command: str = ""

    def advice(self, path: Path | str) -> tuple[str, str]:
        """What to do with a file of this kind: in Python, and on the command line."""
        import shlex

        command = (self.command or self.fix).format(path=shlex.quote(str(path)))
        return self.fix.format(path=repr(str(path))), command


_PUBLIC_PYTHON = (
    "Weights of a public network: `capsedge.import_checkpoint({path})` (docs/how-to/import.md). "
)
_PUBLIC_COMMAND = "Weights of a public network: `capsedge import {path}` (docs/how-to/import.md). "
_MODULE = (
    _PUBLIC_PYTHON
    + "Your own: load them into your module and export that, `capsedge.export(module, "
    "'model.onnx', example=...)` (docs/how-to/your-model.md).",
    _PUBLIC_COMMAND
    + "Your own: export them with the code of the network, `capsedge export --module "
    "FILE.py:CLASS --weights {path} --example 1x28x28 -o model.onnx` (docs/how-to/your-model.md).",
)
_TF2ONNX = (
    "Your own: convert it with tf2onnx, `python -m tf2onnx.convert --keras {path} --output "
    "model.onnx`, then "
)
_KERAS = (
    _PUBLIC_PYTHON + _TF2ONNX + "`capsedge.optimize('model.onnx', ...)`.",
    _PUBLIC_COMMAND + _TF2ONNX + "`capsedge optimize model.onnx`.",
)
_SOURCE = "Name the ONNX file that it was made from."
_COMPILED = (
    "It runs without capsedge (docs/how-to/{page}). Name the ONNX file that it was made from."
)
_DATA = (
    "It is data: pass it as `data=` or `calib_data=`.",
    "It is data: name it with --data or --calib-data.",
)
_PICTURE = (
    "Images go to `Session.predict`.",
    "Images go to `capsedge infer --model MODEL.onnx {path}`.",
)
_AGAIN = "Get the file again."

_FORMATS = {
    f.key: f
    for f in (
        Format(
            "onnx",
            "an ONNX model",
            "Load it: `capsedge.load({path})`.",
            "`capsedge inspect {path}` shows what it holds, `capsedge infer --model {path}` runs it.",
        ),
        Format("ort", NAMES["ort"], _SOURCE),
        Format(
            "checkpoint",
            "a checkpoint of capsedge",
            "Export it: `capsedge.export(capsedge.load_checkpoint({path}), 'model.onnx')`.",
            "Export it: `capsedge export --checkpoint {path} -o model.onnx`.",
        ),
        Format("pytorch", "a PyTorch file (torch.save)", *_MODULE),
        Format("safetensors", NAMES["safetensors"], *_MODULE),
        Format(
            "pytorch-legacy",
            NAMES["pytorch-legacy"],
            "Save it again, `torch.save(torch.load({path}, weights_only=True), 'new.pt')`, load that into "
            "your module and export it: `capsedge.export(module, 'model.onnx', example=...)`.",
            "Save it again in Python, `torch.save(torch.load(FILE, weights_only=True), 'new.pt')`, then "
            "export it with the code of its network: `capsedge export --module FILE.py:CLASS --weights "
            "new.pt --example 1x28x28 -o model.onnx`.",
        ),
        Format(
            "torchscript",
            "a TorchScript program (torch.jit.save)",
            "Export the module that it was made from: `capsedge.export(module, 'model.onnx', example=...)`.",
            "Export the network that it was made from: `capsedge export --module FILE.py:CLASS --weights "
            "WEIGHTS.pt --example 1x28x28 -o model.onnx`.",
        ),
        Format(
            "torch-export",
            "a program of torch.export (.pt2)",
            "Convert it with torch: `torch.onnx.export(torch.export.load({path}), f='model.onnx', "
            "dynamo=True)`, then `capsedge.optimize('model.onnx', ...)`.",
            "Convert it in Python: `torch.onnx.export(torch.export.load(FILE), f='model.onnx', "
            "dynamo=True)`, then `capsedge optimize model.onnx`.",
        ),
        Format("executorch", "an ExecuTorch program (.pte)", _SOURCE),
        Format(
            "pickle", "a Python pickle", "Pickles are not read, as they can run code: save arrays."
        ),
        Format("hdf5", NAMES["hdf5"], *_KERAS),
        Format("keras", "a Keras model (.keras)", *_KERAS),
        Format(
            "saved-model",
            "a TensorFlow SavedModel",
            "Convert it with tf2onnx: `python -m tf2onnx.convert --saved-model {path} --output model.onnx` "
            "(its folder), then `capsedge.optimize('model.onnx', ...)`.",
            "Convert it with tf2onnx: `python -m tf2onnx.convert --saved-model {path} --output model.onnx` "
            "(its folder), then `capsedge optimize model.onnx`.",
        ),
        Format(
            "tflite",
            NAMES["tflite"],
            "Convert it with tf2onnx: `python -m tf2onnx.convert --tflite {path} --output model.onnx`, then "
            "`capsedge.optimize('model.onnx', ...)`.",
            "Convert it with tf2onnx: `python -m tf2onnx.convert --tflite {path} --output model.onnx`, then "
            "`capsedge optimize model.onnx`.",
        ),
        Format(
            "tensorrt",
            NAMES["tensorrt"],
            "`capsedge.load` runs engines of `capsedge.build`; elsewhere name the ONNX file that it was "
            "built from.",
            "`capsedge infer --model {path}` runs engines of `capsedge build`; elsewhere name the ONNX file "
            "that it was built from.",
        ),
        Format(
            "wasm",
            NAMES["wasm"],
            _COMPILED.format(page="small-page.md"),
        ),
        Format(
            "wasm-folder",
            "a network compiled to WebAssembly, or what describes it",
            _COMPILED.format(page="small-page.md"),
        ),
        Format(
            "c-folder",
            "a network as C source, or what describes it",
            "`capsedge.verify` takes the folder; elsewhere name the ONNX file that it was made from.",
            "`capsedge verify FOLDER` takes it; elsewhere name the ONNX file that it was made from.",
        ),
        Format(
            "page",
            "a page of `capsedge deploy web`, or what describes it",
            "Name one of the ONNX files in its folder.",
        ),
        Format("engine-metadata", "the metadata of an engine", "Name the engine beside it."),
        Format(
            "certificate",
            "a certificate of `capsedge verify`",
            "Name the file that it is about.",
        ),
        Format(
            "calibration",
            "a calibration table of `capsedge quantize`",
            "`capsedge.quantize` takes it as `table`; elsewhere name a model.",
            "`capsedge quantize --table {path}` takes it; elsewhere name a model.",
        ),
        Format(
            "run",
            "the folder of a training run",
            "Name the checkpoint in it, model.safetensors.",
        ),
        Format(
            "predictions",
            NAMES["predictions"],
            "Name the model that made it.",
        ),
        Format("openvino", "an OpenVINO model (IR)", _SOURCE),
        Format("coreml", "a Core ML model", _SOURCE),
        Format("ncnn", NAMES["ncnn"], _SOURCE),
        Format("gguf", NAMES["gguf"], "capsedge reads ONNX files and PyTorch weights."),
        Format("image", NAMES["image"], *_PICTURE),
        Format("npz", "an archive of NumPy arrays (.npz)", *_DATA),
        Format("npy", NAMES["npy"], *_DATA),
        Format("idx", NAMES["idx"], *_DATA),
        Format("zip", NAMES["zip"], "Unpack it and name what is inside."),
        Format("compressed", NAMES["compressed"], "Unpack it and name what is inside."),
        Format("tar", NAMES["tar"], "Unpack it and name what is inside."),
        Format("lfs", NAMES["lfs"], "Get the file: `git lfs pull`."),
        Format("html", "a web page", "A download failed; get the file itself."),
        Format("program", NAMES["program"], "Check the path."),
        Format("json", "a JSON file", "Name the file that it describes."),
        Format("xml", NAMES["xml"], "Check the path."),
        Format("text", "a text file", "Check the path."),
        Format("empty", "empty", _AGAIN),
        Format("folder", "a folder", "Pass a file."),
    )
}  # fmt: skip

# What documents of our own begin with, without spaces; each has all of these texts.
_DOCUMENTS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((f'"kind":"{C_KIND}"',), "c-folder"),
    ((f'"kind":"{WASM_KIND}"',), "wasm-folder"),
    (('"engine_sha256":',), "engine-metadata"),
    (('"verdict":', '"chain":'), "certificate"),
    (('"schema":', '"model_sha256":', '"tensors":'), "calibration"),
    (('"schema":', '"models":', '"late":'), "page"),
)


def identify_path(path: Path | str) -> Format | None:
    """The kind of a file or folder; None if it is unknown."""
    known = path_kind(path)
    if known == FOLDER:
        return _FORMATS[_folder(path)]
    if known not in (FILE, None):
        return None
    with open_regular_file(path) as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        if head.startswith(b"PK"):
            return _FORMATS[_archive(file)]
    return identify_bytes(head)


def is_engine(path: Path | str) -> bool:
    """Whether a file is an engine of TensorRT: by its first bytes or, if these are inconclusive, its name."""
    kind = identify_path(path) if path_kind(path) == FILE else None
    if kind is not None and kind.key != "text":
        return kind.key == "tensorrt"
    return Path(path).suffix == _ENGINE_SUFFIX


def identify_content(content: bytes) -> Format | None:
    """The kind of a file by its whole content; None if it is unknown."""
    if content.startswith(b"PK"):
        return _FORMATS[_archive(io.BufferedReader(io.BytesIO(content)))]
    return identify_bytes(content[:HEAD_BYTES])


def identify_bytes(head: bytes) -> Format | None:
    """The kind of a file by its first `HEAD_BYTES`, None if unknown; zip archives are not opened."""
    key = _key(head)
    return _FORMATS[key] if key else None


def _key(head: bytes) -> str | None:
    if not head:
        return "empty"
    for key, signature, at in SIGNATURES:
        if head.startswith(signature, at):
            return key
    if head[4:6] == b"ET" and head[6:8].isdigit():
        return "executorch"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image"
    if head.startswith(b"BM") and head[6:10] == b"\0\0\0\0":
        return "image"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= limits.JSON_BYTES:
        return "checkpoint" if _CONFIG_KEY in head else "safetensors"
    if head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return "pickle"
    return _protobuf(head) or _text(head)


def _protobuf(head: bytes) -> str | None:
    """ONNX, Core ML and SavedModel begin with a small number, their version, in field 1."""
    if len(head) < 4 or head[0] != 0x08 or not 0 < head[1] < 0x40:
        return None
    at = 3
    while at < min(len(head), 12) and head[at] & 0x80:
        at += 1
    # ONNX's field 2 is a name; that of the others is a message, which begins with its field 1.
    if head[2] == 0x12 and head[at + 1 : at + 2] == b"\n" and head[at] > 1:
        tensorflow = b"serve" in head or b"tensorflow" in head.lower() or b"Const" in head
        return "saved-model" if tensorflow else "coreml"
    return "onnx" if head[2] in (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42) else None


def _text(head: bytes) -> str | None:
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # the last character may be cut
            return None
        text = head[: error.start].decode("utf-8-sig")
    if any(c < " " and c not in "\t\n\r\f\x1b" for c in text):
        return None
    begin = text.lstrip().lower()
    if begin.startswith(("<!doctype html", "<html")):
        return "html"
    if begin.startswith("<"):
        return "openvino" if "<net " in begin or "<net>" in begin else "xml"
    if not begin.startswith(("{", "[")):
        return "text"
    dense = "".join(text.split())
    return next((key for all_of, key in _DOCUMENTS if all(t in dense for t in all_of)), "json")


def _archive(file: io.BufferedReader) -> str:
    # Not at the top: models are no archives, and zipfile takes time to import.
    from capsedge.runtime.files.archives import zip_format_key

    return zip_format_key(file)


def _folder(path: Path | str) -> str:
    names: Sequence[str] = list_folder(path)
    if "saved_model.pb" in names or "saved_model.pbtxt" in names:
        return "saved-model"
    if "Manifest.json" in names and os.path.isdir(os.path.join(path, "Data")):
        return "coreml"
    if {"last.pt", "history.jsonl"} <= {*names}:
        return "run"
    if "_plan.json" in names or "_SUCCESS" in names:
        return "predictions"
    if MANIFEST in names and "index.html" in names:
        return "page"
    described = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    if any({f"{name}.c", f"{name}.h"} <= {*names} for name in described):
        return "c-folder"
    return "wasm-folder" if any(f"{name}.wasm" in names for name in described) else "folder"
