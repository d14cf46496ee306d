"""Building and running engines over stand-ins for TensorRT and CUDA: all but the arithmetic of a GPU."""

from __future__ import annotations

import gc
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import capsedge
from capsedge.errors import (
    ArtefactError,
    CapsedgeError,
    EnvironmentProblem,
    ParityError,
    ShapeError,
    UnsupportedModelError,
    UsageError,
)
from capsedge.exporters.build_options import BuildOptions
from capsedge.exporters.export import export
from capsedge.exporters.export_options import ExportOptions
from capsedge.exporters.tensorrt.write_engine import BuildReport
from capsedge.exporters.tensorrt.write_engine import write_engine as build
from capsedge.graph import ir
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.backends.tensorrt_backend import TensorRTBackend
from capsedge.runtime.backends.tensorrt_library import PLUGINS
from capsedge.runtime.backends.tensorrt_slots import GRAPHS
from capsedge.runtime.inspection import inspect_engine
from capsedge.runtime.metadata import engine_metadata
from capsedge.runtime.zoo import ROUTINGS, zoo_model
from capsedge.spec.operators import operator_of
from tests.exporters.nets import network
from tests.exporters.tensorrt.test_lowering import quantized
from tests.exports import Exports
from tests.tensorrt import fake
from tests.tensorrt.fixtures import ANY_AMOUNT, cudart, gpu, on_gpu  # noqa: F401

IMAGES = np.random.default_rng(1).random((5, 1, 10, 10), dtype=np.float32)


@pytest.fixture(scope="module")
def model(exported: Exports) -> Path:
    return exported(network("dynamic"), extra_outputs=("reconstruction",)).path


@pytest.fixture
def make(model: Path, tmp_path: Path, gpu: Any):  # noqa: F811
    def run(**options: Any) -> BuildReport:
        target = options.pop("target", tmp_path / "net.engine")
        told, source = options.pop("told", []), options.pop("model", model)
        given = BuildOptions(**{"plugin": "native", **options})
        return build(source, target, given, lambda *row: told.append(row))

    return run


def test_engine_and_its_metadata(make: Any, model: Path) -> None:
    told: list[Any] = []
    built = make(told=told)
    stands = json.loads(engine_metadata.metadata_path(built.path).read_text())
    assert stands["machine"]["tensorrt"] == "10.3.0"
    assert stands["machine"]["compute_capability"] == "8.7"
    assert stands["machine"]["gpu"] == "Orin"
    assert stands["machine"]["multiprocessors"] == 8
    assert stands["machine"]["power_mode"] == ""
    assert stands["precision"] == "fp32"
    assert stands["layers"]["FP32"] > 0
    assert stands["engine_bytes"] == built.path.stat().st_size
    assert engine_metadata.read(built.path) == built.engine_metadata
    assert built.engine_metadata.model is not None
    assert built.engine_metadata.model.architecture == "capsnet"
    assert f"capsedge build {model}" in built.engine_metadata.command
    assert told[-1][0] == 1.0
    assert fake.RECORDED["cleared"] == [fake.BuilderFlag.TF32]
    assert json.dumps(built.to_dict())


