"""``--target wasm``: the folder, a missing extra, and the results of the compiled network in Node.js."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from capsedge.cli import app
from capsedge.errors import EnvironmentProblem, ExitCode, UsageError
from capsedge.exporters.c import wasm
from capsedge.exporters.c.folder import read_report
from capsedge.exporters.c.program import Constants
from capsedge.exporters.c.write_c import read_library
from capsedge.runtime.images.preprocessing import prepare
from capsedge.runtime.metadata.metadata import Preprocessing
from tests.conftest import ROOT
from tests.exporters.c.compiled import STRICT, Compiled, Floats, compiler
from tests.exporters.c.test_folder import tiny
from tests.web.package import WEB
from tests.web.package import missing as missing_node

ZOO = sorted((ROOT / "capsedge/zoo").glob("*.onnx"))
MODULE = ROOT / "capsedge/exporters/c/javascript/module.mjs"


@pytest.fixture
def zig() -> None:
    """Skips where the compiler for WebAssembly is missing."""
    if not wasm.is_available():
        pytest.skip("needs ziglang: pip install 'capsedge[wasm]'")


@pytest.fixture
def node(zig: None) -> None:
    """Skips where Node.js is missing too."""
    why = missing_node()
    if "Node.js" in why:
        pytest.skip(why)


def ask(module: Path, *questions: dict[str, Any]) -> list[Any]:
    """The answers of `wasm.mjs` to questions for a network."""
    file = module.parent.with_suffix(".questions")
    file.write_text(json.dumps(questions))
    words = [
        "node",
        "--no-warnings",
        str(Path(__file__).with_name("wasm.mjs")),
        str(module),
        str(file),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def sent(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def floats(text: str) -> Floats:
    return np.frombuffer(base64.b64decode(text), np.float32)


# --- Without the compiler ---


def test_a_missing_extra_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem) as raised:
        wasm.write_wasm(tiny(tmp_path), tmp_path / "net")
    assert raised.value.exit_code == ExitCode.ENVIRONMENT
    assert raised.value.fix == "pip install 'capsedge[wasm]'"
    assert not (tmp_path / "net").exists()


def test_the_command_names_the_missing_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ziglang", None)
    words = ["build", "--target", "wasm", str(tiny(tmp_path)), "-o", str(tmp_path / "net")]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, EnvironmentProblem)
    assert "capsedge[wasm]" in error.fix
    assert not (tmp_path / "net").exists()


def test_a_compiler_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "zig"
    broken.write_text("#!/bin/sh\necho 'net.c:1: error: \x1b[2J no space' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(wasm, "_compiler", lambda: broken)
    with pytest.raises(EnvironmentProblem, match="cannot be compiled") as raised:
        wasm.write_wasm(tiny(tmp_path), tmp_path / "net")
    assert "no space" in raised.value.why
    assert "\x1b" not in raised.value.why
    assert not (tmp_path / "net").exists()


def test_who_expects_c_is_told_what_a_folder_holds(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text('{"kind": "capsedge-wasm"}')
    with pytest.raises(UsageError, match="is not a folder of C") as raised:
        read_report(tmp_path)
    assert "It holds WebAssembly" in raised.value.why


def test_the_module_is_small_and_evaluates_nothing() -> None:
    text = MODULE.read_text()
    assert len(text.encode()) + 100 * text.count("@NAME@") <= 10_000
    for word in ("eval", "Function(", "innerHTML", "http:", "https:"):
        assert word not in text
    assert text.isascii()


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """A LEB128 number of WebAssembly, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        if data[at] < 128:
            return value, at + 1
        at, shift = at + 1, shift + 7


@given(data=st.binary(max_size=70_000) | st.binary(min_size=125, max_size=131))
def test_a_custom_section_can_be_read_again(data: bytes) -> None:
    section = wasm.custom_section("capsedge", data)
    size, at = read_number(section, 1)
    assert section[0] == 0
    assert size == len(section) - at
    length, at = read_number(section, at)
    assert section[at : at + length] == b"capsedge"
    assert section[at + length :] == data


