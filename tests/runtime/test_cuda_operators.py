"""Which names of a file get CUDA kernels in a session on a GPU; no GPU is asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import capsedge.runtime.backends.cuda_operators as chosen_by
from capsedge.errors import EnvironmentProblem, UnsupportedModelError, UsageError
from capsedge.runtime import doctor
from capsedge.runtime.backends.cuda_operators import CudaOperators, choose
from capsedge.runtime.backends.native_library import KERNELS_VARIABLE, find_library
from capsedge.runtime.backends.onnxruntime_session import NoKernelsHere, cannot_load
from capsedge.runtime.machine import BROKEN, MISSING, OK
from capsedge.runtime.onnx_file.summary import summarize
from capsedge.runtime.zoo import zoo_model
from tests.conformance.gaps import GAPS, gap

PATH = Path("m.onnx")
U, WEIGHT, PRIOR, BIAS = ("N", 6, 8), (6, 3, 4, 8), (6, 3), (3, 4)


@pytest.fixture(autouse=True)
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of kernels that nothing loads, and a driver that is new enough."""
    if find_library() is None:
        pytest.skip("the native library is not built: pip install -e . with a C++ compiler")
    file = tmp_path / "kernels.fatbin"
    file.write_bytes(b"")
    monkeypatch.setenv(KERNELS_VARIABLE, str(file))
    monkeypatch.setattr("capsedge.runtime.backends.cuda.driver_version", lambda: "13.0")
    return file


def body(name: str, inputs: int, outputs: int = 1) -> onnx.FunctionProto:
    """A function that is not run here."""
    nodes = [helper.make_node("Identity", ["i0"], [f"o{k}"]) for k in range(outputs)]
    ins, outs = [f"i{k}" for k in range(inputs)], [f"o{k}" for k in range(outputs)]
    return helper.make_function("capsedge", name, ins, outs, nodes, [helper.make_opsetid("", 20)])


Stated = tuple[str, list[Any], dict[str, Any]]


def file(*nodes: Stated, bodies: bool = True, kind: int = TensorProto.FLOAT) -> bytes:
    """Nodes side by side: type, shapes of the inputs, attributes.

    A type may precede a shape; None is a shape that is not stated.
    """
    made, inputs, functions = [], [], {}
    for k, (name, shapes, attributes) in enumerate(nodes):
        names = [f"{k}_{i}" for i in range(len(shapes))]
        for each, shape in zip(names, shapes, strict=True):
            stated = kind
            if shape and isinstance(shape[0], np.dtype):
                stated, shape = helper.np_dtype_to_tensor_dtype(shape[0]), shape[1:]
            inputs.append(helper.make_tensor_value_info(each, stated, shape))
        outputs = [f"{k}_out"] + [f"{k}_a"] * ("EMRouting" in name)
        made.append(
            helper.make_node(name, names, outputs, name=f"node{k}", domain="capsedge", **attributes)
        )
        functions[name] = body(name, len(names), len(outputs))
    graph = helper.make_graph(
        made, "g", inputs, [helper.make_tensor_value_info("0_out", kind, None)]
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("capsedge", 1)]
    model = helper.make_model(
        graph,
        functions=list(functions.values()) if bodies else [],
        opset_imports=opsets,
        ir_version=10,
    )
    return bytes(model.SerializeToString())


def choice(data: bytes, ops: str = "auto") -> CudaOperators | None:
    return choose(PATH, data, summarize(data, str(PATH)), ops)


def names(data: bytes) -> tuple[str, ...]:
    found = choice(data)
    return found.names if found else ()


def dynamic(
    *more: Any, name: str = "DynamicRouting", u: Any = U, prior: Any = PRIOR, **attributes: Any
) -> Any:
    return name, [u, WEIGHT, prior, BIAS, *more], attributes


