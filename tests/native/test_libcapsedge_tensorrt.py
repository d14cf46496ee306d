"""TensorRT engines in libcapsedge, over stand-ins for libnvinfer and CUDA: all but the arithmetic of a GPU.

The library is compiled against the interface mock of ``capsedge/runtime/native/tensorrt/mock``; an engine
of the stand-ins is an ONNX file, which ONNX Runtime runs. That the same source compiles against TensorRT's
own headers is `test_real_headers`; that TensorRT behaves alike needs a GPU.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capsedge
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.metadata import engine_metadata
from capsedge.runtime.zoo import default_model
from tests.cli.examples import plain_images
from tests.runtime.test_table_indices import given, table_file
from tests.tensorrt.fixtures import ANY_AMOUNT, compile_cudart

from . import libcapsedge
from .builds import NATIVE, ROOT, environment
from .libcapsedge import ARTEFACT, ENVIRONMENT, USAGE, Failed, Session
from .stand_ins import INCLUDE, Machine, build, compiled, nvinfer, stand_ins_in
from .test_libcapsedge_builds import OPTIONS

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.thorough  # the first of them compiles the library for stand-ins


def pictures(count: int) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, (20 + k, 31, 1), np.uint8) for k in range(count)]


def test_predictions_are_those_of_python(engine: Any, machine: Machine, zoo_model: Path) -> None:
    """Of Python's session over the same engine, bit for bit: plain runs, captured and launched ones."""
    path = engine(zoo_model)
    python = capsedge.load(path)
    native = Session(path)
    about = native.describe()
    assert (about.backend, about.backend_version) == (b"tensorrt", b"10.3.0.26")
    assert about.ops.decode() == python.backend.ops == "portable"
    assert (about.batch, about.smallest_batch, about.largest_batch) == (-1, 1, 4)
    assert python.metadata is not None
    assert native.class_names() == list(python.metadata.class_names)
    assert native.property("capsedge.schema") == "1"
    assert native.ports("input") == {p.name: (p.dtype, [-1, 1, 28, 28]) for p in python.inputs}
    images = pictures(6)  # four, then two
    wanted = python.predict([x[..., 0] for x in images])
    for _ in range(3):
        for ours, theirs in zip(native.predict(images), wanted, strict=True):
            np.testing.assert_array_equal(ours["scores"], theirs.scores)
            np.testing.assert_array_equal(ours["poses"], theirs.poses)
            assert [x[:3] for x in ours["labels"]] == [
                (x.name, x.index, x.score) for x in theirs.labels
            ]
    x = np.random.default_rng(0).random((3, 1, 28, 28), np.float32)
    right = python.run(x)
    for _ in range(3):
        found = native.run({python.inputs[0].name: x})
        assert {k: v.tobytes() for k, v in found.items()} == {
            k: v.tobytes() for k, v in right.items()
        }
    assert native.run({python.inputs[0].name: x[:0]})["poses"].shape[0] == 0
    native.close()


def test_outputs_by_name(engine: Any, machine: Machine) -> None:
    """Those not named are not shown, as of an ONNX file; places are those of what is left."""
    x = np.random.default_rng(0).random((2, 1, 28, 28), np.float32)
    path = engine(default_model())
    everything = Session(path)
    right = everything.run(_first(everything, x))
    for keep in (["poses"], ["poses", "lengths"]):
        native, portable = Session(path, outputs=keep), Session(default_model(), outputs=keep)
        assert native.ports("output") == portable.ports("output")
        assert list(native.ports("output")) == sorted(keep)
        for _ in range(3):
            found = native.run(_first(native, x))
            assert {k: v.tobytes() for k, v in found.items()} == {
                k: right[k].tobytes() for k in keep
            }
    room = np.zeros(right["poses"].size, np.float32)
    tensor = libcapsedge.Tensor(None, room.ctypes.data, room.nbytes)  # the first output
    feed = libcapsedge.Tensor(None, x.ctypes.data, x.nbytes, 1, 4, (2, 1, 28, 28))
    native = Session(path, outputs=["poses"])
    one = ctypes.c_size_t(1)
    libcapsedge.call(
        "capsedge_run", native.handle, ctypes.byref(feed), one, ctypes.byref(tensor), one
    )
    assert room.tobytes() == right["poses"].tobytes()
    with pytest.raises(Failed, match="without its scores or its poses"):
        native.predict(pictures(1))