def test_what_is_compiled_is_plain_c(tmp_path: Path) -> None:
    """A compiler of this machine takes it, which knows no exported names."""
    source = tiny(tmp_path)
    library, _ = read_library(source.read_bytes(), source, "net", 3)
    for path, text in wasm.sources(library).items():
        if path not in ("math.h", "string.h"):
            (tmp_path / path).write_text(text)
    words = [compiler(), *STRICT, "-Wno-attributes", "-c", "-o", "network.o", wasm.GLUE]
    subprocess.run(words, cwd=tmp_path, check=True)


def test_constants_are_strings_of_their_bytes() -> None:
    constants = Constants()
    arrays = [
        np.array([1.5, -0.0, np.inf, 1e-45], np.float32),
        np.arange(-128, 128, dtype=np.int8),
        np.array([1 << 30, -1], np.int32),
        np.random.default_rng(0).random(700, np.float32),
    ]
    names = [constants.add(array) for array in arrays]
    text = "\n".join(wasm._definitions(constants))
    for name, array in zip(names, arrays, strict=True):
        found = re.search(rf"{name}_bytes\[(\d+)\] CAPS_ALIGNED =\n(.*?);", text, re.DOTALL)
        assert found is not None
        data = bytes(int(octal, 8) for octal in re.findall(r"\\([0-3][0-7]{2})", found[2]))
        assert data == array.tobytes()
        assert int(found[1]) == len(data)


# --- In Node.js ---


@pytest.mark.thorough
@pytest.mark.usefixtures("node")
def test_the_tiny_network_in_every_host(tmp_path: Path) -> None:
    hostile = ("\u202e</script>", '"\\\n*/ ??/')
    source = tiny(tmp_path, labels=hostile)
    written = wasm.write_wasm(source, tmp_path / "net", name="net")
    wasm.write_wasm(source, tmp_path / "host", name="host")  # a name that nothing around it has
    listed = {*written.description["files"], "net.json"}
    assert {p.name for p in (tmp_path / "net").iterdir()} == listed
    assert all(p.read_bytes().isascii() for p in (tmp_path / "net").glob("net.*[a-v]*[!m]"))
    x = np.array([0.25, 1.0], np.float32)
    found = ask(
        tmp_path / "net/net.mjs",
        {"op": "describe"},
        {"op": "imports"},
        {"op": "run", "input": sent(x)},
        {"op": "worker", "input": sent(x)},
        {"op": "wasi", "input": sent(x)},
        {"op": "predict", "pixels": sent(np.array([51, 255], np.uint8)), "top": 2},
        {"op": "image", "data": sent(np.array([9, 9, 9, 255, 80, 80, 80, 51], np.uint8)),
         "width": 2, "height": 1},
        {"op": "run", "input": sent(x[:1])},
        {"op": "prepare", "pixels": sent(np.zeros(3, np.uint8))},
        {"op": "image", "data": sent(np.zeros(4, np.uint8)), "width": 1, "height": 1},
        {"op": "reconstruct", "pose": sent(x), "index": 0},
    )  # fmt: skip
    described, (imports, exports), run, worker, wasi, best, image, *refused = found
    assert tuple(described["labels"]) == hostile
    assert described["description"]["source"]["file"] == "tiny.onnx"
    assert imports == []
    assert set(exports) == {"memory", "input", "pixels", "output", "run", "prepare"}
    assert run == worker == {"lengths": sent(x)}
    assert wasi == {"lengths": sent(x), "none": 0}
    assert (best["label"], best["index"], best["score"]) == (hostile[1], 1, 1.0)
    assert [each["index"] for each in best["ranking"]] == [1, 0]
    np.testing.assert_array_equal(floats(image), np.array([9, 16], np.float32) / np.float32(255))
    for answer, words in zip(
        refused,
        ["The input has 1 values: pass 2.", "2 values of pixels, not 3", "1x1", "decoder"],
        strict=True,
    ):
        assert words in answer["refused"]


