"""The TensorRT plugins through an interface mock of our own, over the kernels compiled for the host.

Shapes, formats, attributes, serialization and the arithmetic that an engine would run. That TensorRT itself
takes the library needs a GPU; that it compiles against TensorRT's headers is `test_real_headers`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsedge.runtime.backends.tensorrt_library import PLUGINS
from capsedge.spec.operators import OPERATORS
from tests.conformance import oracle
from tests.conformance.cases import ON_GPU, Case, make
from tests.conformance.selection import selected
from tests.native import cuda_library
from tests.native.library import output_shapes
from tests.tables import table

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "capsedge" / "runtime" / "native"
SOURCES = ("attributes", "kernels_file", "plugin", "library")
INCLUDED = [
    f"-I{NATIVE / folder}"
    for folder in ("tensorrt/mock", "tensorrt", "kernels", "kernels/cuda", "")
]
KERNELS = ("operators", "input_shapes", "cuda_node")
FLOAT32, INT32, INT64 = 1, 5, 10  # PluginFieldType
TYPES = {"float32": 0, "float16": 1}
BUILD, RUNTIME = 0, 1
pytestmark = pytest.mark.thorough  # the first of them compiles the plugins
LIGHT = [c for c in ON_GPU if not c.heavy and c.operator in PLUGINS and c.dims.get("N", 1) > 0]


class Field(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("length", ctypes.c_int32),
        ("data", ctypes.c_void_p),
    )


class Tensors(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32),
        ("ranks", ctypes.POINTER(ctypes.c_int32)),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("type", ctypes.c_int32),
    )


@pytest.fixture(scope="module")
def mock() -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("the plugins' mock needs g++")
    target = ROOT / "build" / "tensorrt-mock" / "libcapsedge_tensorrt_mock.so"
    folders = [
        NATIVE / folder
        for folder in ("tensorrt", "tensorrt/mock", "kernels", "kernels/cuda", "generated")
    ]
    files = [f for folder in folders for f in folder.iterdir() if f.is_file()]
    if not target.is_file() or target.stat().st_mtime < max(f.stat().st_mtime for f in files):
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_name(f"{target.name}.{os.getpid()}")
        sources = [str(NATIVE / "tensorrt" / f"{name}.cpp") for name in (*SOURCES, "mock/driver")]
        subprocess.run(
            [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas",
             "-shared", "-fPIC", "-fvisibility=hidden", "-DCAPSEDGE_EMULATE",
             *INCLUDED, *sources,
             *(str(NATIVE / "kernels" / f"{name}.cpp") for name in KERNELS),
             "-x", "c++", *cuda_library.units(), "-o", str(made)],
            check=True,
        )  # fmt: skip
        made.replace(target)
    return bound(target)


def bound(path: Path) -> ctypes.CDLL:
    """The mock with its signatures."""
    library = ctypes.CDLL(str(path))
    for name in ("create", "round_trip", "clone", "attach"):
        getattr(library, f"mock_{name}").restype = ctypes.c_void_p
    for name in ("error", "field_names", "identity", "timing_cache_id"):
        getattr(library, f"mock_{name}").restype = ctypes.c_char_p
    for name in ("configure", "configure_profile", "workspace"):
        getattr(library, f"mock_{name}").restype = ctypes.c_int64
    return library


def fields(attributes: Mapping[str, Any]) -> tuple[Any, int, list[Any]]:
    """As the parser maps ONNX attributes: integers to INT32, floats to FLOAT32, lists to arrays."""
    made, kept = (Field * max(1, len(attributes)))(), []
    for field, (name, value) in zip(made, attributes.items(), strict=False):
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        integer = all(isinstance(v, int) for v in values)
        data = ((ctypes.c_int32 if integer else ctypes.c_float) * max(1, len(values)))(*values)
        kept.append(data)
        field.name, field.type = name.encode(), INT32 if integer else FLOAT32
        field.length, field.data = len(values), ctypes.addressof(data)
    return made, len(attributes), kept


def create(mock: ctypes.CDLL, name: str, attributes: Mapping[str, Any], phase: int = BUILD) -> Any:
    made, count, _kept = fields(attributes)
    handle = mock.mock_create(name.encode(), made, count, phase)
    return ctypes.c_void_p(handle) if handle else None


def tensors(shapes: list[tuple[int, ...]], dtype: str = "float32") -> Tensors:
    flat = [d for shape in shapes for d in shape]
    return Tensors(
        len(shapes),
        (ctypes.c_int32 * len(shapes))(*(len(s) for s in shapes)),
        (ctypes.c_int64 * max(1, len(flat)))(*flat),
        TYPES[dtype],
    )


def shapes_of(mock: ctypes.CDLL, plugin: Any, given: Tensors) -> list[tuple[int, ...]]:
    dims, ranks, types = (ctypes.c_int64 * 16)(), (ctypes.c_int32 * 2)(), (ctypes.c_int32 * 2)()
    assert mock.mock_shapes(plugin, ctypes.byref(given), dims, ranks, types) == 0
    count = mock.mock_outputs(plugin)
    assert all(types[k] == given.type for k in range(count))
    return [tuple(dims[8 * k : 8 * k + ranks[k]]) for k in range(count)]


def run(mock: ctypes.CDLL, plugin: Any, case: Case, dtype: str) -> Iterator[tuple[str, float]]:
    example = make(case, dtype)
    arrays = [np.ascontiguousarray(x) for x in example.inputs.values()]
    given = tensors([x.shape for x in arrays], dtype)
    wanted = [tuple(s) for s in output_shapes(case.operator, arrays, case.attributes)]
    assert shapes_of(mock, plugin, given) == wanted
    size = mock.mock_configure(plugin, ctypes.byref(given))
    assert size >= 0, mock.mock_error()
    workspace = np.full(size + 256, 255, np.uint8)
    start = workspace.ctypes.data + -workspace.ctypes.data % 256
    outputs = [np.full(shape, np.nan, dtype) for shape in wanted]
    pointers = (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))
    results = (ctypes.c_void_p * len(outputs))(*(x.ctypes.data for x in outputs))
    code = mock.mock_enqueue(plugin, ctypes.byref(given), pointers, results, ctypes.c_void_p(start))
    assert code == 0, mock.mock_error()
    assert (workspace[size + 255 :] == 255).all()
    for name, found in zip(example.wanted, outputs, strict=False):
        yield name, example.tolerances[name].excess(found, example.wanted[name])


@pytest.mark.parametrize("operator", PLUGINS)
def test_what_an_engine_would_run(mock: ctypes.CDLL, operator: str) -> None:
    """Created from ONNX attributes, serialized, created again for run time, attached to a context, run."""
    cases = selected([c for c in LIGHT if c.operator == operator])
    runs = [(case, "float32") for case in cases] + [(case, "float16") for case in cases[:2]]
    for case, dtype in runs:
        built = create(mock, operator, case.attributes)
        assert built, mock.mock_error()
        identity = mock.mock_timing_cache_id(built)
        loaded = ctypes.c_void_p(mock.mock_round_trip(built))
        assert mock.mock_timing_cache_id(loaded) == identity
        attached = ctypes.c_void_p(mock.mock_attach(loaded))
        for name, excess in run(mock, attached, case, dtype):
            assert excess <= 1, (case, dtype, name, excess)
        mock.mock_destroy(attached)
        mock.mock_destroy(loaded)


@pytest.mark.parametrize("operator", PLUGINS)
def test_creators(mock: ctypes.CDLL, operator: str) -> None:
    """A plugin is asked for by the node's type, and given every attribute that the exporter writes."""
    names = mock.mock_field_names(operator.encode()).decode().split()
    assert set(names) == set(OPERATORS[operator].attribute_names)
    case = next(c for c in LIGHT if c.operator == operator)
    plugin = create(mock, operator, case.attributes)
    assert mock.mock_identity(plugin) == f"capsedge::{operator}/1".encode()
    copy = ctypes.c_void_p(mock.mock_clone(plugin))
    assert mock.mock_timing_cache_id(copy) == mock.mock_timing_cache_id(plugin)
    mock.mock_destroy(copy)
    mock.mock_destroy(plugin)