def test_graphs_are_captured_once_a_batch(engine: Any, machine: Machine) -> None:
    """And kept while others run, each with the context that it was captured from."""
    native = Session(engine(default_model()))
    names = ("plain", "captured", "launched")
    before = machine.counts(*names)

    def since() -> list[int]:
        return [machine.counts(n)[n] - before[n] for n in names]

    for _ in range(4):
        native.predict(pictures(2))
    assert since() == [1, 1, 3]
    for _ in range(2):
        native.predict(pictures(3))
    assert since() == [2, 2, 4]
    assert machine.cudart.fake_count(3) == 2
    for _ in range(2):
        for count in (2, 3):
            native.predict(pictures(count))
    assert since() == [2, 2, 8]
    assert machine.counts("undefined") == {"undefined": 0}
    assert native.describe().no_graph_reason is None
    native.close()


def test_the_graphs_of_a_few_batches_are_kept(engine: Any, machine: Machine) -> None:
    """The one that was used longest ago gives its context to another batch."""
    native = Session(engine(default_model(), (1, 12, 12)))
    images = pictures(12)
    right = [p["scores"] for p in native.predict(images)]
    for _ in range(2):
        for count in range(1, 12):
            for _ in range(3):
                for ours, scores in zip(native.predict(images[:count]), right, strict=False):
                    np.testing.assert_allclose(ours["scores"], scores, rtol=1e-4, atol=1e-6)
    assert machine.cudart.fake_count(3) == machine.counts("contexts")["contexts"] == 8
    assert machine.counts("undefined") == {"undefined": 0}
    native.close()


def test_graphs_that_are_not_wanted(engine: Any, machine: Machine) -> None:
    native = Session(engine(default_model()), graphs=False)
    for _ in range(3):
        native.predict(pictures(2))
    assert native.describe().no_graph_reason == b"graphs were not requested"
    assert machine.cudart.fake_count(3) == 0
    native.close()


def test_engines_that_cannot_be_captured_run_plainly(engine: Any, machine: Machine) -> None:
    native = Session(engine(default_model()))
    machine.cudart.fake_set(1, 87, 1, ANY_AMOUNT)
    found = [native.predict(pictures(2)) for _ in range(3)]
    assert found[0][0]["scores"].tolist() == found[2][0]["scores"].tolist()
    assert b"capturing" in native.describe().no_graph_reason
    native.close()


@pytest.mark.parametrize("batch", [(4, 4, 4), (3, 4, 4)])
def test_batches_are_filled(engine: Any, machine: Machine, batch: tuple[int, int, int]) -> None:
    path = engine(default_model(), batch)
    native, images = Session(path), pictures(5)
    wanted = capsedge.load(path).predict([x[..., 0] for x in images])
    for ours, theirs in zip(native.predict(images), wanted, strict=True):
        np.testing.assert_array_equal(ours["scores"], theirs.scores)
    assert native.counters().images == 4 + batch[0]
    assert native.describe().batch == (4 if batch[0] == 4 else -1)
    native.close()


def test_files_of_other_tools(engine: Any, machine: Machine, tmp_path: Path) -> None:
    """An engine of a file without metadata runs, and does not predict."""
    import onnx

    model = onnx.load(default_model())
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "foreign.onnx")
    native = Session(engine(tmp_path / "foreign.onnx"))
    x = np.zeros((2, 1, 28, 28), np.float32)
    assert native.run({"image": x} if "image" in native.ports("input") else _first(native, x))
    with pytest.raises(Failed, match="no metadata"):
        native.predict(pictures(1))
    native.close()