def test_engines_that_were_timed_for_another_power_mode(
    make: Any,
    gpu: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They run, and inspect says what they were timed for."""
    for module in ("exporters.tensorrt.write_engine", "runtime.inspection"):
        monkeypatch.setattr(f"capsedge.{module}.power_mode", lambda: "MAXN_SUPER")
    built = make()
    assert built.engine_metadata.machine.power_mode == "MAXN_SUPER"
    assert inspect_engine(built.path).timed_for == ""
    gpu.fake_multiprocessors(4)
    monkeypatch.setattr("capsedge.runtime.inspection.power_mode", lambda: "7W")
    found = inspect_engine(built.path)
    assert found.runs_here is True
    assert found.timed_for == "8 multiprocessors, here 4; power mode MAXN_SUPER, here 7W"
    capsedge.load(built.path)


def test_predictions_are_those_of_the_onnx_file(make: Any, model: Path, gpu: Any) -> None:  # noqa: F811
    engine = capsedge.load(make(batch=(1, 4, 4)).path)
    wanted = capsedge.load(model)
    assert engine.backend.batches.fixed is None
    assert engine.backend.ops == "portable"
    assert [p.name for p in engine.outputs] == [p.name for p in wanted.outputs]
    # Five images in an engine for four; the second call captures a graph, the third launches it.
    for _ in range(3):
        for found, right in zip(engine.predict(IMAGES), wanted.predict(IMAGES), strict=True):
            assert found.label == right.label
            np.testing.assert_allclose(found.scores, right.scores, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(found.poses, right.poses, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(
        engine.reconstruct(IMAGES), wanted.reconstruct(IMAGES), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("version", ["10.3.0", "11.4.0.106"])
def test_versions_of_the_inspector(
    make: Any, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(fake, "__version__", version)
    assert make().engine_metadata.layers["FP32"] > 0


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plugin library, a stand-in."""
    library = tmp_path / "libcapsedge_tensorrt10.so"
    library.write_bytes(b"plugin")
    monkeypatch.setenv("CAPSEDGE_TENSORRT_PLUGIN", str(library))
    monkeypatch.setattr(fake, "REGISTRY_NAMESPACE", "capsedge")
    return library


def test_fused_engine(
    make: Any, monkeypatch: pytest.MonkeyPatch, plugin: Path, model: Path
) -> None:
    if find_library() is None:
        pytest.skip("the operator library is not built")
    built = make(plugin="auto")
    assert built.engine_metadata.plugin == "fused"
    assert {n.domain for n in fake.RECORDED["model"].graph.node} == {"", "capsedge"}
    assert [str(plugin)] == fake.PLUGINS_LOADED  # once, although two registries ask
    session = capsedge.load(built.path)
    assert session.backend.ops == "fused"
    right = capsedge.load(model).predict(IMAGES)
    for found, wanted in zip(session.predict(IMAGES), right, strict=True):
        np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-4, atol=1e-6)
    plugin.write_bytes(b"another")
    with pytest.raises(ArtefactError, match="not the one it was built with"):
        capsedge.load(built.path)
    monkeypatch.delenv("CAPSEDGE_TENSORRT_PLUGIN")
    with pytest.raises(ArtefactError, match="plugin library of capsedge is not here"):
        capsedge.load(built.path)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("mode", ["auto", "fused", "native"])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_model_of_the_zoo(make: Any, routing: str, mode: str) -> None:
    """Operators without a plugin become standard ones, those with one stay; predictions are the same."""
    if find_library() is None:
        pytest.skip("the operator library is not built")
    zoo = zoo_model(f"digits-{routing}")
    assert zoo is not None
    source = onnx.load(zoo)
    built = make(model=zoo, plugin=mode)
    left = {n.op_type for n in fake.RECORDED["model"].graph.node if n.domain}
    present = {operator_of(n.op_type) for n in ir.operator_nodes(source)}
    assert left == (set() if mode == "native" else present & set(PLUGINS))
    if routing == "attention":
        assert {"UniformRouting", "PoseNormalization"} <= present - left
    session = capsedge.load(zoo)
    images = np.random.default_rng(2).random((2, *session.inputs[0].shape[1:]), dtype=np.float32)
    right = session.predict(images)
    for found, wanted in zip(capsedge.load(built.path).predict(images), right, strict=True):
        np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-3, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.usefixtures("plugin")
def test_models_without_an_operator_for_a_plugin(make: Any, tmp_path: Path) -> None:
    """Attention routing of one pass is a product a layer."""
    path = tmp_path / "uniform.onnx"
    export(network("attention"), path, ExportOptions(iterations=1))
    assert {operator_of(n.op_type) for n in ir.operator_nodes(onnx.load(path))} == {
        "UniformRouting",
        "PoseNormalization",
    }
    assert make(model=path, plugin="auto").engine_metadata.plugin == "native"
    with pytest.raises(UsageError, match="no operators for the plugin library"):
        make(model=path, plugin="fused")


def test_graphs_are_captured_once_a_batch(make: Any, gpu: Any) -> None:  # noqa: F811
    """And kept while others run, each with the context that it was captured from."""
    session = capsedge.load(make(batch=(1, 4, 4)).path)
    fake.RECORDED.clear()
    for _ in range(4):
        session.run(IMAGES[:2])
    assert fake.RECORDED == {"plain": 1, "captures": 1}
    for _ in range(3):
        session.run(IMAGES[:3])
    assert fake.RECORDED == {"plain": 2, "captures": 2, "contexts": 1}
    assert gpu.fake_count(3) == 2
    right = session.run(IMAGES[:3])["lengths"]
    np.testing.assert_array_equal(session.run(IMAGES[:2])["lengths"], right[:2])
    assert fake.RECORDED == {"plain": 2, "captures": 2, "contexts": 1}


