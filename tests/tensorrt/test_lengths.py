"""Engines of files with a free length, over the stand-ins: built for a range of lengths, run at each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import capsedge
from capsedge.cli import app
from capsedge.cli.inspect import command as inspect_command
from capsedge.errors import ArtefactError, ShapeError, UnsupportedModelError, UsageError
from capsedge.exporters.build_options import BuildOptions
from capsedge.exporters.tensorrt import lowering
from capsedge.exporters.tensorrt.write_engine import BuildReport, write_engine
from capsedge.graph.fusion.free_axes import at_length
from capsedge.runtime.backends.backend import ProfiledBackend
from capsedge.runtime.backends.tensorrt_slots import GRAPHS
from capsedge.runtime.metadata.engine_metadata import metadata_path
from capsedge.runtime.metadata.table_indices import InputBounds, inputs_property
from capsedge.serving.inference import Model
from capsedge.serving.request_bodies import InferRequest, RequestInput
from capsedge.serving.served_models import SIZES, measure_size
from tests.tensorrt import fake
from tests.tensorrt.fixtures import cudart, gpu, on_gpu  # noqa: F401

LONGEST = 120


def history_file(path: Path, longest: int = LONGEST, names: tuple[str, str] = ("L", "L")) -> Path:
    """Outputs with and without the length of a history ``[N, L]`` and its weights ``[N, L]``."""
    inputs = [("hist", TensorProto.INT64, names[0]), ("weights", TensorProto.FLOAT, names[1])]
    nodes = [
        helper.make_node("Cast", ["hist"], ["items"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["items", "weights"], ["each"]),
        helper.make_node("ReduceSum", ["each", "one"], ["sum"], keepdims=0),
        helper.make_node("Concat", ["each", "weights"], ["both"], axis=1),
    ]
    outputs = {"sum": ["N"], "each": ["N", names[0]], "both": ["N", None]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kind, ["N", size]) for n, kind, size in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [helper.make_tensor("one", TensorProto.INT64, [1], [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    stated = {"hist": InputBounds(1000, (0, longest))} if longest else {}
    helper.set_model_props(model, inputs_property(stated))
    onnx.save(model, path)
    return path


def given(length: int, batch: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(length)
    weights = rng.random((batch, length), np.float32)
    return {"hist": rng.integers(0, 1000, (batch, length)), "weights": weights}


def wanted(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    each = feeds["hist"].astype(np.float32) * feeds["weights"]
    both = np.concatenate([each, feeds["weights"]], axis=1)
    return {"sum": each.sum(1), "each": each, "both": both}


def check(session: capsedge.Session, length: int, batch: int = 2) -> None:
    feeds = given(length, batch)
    found = session.run(feeds)
    for name, right in wanted(feeds).items():
        np.testing.assert_allclose(found[name], right, rtol=1e-5, err_msg=f"{name} of {length}")


@pytest.fixture
def load() -> Iterator[Callable[[Path], capsedge.Session]]:
    """Loads an engine and closes it in the end.

    One that is collected while the stand-in computes would wait for the stand-in.
    """
    with ExitStack() as opened:
        yield lambda path: opened.enter_context(capsedge.load(path))


@pytest.fixture
def make(tmp_path: Path, gpu: Any):  # noqa: F811
    def run(model: Path | None = None, **options: Any) -> BuildReport:
        source = history_file(tmp_path / "history.onnx") if model is None else model
        given = BuildOptions(**{"plugin": "native", "batch": (1, 2, 4), **options})
        return write_engine(source, tmp_path / "history.engine", given, lambda *row: None)

    return run


def test_every_length_of_the_profile(make: Any, load: Any) -> None:
    """Batch and length are free; by default to the longest that the file states."""
    built = make()
    assert built.engine_metadata.length == (1, LONGEST, LONGEST)
    assert fake.RECORDED["profile"]["hist"] == ((1, 1), (2, LONGEST), (4, LONGEST))
    assert "length 1 to 120" in repr(built)
    session = load(built.path)
    assert [p.shape for p in session.inputs] == [(None, "L"), (None, "L")]
    assert [p.shape for p in session.outputs] == [(None,), (None, "?"), (None, "?")]
    for _ in range(3):  # plain, captured, launched
        for length in (1, 7, 50, LONGEST):
            for batch in (1, 3, 4):
                check(session, length, batch)
    with pytest.raises(ShapeError, match="'hist' is too long for the network"):
        session.run(given(LONGEST + 1))
    assert "undefined" not in fake.RECORDED


def test_lengths_that_an_engine_was_not_built_for(make: Any, load: Any, tmp_path: Path) -> None:
    endless = history_file(tmp_path / "endless.onnx", 0)
    session = load(make(endless, length=(3, 5, 20)).path)
    check(session, 3)
    check(session, 20)
    for length in (2, 21):
        with pytest.raises(ShapeError, match=rf"A length of {length}\.") as refused:
            session.run(given(length))
        assert "was built for 3 to 20." in refused.value.why
        assert "`--length`" in refused.value.fix
    with pytest.raises(ShapeError, match="A batch of 5 images"):
        session.run(given(5, 5))
    feeds = given(5) | {"weights": given(6)["weights"]}
    with pytest.raises(ShapeError, match=r"L is 5 in .* and 6 in"):
        session.run(feeds)


def test_graphs_of_each_length_are_kept(make: Any, load: Any, gpu: Any) -> None:  # noqa: F811
    """Each with the context that it was captured from; the one used longest ago gives its context away."""
    path = make().path
    fake.RECORDED.clear()
    session = load(path)
    for _ in range(4):
        for length in (7, 50):
            check(session, length)
    assert fake.RECORDED == {"plain": 2, "captures": 2, "contexts": 2}
    for batch in (1, 2):
        check(session, 7, batch)
    assert fake.RECORDED == {"plain": 3, "captures": 2, "contexts": 3}
    for length in range(1, GRAPHS + 4):
        for _ in range(3):
            check(session, length)
    assert gpu.fake_count(3) == fake.RECORDED["contexts"] == GRAPHS
    assert "undefined" not in fake.RECORDED


def test_arrays_on_the_gpu(make: Any, load: Any, gpu: Any) -> None:  # noqa: F811
    session = load(make().path)
    for length in (7, 50, 7):
        feeds = given(length)
        arrays = {name: on_gpu(gpu, x) for name, x in feeds.items()}
        each = on_gpu(gpu, np.zeros((2, length), np.float32))
        found = session.run_on_device(arrays, out={"each": each})
        np.testing.assert_allclose(each.values, wanted(feeds)["each"], rtol=1e-5)
        assert found["both"].shape == (2, 2 * length)
    arrays = {name: on_gpu(gpu, x) for name, x in given(8).items()}
    with pytest.raises(ShapeError, match=r"'each' is float32 \[2, 7\].") as refused:
        session.run_on_device(arrays, out={"each": on_gpu(gpu, np.zeros((2, 7), np.float32))})
    assert refused.value.why == "Expected: float32 [2, 8]."
    with pytest.raises(ShapeError, match="A length of 121"):
        session.run_on_device({name: on_gpu(gpu, x) for name, x in given(121).items()})
    uneven = given(8) | {"weights": given(9)["weights"]}
    with pytest.raises(ShapeError, match="A length of 8 and 9"):
        session.run_on_device({name: on_gpu(gpu, x) for name, x in uneven.items()})
    check(session, 8)


def test_a_fixed_length(make: Any, load: Any) -> None:
    built = make(length=50, batch=2)
    assert "profile" not in fake.RECORDED
    assert built.engine_metadata.length == (50, 50, 50)
    session = load(built.path)
    assert [p.shape for p in session.outputs] == [(2,), (2, 50), (2, 100)]
    check(session, 50)
    with pytest.raises(ShapeError, match=r"Expected: \[2, 50\]"):
        session.run(given(49))


def test_only_the_length_is_free(make: Any, load: Any) -> None:
    session = load(make(batch=2, length=(1, 50, 60)).path)
    for length in (1, 50, 60):
        check(session, length)
    assert fake.RECORDED["profile"]["weights"] == ((2, 1), (2, 50), (2, 60))


def test_how_it_is_built_again(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(length=(1, 50, 60)).path
    stated = capsedge.inspect(path).engine_metadata
    assert stated.rebuild.endswith("--batch 1:2:4 --length 1:50:60")
    assert "--length 1:50:60" in stated.command
    inspect_command(path, batch="1")
    assert "1 to 60, best 50" in capsys.readouterr().out


def test_an_engine_whose_metadata_states_no_length(make: Any, load: Any) -> None:
    path = make().path
    stands = json.loads(metadata_path(path).read_text())
    for length, words in (([], "only the batch size may vary"), ([1, 5], r"length \[1, 5\]")):
        metadata_path(path).write_text(json.dumps({**stands, "length": length}))
        with pytest.raises(ArtefactError, match=words):
            load(path)


def test_profiles(make: Any, load: Any) -> None:
    backend = load(make().path).backend
    assert isinstance(backend, ProfiledBackend)
    with backend.profiled_runs(given(7)) as runs:
        runs.plain()
        runs.profiled()
        (layers,) = runs.finish().runs
    assert layers


def test_lengths_that_cannot_be_built(make: Any, tmp_path: Path) -> None:
    endless = history_file(tmp_path / "endless.onnx", 0)
    with pytest.raises(UsageError, match="'hist' has a free length without a maximum") as refused:
        make(endless)
    assert "--length 1:50:200" in refused.value.fix
    with pytest.raises(UsageError, match="length 121 is too long for the network") as refused:
        make(length=(1, 50, 121))
    assert "--length 1:50:120" in refused.value.fix
    two = history_file(tmp_path / "two.onnx", names=("L", "L2"))
    with pytest.raises(UnsupportedModelError, match="several free sizes") as unsupported:
        make(two)
    assert "L, L2" in unsupported.value.why
    fixed = onnx.load(history_file(tmp_path / "fixed.onnx"))
    with pytest.raises(UsageError, match="no free length"):
        lowering.choose_length(at_length(fixed, 5), (1, 5, 5))
    for length in ((2, 1, 4), (0, 1, 1), (1, 1, 2**31)):
        with pytest.raises(UsageError, match="Invalid length"):
            BuildOptions(length=length)
    with pytest.raises(UsageError, match="--length does not apply to --target c"):
        BuildOptions(target="c", length=5)


def test_infer(make: Any, tmp_path: Path) -> None:
    """In runs of the engine's batch; a length that it was not built for is named."""
    engine = make(length=(1, 5, 20)).path
    for length in (7, 21):
        np.savez(tmp_path / f"{length}.npz", **given(length, 6))
    words = ("infer", "-m", str(engine), "--inputs")
    done = CliRunner().invoke(app, [*words, str(tmp_path / "7.npz"), "-o", str(tmp_path / "o.npz")])
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "o.npz") as found:
        for name, right in wanted(given(7, 6)).items():
            np.testing.assert_allclose(found[name], right, rtol=1e-5)
    refused = CliRunner().invoke(app, [*words, str(tmp_path / "21.npz")])
    assert "A length of 21." in str(refused.exception)


