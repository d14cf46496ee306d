"""ONNX files on a GPU in libcapsedge, over stand-ins: all but the provider's and the kernels' own work.

ONNX Runtime is the CPU's with a CUDA provider that is none (ort_gpu.cpp), CUDA is tests/tensorrt/cudart.c,
so whole models run, with the bits of the CPU. ptx/libcapsedge_checks.py has the real provider.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import capsedge
from capsedge.runtime.backends.cuda_operators import _chosen
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.onnx_file.structure import structure_of
from capsedge.runtime.onnx_file.summary import summarize
from capsedge.runtime.zoo import MODELS, default_model, zoo_model
from tests.conformance.cases import CASES, make
from tests.conformance.inputs import batched
from tests.conformance.native import one_node
from tests.tensorrt.fixtures import ANY_AMOUNT, SOURCE

from . import libcapsedge
from .builds import NATIVE
from .libcapsedge import ENVIRONMENT, UNSUPPORTED, USAGE, Failed, Session
from .stand_ins import DRIVER, INCLUDE, build, compiled
from .test_libcapsedge_builds import OPTIONS
from .test_libcapsedge_tensorrt import OnGpu, program

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.thorough  # the first of them compiles the library for stand-ins
OPERATORS, TF32 = "capsedge.cuda.operators", "use_tf32"
NEW_DRIVER = "int cuDriverGetVersion(int* to) { return *to = 13000, 0; }"
SIZE = ctypes.c_size_t(1)


def stand_ins_in(folder: Path, *flags: str) -> dict[str, str]:
    """ONNX Runtime for GPUs, libcudart, libcuda and a file of kernels; and the variables that name them."""
    common = ("-shared", "-fPIC", *flags)
    compiled("gcc", *common, str(SOURCE), "-o", str(folder / "libcudart.so"))
    compiled(
        "g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", *common, f"-I{NATIVE}",
        f"-I{NATIVE}/onnxruntime", f"-I{NATIVE}/kernels", str(Path(__file__).with_name("ort_gpu.cpp")),
        "-o", str(folder / "libonnxruntime.so"),
    )  # fmt: skip
    driver = folder / "driver.c"
    driver.write_text(DRIVER + NEW_DRIVER)
    name = "-Wl,-soname,libcuda.so.1"
    compiled("gcc", *common, name, str(driver), "-o", str(folder / "libcuda.so.1"))
    kernels = folder / "some.fatbin"
    kernels.write_bytes(b"the stand-in does not load it")
    return {
        "CAPSEDGE_CUDART": str(folder / "libcudart.so"),
        "CAPSEDGE_MOCK_RUNTIME_ORT": str(libcapsedge.onnxruntime_library()),
        "CAPSEDGE_CUDA_KERNELS": str(kernels),
    }


class Gpu:
    """libcapsedge in a copy of its own, which has opened no other ONNX Runtime, and its stand-ins."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder, self.site = folder, folder / "site"  # of a Python environment
        self.library = self.site / "capsedge" / "runtime" / "_native" / "lib" / "libcapsedge.so"
        self.library.parent.mkdir(parents=True)
        shutil.copy(library, self.library)
        self.variables = stand_ins_in(folder)
        self.variables[libcapsedge.LIBRARY_VARIABLE] = str(self.library)
        self.kernels = Path(self.variables["CAPSEDGE_CUDA_KERNELS"])
        self.cudart = ctypes.CDLL(str(folder / "libcudart.so"))
        self.cudart.fake_set.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
        self.ort = ctypes.CDLL(str(folder / "libonnxruntime.so"))
        self.ort.mock_option.restype = ctypes.c_char_p
        self._driver = ctypes.CDLL(str(folder / "libcuda.so.1"))

    def open(self, model: Path | bytes, **options: Any) -> Session:
        return Session(model, **{"provider": "cuda", "onnxruntime": str(self.folder), **options})

    def counts(self) -> dict[str, int]:
        """How often each thing happened, but for nothing."""
        what = ("plain", "plain on the GPU", "captured", "replayed", "violations")
        found = {name: self.ort.mock_count(name.encode()) for name in what}
        return {name: number for name, number in found.items() if number}

    def option(self, name: str) -> str:
        found: bytes = self.ort.mock_option(name.encode())
        return found.decode()

    def refuse(self, what: str, message: str, times: int = 1) -> None:
        self.ort.mock_refuse(what.encode(), message.encode(), times)