def test_the_graphs_of_a_few_batches_are_kept(make: Any, gpu: Any) -> None:  # noqa: F811
    """The one that was used longest ago gives its context to another batch."""
    path = make(batch=(1, 8, 20)).path
    fake.RECORDED.clear()
    session = capsedge.load(path)
    images = np.random.default_rng(3).standard_normal((20, 1, 10, 10)).astype(np.float32)
    right = session.run(images)["lengths"]
    for _ in range(2):
        for batch in range(1, GRAPHS + 4):
            for _ in range(3):
                found = session.run(images[:batch])["lengths"]
                np.testing.assert_allclose(found, right[:batch], rtol=1e-4, atol=1e-6)
    assert gpu.fake_count(3) == fake.RECORDED["contexts"] == GRAPHS
    assert "undefined" not in fake.RECORDED


def no_graph_reason(session: capsedge.Session) -> str:
    backend = session.backend
    assert isinstance(backend, TensorRTBackend)
    return backend.no_graph_reason


def test_engines_that_cannot_be_captured_run_plainly(make: Any, model: Path, gpu: Any) -> None:  # noqa: F811
    path = make().path
    gpu.fake_set(1, 87, 1, ANY_AMOUNT)
    session = capsedge.load(path)
    wanted = capsedge.load(model).run(IMAGES[:1])
    for _ in range(5):
        found = session.run(IMAGES[:1])
        np.testing.assert_allclose(found["lengths"], wanted["lengths"], rtol=1e-4, atol=1e-6)
    assert "capturing" in no_graph_reason(session)
    assert fake.RECORDED["captures"] == 3


def test_garbage_collection_while_a_graph_is_captured(make: Any, gpu: Any) -> None:  # noqa: F811
    """It runs in any thread: what it frees on the GPU waits until the graph is there."""
    path = make().path
    session, doomed = capsedge.load(path), capsedge.load(path)
    garbage = [session.run_on_device({"images": on_gpu(gpu, IMAGES[:1])}), doomed]
    before = gpu.fake_count(0)
    fake.FAIL["capturing"] = garbage.clear
    del doomed
    session.run(IMAGES[:1])
    assert not garbage
    assert no_graph_reason(session) == ""
    assert gpu.fake_count(3) == 1
    assert gpu.fake_count(0) < before - 3
    del fake.FAIL["capturing"], session
    gc.collect()
    assert [gpu.fake_count(k) for k in range(5)] == [0, 0, 0, 0, 0]


def test_everything_is_freed(make: Any, gpu: Any) -> None:  # noqa: F811
    session = capsedge.load(make().path)
    for _ in range(3):
        session.run(IMAGES[:1])
    assert gpu.fake_count(0) > 0
    del session
    gc.collect()
    assert [gpu.fake_count(k) for k in range(5)] == [0, 0, 0, 0, 0]


def test_a_failed_run_leaves_nothing(make: Any, gpu: Any) -> None:  # noqa: F811
    session = capsedge.load(make().path)
    fake.FAIL["execute"] = True
    with pytest.raises(ArtefactError, match="could not run"):
        session.run(IMAGES[:1])
    assert [gpu.fake_count(k) for k in range(4)] == [0, 0, 0, 0]
    fake.FAIL.clear()
    assert session.run(IMAGES[:1])["lengths"].shape == (1, 3)


def test_what_tensorrt_refuses(make: Any, gpu: Any) -> None:  # noqa: F811
    """Whatever its bindings make of it, it is an error with a reason."""
    path = make().path
    session = capsedge.load(path)
    fake.FAIL["infer"] = "a dimension is negative"
    with pytest.raises(ArtefactError, match="could not infer its shapes") as refused:
        session.run(IMAGES[:1])
    assert refused.value.why == "a dimension is negative"
    fake.FAIL["host"] = True
    with pytest.raises(ArtefactError, match="cannot be run by capsedge") as foreign:
        capsedge.load(path)
    assert "is a shape" in foreign.value.why
    fake.FAIL["start"] = "CUDA initialization failure with error: 35"
    for attempt in (lambda: capsedge.load(path), make):
        with pytest.raises(EnvironmentProblem, match="does not start") as broken:
            attempt()
        assert broken.value.why == "CUDA initialization failure with error: 35"


