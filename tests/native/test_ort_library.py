"""The custom-operator library inside ONNX Runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsedge.runtime.backends.native_library import find_library
from capsedge.spec.operators import OPERATORS
from tests.conformance.cases import CASES, OUTPUTS, make
from tests.conformance.native import fused_session

from .library import Array, load
from .test_kernels import DYNAMIC, EM, SQUASH

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(
    load() is None, reason="the native library is not built: pip install -e . with a C++ compiler"
)
ROOT = Path(__file__).resolve().parents[2]


def named(operator: tuple[str, dict[str, Any], list[Array]]) -> dict[str, Array]:
    given = OPERATORS[operator[0]].present_inputs(len(operator[2]))
    return dict(zip((value.name for value in given), operator[2], strict=True))


@pytest.mark.parametrize("operator", OPERATORS)
def test_shapes_are_inferred_with_a_free_batch(operator: str) -> None:
    case = next(c for c in CASES if c.operator == operator)
    for dtype in (d for d in case.dtypes if d != "float64"):
        example = make(case, dtype)
        session = fused_session(operator, case.attributes, example.inputs)
        shapes = [["N", *example.wanted[name].shape[1:]] for name in OUTPUTS[operator]]
        assert [x.shape for x in session.get_outputs()] == shapes
        expected = {"float32": "tensor(float)", "float16": "tensor(float16)"}
        assert {x.type for x in session.get_outputs()} == {expected.get(dtype, f"tensor({dtype})")}


def test_shapes_of_strided_and_shared_layers() -> None:
    name, attributes, inputs = EM[0], EM[1], named(EM)
    strided = fused_session(name, {**attributes, "strides": (2, 1)}, inputs)
    assert [x.shape for x in strided.get_outputs()] == [["N", 1, 2, 5, 16], ["N", 1, 2, 5]]
    inputs["weight"] = inputs["weight"][:1, :1]
    shared = fused_session(name, {**attributes, "shared": 1}, inputs)
    assert [x.shape for x in shared.get_outputs()] == [["N", 1, 1, 5, 16], ["N", 1, 1, 5]]


def test_a_wrong_shape_is_a_sentence() -> None:
    name, attributes, inputs = DYNAMIC[0], DYNAMIC[1], named(DYNAMIC)
    inputs["weight"] = np.zeros((5, 3, 4, 8), np.float32)
    session = fused_session(name, attributes, inputs, constants=("weight",))
    feed = {k: x for k, x in inputs.items() if k != "weight"}
    with pytest.raises(Exception, match=r"DynamicRouting: input 'weight' has shape \[5, 3, 4, 8\]"):
        session.run(None, feed)


def test_a_wrong_rank_is_a_sentence() -> None:
    name, attributes, inputs = EM[0], EM[1], named(EM)
    inputs["weight"] = np.zeros((3, 3, 2, 5, 4), np.float32)
    session = fused_session(name, attributes, inputs)
    feed = {k: x for k, x in inputs.items() if k != "weight"}
    with pytest.raises(Exception, match=r"EMRouting: input 'weight' has shape \[3, 3, 2, 5, 4\]"):
        session.run(None, feed)


def test_a_wrong_attribute_is_a_sentence() -> None:
    with pytest.raises(Exception, match=r"DynamicRouting: attribute 'iterations' is 0"):
        fused_session(DYNAMIC[0], {**DYNAMIC[1], "iterations": 0}, named(DYNAMIC))


def test_a_level_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSEDGE_SIMD", "sse9")
    with pytest.raises(Exception, match="CAPSEDGE_SIMD is 'sse9', but this machine runs plain"):
        fused_session(SQUASH[0], SQUASH[1], named(SQUASH))


@pytest.mark.parametrize("constants", [(), ("weight",), ("weight", "log_prior", "bias")])
def test_constants_and_inputs_give_the_same(constants: tuple[str, ...]) -> None:
    rng = np.random.default_rng(1)
    inputs = {k: rng.standard_normal(x.shape).astype(np.float32) for k, x in named(DYNAMIC).items()}
    results = []
    for threads in (1, 2):
        session = fused_session(
            DYNAMIC[0], DYNAMIC[1], inputs, constants=constants, threads=threads
        )
        feed = {x.name: inputs[x.name] for x in session.get_inputs()}
        results.append(session.run(None, feed)[0])
    reference = fused_session(DYNAMIC[0], DYNAMIC[1], inputs, constants=())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], reference.run(None, inputs)[0])


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("operator", [DYNAMIC, EM], ids=lambda x: x[0])
def test_an_optional_input_is_left_out(operator: Any, constant: bool) -> None:
    """It makes no difference whether it is zero or missing; other values make one."""
    rng = np.random.default_rng(3)
    inputs = {
        k: rng.uniform(0.1, 1, x.shape).astype(np.float32) for k, x in named(operator).items()
    }
    name = OPERATORS[operator[0]].inputs[-1].name
    shape = (6, 3, 4) if operator is DYNAMIC else (4, 4, 16)
    values = [None, np.zeros(shape, np.float32), rng.uniform(0, 1, shape).astype(np.float32)]
    found = []
    for value in values:
        given = inputs if value is None else {**inputs, name: value}
        constants = ("weight", name) if constant else ()
        session = fused_session(operator[0], operator[1], given, constants=constants)
        found.append(session.run(None, {x.name: given[x.name] for x in session.get_inputs()}))
    for missing, zero, other in zip(*found, strict=True):
        np.testing.assert_array_equal(missing, zero)
        assert not np.array_equal(missing, other)


def test_sessions_run_side_by_side() -> None:
    """Four threads on one session, and on sessions of their own, give what one gives alone."""
    rng = np.random.default_rng(2)
    inputs = {k: rng.uniform(0, 1, x.shape).astype(np.float32) for k, x in named(EM).items()}
    feed = {k: x for k, x in inputs.items() if k != "weight"}
    shared = fused_session(EM[0], EM[1], inputs)
    alone = shared.run(None, feed)

    def work(own: bool) -> bool:
        session = fused_session(EM[0], EM[1], inputs) if own else shared
        return all(
            np.array_equal(found, wanted)
            for _ in range(20)
            for found, wanted in zip(session.run(None, feed), alone, strict=True)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, [False, True, False, True]))


def test_only_the_interface_is_exported() -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed: apt-get install binutils")
    lines = subprocess.run(
        [nm, "-D", "--defined-only", str(find_library())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    symbols = {line.split()[-1] for line in lines}
    assert "RegisterCustomOps" in symbols
    assert all(s == "RegisterCustomOps" or s.startswith("capsedge_") for s in symbols), symbols


def test_a_runtime_that_is_too_old_is_told() -> None:
    """RegisterCustomOps with a table of functions only for versions up to 17."""
    import ctypes

    library = ctypes.CDLL(str(find_library()))
    messages: list[str] = []
    create = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p)(
        lambda code, text: messages.append(text.decode()) or 1234  # type: ignore[func-returns-value]
    )
    table = (ctypes.c_void_p * 300)(ctypes.cast(create, ctypes.c_void_p).value)
    get_api = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_uint32)(
        lambda version: ctypes.addressof(table) if version <= 17 else 0
    )
    version_text = ctypes.create_string_buffer(b"1.17.3")
    get_version = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: ctypes.addressof(version_text))
    base = (ctypes.c_void_p * 2)(
        ctypes.cast(get_api, ctypes.c_void_p).value, ctypes.cast(get_version, ctypes.c_void_p).value
    )
    library.RegisterCustomOps.restype = ctypes.c_void_p
    assert library.RegisterCustomOps(None, base) == 1234
    assert "ONNX Runtime 1.17.3 is too old" in messages[0]


def test_slots_agree_with_the_official_header() -> None:
    """Every slot, field and value of ort_abi.h, where ONNX Runtime's own header is installed."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler: apt-get install g++")
    named_folder = os.environ.get("ONNXRUNTIME_INCLUDE", "/usr/include/onnxruntime")
    if not (Path(named_folder) / "onnxruntime_c_api.h").is_file():
        pytest.skip(
            f"no onnxruntime_c_api.h in {named_folder}: apt-get install libonnxruntime-dev (Debian 13 and "
            "later have it), or set ONNXRUNTIME_INCLUDE to its folder"
        )
    found = subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", "-w", f"-I{named_folder}",
         f"-I{ROOT}/capsedge/runtime/native/onnxruntime", f"{ROOT}/tests/native/ort_slots.cpp"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr


def test_both_types_in_one_model() -> None:
    """A float and a float16 node of one operator: two kernels under one name."""
    from onnx import TensorProto, helper

    types = {"single": TensorProto.FLOAT, "half": TensorProto.FLOAT16}
    nodes = [
        helper.make_node("Squash", [k], [f"{k}_y"], domain="capsedge", **SQUASH[1]) for k in types
    ]
    graph = helper.make_graph(
        nodes,
        "both",
        [helper.make_tensor_value_info(k, t, ["N", 2]) for k, t in types.items()],
        [helper.make_tensor_value_info(f"{k}_y", t, None) for k, t in types.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("capsedge", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(find_library()))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    x = np.array([[3.0, 4.0]], np.float32)
    single, half = session.run(None, {"single": x, "half": x.astype(np.float16)})
    wanted = x * 25 / 26 / 5
    np.testing.assert_allclose(single, wanted, rtol=1e-6)
    np.testing.assert_allclose(half, wanted, rtol=1e-3)
    assert (single.dtype, half.dtype) == (np.float32, np.float16)