def test_timing_cache_tells_attributes_apart(mock: ctypes.CDLL) -> None:
    seen = set()
    for attributes in (
        {"iterations": 3, "leaky": 0, "epsilon": 1e-8},
        {"iterations": 2, "leaky": 0, "epsilon": 1e-8},
        {"iterations": 3, "leaky": 1, "epsilon": 1e-8},
        {"iterations": 3, "leaky": 0, "epsilon": 1e-7},
    ):
        plugin = create(mock, "DynamicRouting", attributes)
        seen.add(mock.mock_timing_cache_id(plugin))
        mock.mock_destroy(plugin)
    assert len(seen) == 4


EM = {
    "iterations": 2, "strides": (1, 1), "inverse_temperatures": (0.5, 1.0), "coordinate_addition": 0,
    "shared": 0, "epsilon": 1e-6,
}  # fmt: skip
ATTENTION = {"strides": (1, 1), "matrix_pose": 1, "agreement_scale": 0.25, "epsilon": 1e-5}
DYNAMIC = {"iterations": 3, "leaky": 0, "epsilon": 1e-8}
SELF_ATTENTION = {"epsilon": 1e-20}


@table(
    "operator, attributes, words",
    [
        ("Squash", {"axis": -1, "epsilon": 0.0}, "epsilon"),
        ("Squash", {"axis": -1, "epsilon": float("nan")}, "finite"),
        ("Squash", {"axis": 1.5, "epsilon": 1e-8}, "wrong type"),
        ("DynamicRouting", {**DYNAMIC, "iterations": 0}, "'iterations' is 0"),
        ("DynamicRouting", {**DYNAMIC, "iterations": 65}, "1 to 64"),
        ("DynamicRouting", {**DYNAMIC, "leaky": 2}, "'leaky': wanted 0 or 1"),
        ("DynamicRouting", {**DYNAMIC, "epsilon": (1.0, 2.0)}, "wrong type or length"),
        ("DynamicRouting", {"over_children": 2}, "'over_children': wanted 0 or 1"),
        ("DynamicRouting", {"over_children": 1, "leaky": 1}, "exclude each other"),
        ("VoteRouting", {"agreement_scale": float("inf")}, "finite"),
        ("VoteRouting", {"replace": -1}, "'replace': wanted 0 or 1"),
        (
            "EMRouting",
            {k: v for k, v in EM.items() if k != "iterations"},
            "'iterations' is missing",
        ),
        ("EMRouting", {k: v for k, v in EM.items() if k != "inverse_temperatures"}, "missing"),
        ("EMRouting", {**EM, "inverse_temperatures": (1.0,)}, "one per iteration"),
        ("EMRouting", {**EM, "strides": (0, 1)}, "strides"),
        (
            "EMRouting",
            {**EM, "normalize_activations": 2},
            "'normalize_activations': wanted 0 or 1",
        ),
        ("EMRouting", {**EM, "ones_first": -1}, "'ones_first': wanted 0 or 1"),
        ("EMRouting", {**EM, "variance_epsilon": -1e-6}, "'variance_epsilon' is negative"),
        ("EMRouting", {**EM, "strides": (1, 1, 1)}, "'strides': wanted 2 numbers"),
        ("EMRouting", {**EM, "strides": (1, 0)}, "'strides' is not positive"),
        ("AttentionRouting", {**ATTENTION, "matrix_pose": 3}, "matrix_pose"),
        ("AttentionRouting", {"epsilon": 1e-5}, "'agreement_scale' is missing"),
        ("SelfAttentionRouting", {"epsilon": 0.0}, "'epsilon' is not positive"),
        ("SelfAttentionRouting", {"epsilon": 1}, "'epsilon' has the wrong type"),
    ],
)
def test_wrong_attributes(
    mock: ctypes.CDLL, operator: str, attributes: dict[str, Any], words: str
) -> None:
    for phase in (BUILD, RUNTIME):
        assert create(mock, operator, attributes, phase) is None
        said = mock.mock_error().decode()
        assert said.startswith(f"capsedge: {operator}: ")
        assert words in said