def test_too_little_memory(make: Any, gpu: Any) -> None:  # noqa: F811
    path = make().path
    gpu.fake_set(1, 87, 0, 100)
    with pytest.raises(EnvironmentProblem, match="out of memory"):
        capsedge.load(path)
    assert [gpu.fake_count(k) for k in range(3)] == [0, 0, 0]


def test_threads_share_a_few_contexts(make: Any, model: Path, gpu: Any) -> None:  # noqa: F811
    """Many threads do not mean as many times the memory; those that find no context wait."""
    path = make(batch=(1, 2, 4)).path
    wanted = capsedge.load(model).run(IMAGES)["lengths"]
    fake.RECORDED.clear()
    session = capsedge.load(path, contexts=2)
    started = threading.Barrier(16)

    def work(k: int) -> bool:
        started.wait()
        found = session.run(IMAGES[k % 5 : k % 5 + 1])["lengths"]
        return np.allclose(found, wanted[k % 5 : k % 5 + 1], rtol=1e-4, atol=1e-6)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))
    assert 1 <= fake.RECORDED["contexts"] <= 2
    assert gpu.fake_count(2) <= 2
    with pytest.raises(UsageError, match="contexts 0"):
        capsedge.load(path, contexts=0)
    with pytest.raises(UsageError, match="Only TensorRT engines have contexts"):
        capsedge.load(model, contexts=2)


def test_wrong_batches(make: Any) -> None:
    session = capsedge.load(make(batch=(2, 2, 4)).path)
    with pytest.raises(ShapeError, match="built for 2 to 4"):
        session.run(IMAGES)
    assert len(session.predict(IMAGES[:1])) == 1  # filled up to two
    fixed = capsedge.load(make(batch=(2, 2, 2)).path)
    assert fixed.backend.batches.fixed == 2
    assert len(fixed.predict(IMAGES)) == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tensorrt": "10.13.3.9"}, "TensorRT is 10.3.0, the engine needs 10.13.3.9"),
        ({"compute_capability": "11.0"}, "compute capability is 8.7"),
        ({"gpu": "Thor"}, "GPU is Orin, the engine needs Thor"),
        ({"architecture": "riscv"}, "CPU architecture"),
        ({"cuda": "99.0"}, "the driver is for CUDA 13.0"),
    ],
)
def test_engines_of_other_machines_are_refused(
    make: Any, change: dict[str, str], words: str
) -> None:
    built = make()
    path = engine_metadata.metadata_path(built.path)
    stands = json.loads(path.read_text())
    stands["machine"] |= change
    path.write_text(json.dumps(stands))
    with pytest.raises(ArtefactError, match=words) as caught:
        capsedge.load(built.path)
    assert "capsedge build" in caught.value.fix


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.unlink(),
        lambda p: p.write_text("{}"),
        lambda p: p.write_text("[1]"),
        lambda p: p.write_text("{" * 100_000),
        lambda p: p.write_text(p.read_text().replace('"schema": 1', '"schema": 2')),
        lambda p: p.write_text(p.read_text().replace('"batch": [', '"batch": [0, ')),
        lambda p: p.write_text(p.read_text().replace('"metadata": {', '"metadata": 3, "x": {')),
        lambda p: p.write_text(p.read_text().replace('"machine": {', '"machine": {"more": 1, ')),
        *(
            lambda p, member=member, wrong=wrong: p.write_text(
                re.sub(rf'"{member}": ("[^"]*"|\[[^]]*\])', f'"{member}": {wrong}', p.read_text())
            )
            for member, wrong in (
                ("cuda", "13"),
                ("gpu", "null"),
                ("plugin_sha256", "1"),
                ("command", "[]"),
                ("capsedge.architecture", "1"),
                ("batch", "[1, 1, 1e400]"),
                ("batch", "[true, 1, 1]"),
                ("batch", "[1, 1, 2147483648]"),
            )
        ),
    ],
)
def test_damaged_metadata_is_refused(make: Any, damage: Any) -> None:
    path = make().path
    damage(engine_metadata.metadata_path(path))
    with pytest.raises(ArtefactError, match="metadata file"):
        capsedge.load(path)


