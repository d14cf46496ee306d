"""Files that reach for another file, and a worker that gives them to this process's ONNX Runtime.

    python -m tests.runtimes.external FOLDER

Prints JSON: of every file how Python, C and ONNX Runtime by itself answer. It runs in any working directory.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.runtime.wire import field, long_tag, varint

SECRET = "secret.bin"
VALUES = np.arange(1, 65, dtype=np.float32)  # fewer are looked at before they are needed


def tensor(location: str, odd: bool) -> bytes:
    """An external tensor; ``odd`` writes what tells so with tags that protobuf cuts to 32 bits."""
    entries = [("location", location), ("offset", "0"), ("length", str(VALUES.nbytes))]
    plain = field(1, len(VALUES)) + field(2, TensorProto.FLOAT) + field(8, b"w")
    for key, value in entries:
        entry = field(1, key.encode()) + field(2, value.encode())
        plain += (long_tag(13, 2) if odd else varint(13 << 3 | 2)) + varint(len(entry)) + entry
    return plain + (long_tag(14, 0) if odd else varint(14 << 3)) + b"\x01"


def corpus(folder: Path) -> dict[str, bytes]:
    """Models that compute ``concat(x, w)``, w being in another file; by way and by location."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [128])
    join = helper.make_node("Concat", ["x", "w"], ["y"], axis=0)
    opset = helper.make_opsetid("", 20)
    made = {}
    for place, location in (
        ("near", SECRET), ("absolute", str(folder / SECRET)), ("above", f"../{folder.name}/{SECRET}"),
    ):  # fmt: skip
        for odd in (False, True):
            held = tensor(location, odd)
            way = f"{place}{' odd' if odd else ''}"
            graph = helper.make_graph([join], "g", [x], [y]).SerializeToString()
            head = helper.make_model(
                helper.make_graph([], "", [], []), ir_version=10, opset_imports=[opset]
            )
            head.ClearField("graph")
            start = head.SerializeToString()
            made[f"initializer {way}"] = start + field(7, graph + field(5, held))
            constant = (
                field(2, b"w")
                + field(4, b"Constant")
                + field(5, field(1, b"value") + field(5, held) + field(20, 4))
            )
            both = field(1, constant) + graph
            made[f"constant {way}"] = start + field(7, both)
            # A default of a function's attribute.
            body = helper.make_node("Constant", [], ["w"])
            attribute = body.attribute.add()
            attribute.name, attribute.type, attribute.ref_attr_name = "value", 4, "held"
            function = helper.make_function("own", "Join", ["x"], ["y"], [body, join], [opset])
            default = field(1, b"held") + field(5, held) + field(20, 4)
            caller = helper.make_graph(
                [helper.make_node("Join", ["x"], ["y"], domain="own")], "g", [x], [y]
            )
            made[f"function {way}"] = (
                start
                + field(8, field(1, b"own") + field(2, 1))
                + field(7, caller.SerializeToString())
                + field(25, function.SerializeToString() + field(11, default))
            )
    return made


def ask(data: bytes, path: Path) -> dict[str, Any]:
    """How a file is answered: exit codes, and whether ONNX Runtime by itself gives the secret away."""
    import onnxruntime

    import capsedge
    from capsedge.errors import CapsedgeError
    from tests.native.libcapsedge import Failed
    from tests.native.libcapsedge import Session as InC

    answer: dict[str, Any] = {"python": 0, "c": 0, "bare": False, "second": False}
    try:
        capsedge.load(path)
    except CapsedgeError as error:
        answer["python"] = error.exit_code
    try:
        InC(data)
    except Failed as error:
        answer["c"] = error.code
    for line in ("bare", "second"):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if line == "second":
            from capsedge.runtime.backends.onnxruntime_session import keep_to_itself

            keep_to_itself(options)
        try:
            session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
            found = session.run(None, {"x": np.zeros(64, np.float32)})[0]
            answer[line] = bool(np.array_equal(found[64:], VALUES))
        except Exception:
            answer[line] = False
    return answer


def main(folder: Path) -> None:
    import onnxruntime

    answers = {}
    for name, data in corpus(folder).items():
        path = folder / "model.onnx"
        path.write_bytes(data)
        answers[name] = ask(data, path)
    print(json.dumps({"version": onnxruntime.__version__, "at": os.getcwd(), "answers": answers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