def test_defaults(mock: ctypes.CDLL) -> None:
    """A parser skips attributes that it does not find; the specification has their values."""
    for operator, least in (
        ("Squash", {}),
        ("DynamicRouting", {}),
        ("EMRouting", {"iterations": 1, "inverse_temperatures": (1.0,)}),
        ("AttentionRouting", {"agreement_scale": 0.25}),
        ("SelfAttentionRouting", {}),
    ):
        plugin = create(mock, operator, least)
        assert plugin, mock.mock_error()
        mock.mock_destroy(plugin)
    plain, full = create(mock, "DynamicRouting", {}), create(mock, "DynamicRouting", DYNAMIC)
    assert mock.mock_timing_cache_id(plain) == mock.mock_timing_cache_id(full)


def test_workspace_is_that_of_the_gpu_of_the_build(mock: ctypes.CDLL) -> None:
    """A Jetson in another power mode has another number of multiprocessors; the engine's memory stays."""
    shapes = [(32, 1152, 8), (1152, 10, 16, 8), (1152, 10), (10, 16)]
    built = create(mock, "DynamicRouting", DYNAMIC)
    assert b"multiprocessors=4," in mock.mock_timing_cache_id(built)
    loaded = create(mock, "DynamicRouting", {**DYNAMIC, "multiprocessors": 16}, RUNTIME)
    sizes = [mock.mock_configure(p, ctypes.byref(tensors(shapes))) for p in (built, loaded)]
    assert 0 < sizes[0] < sizes[1]
    for plugin in (built, loaded):
        mock.mock_destroy(plugin)
    assert create(mock, "DynamicRouting", {**DYNAMIC, "multiprocessors": -2}) is None