def foreign(path: Path, rows: int | str, batch: tuple[int, int, int]) -> Path:
    """An engine of another tool's file: several inputs, outputs of several types, odd names."""
    from onnx import TensorProto as T
    from onnx import helper as h

    model = h.make_model(
        h.make_graph(
            [
                h.make_node("Add", ["a/x:0", "b"], ["sum"]),
                h.make_node("Greater", ["a/x:0", "b"], ["größer als"]),
                h.make_node("ArgMax", ["a/x:0"], ["which"], axis=1),
            ],
            "foreign",
            [
                h.make_tensor_value_info("b", T.FLOAT, [3]),
                h.make_tensor_value_info("a/x:0", T.FLOAT, [rows, 3]),
            ],
            [
                h.make_tensor_value_info("sum", T.FLOAT, [rows, 3]),
                h.make_tensor_value_info("größer als", T.BOOL, [rows, 3]),
                h.make_tensor_value_info("which", T.INT64, [rows, 1]),
            ],
        ),
        opset_imports=[h.make_opsetid("", 17)],
        ir_version=8,
    )
    engine = path / "foreign.engine"
    engine.write_bytes(b"PLAN" + model.SerializeToString())
    here = engine_metadata.BuildMachine("10.3.0", "13.0", "Orin", "8.7", platform.machine())
    engine_metadata.write(
        engine,
        engine_metadata.EngineMetadata(
            sha256(engine), engine.stat().st_size, here, "native", "", "", "fp32", {}, batch,
            "foreign.onnx", "", {}, "capsedge build foreign.onnx",
        ),
    )  # fmt: skip
    return engine


@pytest.mark.parametrize(("rows", "batch"), [("N", (1, 2, 4)), (3, (3, 3, 3))])
def test_inputs_and_outputs_of_other_tools(
    machine: Machine, tmp_path: Path, rows: int | str, batch: tuple[int, int, int]
) -> None:
    path = foreign(tmp_path, rows, batch)
    native = Session(path)
    about = native.describe()
    assert about.batch == (-1 if rows == "N" else 3)
    assert (about.smallest_batch, about.largest_batch) == (batch[0], batch[2])
    assert native.ports("output")["größer als"] == ("bool", [3 if rows == 3 else -1, 3])
    for _ in range(3):
        x, b = np.random.default_rng(0).random((3, 3), np.float32), np.full(3, 0.5, np.float32)
        found = native.run({"a/x:0": x, "b": b})
        np.testing.assert_array_equal(found["sum"], x + b)
        np.testing.assert_array_equal(found["größer als"], x > b)
        np.testing.assert_array_equal(found["which"], x.argmax(1)[:, None])
    with pytest.raises(Failed, match="batch of 0 images" if rows == "N" else "has the shape") as no:
        native.run({"a/x:0": x[:0], "b": b})
    assert no.value.code == USAGE
    with pytest.raises(Failed, match="'größer als' has no room"):
        native.run({"a/x:0": x, "b": b}, {"größer als": 8})
    libcapsedge.call("capsedge_warm_up", native.handle, ctypes.c_int64(2), 2)
    assert native.counters().images == (13 if rows == "N" else 15)
    native.close()
    portable = tmp_path / "foreign.onnx"
    portable.write_bytes(path.read_bytes()[len(b"PLAN") :])
    assert capsedge.load(portable).backend.batches.fixed == (None if rows == "N" else 3)


def test_ids_are_checked_as_in_the_file(engine: Any, machine: Machine, tmp_path: Path) -> None:
    """A GPU looks up what is beyond a table too, and gives any values."""
    model = table_file(tmp_path / "ids.onnx", length=5)
    wanted = capsedge.load(model).run(given())["interests"]
    native = Session(engine(model))
    assert native.ports("input") == {"hist": ("int64", [-1, 5]), "user": ("int64", [-1])}
    for _ in range(3):
        np.testing.assert_array_equal(native.run(given())["interests"], wanted)
        with pytest.raises(Failed, match="'hist' has an index that its table does not have") as no:
            native.run(given(hist=[[1, 2, 3, 4, 5], [1, 2, -1, 4, 5]]))
        assert no.value.code == USAGE
    native.close()


def _first(native: Session, x: Any) -> dict[str, Any]:
    return {next(iter(native.ports("input"))): x}


def test_threads(engine: Any, machine: Machine) -> None:
    native = Session(engine(default_model()))
    images = pictures(8)
    alone = [native.predict([x])[0]["scores"].tobytes() for x in images]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            found = list(pool.map(lambda x: native.predict([x])[0]["scores"].tobytes(), images))
            assert found == alone
    assert machine.cudart.fake_count(2) <= 4
    native.close()
    before = machine.counts("contexts made")["contexts made"]
    native = Session(engine(default_model()), contexts=2)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda x: native.predict([x])[0]["scores"].tobytes(), images * 4))
        assert found == alone * 4
    assert machine.counts("contexts made")["contexts made"] - before <= 2
    native.close()
    with pytest.raises(Failed, match="contexts is 2000"):
        Session(engine(default_model()), contexts=2000)