@pytest.fixture(scope="module")
def stand_in(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    return Gpu(tmp_path_factory.mktemp("gpu"), built)


@pytest.fixture
def gpu(stand_in: Gpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """Every test leaves nothing on the GPU."""
    for name, value in stand_in.variables.items():
        monkeypatch.setenv(name, value)
    stand_in.cudart.fake_set(1, 90, 0, ANY_AMOUNT)
    gc.collect()  # sessions of another build close in it
    libcapsedge.load.cache_clear()
    stand_in.ort.mock_reset()
    yield stand_in
    gc.collect()
    libcapsedge.load.cache_clear()
    assert stand_in.counts().get("violations", 0) == 0
    assert [stand_in.cudart.fake_count(k) for k in range(4)] == [0] * 4


def feeds(count: int, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed).random((count, 1, 28, 28), np.float32)
    return {"images": random}


def bits(outputs: dict[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in outputs.items()}


def test_a_model_runs_with_the_bits_of_the_cpu(gpu: Gpu) -> None:
    """Plainly, captured and replayed, by the rules: from the second call of a batch size on."""
    session, cpu = gpu.open(default_model()), Session(default_model(), onnxruntime=str(gpu.folder))
    name = next(iter(session.ports("input")))
    assert session.describe().ops == b"fused"
    assert (gpu.option("device_id"), gpu.option(TF32)) == ("0", "0")
    batches = [{name: feeds(count, count)["images"]} for count in (2, 3)]
    wanted = [bits(cpu.run(batch)) for batch in batches]
    gpu.ort.mock_reset()
    for at, counts in (
        (0, {"plain": 1}), (0, {"plain": 1, "captured": 1}), (0, {"plain": 1, "captured": 1, "replayed": 1}),
        (1, {"plain": 2, "captured": 1, "replayed": 1}), (1, {"plain": 2, "captured": 2, "replayed": 1}),
        (0, {"plain": 2, "captured": 2, "replayed": 2}),
    ):  # fmt: skip
        assert bits(session.run(batches[at])) == wanted[at]
        assert gpu.counts() == counts
    assert session.describe().no_graph_reason is None
    assert session.run({name: batches[0][name][:0]})["poses"].shape[0] == 0
    session.close()
    cpu.close()


def test_predictions_are_those_of_python(gpu: Gpu) -> None:
    session, python = gpu.open(default_model()), capsedge.load(default_model())
    images = [
        np.random.default_rng(k).integers(0, 256, (20 + k, 31, 1), np.uint8) for k in range(3)
    ]
    wanted = python.predict([x[..., 0] for x in images])
    for _ in range(3):
        for ours, theirs in zip(session.predict(images), wanted, strict=True):
            np.testing.assert_allclose(ours["scores"], theirs.scores, rtol=1e-5)
    session.close()


def test_names_are_those_of_python(gpu: Gpu) -> None:
    """For bundled models and for nodes of every operator, masked and bare ones among them."""
    files = [path.read_bytes() for path in map(zoo_model, MODELS) if path is not None]
    for case in CASES[:: max(1, len(CASES) // 25)]:
        if case.heavy:
            continue
        inputs = dict(make(case, "float32").inputs)
        free = batched(case.operator, inputs)
        constants = tuple(name for name in inputs if name not in free)
        files.append(one_node(case.operator, case.attributes, inputs, constants))
    seen = set()
    for model in files:
        wanted = _chosen(structure_of(model), find_library() or Path(), Path())
        gpu.ort.mock_reset()
        lacking = wanted.others or ("" if wanted.names else "The kernels do not include them")
        if lacking and not summarize(model, "m.onnx").capsedge_functions:
            with pytest.raises(Failed, match="no function body") as failed:
                gpu.open(model)
            assert lacking in str(failed.value)
            seen.add("refused")
            continue
        session = gpu.open(model)
        assert gpu.option(OPERATORS) == ",".join(wanted.names)
        reason = session.describe().no_kernel_reason
        assert (reason or b"").decode().rstrip(".") == wanted.others
        seen.add(session.describe().ops.decode())
        session.close()
    assert seen >= {"fused", "mixed", "refused"}


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        ([2, 16], True), ([-5, 16], True), (["a", 16], True), ([None, 16], True),
        ([1 << 40, 1 << 40], False), ([1] * 70, False), (None, False),
    ],
)  # fmt: skip
def test_shapes_that_a_file_states(gpu: Gpu, sizes: Any, fits: bool) -> None:
    """Of an operator that takes any: only those whose elements can be counted."""
    case = next(c for c in CASES if c.operator == "Squash")
    inputs = dict(make(case, "float32").inputs)
    model = onnx.load_from_string(one_node(case.operator, {}, inputs, ()))
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, sizes)
    model.graph.input[0].type.CopyFrom(kind)
    if fits:
        gpu.open(model.SerializeToString())
        assert gpu.option(OPERATORS) == "Squash"
        return
    with pytest.raises(Failed, match=r"no function body[^\0]*does not state the shape") as failed:
        gpu.open(model.SerializeToString())
    assert failed.value.code == ENVIRONMENT


def test_only_eight_shapes_are_captured(gpu: Gpu) -> None:
    session = gpu.open(default_model(), ops="portable")
    name = next(iter(session.ports("input")))
    for count in range(1, 11):
        for _ in range(3):
            session.run({name: feeds(count)["images"]})
    assert gpu.counts() == {"plain": 8 + 6, "captured": 8, "replayed": 8}
    session.close()


def test_threads_share_a_session(gpu: Gpu) -> None:
    """Who finds the graphs in use runs plainly; all get the bits of one; nothing runs beside a capture."""
    session, cpu = gpu.open(default_model()), Session(default_model(), onnxruntime=str(gpu.folder))
    name = next(iter(session.ports("input")))
    batches = [{name: feeds(1 + k % 3, k)["images"]} for k in range(6)]
    wanted = [bits(cpu.run(batch)) for batch in batches]

    def work(k: int) -> bool:
        return all(bits(session.run(batches[k])) == wanted[k] for _ in range(30))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))
    found = gpu.counts()
    assert found["captured"] >= 3
    assert found["replayed"] > 0
    assert session.describe().no_graph_reason is None
    session.close()
    cpu.close()