@pytest.fixture
def emulate(mock: ctypes.CDLL) -> Iterator[Any]:
    """Sets the number of multiprocessors that the machine has."""
    yield mock.capsedge_cuda_emulate
    mock.capsedge_cuda_emulate(4)


@pytest.mark.parametrize("images", [1, 3, 32])
def test_engines_built_without_a_gpu_run_on_any(
    mock: ctypes.CDLL, emulate: Any, images: int
) -> None:
    """No number of multiprocessors is frozen, and the workspace is enough for all of them."""
    shapes = [(images, 1152, 8), (1152, 10, 16, 8), (1152, 10), (10, 16)]
    emulate(0)
    built = create(mock, "DynamicRouting", DYNAMIC)
    assert b"multiprocessors=0," in mock.mock_timing_cache_id(built)
    room = mock.mock_configure(built, ctypes.byref(tensors(shapes)))
    for multiprocessors in (1, 2, 8, 16, 20, 46, 82, 128, 170, 512):
        emulate(multiprocessors)
        loaded = create(mock, "DynamicRouting", {**DYNAMIC, "multiprocessors": 0}, RUNTIME)
        assert mock.mock_configure(loaded, ctypes.byref(tensors(shapes))) <= room
        mock.mock_destroy(loaded)
    mock.mock_destroy(built)


def test_a_driver_that_is_too_old_for_the_library(mock: ctypes.CDLL, emulate: Any) -> None:
    emulate(-1)
    assert create(mock, "DynamicRouting", DYNAMIC) is None
    assert "driver is too old" in mock.mock_error().decode()


def test_workspace_is_enough_for_every_smaller_batch(mock: ctypes.CDLL) -> None:
    """8416 images are shared out over more blocks than 9000 are, and need more."""
    plugin = create(mock, "DynamicRouting", {**DYNAMIC, "multiprocessors": 132}, RUNTIME)
    sizes = [
        mock.mock_configure(
            plugin, ctypes.byref(tensors([(n, 64, 8), (64, 10, 16, 8), (64, 10), (10, 16)]))
        )
        for n in (1, 1024, 1025, 8416, 9000)
    ]
    assert sizes[0] > 0
    assert sizes == sorted(sizes)
    mock.mock_destroy(plugin)


def free_children(operator: str, images: int, children: int) -> list[np.ndarray]:
    """Inputs of a node whose children share their weights."""
    rng = np.random.default_rng(children)
    poses = (images, children, 8) if operator == "DynamicRouting" else (images, children, 4, 16)
    weights = [(1, 4, 16, 8)] if operator == "DynamicRouting" else []
    shapes = [poses, *weights, (children, 4), (4, 16)]
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


ORACLES = {"DynamicRouting": oracle.dynamic_routing, "VoteRouting": oracle.vote_routing}


