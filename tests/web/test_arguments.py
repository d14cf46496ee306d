"""Arguments of both JavaScript interfaces: an error says what is wrong and what to pass."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from capsedge.exporters.c import wasm
from capsedge.runtime.zoo import default_model

from . import package

# By the name of a call in arguments.mjs: part of the error.
OF_THE_PACKAGE = {
    "a plain array": "data of the image are an Array. Pass new Uint8Array(data) for levels from 0 to 255",
    "doubles": "are a Float64Array. Pass new Uint8Array(data)",
    "an ArrayBuffer": "are an ArrayBuffer. Pass new Uint8Array(data)",
    "no data": "data of the image are missing. Pass a Uint8Array, Uint8ClampedArray",
    "pixels alone": "The image is a Uint8Array. Pass pixels with their size, as { data, width, height",
    "a list": "The image is an Array. Pass pixels with their size",
    "nothing": "The image is missing. Images are ImageData",
    "width as text": 'width is the text "28". It takes a whole number from 1 to 32768.',
    "no width": "width is missing.",
    "no height": "height is 0. It takes a whole number from 1",
    "channels as text": 'channels is the text "1".',
    "half a channel": "channels is 1.5.",
    "misspelt option": "predict has no option 'treshold'. Did you mean 'threshold'?",
    "another option": "no option 'classes'. Its options are top, threshold, invert, trace.",
    "options as a number": "The options of predict are 3. Pass an object, such as { top: ... }.",
    "options null": "The options of predict are null.",
    "top 0": "top is 0. It takes a whole number of at least 1.",
    "top as text": 'top is the text "3".',
    "threshold NaN": "threshold is NaN. It takes a number from 0 to 1.",
    "invert as text": 'invert is the text "yes". It takes true or false.',
    "prepare with top": "prepare has no option 'top'. Its options are invert.",
    "unprepared floats": "has values from 0 to 255",
    "class as text": 'classIndex is the text "1".',
    "load with another option": "load has no option 'provider'. Did you mean 'providers'?",
    "providers as text": 'providers is the text "wasm". Pass a list of "wasm" and "webgpu"',
    "no providers": "providers is empty.",
    "unknown provider": "The provider is cuda.",
    "WebGPU without its module": 'runtime: await import("onnxruntime-web/webgpu")',
    "runtime as text": 'runtime is the text "onnxruntime-web". Pass the module',
    "threads as text": 'threads is the text "2". It takes a whole number from 1 to 1024.',
    "limits as a number": "limits is 5. Pass an object",
    "unknown limit": "The limit bytes is 5.",
    "compiled with threads": "loadCompiled has no option 'threads'. Its options are limits.",
}
OF_THE_MODULE = {
    "pixels to run": "The input is a Uint8Array: prepare the pixels first.",
    "floats of levels": "values outside 0 to 1: prepare the pixels first",
    "NaN": "values that are not finite",
    "a plain array": "The pixels are an Array: pass a Uint8Array of grey or RGB levels",
    "doubles": "The input is a Float64Array: pass what prepare returns.",
    "floats to prepare": "The pixels are a Float32Array: pass a Uint8Array",
    "an image of other pixels": "The pixels are a Float32Array",
    "grey as an image": "Expected 4 values a pixel of 28x28, RGBA.",
    "too few pixels": "Expected 784 values of pixels, not 783.",
    "nothing": "The pixels are missing: pass a Uint8Array",
    "nothing to run": "The input is missing: pass what prepare returns.",
    "nothing to prepare": "The pixels are missing",
    "top 0": "top is 0: it takes a whole number of at least 1.",
    "top -1": "top is -1:",
    "top as text": "top is a text:",
    "a pose of another size": "The pose has 3 values: pass 4.",
    "a pose as an array": "The pose is an Array: pass a Float32Array.",
    "class 3": "There is no class 3.",
    "no class": "classIndex is missing: it takes a whole number of at least 0.",
}


def answers(folder: Path, which: str, file: Path) -> dict[str, str]:
    program = folder / "arguments.mjs"
    shutil.copy(Path(__file__).with_name("arguments.mjs"), program)
    done = subprocess.run(
        ["node", program.name, which, str(file)], cwd=folder, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def faults(found: dict[str, str], wanted: dict[str, str], error: str) -> list[str]:
    """The calls whose answer is another one."""
    right = {name: answer for name, answer in found.items() if answer.startswith("ran")}
    assert found.keys() == right.keys() | wanted.keys()
    return [
        f"{name}: {found[name]}; wanted {words}"
        for name, words in wanted.items()
        if words not in found[name] or not re.match(error, found[name])
    ]


@pytest.mark.thorough
def test_of_the_package(compiled: Path) -> None:
    found = answers(compiled, "package", default_model())
    assert {found.pop(n) for n in ("right", "every option", "a buffer of Node.js")} == {"ran: 1"}
    assert not faults(found, OF_THE_PACKAGE, "CapsedgeError input: ")


def test_of_the_module_of_a_compiled_network(tmp_path: Path) -> None:
    why = package.missing()
    if "Node.js" in why:
        pytest.skip(why)
    module = tmp_path / "net.mjs"
    module.write_bytes(wasm._template("module.mjs", "net", ""))
    found = answers(tmp_path, "module", module)
    ranked = {found.pop(name) for name in ("right", "an ImageData", "a ranking")}
    assert ranked == {"ran: c", "ran: b"}
    assert found.pop("in two steps") == "ran"
    assert not faults(found, OF_THE_MODULE, "(Type|Range)Error: ")