class OnGpu:
    """Memory of the stand-in's GPU."""

    def __init__(self, machine: Machine, array: Any) -> None:
        self.array, address = array, ctypes.c_void_p()
        assert not machine.cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(array.nbytes))
        self.address, self._cudart = int(address.value or 0), machine.cudart
        ctypes.memmove(self.address, array.ctypes.data, array.nbytes)

    def tensor(self) -> Any:
        a = self.array
        shape = (*a.shape, *[0] * (8 - a.ndim))
        return libcapsedge.Tensor(
            None, self.address, a.nbytes, libcapsedge.TYPES[a.dtype.name], a.ndim, shape
        )

    def values(self) -> Any:
        found = np.empty_like(self.array)
        ctypes.memmove(found.ctypes.data, self.address, found.nbytes)
        return found

    def __del__(self) -> None:
        self._cudart.cudaFree(ctypes.c_void_p(self.address))


def run_on_stream(native: Session, images: Any, output: Any, stream: Any) -> None:
    one = ctypes.c_size_t(1)
    libcapsedge.call(
        "capsedge_run_on_stream", native.handle, ctypes.byref(images), one, ctypes.byref(output), one,
        ctypes.c_void_p(stream),
    )  # fmt: skip


def test_work_in_the_order_of_a_stream(engine: Any, machine: Machine) -> None:
    """On memory of the GPU; the call returns before anything happened."""
    native, cudart = Session(engine(default_model()), outputs=["lengths"]), machine.cudart
    x = np.random.default_rng(0).random((2, 1, 28, 28), np.float32)
    right = native.run(_first(native, x))["lengths"]
    stream = ctypes.c_void_p()
    assert not cudart.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    source, images = OnGpu(machine, x), OnGpu(machine, np.zeros_like(x))
    lengths = OnGpu(machine, np.zeros_like(right))
    for order in (stream.value, None, stream.value):
        ctypes.memset(lengths.address, 0xFF, right.nbytes)
        ctypes.memset(images.address, 0xFF, x.nbytes)
        # The images are still to be written, too.
        cudart.cudaMemcpyAsync(
            ctypes.c_void_p(images.address), ctypes.c_void_p(source.address),
            ctypes.c_size_t(x.nbytes), 3, ctypes.c_void_p(order),
        )  # fmt: skip
        output = lengths.tensor()
        run_on_stream(native, images.tensor(), output, order)
        assert (output.type, output.rank, output.shape[:2]) == (1, 2, list(right.shape))
        assert np.isnan(lengths.values()).all()
        assert not cudart.cudaStreamSynchronize(ctypes.c_void_p(order))
        np.testing.assert_array_equal(lengths.values(), right)
    assert native.counters().images == 8
    host = libcapsedge.Tensor(None, x.ctypes.data, x.nbytes, 1, 4, (2, 1, 28, 28))
    with pytest.raises(Failed, match="is not on GPU 0") as failed:
        run_on_stream(native, host, lengths.tensor(), stream.value)
    assert failed.value.code == USAGE
    with pytest.raises(Failed, match="opened on the CPU"):
        run_on_stream(Session(default_model()), host, lengths.tensor(), stream.value)
    native.close()
    cudart.cudaStreamDestroy(stream)


def test_another_gpu(engine: Any, machine: Machine) -> None:
    """All of a session is made and destroyed on its own GPU; the caller keeps its own."""
    path = engine(default_model())
    machine.cudart.fake_set(2, 87, 0, ANY_AMOUNT)
    native = Session(path, device=1)
    for _ in range(3):
        native.predict(pictures(1))
    native.close()
    for what in (b"context", b"free"):  # fail halfway
        machine.nvinfer.mock_set(what, 1)
        try:
            with pytest.raises(Failed):
                Session(path, device=1)
        finally:
            machine.nvinfer.mock_set(what, 0)
    chosen = ctypes.c_int(-1)
    machine.cudart.cudaGetDevice(ctypes.byref(chosen))
    assert chosen.value == 0
    assert machine.counts("astray") == {"astray": 0}