@table("operator, over_children", [(operator, flag) for operator in ORACLES for flag in (0, 1)])
def test_a_free_number_of_children(
    mock: ctypes.CDLL, emulate: Any, operator: str, over_children: int
) -> None:
    """One engine runs 1 to 50 children; with a shared weight, one child needs more workspace than a few."""
    emulate(8)
    attributes = OPERATORS[operator].complete({**DYNAMIC, "over_children": over_children})
    built = create(mock, operator, attributes)
    low, high = (
        tensors([x.shape for x in free_children(operator, images, children)])
        for images, children in ((1, 1), (64, 50))
    )
    room = mock.mock_configure_profile(built, ctypes.byref(low), ctypes.byref(high))
    workspace = np.zeros(room + 256, np.uint8)
    start = ctypes.c_void_p(workspace.ctypes.data + -workspace.ctypes.data % 256)
    loaded = ctypes.c_void_p(mock.mock_round_trip(built))
    attached = ctypes.c_void_p(mock.mock_attach(loaded))
    for images, children in ((64, 1), (3, 2), (3, 7), (64, 5), (1, 50), (64, 1)):
        arrays = free_children(operator, images, children)
        given = tensors([x.shape for x in arrays])
        assert shapes_of(mock, attached, given) == [(images, 4, 16)]
        found = np.full((images, 4, 16), np.nan, np.float32)
        pointers = (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))
        result = (ctypes.c_void_p * 1)(found.ctypes.data)
        code = mock.mock_enqueue(attached, ctypes.byref(given), pointers, result, start)
        assert code == 0, mock.mock_error()
        wanted, _ = ORACLES[operator](*arrays, **attributes)
        np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-3)
    mock.mock_destroy(attached)
    mock.mock_destroy(loaded)


def batch(images: int) -> Tensors:
    return tensors([(images, 1152, 8), (1152, 10, 16, 8), (1152, 10), (10, 16)])


def test_the_workspace_is_that_which_was_asked_for(mock: ctypes.CDLL) -> None:
    """An engine keeps the number, of all profiles: no batch that needs more runs, and none without memory."""
    built = create(mock, "DynamicRouting", DYNAMIC)
    small, large = (mock.mock_configure(built, ctypes.byref(batch(n))) for n in (1, 2048))
    assert 0 < small < large
    mock.mock_destroy(built)
    for asked, words in ((1, "the workspace is too small"), (2048, "the workspace is missing")):
        built = create(mock, "DynamicRouting", DYNAMIC)
        other = ctypes.c_void_p(mock.mock_clone(built))  # of another profile
        mock.mock_configure(other, ctypes.byref(batch(asked)))
        mock.mock_configure(built, ctypes.byref(batch(1)))
        mock.mock_destroy(other)
        loaded = ctypes.c_void_p(mock.mock_round_trip(built))
        attached = ctypes.c_void_p(mock.mock_attach(loaded))
        none = (ctypes.c_void_p * 5)()
        given = ctypes.c_void_p(256 if asked == 1 else 0)
        assert mock.mock_enqueue(attached, ctypes.byref(batch(2048)), none, none, given) == 1
        assert words in mock.mock_error().decode()
        mock.mock_destroy(attached)
        mock.mock_destroy(loaded)


def test_why_there_is_no_workspace(mock: ctypes.CDLL) -> None:
    """Said in TensorRT's log: the number cannot tell."""
    plugin = create(mock, "DynamicRouting", DYNAMIC)
    wrong = tensors([(2, 7, 5), (7, 3, 4, 6), (7, 3), (3, 4)])
    assert mock.mock_workspace(plugin, ctypes.byref(wrong)) == 0
    assert "input 'weight' has shape [7, 3, 4, 6]" in mock.mock_error().decode()
    mock.mock_destroy(plugin)


@pytest.mark.parametrize(("value", "taken"), [(2, True), (2**40, False)])
def test_wide_integers(mock: ctypes.CDLL, value: int, taken: bool) -> None:
    data = (ctypes.c_int64 * 1)(value)
    field = (Field * 1)(Field(b"iterations", INT64, 1, ctypes.addressof(data)))
    handle = mock.mock_create(b"DynamicRouting", field, 1, BUILD)
    assert bool(handle) == taken
    if handle:
        plugin = ctypes.c_void_p(handle)
        assert b"iterations=2," in mock.mock_timing_cache_id(plugin)
        mock.mock_destroy(plugin)
    else:
        assert "too large" in mock.mock_error().decode()


POSE, WEIGHT = (2, 5, 5, 3, 16), (3, 3, 3, 4, 4, 4)


