"""Check an ONNX file before anything is made from it: `optimize`, `quantize` and every target of `build`.

The work is done in a process of its own (`capsedge.runtime.files.sandbox`), within limits on time and memory.
There, nodes are sorted, onnx checks the file and infers all shapes, and ONNX Runtime loads it, if it is
installed. What reaches the caller is consistent, and its values fit in memory.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from dataclasses import asdict
from io import FileIO

from capsedge import errors
from capsedge.errors import ArtefactError, CapsedgeError, UnsupportedModelError
from capsedge.graph.check_steps import ONE_IMAGE, Bounds, run_check_steps, start_onnxruntime
from capsedge.runtime.files.sandbox import (
    SandboxLimits,
    enter_sandbox,
    forbid_new_files,
    run_in_sandbox,
)
from capsedge.spec import limits


def checked(data: bytes, name: str, bounds: Bounds = ONE_IMAGE) -> bytes:
    """The file with its nodes in order, after it was checked.

    Args:
        data: bytes of a file that ``read_harmless`` accepted.
        name: its name in errors.
        bounds: how much it may compute.

    Raises:
        EnvironmentProblem: ONNX Runtime is installed, but cannot be imported or is too old.
        ArtefactError: onnx or ONNX Runtime refuses it.
        UnsupportedModelError: it is too large, is in training mode, or draws random numbers.
    """
    most = SandboxLimits(
        limits.CHECK_SECONDS, limits.CHECK_MEMORY + 8 * len(data), limits.FILE_BYTES
    )
    words = [json.dumps({"name": name, **asdict(bounds)})]
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        with run_in_sandbox(__name__, file, most, words=words, fork=True) as ended:
            code, log = ended.exit_code, ended.log
            header, better = ended.output.readline(), ended.output.read()
    if code is None:
        raise UnsupportedModelError(
            f"Checking {name} takes too long.",
            f"onnx infers its shapes for over {limits.CHECK_SECONDS} s.",
            "Export it again with smaller sizes, or without computed ones.",
        )
    if code or not header.startswith(b"{"):
        last = (log.strip().splitlines() or ["it said nothing"])[-1]
        raise ArtefactError(
            f"{name} cannot be checked.",
            f"The process that checks it ended ({code}): {last[:200]}",
            "Export it again; a file that ends onnx or ONNX Runtime is damaged, or an attack.",
        )
    document = json.loads(header)
    if "error" in document:
        kind, *said = document["error"]
        raise getattr(errors, kind)(*said[:3], command=said[3])
    return better or data


def main() -> None:
    """Check the file on standard input within the limits given as arguments."""
    (word,) = enter_sandbox()
    given = json.loads(word)
    name = given.pop("name")
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print
    better = b""
    try:
        if importlib.util.find_spec("onnxruntime") is not None:
            start_onnxruntime()
        forbid_new_files()
        better = run_check_steps(FileIO(0, closefd=False).readall(), name, Bounds(**given))
        document: dict[str, object] = {}
    except CapsedgeError as error:
        said = [error.what, error.why, error.fix, error.command]
        document = {"error": [type(error).__name__, *said]}
    except MemoryError:
        what = f"Checking {name} takes too much memory."
        why = f"onnx needs more than {limits.CHECK_MEMORY >> 20} MiB to infer its shapes."
        fix = "Export it again with smaller sizes, or without computed ones."
        document = {"error": ["UnsupportedModelError", what, why, fix, fix]}
    answer.write(json.dumps(document).encode() + b"\n" + better)
    answer.close()


if __name__ == "__main__":
    main()
    sys.exit(0)