def test_memory_of_the_gpu(gpu: Gpu) -> None:
    """The work that is on the caller's stream comes first; results are there when the call returns."""
    session, cpu = (
        gpu.open(default_model(), outputs=["lengths"]),
        Session(default_model(), onnxruntime=str(gpu.folder)),
    )
    x = feeds(2)["images"]
    right = cpu.run({next(iter(cpu.ports("input"))): x})["lengths"]
    stream = ctypes.c_void_p()
    assert not gpu.cudart.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    source, images = OnGpu(gpu, x), OnGpu(gpu, np.zeros_like(x))  # type: ignore[arg-type]
    lengths = OnGpu(gpu, np.zeros_like(right))  # type: ignore[arg-type]

    def run(given: Any, found: Any) -> None:
        libcapsedge.call(
            "capsedge_run_on_stream",
            session.handle,
            ctypes.byref(given),
            SIZE,
            ctypes.byref(found),
            SIZE,
            stream,
        )

    for _ in range(4):
        ctypes.memset(lengths.address, 0xFF, right.nbytes)
        ctypes.memset(images.address, 0xFF, x.nbytes)
        gpu.cudart.cudaMemcpyAsync(
            ctypes.c_void_p(images.address),
            ctypes.c_void_p(source.address),
            ctypes.c_size_t(x.nbytes),
            3,
            stream,
        )
        output = lengths.tensor()
        run(images.tensor(), output)
        assert (output.type, output.rank, output.shape[:2]) == (1, 2, list(right.shape))
        np.testing.assert_array_equal(lengths.values(), right)
    # The CPU session's run counts as plain, too.
    assert gpu.counts() == {"plain": 1, "plain on the GPU": 1, "captured": 1, "replayed": 2}
    host = libcapsedge.Tensor(None, x.ctypes.data, x.nbytes, 1, 4, (2, 1, 28, 28))
    with pytest.raises(Failed, match="is not on GPU 0") as failed:
        run(host, lengths.tensor())
    assert failed.value.code == USAGE
    session.close()
    cpu.close()
    gpu.cudart.cudaStreamDestroy(stream)