@pytest.mark.parametrize(
    ("operator", "attributes", "shapes", "words"),
    [
        ("Squash", {"axis": 3}, [(2, 3)], "'axis' lies outside"),
        (
            "DynamicRouting",
            DYNAMIC,
            [(2, 7, 5), (7, 3, 4, 6), (7, 3), (3, 4)],
            "input 'weight' has shape [7, 3, 4, 6]",
        ),
        ("DynamicRouting", DYNAMIC, [(2, 7, 5), (7, 3, 4, 5), (7, 2), (3, 4)], "input 'log_prior'"),
        ("DynamicRouting", DYNAMIC, [(2, 7, 5), (7, 3, 4, 5), (7, 3), (4, 3)], "input 'bias'"),
        ("EMRouting", EM, [POSE, (2, 5, 5, 2), WEIGHT, (4,), (4,)], "input 'a'"),
        ("EMRouting", EM, [POSE, POSE[:4], (3, 3, 3, 4, 3, 4), (4,), (4,)], "a square number"),
        ("EMRouting", EM, [(2, 5, 5, 3, 15), POSE[:4], WEIGHT, (4,), (4,)], "a square number"),
        ("EMRouting", EM, [(2, 2, 5, 3, 16), (2, 2, 5, 3), WEIGHT, (4,), (4,)], "window is larger"),
        ("EMRouting", EM, [POSE, POSE[:4], WEIGHT, (4,), (5,)], "input 'beta_a'"),
        (
            "DynamicRouting",
            DYNAMIC,
            [(2, 7, 5), (7, 3, 4, 5), (7, 3), (3, 4), (6, 3, 4)],
            "input 'vote_bias' has shape [6, 3, 4]: wanted [7, 3, 4]",
        ),
        (
            "DynamicRouting",
            DYNAMIC,
            [(2, 7, 5), (7, 3, 4, 5), (7, 3), (3, 4), (1, 3, 4), (2, 7, 1)],
            "lack such inputs",
        ),
        (
            "DynamicRouting",
            DYNAMIC,
            [(2, 7, 5), (7, 3, 4, 5), (1, 3), (3, 4)],
            "lack such inputs",
        ),
        ("VoteRouting", DYNAMIC, [(2, 7, 1, 4), (7, 3), (3, 4)], "lack such inputs"),
        ("VoteRouting", DYNAMIC, [(2, 7, 3, 4), (1, 3), (3, 4)], "lack such inputs"),
        ("VoteRouting", DYNAMIC, [(2, 7, 3, 4), (7, 3), (3, 4), (2, 7, 1)], "lack such inputs"),
        (
            "DynamicRouting",
            DYNAMIC,
            [(2, 7, 5), (7, 3, 4, 5), (7, 3)],
            "3 inputs: wanted 4 to 7",
        ),
        ("EMRouting", EM, [POSE, POSE[:4], WEIGHT, (4,)], "4 inputs: wanted 5 or 6"),
        (
            "EMRouting",
            {**EM, "coordinate_addition": 1},
            [POSE, POSE[:4], WEIGHT, (4,), (4,), (5, 5, 16)],
            "'coordinate_addition' exclude each other",
        ),
        (
            "EMRouting",
            EM,
            [POSE, POSE[:4], WEIGHT, (4,), (4,), (5, 4, 16)],
            "input 'coordinates'",
        ),
        (
            "AttentionRouting",
            ATTENTION,
            [POSE, (2, 3, 3, 4, 15), WEIGHT, (16,), (16,)],
            "input 'scale' has shape [16]: wanted [15]",
        ),
        (
            "AttentionRouting",
            ATTENTION,
            [POSE, (3, 3, 3, 4, 16), WEIGHT, (16,), (16,)],
            "input 'parent'",
        ),
        (
            "AttentionRouting",
            ATTENTION,
            [POSE, (2, 3, 3, 4, 16), WEIGHT, (15,), (16,)],
            "input 'scale'",
        ),
        ("AttentionRouting", ATTENTION, [POSE, (2, 3, 3, 4, 16), WEIGHT, (16,)], "4 inputs"),
        (
            "SelfAttentionRouting",
            SELF_ATTENTION,
            [(2, 7, 5), (7, 3, 4, 6), (7, 3)],
            "input 'weight' has shape [7, 3, 4, 6]: wanted [7, J, Pout, 5]",
        ),
        (
            "SelfAttentionRouting",
            SELF_ATTENTION,
            [(2, 7, 5), (7, 3, 4), (7, 3)],
            "input 'weight' has shape [7, 3, 4]: wanted [7, J, Pout, 5]",
        ),
        (
            "SelfAttentionRouting",
            SELF_ATTENTION,
            [(2, 7, 5), (7, 3, 4, 5), (3, 4)],
            "input 'bias' has shape [3, 4]: wanted [7, 3]",
        ),
        ("SelfAttentionRouting", SELF_ATTENTION, [(2, 7, 5), (7, 3, 4, 5)], "2 inputs: wanted 3"),
    ],
)
def test_wrong_shapes(
    mock: ctypes.CDLL, operator: str, attributes: dict[str, Any], shapes: list[Any], words: str
) -> None:
    plugin = create(mock, operator, attributes)
    assert mock.mock_configure(plugin, ctypes.byref(tensors(shapes))) == -1
    assert words in mock.mock_error().decode()
    assert mock.mock_enqueue(plugin, ctypes.byref(tensors(shapes)), None, None, None) == 1
    mock.mock_destroy(plugin)