def test_another_engine_under_the_name_is_refused(make: Any) -> None:
    path = make().path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArtefactError, match="not the engine"):
        capsedge.load(path)


def test_failures_of_tensorrt(make: Any, tmp_path: Path) -> None:
    target = tmp_path / "none.engine"
    for failure, words, error in (
        ({"parse": "No importer"}, "Einsum 'node_7': No importer", UnsupportedModelError),
        (
            {"build": "Could not find any implementation"},
            "any implementation",
            UnsupportedModelError,
        ),
        ({"build": "Requested amount of GPU memory"}, "--workspace 512M", EnvironmentProblem),
    ):
        fake.FAIL.clear()
        fake.FAIL.update(failure)
        with pytest.raises(error, match=words) as caught:
            make(target=target)
        assert isinstance(caught.value, CapsedgeError)
        assert not target.exists()


def test_another_precision_than_asked_for_is_an_error(make: Any, tmp_path: Path) -> None:
    fake.FAIL["layers"] = [
        {"LayerType": "conv", "Inputs": [{"Format/Datatype": "Row major linear FP16 format"}]}
    ]
    with pytest.raises(ParityError, match="FP16 was not requested"):
        make(target=tmp_path / "none.engine")
    assert not (tmp_path / "none.engine").exists()
    fake.FAIL.clear()
    with pytest.raises(UsageError, match="capsedge quantize"):
        make(precision="int8")


