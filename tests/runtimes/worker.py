"""Run every file of a folder on the ONNX Runtime that comes first on PYTHONPATH; print what came out.

    python -m tests.runtimes.worker FOLDER

One JSON document: version and place of ONNX Runtime, and for each file, kind of operators and language the
largest difference from what was wanted, in tolerances, or the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

import capsedge
from capsedge.errors import CapsedgeError
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.backends.onnxruntime_session import multiply_exactly
from tests.native import libcapsedge
from tests.runtimes.files import Arrays

Answer = dict[str, object]


def _excess(found: Arrays, wanted: Arrays, tolerance: float) -> float:
    worst = 0.0
    for name, reference in wanted.items():
        size = np.abs(reference).max(axis=-1, keepdims=True, initial=0.0)
        difference = np.abs(found[name].astype(np.float64) - reference)
        if found[name].shape != reference.shape or not np.isfinite(difference).all():
            return float("inf")
        worst = max(worst, float((difference / (tolerance * (size + 0.1))).max(initial=0.0)))
    return worst


def _python(path: Path, ops: str, x: np.ndarray) -> Arrays:
    session = capsedge.load(path, threads=1, ops=ops)
    return session.run(x.astype(session.inputs[0].dtype))


def _bare(path: Path, ops: str, x: np.ndarray) -> Arrays:
    """ONNX Runtime alone, as a program that knows nothing of capsedge's Python package uses it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    multiply_exactly(options)  # as the page on quantization says
    if ops == "fused":
        options.register_custom_ops_library(str(find_library()))
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    port = session.get_inputs()[0]
    kind = np.float16 if port.type == "tensor(float16)" else np.float32
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, {port.name: x.astype(kind)}), strict=True))


def _c(path: Path, ops: str, x: np.ndarray) -> Arrays:
    session = libcapsedge.Session(path, ops=ops)
    ((name, (kind, _)),) = session.ports("input").items()
    return session.run({name: x.astype(kind)})


def _answer(
    run: Callable[[Path, str, np.ndarray], Arrays], path: Path, ops: str, wanted: Arrays
) -> Answer:
    x, tolerance = wanted.pop("x"), float(wanted.pop("tolerance"))
    try:
        return {"excess": _excess(run(path, ops, x), wanted, tolerance)}
    except CapsedgeError as error:
        return {"error": str(error), "code": int(error.exit_code)}
    except libcapsedge.Failed as error:
        return {"error": str(error), "code": error.code}
    except Exception as error:  # ONNX Runtime's errors have no common public base
        return {"error": str(error)}


def main(folder: Path) -> None:
    """Run and print."""
    languages = {"python": _python, "bare": _bare}
    if libcapsedge.library_path() is not None:
        languages["c"] = _c
    kinds = ["portable", *(["fused"] if find_library() is not None else [])]
    answers: dict[str, Answer] = {}
    for path in sorted(folder.glob("*.onnx")):
        for ops in kinds:
            if ops == "fused" and "portable" in path.stem:
                continue
            for language, run in languages.items():
                with np.load(path.with_suffix(".npz")) as wanted:
                    key = f"{path.stem} {ops} {language}"
                    answers[key] = _answer(run, path, ops, dict(wanted))
    json.dump(
        {
            "version": onnxruntime.__version__,
            "place": str(Path(onnxruntime.__file__).resolve().parent),
            "answers": answers,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