def test_graphs_off_on_and_impossible(gpu: Gpu) -> None:
    name = next(iter(gpu.open(default_model()).ports("input")))
    batch = {name: feeds(2)["images"]}
    session = gpu.open(default_model(), graphs=False)
    assert session.describe().no_graph_reason == b"graphs were not requested"
    gpu.refuse("graphs", "not all compute graph nodes are partitioned to it")
    with pytest.raises(
        Failed, match=r"cannot run as a CUDA graph[^\0]*not all compute graph nodes"
    ) as failed:
        gpu.open(default_model(), graphs=True)
    assert failed.value.code == UNSUPPORTED
    session = gpu.open(default_model())
    for _ in range(3):
        session.run(batch)
    assert b"not all compute graph nodes" in session.describe().no_graph_reason
    assert "captured" not in gpu.counts()
    session.close()


def test_a_capture_that_fails(gpu: Gpu) -> None:
    """Is tried three times, or not again without memory; the call runs plainly, and it is said why."""
    for message, reason in (
        ("operation not permitted when stream is capturing", b"operation not permitted"),
        ("CUDA failure 2: out of memory", b"the GPU has too little memory for them: "),
    ):
        session = gpu.open(default_model())
        batch = {next(iter(session.ports("input"))): feeds(2)["images"]}
        right = bits(session.run(batch))
        gpu.refuse("run", message, 3)
        for _ in range(5):
            assert bits(session.run(batch)) == right
        assert reason in session.describe().no_graph_reason
        session.close()
        gpu.refuse("run", "", 0)
    session = gpu.open(default_model())
    session.run(batch)
    gpu.refuse("run", "operation not permitted when stream is capturing", 2)
    for _ in range(5):
        assert bits(session.run(batch)) == right
    assert session.describe().no_graph_reason is None
    session.close()


def test_no_room_for_an_output_of_a_graph(gpu: Gpu) -> None:
    session = gpu.open(default_model())
    name, batch = next(iter(session.ports("input"))), feeds(2)["images"]
    for _ in range(3):
        session.run({name: batch})
    with pytest.raises(Failed, match="has no room") as failed:
        session.run({name: batch}, {"lengths": 4})
    assert failed.value.code == USAGE
    session.close()


def test_refusals(gpu: Gpu) -> None:
    for options, code, words in (
        ({"device": 1}, ENVIRONMENT, "There is no GPU 1"),
        ({"device": -1}, ENVIRONMENT, "There is no GPU -1"),
        ({"provider": "cpu", "device": 1}, USAGE, "The provider is the CPU"),
        ({"provider": "cpu", "graphs": True}, USAGE, "CUDA graphs need a GPU"),
        ({"cuda_kernels": "/none"}, ENVIRONMENT, "cuda_kernels names it"),
    ):
        with pytest.raises(Failed, match=words) as failed:
            gpu.open(default_model(), **options)
        assert failed.value.code == code
    gpu.cudart.fake_set(0, 90, 0, ANY_AMOUNT)
    with pytest.raises(
        Failed, match=r"no NVIDIA GPU that CUDA can use|There is no GPU 0"
    ) as failed:
        gpu.open(default_model())
    assert failed.value.code == ENVIRONMENT
    gpu.cudart.fake_set(1, 90, 0, ANY_AMOUNT)
    gpu.refuse("append", "libcublasLt.so.13: cannot open shared object file")
    with pytest.raises(
        Failed, match=r"CUDAExecutionProvider did not start[^\0]*libcublasLt"
    ) as failed:
        gpu.open(default_model())
    assert failed.value.code == ENVIRONMENT