def test_plugin_library_that_tensorrt_refuses(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("capsedge.exporters.tensorrt.write_engine.find_plugin", lambda _: None)
    with pytest.raises(EnvironmentProblem, match="not installed"):
        make(plugin="fused")
    library = tmp_path / "plugin.so"
    library.write_bytes(b"x")
    monkeypatch.setattr("capsedge.exporters.tensorrt.write_engine.find_plugin", lambda _: library)
    fake.FAIL["load_library"] = "SymbolAddress for getCreators could not be loaded"
    with pytest.raises(ArtefactError, match="rejects the plugin library") as refused:
        make(plugin="fused")
    # And not what the registry says of plugins that are not in it.
    assert refused.value.why == "SymbolAddress for getCreators could not be loaded"


def test_timing_cache_is_kept(make: Any, tmp_path: Path) -> None:
    cache = tmp_path / "timings"
    make(timing_cache=cache)
    assert cache.read_bytes() == b"+"
    make(timing_cache=cache)
    assert cache.read_bytes() == b"++"


@pytest.mark.parametrize("content", [b"garbage", b"of another GPU"])
def test_a_timing_cache_that_does_not_fit_is_replaced(
    make: Any, tmp_path: Path, content: bytes
) -> None:
    """Refused by a null pointer or by False: built with an empty one, and said."""
    cache = tmp_path / "timings"
    cache.write_bytes(content)
    built = make(timing_cache=cache)
    assert "built without it" in built.warnings[0]
    assert cache.read_bytes() == b"+"
    assert not make(timing_cache=cache).warnings


@pytest.mark.parametrize("missing", ["get_timing_cache", "serialize"])
def test_no_timings_after_the_build(make: Any, tmp_path: Path, missing: str) -> None:
    cache = tmp_path / "timings"
    cache.write_bytes(b"+")
    fake.FAIL[missing] = True
    assert "no timings" in make(timing_cache=cache).warnings[0]
    assert cache.read_bytes() == b"+"  # the older ones stay


# What TensorRT's verbose log says of the layers of `quantized`, whatever the batch.
LOG = """Engine Layer Information:
Layer(CaskConvolution): conv, Tactic: 0x1, q[Int8(-1,16,8,8)] -> y[Float(-1,16,8,8)]"""


def test_engines_for_several_batches(make: Any) -> None:
    """The inspector tells formats for shapes only; those it gets are the best ones."""
    built = make(batch=(1, 2, 4))
    assert built.engine_metadata.layers["FP32"] > 0
    assert built.engine_metadata.products["FP32"] > 0


def test_types_that_the_inspector_does_not_tell(make: Any, model: Path, tmp_path: Path) -> None:
    """The log and the types of weights tell them; where nothing does, nothing is assumed."""
    fake.FAIL["inspector"] = True
    built = make(batch=(1, 2, 4))
    assert set(built.engine_metadata.layers) == {"FP32"}  # of the weights
    fake.FAIL["layers"] = [{"Name": "conv", "LayerType": "Convolution", "Inputs": [{}]}]
    with pytest.raises(ParityError, match="TensorRT does not report the types of 1 layers"):
        make(batch=(1, 2, 4), target=tmp_path / "none.engine")
    assert not (tmp_path / "none.engine").exists()
    fake.FAIL["log"] = LOG
    source = tmp_path / "quantized.onnx"
    source.write_bytes(quantized(np.int8(0)).SerializeToString())
    told = make(model=source, precision="int8", target=tmp_path / "int8.engine")
    assert told.engine_metadata.products == {"INT8": 1}


def test_profile_and_workspace(make: Any) -> None:
    make(batch=(1, 8, 32), workspace=1 << 30)
    assert fake.RECORDED["workspace"] == 1 << 30
    assert fake.RECORDED["profile"]["images"] == ((1, 1, 10, 10), (8, 1, 10, 10), (32, 1, 10, 10))
    make(batch=(4, 4, 4))
    assert "profile" not in fake.RECORDED  # everything is static


@pytest.mark.parametrize(
    "options",
    [
        {"batch": (2, 1, 4)}, {"batch": (0, 1, 1)}, {"plugin": "both"}, {"optimization_level": 6},
        {"workspace": 10}, {"precision": "fp64"},
    ],
)  # fmt: skip
def test_wrong_options(make: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        make(**options)


def test_no_gpu(make: Any, gpu: Any) -> None:  # noqa: F811
    gpu.fake_set(0, 87, 0, ANY_AMOUNT)
    with pytest.raises(EnvironmentProblem, match="cudaGetDeviceCount"):
        make()


def test_old_tensorrt(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "__version__", "8.6.1")
    with pytest.raises(EnvironmentProblem, match=r"8\.6\.1 is too old"):
        make()


@pytest.mark.parametrize("version", ["10.3.0", "11.4.0.106"])
def test_int8_is_read_back(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    """A file with Q/DQ becomes an INT8 engine, or none at all."""
    monkeypatch.setattr(fake, "__version__", version)
    source = tmp_path / "quantized.onnx"
    source.write_bytes(quantized(np.int8(0)).SerializeToString())
    built = make(model=source, precision="int8", target=tmp_path / "quantized.engine")
    assert built.engine_metadata.precision == "int8"
    assert built.engine_metadata.layers["INT8"] >= 1
    assert (
        built.engine_metadata.model is None
    )  # not a file of capsedge: it runs, it does not predict
    session = capsedge.load(built.path)
    image = np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(
        session.run(image)["y"], capsedge.load(source).run(image)["y"], rtol=1e-4, atol=1e-4
    )
    fake.FAIL["layers"] = [
        {"LayerType": "conv", "Inputs": [{"Format/Datatype": "Row major linear FP32"}]}
    ]
    with pytest.raises(ParityError, match="none with INT8"):
        make(model=source, precision="int8", target=tmp_path / "none.engine")
    assert not (tmp_path / "none.engine").exists()


@pytest.mark.parametrize("batch", [(1, 2, 4), (3, 3, 3)])
def test_an_engine_is_verified_against_its_source(
    model: Path, make: Any, batch: tuple[int, int, int]
) -> None:
    built = make(batch=batch)
    images = np.random.default_rng(2).random((5, 1, 10, 10), dtype=np.float32)
    data = built.path.with_suffix(".npz")
    np.savez(data, images=images)
    certificate = capsedge.verify(network("dynamic"), built.path, data=data)
    assert certificate.passed, certificate.failures
    kinds = [link.kind for link in certificate.chain]
    assert kinds == ["module", "onnx", "engine"]
    assert certificate.chain[1].sha256 == built.engine_metadata.source_sha256
    assert certificate.chain[2].facts["gpu"] == "Orin"
    other = capsedge.verify(network("dynamic", seed=1), built.path, data=data)
    assert not other.passed
    assert other.routing_errors is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError])
def test_interrupted_builds(model: Path, tmp_path: Path, gpu: Any, error: Any) -> None:  # noqa: F811
    """An interrupt stops TensorRT, is no exception inside of it, and leaves nothing."""

    def report(share: float, phase: str, left: float | None) -> None:
        if share > 0:
            raise error

    target = tmp_path / "interrupted.engine"
    with pytest.raises(error):
        build(model, target, BuildOptions(plugin="native"), report)
    assert not target.exists()