def test_server(make: Any, load: Any) -> None:
    session = load(make(length=(1, 5, 20)).path)
    assert measure_size(session).images in SIZES
    model = Model(session, "histories", "", 1, 4, 0.0)

    def ask(length: int) -> Any:
        feeds = given(length)
        kinds = {"hist": "INT64", "weights": "FP32"}
        inputs = [RequestInput(name, kinds[name], list(x.shape), x) for name, x in feeds.items()]
        return asyncio.run(model.infer(InferRequest(inputs, []))).outputs

    for length in (1, 20):
        np.testing.assert_allclose(ask(length)["each"], wanted(given(length))["each"], rtol=1e-5)
    with pytest.raises(UsageError, match=r"A length of 21\."):
        ask(21)


@pytest.mark.thorough
def test_verify(make: Any, tmp_path: Path) -> None:
    """An engine against PyTorch, at a length that it takes."""
    torch = pytest.importorskip("torch")
    from tests.graph.fusion.histories import AnyLength, histories

    module = AnyLength(each=True, placed=True).eval()
    path = tmp_path / "interests.onnx"
    capsedge.export(module, path, example=histories(4, 9), free_axes={"history": [1]})
    built = make(path, length=(1, 7, 20))
    assert built.engine_metadata.length == (1, 7, 20)
    assert capsedge.verify(module, built.path).passed
    with torch.no_grad(), capsedge.load(built.path) as session:
        for length in (1, 20):
            right = module(histories(3, length)).numpy()
            found = session.run(histories(3, length).numpy())["output"]
            np.testing.assert_allclose(found, right, atol=2e-6, rtol=1e-4)