INT8, FLOAT = np.dtype("int8"), np.dtype("float32")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (dynamic(), ""),
        (dynamic((1, 3, 4)), ""),
        (dynamic(u=("N", 6, "P")), "does not state the shape of its input 'u'"),
        (dynamic(u=None), "does not state the shape of its input 'u'"),
        (dynamic(u=("N", 5, 8)), "input 'weight' has shape"),
        (dynamic(prior=(1, 3)), "lack such inputs"),
        (dynamic((6, 3, 4), ("N", 6, 3)), "lack such inputs"),
        (dynamic(iterations=65), "'iterations' is 65: wanted 1 to 64"),
        (dynamic(leaky=1, over_children=1), "exclude each other"),
        (("Squash", [("N", "M", 4)], {}), ""),
        (("Squash", [("N", "M", 4)], {"axis": 3}), "'axis' lies outside"),
        (("Squash", [None], {}), "does not state the shape"),
        (("UniformRouting", [("N", 2, 2, 3, 16), (1, 1, 3, 2, 4, 4), (16,), (16,)], {}), "do not include"),
        (("PoseNormalization", [("N", 4), (4,), (4,)], {}), "do not include"),
        (("VoteRouting", [("N", 6, 3, 4), PRIOR, BIAS], {}), ""),
        (("VoteRouting", [("N", 6, 1, 4), PRIOR, BIAS], {}), "lack such inputs"),
        (("SelfAttentionRouting", [U, WEIGHT, PRIOR], {}), ""),
        (
            ("QuantizedDynamicRouting", [U, (INT8, *WEIGHT), (FLOAT, *BIAS), PRIOR, BIAS], {}),
            "",
        ),
        (
            ("QuantizedDynamicRouting", [U, WEIGHT, (FLOAT, *BIAS), PRIOR, BIAS], {}),
            "input 'weight' has another type",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_what_the_kernels_take(node: Any, reason: str, kind: int) -> None:
    data = file(node, kind=kind)
    assert names(data) == (() if reason else (node[0],))
    if not reason:
        assert choice(data, "fused")
        return
    with pytest.raises(
        UnsupportedModelError, match=rf"{node[0]} 'node0' has no CUDA kernel: .*{reason}"
    ):
        choice(data, "fused")


FAST = ("FastConv", [("N", 3, 9, 9), (4, 3, 5, 5)], {})


def test_a_body_of_one_standard_operator_counts_as_a_kernel() -> None:
    """ONNX Runtime's CUDA provider has the kernel of ``Conv``."""
    found = choice(file(dynamic(), FAST), "fused")
    assert found
    assert (found.names, found.others) == (("DynamicRouting",), "")
    assert choice(file(FAST), "fused") is None
    with pytest.raises(EnvironmentProblem, match=r"does not run on the GPU here[^\0]*FastConv"):
        choice(file(FAST, bodies=False))


LACKING = {
    "per image": dynamic((6, 3, 4), ("N", 6, 3)),
    "shared prior": dynamic(prior=(1, 3)),
    "shared votes": ("VoteRouting", [("N", 6, 1, 4), PRIOR, BIAS], {}),
    "many iterations": dynamic(iterations=65),
    "unstated": dynamic(u=None),
}


def test_the_kernels_lack_what_the_table_of_gaps_says() -> None:
    """Of couplings there are no nodes: the exporter writes standard operators for them."""
    assert {f for gap in GAPS if "cuda" in gap.backends for f in gap.features} == {
        *LACKING,
        "couplings",
    }
    for feature, node in LACKING.items():
        assert gap("cuda", node[0], "float32", {feature}), feature
        assert names(file(node)) == ()


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.BFLOAT16])
def test_other_types_run_as_bodies(kind: int) -> None:
    assert names(file(dynamic(), kind=kind)) == ()


def test_all_nodes_of_a_name_fit_or_none_runs() -> None:
    """A registered name never runs as its body."""
    masked = dynamic((1, 3, 4), (1, 1, 1), (1, 6), name="DynamicRouting_2")
    squash = ("Squash", [("N", 3, 4)], {})
    assert names(file(dynamic(), dynamic(u=(5, 6, 8)), masked, squash)) == (
        "DynamicRouting",
        "Squash",
    )
    assert names(file(dynamic(), dynamic(u=None), masked, squash)) == ("Squash",)
    found = choice(file(dynamic(), masked, squash))
    assert found
    assert found.others.startswith("DynamicRouting_2 'node1' has no CUDA kernel: ")
    assert names(file(dynamic(name="DynamicRouting_256"), dynamic(name="DynamicRouting_257"))) == (
        "DynamicRouting_256",
    )


def test_nodes_inside_others_run_as_bodies() -> None:
    """Their shapes are not in the file."""
    inner = helper.make_graph(
        [helper.make_node("Squash", ["x"], ["y"], domain="capsedge")], "inner", [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(True), "c")],
    )  # fmt: skip
    model = helper.make_model(graph, functions=[body("Squash", 1)], ir_version=10)
    assert names(model.SerializeToString()) == ()


def test_without_a_body_every_node_needs_a_kernel() -> None:
    assert names(file(dynamic(), bodies=False)) == ("DynamicRouting",)
    with pytest.raises(
        EnvironmentProblem, match=r"does not run on the GPU here[^\0]*PoseNormalization"
    ):
        choice(file(("PoseNormalization", [("N", 4), (4,), (4,)], {}), bodies=False))


def test_portable_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "/nowhere")
    assert choice(file(dynamic()), "portable") is None
    with pytest.raises(EnvironmentProblem, match="no function body, and ops is 'portable'"):
        choice(file(dynamic(), bodies=False), "portable")


