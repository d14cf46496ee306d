"""INT8 products are exact, also where ONNX Runtime's own kernels saturate: x86 without VNNI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from capsedge.runtime import machine  # noqa: E402
from capsedge.runtime.backends import onnxruntime_session  # noqa: E402
from capsedge.runtime.load import load_bytes  # noqa: E402
from tests.native import libcapsedge  # noqa: E402

KEY = "saturates_products_of_bytes"
CHANNELS, SIDE = 16, 6


def _initializers(shared: bool) -> tuple[list[Any], list[str]]:
    """Weights whose products with bright pixels do not fit 16 bits in pairs, for two convolutions."""
    rng = np.random.default_rng(0)
    made = {"xs": np.float32(0.01), "xz": np.uint8(3), "ms": np.float32(9), "mz": np.uint8(0)}
    for k in range(1 if shared else 2):
        made[f"w{k}"] = rng.integers(90, 127, (CHANNELS, CHANNELS, 1, 1)).astype(np.int8)
        made[f"ws{k}"] = np.full(CHANNELS, 0.1, np.float32)
        made[f"wz{k}"] = np.zeros(CHANNELS, np.int8)
    names = ["0", "0"] if shared else ["0", "1"]
    return [numpy_helper.from_array(np.asarray(v), k) for k, v in made.items()], names


def _model(form: str, shared: bool) -> bytes:
    """Two convolutions one after another, as QLinearConv or between QuantizeLinear and DequantizeLinear."""
    initializers, names = _initializers(shared)
    nodes = [helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q0"])]
    scales = [("xs", "xz"), ("ms", "mz"), ("ms", "mz")]
    for k, n in enumerate(names):
        weight = [f"w{n}", f"ws{n}", f"wz{n}"]
        before, after = scales[k], scales[k + 1]
        if form == "operators":
            inputs = [f"q{k}", *before, *weight, *after]
            nodes.append(helper.make_node("QLinearConv", inputs, [f"q{k + 1}"]))
            continue
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{k}", *before], [f"d{k}"]),
            helper.make_node("DequantizeLinear", weight, [f"dw{k}"], axis=0),
            helper.make_node("Conv", [f"d{k}", f"dw{k}"], [f"c{k}"]),
            helper.make_node("QuantizeLinear", [f"c{k}", *after], [f"q{k + 1}"]),
        ]
    nodes.append(helper.make_node("DequantizeLinear", ["q2", "ms", "mz"], ["y"]))
    shape = ["N", CHANNELS, SIDE, SIDE]
    graph = helper.make_graph(
        nodes,
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        initializers,
    )
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString())


def _exact(x: np.ndarray, shared: bool) -> np.ndarray:
    """The same in integers, rounded half to even after each convolution."""
    values = {t.name: numpy_helper.to_array(t) for t in _initializers(shared)[0]}
    q = np.clip(np.rint(x / values["xs"]) + 3, 0, 255).astype(np.int64) - 3
    step = float(values["xs"])
    for name in ("0", "0") if shared else ("0", "1"):
        weight = values[f"w{name}"][:, :, 0, 0].astype(np.int64)
        sums = np.einsum("oc,nchw->nohw", weight, q) * step * 0.1
        q, step = np.clip(np.rint(sums / 9), 0, 255).astype(np.int64), 9.0
    return (q * 9).astype(np.float32)


def _images() -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.uniform(1.5, 2.5, (2, CHANNELS, SIDE, SIDE)).astype(np.float32)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("form", ["operators", "pairs"])
@pytest.mark.parametrize("asked", [False, True])
def test_products_are_exact(
    form: str, shared: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if asked:  # also on a processor that need not be
        monkeypatch.setattr(onnxruntime_session, KEY, lambda: True)
    x = _images()
    if form == "operators" and shared and onnxruntime_session.saturates_products_of_bytes():
        with pytest.raises(onnxruntime_session.ArtefactError, match="exactly here"):
            load_bytes(_model(form, shared))
        return
    found = load_bytes(_model(form, shared)).run(x)["y"]
    np.testing.assert_allclose(found, _exact(x, shared), atol=9)  # a step: ties
    assert np.abs(found - _exact(x, shared)).mean() < 0.2


@pytest.mark.skipif(libcapsedge.library_path() is None, reason="libcapsedge is not built")
@pytest.mark.parametrize("shared", [False, True])
def test_the_c_library_gives_the_same(shared: bool, tmp_path: Path) -> None:
    path = tmp_path / "bytes.onnx"
    path.write_bytes(_model("pairs", shared))
    found = libcapsedge.Session(path).run({"x": _images()})["y"]
    np.testing.assert_array_equal(found, load_bytes(_model("pairs", shared)).run(_images())["y"])


@pytest.mark.parametrize(
    ("processor", "flags", "levels", "saturates"),
    [
        ("x86_64", "fma avx2", "", True),
        ("x86_64", "avx2 avx512f avx512bw", "", True),
        ("x86_64", "avx2 avx512f avx512_vnni", "", False),
        ("x86_64", "avx2 avx_vnni", "", False),
        ("x86_64", "", "", True),  # unknown: right before fast
        ("aarch64", "", "", False),
        # Where the system does not say it, the operator library does.
        ("AMD64", "", "plain avx2", True),
        ("AMD64", "", "plain avx2 avx512 avx512vnni", False),
        ("arm64", "", "plain neon", False),
    ],
)
def test_which_processors_saturate(
    processor: str, flags: str, levels: str, saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "simd_levels", levels.split)
    monkeypatch.setattr(machine.platform, "machine", lambda: processor)
    monkeypatch.setattr(machine, "_cpuinfo", lambda _: flags)
    assert machine.saturates_products_of_bytes() is saturates