def test_a_failed_run_leaves_nothing(engine: Any, machine: Machine) -> None:
    native = Session(engine(default_model()))
    machine.nvinfer.mock_set(b"execute", 1)
    try:
        with pytest.raises(Failed, match="could not run") as failed:
            native.predict(pictures(1))
        assert failed.value.code == ARTEFACT
        assert machine.held()[:4] == [0, 0, 0, 0]
    finally:
        machine.nvinfer.mock_set(b"execute", 0)
    assert native.predict(pictures(1))
    native.close()


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("context", ENVIRONMENT, "too little memory"),
        ("runtime", ENVIRONMENT, "does not start"),
        ("free", ARTEFACT, "only the batch size may vary"),
        ("host", ARTEFACT, "is a shape"),
    ],
)
def test_what_tensorrt_refuses(
    engine: Any, machine: Machine, what: str, code: int, words: str
) -> None:
    path = engine(default_model())
    machine.nvinfer.mock_set(what.encode(), 1)
    try:
        with pytest.raises(Failed, match=words) as failed:
            Session(path)
        assert failed.value.code == code
    finally:
        machine.nvinfer.mock_set(what.encode(), 0)


@pytest.mark.parametrize(
    ("what", "words"), [("shape", "take the input shape"), ("infer", "infer its shapes without x")]
)
def test_what_a_context_refuses(engine: Any, machine: Machine, what: str, words: str) -> None:
    native = Session(engine(default_model()))
    machine.nvinfer.mock_set(what.encode(), 1)
    try:
        with pytest.raises(Failed, match=words):
            native.predict(pictures(1))
    finally:
        machine.nvinfer.mock_set(what.encode(), 0)
    native.close()


def test_too_little_memory(engine: Any, machine: Machine) -> None:
    path = engine(default_model())
    machine.cudart.fake_set(1, 87, 0, 100)
    with pytest.raises(Failed, match="out of memory") as failed:
        Session(path)
    assert failed.value.code == ENVIRONMENT