def test_the_kernels_file(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by an option, by a variable, beside the library; or not there."""
    session = gpu.open(default_model(), cuda_kernels=str(gpu.kernels))
    assert gpu.option("capsedge.cuda.kernels") == str(gpu.kernels)
    monkeypatch.setenv("CAPSEDGE_CUDA_KERNELS", "/none")
    with pytest.raises(Failed, match="environment variable CAPSEDGE_CUDA_KERNELS names it"):
        gpu.open(default_model())
    monkeypatch.delenv("CAPSEDGE_CUDA_KERNELS")
    session = gpu.open(default_model())
    about = session.describe()
    assert about.ops == b"portable"
    assert b"are not installed" in about.no_kernel_reason
    with pytest.raises(Failed, match="make cuda-wheel") as failed:
        gpu.open(default_model(), ops="fused")
    assert failed.value.code == ENVIRONMENT
    package = gpu.site / "capsedge_cuda"
    package.mkdir()
    for version in ("0.0.1", capsedge.__version__):
        (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
        shutil.copy(gpu.kernels, package / "kernels.fatbin")
        if version != capsedge.__version__:
            with pytest.raises(
                Failed, match=r"of another version[^\0]*capsedge-cuda is 0\.0\.1"
            ) as failed:
                gpu.open(default_model())
            assert failed.value.code == ENVIRONMENT
    beside = gpu.library.with_name("kernels.fatbin")
    for file in (package / "kernels.fatbin", beside):
        shutil.copy(gpu.kernels, file)
        session = gpu.open(default_model(), ops="fused")
        assert gpu.option("capsedge.cuda.kernels") == str(file)
        assert session.describe().no_kernel_reason is None
        session.close()
    beside.unlink()
    shutil.rmtree(package)


def test_the_example_program(gpu: Gpu, tmp_path: Path) -> None:
    """classify.c prints on a GPU what it prints on the CPU."""
    examples = NATIVE / "libcapsedge" / "examples"
    program, image = tmp_path / "classify", tmp_path / "image.pgm"
    image.write_bytes(b"P5 28 28 255\n" + bytes(range(256)) * 3 + bytes(16))
    compiled(
        "gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", str(examples / "classify.c"),
        str(gpu.library), f"-Wl,-rpath,{gpu.library.parent}", "-o", str(program),
    )  # fmt: skip
    library = {"CAPSEDGE_ONNXRUNTIME": str(gpu.folder), "LD_LIBRARY_PATH": str(gpu.folder)}
    said = [
        subprocess.run(
            [program, *words, default_model(), image], capture_output=True, text=True, check=True,
            env={**os.environ, **library},
        ).stdout
        for words in ([], ["--gpu"])
    ]  # fmt: skip
    assert said[0].startswith(f"{image}: ")
    assert said[0] == said[1]


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers(tmp_path: Path, kind: str) -> None:
    """Eight threads over one session and with one each; closing while others run."""
    options = ("-DCAPSEDGE_TESTS=ON", f"-DCAPSEDGE_SANITIZE={kind}")
    folder = build(tmp_path / "build", "capsedge_stress", *options)
    variables = stand_ins_in(tmp_path, f"-fsanitize={kind}") | OPTIONS[kind]
    variables |= {"LD_LIBRARY_PATH": str(tmp_path), "CAPSEDGE_STRESS_GPU": "1"}
    stress = folder / "tests" / "capsedge_stress"
    found = program(stress, tmp_path, default_model(), "threads", "5", **variables)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-6000:]


def test_an_onnxruntime_for_the_cpu_is_refused() -> None:
    if libcapsedge.library_path() is None:
        pytest.skip("libcapsedge is not built")
    with pytest.raises(
        Failed, match=r"has no CUDAExecutionProvider[^\0]*onnxruntime-gpu"
    ) as failed:
        Session(default_model(), provider="cuda")
    assert failed.value.code == ENVIRONMENT