def test_files_without_operators() -> None:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"])], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        ), ir_version=10,
    )  # fmt: skip
    assert choice(model.SerializeToString()) is None
    with pytest.raises(UsageError, match="no capsedge nodes"):
        choice(model.SerializeToString(), "fused")


def test_the_code_for_jetpack_6(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver of CUDA 12 does on a GPU for which there is code of CUDA 12."""
    monkeypatch.setattr("capsedge.runtime.backends.cuda.driver_version", lambda: "12.6")
    monkeypatch.setattr(chosen_by, "_compute_capability", lambda: "8.7")
    with pytest.raises(NoKernelsHere, match="too old"):
        chosen_by.find_cuda_operators()
    kernels.with_suffix(".cuda12.sm87.cubin").touch()
    assert chosen_by.find_cuda_operators()[1] == kernels
    monkeypatch.setattr(chosen_by, "_compute_capability", lambda: "8.6")
    with pytest.raises(NoKernelsHere, match="too old"):
        chosen_by.find_cuda_operators()


@pytest.mark.parametrize("part", ["kernels", "library", "driver"])
def test_a_part_that_is_missing_means_bodies(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said by doctor; ops 'fused' is an error, and so is a file without bodies."""
    if part == "driver":
        monkeypatch.setattr("capsedge.runtime.backends.cuda.driver_version", lambda: "12.8")
    else:
        name = {"kernels": "find_cuda_kernels", "library": "find_library"}[part]
        monkeypatch.setattr(chosen_by, name, lambda: None)
    words = {
        "kernels": "`make cuda-wheel`, then `pip install dist/capsedge_cuda-",
        "library": "Install a C++17 compiler",
        "driver": "driver 580",
    }
    assert choice(file(dynamic())) is None
    for data, ops in ((file(dynamic()), "fused"), (file(dynamic(), bodies=False), "auto")):
        with pytest.raises(EnvironmentProblem, match=re.escape(words[part])):
            choice(data, ops)
    check = doctor._cuda_kernels()
    assert check.status == MISSING
    assert words[part] in check.fix


def test_a_part_that_does_not_load_is_an_error(
    monkeypatch: pytest.MonkeyPatch, kernels: Path
) -> None:
    other = kernels.with_name("libother.so")
    other.write_bytes(b"not a library")
    monkeypatch.setattr(chosen_by, "find_library", lambda: other)
    with pytest.raises(EnvironmentProblem, match="does not load, or is of another version"):
        choice(file(dynamic()))


def test_doctor_names_the_file(monkeypatch: pytest.MonkeyPatch, kernels: Path) -> None:
    monkeypatch.setattr(doctor, "has_gpu", lambda: False)
    assert doctor._cuda_kernels().status == OK
    assert str(kernels) in doctor._cuda_kernels().found
    monkeypatch.setattr(doctor, "has_gpu", lambda: True)
    for why, status in (("it is damaged", BROKEN), ("the driver is too old for its code", MISSING)):
        monkeypatch.setattr(doctor, "load_problem", lambda library, kernels, why=why: why)
        assert doctor._cuda_kernels().status == status
        assert why in doctor._cuda_kernels().found


@pytest.mark.parametrize(
    ("why", "old"),
    [
        ("libcudart.so.12 is CUDA 12.4, and 12.8 or newer is needed", True),
        ("k.fatbin is not loaded, because the driver is too old: x", True),
        ("k.fatbin is damaged: it has 3 bytes of 4", False),
        (
            "k.fatbin is not usable: no code for the current GPU, of compute capability 6.1: x",
            False,
        ),
    ],
)
def test_what_onnxruntime_reports_of_the_kernels(why: str, old: bool) -> None:
    """Kernels that are too new are as good as missing; any other failure is an error."""
    import onnxruntime

    said = RuntimeError(
        f"[ONNXRuntimeError] : 1 : FAIL : capsedge cannot use the CUDA kernels: {why}\n"
    )
    found = cannot_load(onnxruntime, PATH, said)
    assert isinstance(found, EnvironmentProblem)
    assert isinstance(found, NoKernelsHere) == old
    assert found.why == f"{why}."


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("digits-dynamic", ("Squash", "DynamicRouting")),
        ("digits-em", ("EMRouting",)),
        ("digits-attention", ("AttentionRouting",)),
        ("digits-small", ("Squash", "QuantizedDynamicRouting")),
        ("photos", ("QuantizedAttentionRouting",)),
    ],
)
def test_bundled_models(model: str, wanted: tuple[str, ...]) -> None:
    path = zoo_model(model)
    assert path is not None
    assert names(path.read_bytes()) == wanted