def test_fused_engine(
    engine: Any, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libcapsedge_tensorrt10.so"
    library.write_bytes(b"plugin")
    monkeypatch.setenv("CAPSEDGE_TENSORRT_PLUGIN", str(library))
    path = engine(default_model(), plugin="fused")
    machine.nvinfer.mock_set(b"plugin", 1)
    with pytest.raises(Failed, match="rejects the plugin library") as refused:
        Session(path)
    # The reason, and not what the registry says of plugins that are not in it.
    assert "getCreators could not be loaded" in str(refused.value)
    assert "Cannot find plugin" not in str(refused.value)
    machine.nvinfer.mock_set(b"plugin", 0)
    before = machine.counts("plugins")["plugins"]
    sessions = [Session(path), Session(path)]
    assert (
        machine.counts("plugins")["plugins"] == before + 1
    )  # loading twice is an error of TensorRT's
    assert sessions[0].describe().ops == b"fused"
    for session in sessions:
        assert session.predict(pictures(1))
        session.close()
    library.write_bytes(b"another")
    with pytest.raises(Failed, match="not the one it was built with"):
        Session(path)
    monkeypatch.delenv("CAPSEDGE_TENSORRT_PLUGIN")
    with pytest.raises(Failed, match="plugin library of capsedge is not here"):
        Session(path)
    monkeypatch.setenv("CAPSEDGE_TENSORRT_PLUGIN", str(tmp_path / "missing.so"))
    with pytest.raises(Failed, match="does not exist") as failed:
        Session(path)
    assert failed.value.code == ENVIRONMENT


# Wrong use


def test_wrong_use(engine: Any, machine: Machine) -> None:
    path = engine(default_model())
    for options, code, words in (
        ({"device": 1}, ENVIRONMENT, "There is no GPU 1"),
        ({"device": -1}, ENVIRONMENT, "There is no GPU -1"),
        ({"ops": "fused"}, USAGE, "is a TensorRT engine"),
        ({"ops": "portable"}, USAGE, "is a TensorRT engine"),
        ({"outputs": ["depths"]}, USAGE, "no output 'depths'"),
    ):
        with pytest.raises(Failed, match=words) as failed:
            Session(path, **options)  # type: ignore[arg-type]
        assert failed.value.code == code
    with pytest.raises(Failed, match="The provider is the CPU"):
        Session(default_model(), device=1)
    native = Session(path, outputs=["lengths", "poses"])
    name = next(iter(native.ports("input")))
    with pytest.raises(Failed, match="was built for 1 to 4") as failed:
        native.run({name: np.zeros((5, 1, 28, 28), np.float32)})
    assert failed.value.code == USAGE
    with pytest.raises(Failed, match="no room"):
        native.run({name: np.zeros((1, 1, 28, 28), np.float32)}, {"poses": 8})
    with pytest.raises(Failed, match="cannot be read"):
        Session(path.with_name("missing.engine"))
    native.close()


# Programs


def test_programs_of_an_older_header(engine: Any, machine: Machine) -> None:
    """Their structures end before what engines brought, and what lies behind is theirs."""
    options = libcapsedge.sized(libcapsedge.OpenOptions, threads=1, tensorrt=b"/nowhere", device=7)
    options.size = libcapsedge.OpenOptions.tensorrt.offset
    for path in (engine(default_model()), default_model()):
        handle = ctypes.c_void_p()
        libcapsedge.call(
            "capsedge_open", os.fsencode(path), ctypes.byref(options), ctypes.byref(handle)
        )
        description = libcapsedge.Description(
            smallest_batch=-7, largest_batch=-7, no_graph_reason=b"?"
        )
        description.size = libcapsedge.Description.smallest_batch.offset
        libcapsedge.call("capsedge_describe", handle, ctypes.byref(description))
        assert description.score_kind == b"length"
        assert (description.smallest_batch, description.largest_batch) == (-7, -7)
        assert description.no_graph_reason == b"?"
        libcapsedge.call("capsedge_close", handle)


@pytest.fixture(scope="module")
def classify(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("program") / "classify"
    compiled(
        "gcc", "-std=c99", f"-I{INCLUDE}", str(NATIVE / "libcapsedge" / "examples" / "classify.c"),
        "-o", str(program), f"-L{built.parent}", "-lcapsedge", f"-Wl,-rpath,{built.parent}",
    )  # fmt: skip
    return program


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    files = sorted((ROOT / "capsedge" / "zoo" / "samples").glob("*.png"))
    return plain_images(files, tmp_path_factory.mktemp("samples"))


def program(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip


def test_the_example_runs_engines(
    engine: Any, machine: Machine, classify: Path, samples: list[Path]
) -> None:
    path = engine(default_model())
    loader = {"LD_LIBRARY_PATH": str(machine.folder)}  # the driver's library
    found = program(classify, path, *samples, **loader)
    assert found.returncode == 0, found.stderr
    assert found.stdout == program(classify, default_model(), *samples).stdout


GLOBAL = """
#include <capsedge.hpp>
#include <cstdio>
#include <optional>

std::optional<capsedge::Session> session;  // older than TensorRT and CUDA, so destroyed after them

int main(int, char** arguments) {
  capsedge::OpenOptions options;
  options.tensorrt = arguments[2];
  options.device = 0;
  session = capsedge::Session::open(arguments[1], options).value();
  const capsedge_description about = session->describe().value();
  std::printf("%s %d %d", about.backend, int(about.smallest_batch), int(about.largest_batch));
}
"""


def test_global_sessions(engine: Any, machine: Machine, built: Path, tmp_path: Path) -> None:
    """One that is destroyed while the process ends does not call what has ended."""
    path = engine(default_model())
    source, made = tmp_path / "global.cpp", tmp_path / "global"
    source.write_text(GLOBAL)
    compiled(
        "g++", "-std=c++17", f"-I{INCLUDE}", str(source), "-o", str(made),
        f"-L{built.parent}", "-lcapsedge", f"-Wl,-rpath,{built.parent}",
    )  # fmt: skip
    loader = {"LD_LIBRARY_PATH": str(machine.folder), "CAPSEDGE_TENSORRT": "/nowhere"}
    found = program(made, path, machine.folder, **loader)
    assert (found.returncode, found.stdout) == (0, "tensorrt 1 4"), found.stderr


def test_what_is_missing_is_named(
    engine: Any, machine: Machine, classify: Path, samples: list[Path], tmp_path: Path
) -> None:
    path = engine(default_model())
    other = tmp_path / "other"
    other.mkdir()
    nvinfer(other / "libnvinfer.so.10", "-DMOCK_MAJOR=11")
    for variables, words in (
        ({"CAPSEDGE_TENSORRT": str(tmp_path)}, "no libnvinfer.so.10 in this folder"),
        ({"CAPSEDGE_TENSORRT": ""}, "TensorRT was not found."),
        ({"CAPSEDGE_TENSORRT": str(other)}, "It is version 11."),
        ({"CAPSEDGE_TENSORRT": machine.variables["CAPSEDGE_ONNXRUNTIME"]}, "It is something else."),
        ({"CAPSEDGE_CUDART": "/nowhere/libcudart.so"}, "/nowhere/libcudart.so: "),
        ({"CAPSEDGE_CUDART": machine.variables["CAPSEDGE_ONNXRUNTIME"]}, "has no function cuda"),
    ):
        found = program(classify, path, samples[0], **variables)
        assert found.returncode == ENVIRONMENT, (variables, found.stderr)
        assert words in found.stderr
        assert "Install" in found.stderr


def test_the_driver_decides_which_cuda_is_opened(
    engine: Any, machine: Machine, classify: Path, samples: list[Path], tmp_path: Path
) -> None:
    """The newest would fail with error 35 on an older driver, although the other is there."""
    path = engine(default_model())
    newest = compile_cudart(tmp_path / "libcudart.so.13", 13020, 12060)
    found = program(classify, path, samples[0], CAPSEDGE_CUDART=str(newest))
    assert found.returncode == ENVIRONMENT, found.stderr
    assert "libcudart.so.13: it is of CUDA 13.2, the driver runs 12.6" in found.stderr
    compile_cudart(tmp_path / "libcudart.so.12", 12080, 12060)
    variables = {"CAPSEDGE_CUDART": "", "LD_LIBRARY_PATH": str(tmp_path)}
    found = program(classify, path, samples[0], **variables)
    assert found.returncode == ARTEFACT, found.stderr  # the engine's metadata file says CUDA 13.0
    assert "the driver is for CUDA 12.6, the engine needs 13.0" in found.stderr


def test_a_process_has_one_tensorrt(engine: Any, machine: Machine, tmp_path: Path) -> None:
    """However it is named; and one ONNX Runtime."""
    path = engine(default_model())
    library = machine.folder / "libnvinfer.so.10"
    (tmp_path / "link").symlink_to(machine.folder)
    for named in (str(library), str(tmp_path / "link"), "libnvinfer.so.10"):
        Session(path, tensorrt=named).close()
    shutil.copy(library, tmp_path)
    for named in (str(tmp_path), "libnowhere.so.10"):
        with pytest.raises(Failed, match="another TensorRT open already") as failed:
            Session(path, tensorrt=named)
        assert failed.value.code == USAGE
    Session(default_model()).close()
    Session(default_model(), onnxruntime="libonnxruntime.so.1").close()


def test_builds_without_tensorrt_say_so(tmp_path: Path) -> None:
    if libcapsedge.library_path() is None:
        pytest.skip("libcapsedge is not built: pip install -e . with a C++ compiler")
    if b"createInferRuntime" in libcapsedge.library_path().read_bytes():  # type: ignore[union-attr]
        pytest.skip("the installed libcapsedge has TensorRT")
    with pytest.raises(Failed, match="built without TensorRT") as failed:
        Session(tmp_path / "net.engine")
    assert failed.value.code == ENVIRONMENT


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("#define NV_TENSORRT_MAJOR 8 //!< TensorRT major version.", "OFF"),
        ("#define NV_TENSORRT_MAJOR 10 //!< TensorRT major version.", "ON"),
        ("#define TRT_MAJOR_ENTERPRISE 11", "ON"),
    ],
)
def test_old_headers_are_left_alone(tmp_path: Path, line: str, wanted: str) -> None:
    cmake = shutil.which("cmake", path=environment()["PATH"])
    if cmake is None:
        pytest.skip("needs cmake: pip install cmake")
    (tmp_path / "NvInferRuntime.h").touch()
    (tmp_path / "cuda_runtime_api.h").touch()
    (tmp_path / "NvInferVersion.h").write_text(f"#define NV_INFER_VERSION_H\n{line}\n")
    found = subprocess.run(
        [
            cmake, "-S", str(NATIVE), "-B", str(tmp_path / "build"),
            f"-DCAPSEDGE_NVINFER={tmp_path}", f"-DCAPSEDGE_CUDART_INCLUDE={tmp_path}",
        ],
        capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip
    assert f"TensorRT engines in libcapsedge: {wanted}" in found.stdout
    assert ("TensorRT 8 in" in found.stdout) == (wanted == "OFF")


@pytest.mark.parametrize(
    ("target", "missing"),
    [("capsedge_tensorrt", "NvInferRuntime.h of TensorRT 10.3 or newer was not found"),
     ("capsedge_cuda", "the build was configured without -DCAPSEDGE_CUDA=ON")],
)  # fmt: skip
def test_a_target_says_what_is_missing(tmp_path: Path, target: str, missing: str) -> None:
    cmake = shutil.which("cmake", path=environment()["PATH"])
    if cmake is None:
        pytest.skip("needs cmake: pip install cmake")
    subprocess.run(
        [cmake, "-S", str(NATIVE), "-B", str(tmp_path), "-DCAPSEDGE_NVINFER=NOTFOUND"],
        capture_output=True, check=True, env=environment(),
    )  # fmt: skip
    found = subprocess.run(
        [cmake, "--build", str(tmp_path), "--target", target],
        capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    assert found.returncode != 0
    assert f"{target} cannot be built: {missing}" in found.stdout


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers(engine: Any, tmp_path: Path, kind: str) -> None:
    """Eight threads over one session and with one each; closing while others run."""
    path = engine(default_model())
    folder = build(
        tmp_path / "build", "capsedge_stress", "-DCAPSEDGE_TESTS=ON", f"-DCAPSEDGE_SANITIZE={kind}"
    )
    variables = stand_ins_in(tmp_path, folder / "libcapsedge.so", f"-fsanitize={kind}")
    variables |= {"LD_LIBRARY_PATH": str(tmp_path), **OPTIONS[kind]}
    stress = folder / "tests" / "capsedge_stress"
    for words in (["threads", "5"], ["misuse", "3"]):
        found = program(stress, variables["CAPSEDGE_ONNXRUNTIME"], path, *words, **variables)
        assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-6000:]


SOURCES = (
    "cuda_runtime", "open", "tensorrt_backend", "tensorrt_engine", "tensorrt_library", "tensorrt_slots",
)  # fmt: skip


@pytest.mark.slow
def test_real_headers(tmp_path: Path) -> None:
    """Against TensorRT's own headers, where they are: CAPSEDGE_TENSORRT_INCLUDE, folders with ':' between."""
    named = os.environ.get("CAPSEDGE_TENSORRT_INCLUDE", "")
    cuda = os.environ.get("CUDA_INCLUDE", "/usr/local/cuda/include")
    if not named or shutil.which("g++") is None or not Path(cuda, "cuda_runtime_api.h").is_file():
        pytest.skip(
            "set CAPSEDGE_TENSORRT_INCLUDE to folders with NvInferRuntime.h, and CUDA_INCLUDE to CUDA's"
        )
    for folder in named.split(":"):
        for name in SOURCES:
            made = tmp_path / f"{name}.o"
            compiled(
                "g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-DCAPSEDGE_WITH_TENSORRT=1",
                "-isystem", folder, "-isystem", cuda, f"-I{INCLUDE}", f"-I{NATIVE}", f"-I{NATIVE}/kernels",
                f"-I{NATIVE}/libcapsedge/src", f"-I{NATIVE}/onnxruntime",
                "-c", str(NATIVE / "libcapsedge" / "src" / f"{name}.cpp"), "-o", str(made),
            )  # fmt: skip
            undefined = subprocess.run(
                ["nm", "-u", str(made)], capture_output=True, text=True, check=True
            ).stdout
            # All of TensorRT and CUDA is opened at run time.
            for prefix in ("createInfer", "getInferLib", "getPluginRegistry", " U cuda", " U cu"):
                assert prefix not in undefined