@pytest.mark.thorough
@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("source", ZOO, ids=lambda p: p.stem)
def test_has_the_bits_of_the_source_on_this_machine(source: Path, tmp_path: Path) -> None:
    net = Compiled(source, tmp_path / "c")
    wasm.write_wasm(source, tmp_path / "net", name="net")
    p = Preprocessing(**net.description["preprocessing"])
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (p.height, p.width, p.channels), dtype=np.uint8)
    images = [
        prepare(pixels, p)[None],
        rng.random(net.description["inputs"][0]["shape"], np.float32),
    ]
    images += [images[1] * np.float32(scale) for scale in (0, 1e-6, 1)]
    prepared, beyond, *found = ask(
        tmp_path / "net/net.mjs",
        {"op": "prepare", "pixels": sent(pixels)},
        {"op": "run", "input": sent(images[1] * np.float32(1e3))},
        *({"op": "run", "input": sent(x)} for x in images),
    )
    assert "prepare the pixels first" in beyond["refused"]
    assert np.array_equal(floats(prepared), images[0].ravel())
    fields = {o["name"]: o["field"] for o in net.description["outputs"]}
    for x, answer in zip(images, found, strict=True):
        want = net.run(x)
        for name, value in want.items():
            assert answer[fields[name]] == sent(value), name
    if net.description["reconstruction"]:
        (picture,) = ask(
            tmp_path / "net/net.mjs",
            {"op": "reconstruct", "pose": sent(want["poses"][0, 3]), "index": 3},
        )
        assert picture == sent(net.reconstruct(want["poses"], 3))


@pytest.mark.thorough
@pytest.mark.usefixtures("node")
def test_equal_bytes_and_a_batch(tmp_path: Path) -> None:
    source = tiny(tmp_path)
    wasm.write_wasm(source, tmp_path / "a", name="net", batch=3)
    wasm.write_wasm(source, tmp_path / "b", name="net", batch=3)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    pixels = np.array([0, 255, 51, 0, 102, 255], np.uint8)
    (answer,) = ask(tmp_path / "a/net.mjs", {"op": "prepare", "pixels": sent(pixels)})
    x = pixels.astype(np.float32) / np.float32(255)
    np.testing.assert_allclose(floats(answer), x, rtol=1e-6)
    (answer,) = ask(tmp_path / "a/net.mjs", {"op": "run", "input": sent(x)})
    assert answer == {"lengths": sent(x)}


@pytest.mark.thorough
@pytest.mark.usefixtures("zig")
def test_only_its_own_folder_is_replaced(tmp_path: Path) -> None:
    source = tiny(tmp_path)
    wasm.write_wasm(source, tmp_path / "net")
    wasm.write_wasm(source, tmp_path / "net", name="other")
    assert not (tmp_path / "net/tiny.wasm").exists()
    (tmp_path / "net/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        wasm.write_wasm(source, tmp_path / "net")


@pytest.mark.thorough
@pytest.mark.usefixtures("node")
def test_typescript_takes_the_types(tmp_path: Path) -> None:
    compiler_of_types = WEB / "node_modules/typescript/bin/tsc"
    if not compiler_of_types.is_file():
        pytest.skip("needs the npm packages of capsedge/runtime/web: make web")
    wasm.write_wasm(tiny(tmp_path), tmp_path / "net", name="net")
    (tmp_path / "use.mts").write_text(
        'import { load, type Prediction } from "./net/net.mjs";\n'
        "const net = await load();\n"
        "const best: Prediction = net.predict(new Uint8Array(2), 2);\n"
        "const lengths: Float32Array = net.run(net.prepare(new Uint8Array(2))).lengths;\n"
        "// @ts-expect-error: there is no such output\n"
        "net.run(lengths).nothing;\n"
        "console.log(best.ranking[0]?.label, net.description.scores?.kind, net.labels.length);\n"
    )
    options = [
        "--noEmit",
        "--strict",
        "--target",
        "es2022",
        "--module",
        "nodenext",
        "--lib",
        "es2022,dom",
    ]
    words = ["node", str(compiler_of_types), *options, "--types", "", "use.mts"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert shutil.which("node")
