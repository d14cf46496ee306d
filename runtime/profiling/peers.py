"""LiteRT and MNN, each behind a function that loads a file and returns a function that runs it.

Needs only numpy and the peer's runtime, nothing of this package, so that the portability benchmark can load
this file into an interpreter that has no more. Converters write into a temporary folder that is removed with
the process; they are not called by their commands: ``mnnconvert`` would install packages and report to its
maker.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[Mapping[str, Any]], dict[str, Any]]
OWN_FILES = {"litert": ".tflite", "mnn": ".mnn"}  # which need no conversion


def load_litert(model: str, threads: int) -> tuple[Run, str]:
    """LiteRT with XNNPACK, for a ``.tflite`` file or, through onnx2tf, an ONNX file of constant shapes.

    Raises:
        ImportError: onnx2tf or ai-edge-litert is not installed.
        ValueError: onnx2tf wrote no file.
    """
    from ai_edge_litert.interpreter import Interpreter

    said = f"ai-edge-litert {version('ai-edge-litert')}"
    if not model.endswith(".tflite"):
        model = _converted_by_onnx2tf(model)
        said += f", onnx2tf {version('onnx2tf')}"
    interpreter = Interpreter(model_path=model, num_threads=threads or None)
    interpreter.allocate_tensors()
    inputs = {d["name"].removesuffix(":0"): d for d in interpreter.get_input_details()}
    outputs = interpreter.get_output_details()

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in feeds.items():
            wanted = next(iter(inputs.values())) if len(inputs) == 1 else inputs[name]
            interpreter.set_tensor(wanted["index"], _channels_last(value, wanted["shape"]))
        interpreter.invoke()
        return {d["name"].removesuffix(":0"): interpreter.get_tensor(d["index"]) for d in outputs}

    return run, said


def _converted_by_onnx2tf(model: str) -> str:
    import onnx2tf

    folder = _folder()
    onnx2tf.convert(
        input_onnx_file_path=model,
        output_folder_path=str(folder),
        non_verbose=True,
        verbosity="error",
    )
    files = sorted(folder.glob("*float32.tflite"))
    if not files:
        raise ValueError("onnx2tf wrote no file")
    return str(files[0])


def _channels_last(value: Any, shape: Any) -> Any:
    """Images as the converter laid them out: ``[N, H, W, C]``."""
    same = value.shape == tuple(shape) and len(set(value.shape[1:])) > 1
    if value.ndim == 4 and not same:
        value = value.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(value)


def load_mnn(model: str, threads: int) -> tuple[Run, str]:
    """MNN in FP32, for an ``.mnn`` file or an ONNX file.

    Raises:
        ImportError: MNN is not installed.
        ValueError: its converter refused the file.
    """
    import MNN

    if not model.endswith(".mnn"):
        model = _converted_by_mnn(model)
    interpreter = MNN.Interpreter(model)
    session = interpreter.createSession({"numThread": threads or 4, "precision": "high"})
    inputs = interpreter.getSessionInputAll(session)

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in feeds.items():
            if tuple(inputs[name].getShape()) != value.shape:
                interpreter.resizeTensor(inputs[name], value.shape)
                interpreter.resizeSession(session)
            inputs[name].copyFrom(_mnn_tensor(np.ascontiguousarray(value, np.float32)))
        interpreter.runSession(session)
        found = {}
        for name, tensor in interpreter.getSessionOutputAll(session).items():
            shape = tuple(tensor.getShape())
            host = _mnn_tensor(np.zeros(shape, np.float32))
            tensor.copyToHostTensor(host)
            found[name] = np.array(host.getNumpyData()).reshape(shape).copy()
        return found

    return run, f"MNN {version('MNN')}"


def _converted_by_mnn(model: str) -> str:
    import _tools  # MNN's converter itself

    target = _folder() / "model.mnn"
    arguments = ["mnnconvert", "-f", "ONNX", "--modelFile", model, "--MNNModel", str(target)]
    _tools.mnnconvert([*arguments, "--bizCode", "capsedge"])
    if not target.exists():
        raise ValueError("MNN's converter wrote no file")
    return str(target)


def _mnn_tensor(value: Any) -> Any:
    import MNN

    shape, kind = value.shape, MNN.Halide_Type_Float
    return MNN.Tensor(shape, kind, value, MNN.Tensor_DimensionType_Caffe)


def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="capsedge-peer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