def test_constant_parents_may_have_a_batch_of_one(mock: ctypes.CDLL) -> None:
    plugin = create(mock, "AttentionRouting", ATTENTION)
    given = tensors([POSE, (1, 3, 3, 4, 16), WEIGHT, (16,), (16,)])
    assert shapes_of(mock, plugin, given) == [(2, 3, 3, 4, 16)]
    assert mock.mock_configure(plugin, ctypes.byref(given)) >= 0, mock.mock_error()


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs"), [("DynamicRouting", 4, 1), ("EMRouting", 5, 2)]
)
def test_formats(mock: ctypes.CDLL, operator: str, inputs: int, outputs: int) -> None:
    """Linear FP32 or FP16, all tensors alike; decided from what comes before a tensor only."""
    plugin = create(mock, operator, DYNAMIC if operator == "DynamicRouting" else EM)
    count = inputs + outputs

    def supports(position: int, types: list[int], formats: list[int]) -> bool:
        words = ctypes.c_int32 * count
        return bool(
            mock.mock_supports(plugin, position, words(*types), words(*formats), inputs, outputs)
        )

    for kind in (0, 1):
        assert all(supports(k, [kind] * count, [0] * count) for k in range(count))
    for kind in (2, 3, 8):
        assert not supports(0, [kind] * count, [0] * count)
    assert not supports(0, [0] * count, [1] * count)
    mixed = [0] * (count - 1) + [1]
    assert not supports(count - 1, mixed, [0] * count)
    assert supports(count - 2, mixed, [0] * count)
    assert not supports(count, [0] * count, [0] * count)


def test_workspace_serves_every_batch_of_the_profile(mock: ctypes.CDLL) -> None:
    """A small batch is split over more blocks and can need more than the largest."""
    plugin = create(mock, "DynamicRouting", DYNAMIC)

    def need(batch: int) -> int:
        shapes = [(batch, 256, 8), (256, 10, 16, 8), (256, 10), (10, 16)]
        return int(mock.mock_configure(plugin, ctypes.byref(tensors(shapes))))

    assert all(need(64) >= need(batch) for batch in (1, 2, 3, 5, 8, 63))


@pytest.mark.slow
def test_real_headers(tmp_path: Path) -> None:
    """Against TensorRT's own headers, where they are: CAPSEDGE_TENSORRT_INCLUDE, folders with ':' between."""
    named = os.environ.get("CAPSEDGE_TENSORRT_INCLUDE", "")
    cuda = NATIVE / "tensorrt" / "cuda"
    compiler = shutil.which("g++")
    if not named or compiler is None:
        pytest.skip("set CAPSEDGE_TENSORRT_INCLUDE to folders with NvInferRuntime.h")
    for folder in named.split(":"):
        assert Path(folder, "NvInferRuntime.h").is_file(), folder
        for name in (*SOURCES, "register"):
            made = tmp_path / f"{name}.o"
            subprocess.run(
                [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-isystem", folder,
                 "-isystem", str(cuda), *INCLUDED[1:], "-c",
                 str(NATIVE / "tensorrt" / f"{name}.cpp"), "-o", str(made)],
                check=True,
            )  # fmt: skip
            undefined = subprocess.run(
                ["nm", "-u", str(made)], capture_output=True, text=True, check=True
            ).stdout
            for symbol in ("getPluginRegistry", "createInfer", "initLibNvInfer", " U cu"):
                assert symbol not in undefined, name
