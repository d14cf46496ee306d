"""Convolutions of large windows in tiles: results of ONNX Runtime, and only where tiles gain and fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from capsedge.errors import UsageError
from capsedge.exporters.c import fast_conv
from capsedge.exporters.c.fast_conv import fast_form, pack_transformed, weight_matrix
from capsedge.exporters.c.folder import origin_of
from capsedge.exporters.c.write_c import generate_c_folder, write_c
from tests.exporters.c.compiled import Compiled
from tests.exporters.c.sanitized import Case, extreme_inputs, run_sanitized

# Channels in and out, window, strides, image, pads.
Size = tuple[int, int, tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, ...]]
SIZES: dict[str, Size] = {
    "5x5": (4, 20, (5, 5), (1, 1), (9, 8), (2, 2, 2, 2)),
    "5x5 of stride 2": (12, 12, (5, 5), (2, 2), (13, 13), (2, 1, 0, 2)),
    "6x6 of stride 2": (3, 5, (6, 6), (2, 2), (17, 18), (0, 1, 2, 2)),
    "7x7": (8, 9, (7, 7), (1, 1), (14, 13), (1, 2, 3, 0)),
    "8x8 of stride 2": (6, 40, (8, 8), (2, 2), (19, 20), (1, 0, 0, 1)),
    "9x9": (1, 33, (9, 9), (1, 1), (16, 15), (0, 0, 0, 0)),
    "9x9 of stride 2": (16, 16, (9, 9), (2, 2), (20, 20), (0, 0, 0, 0)),
    "9x5 of strides 2 and 1": (5, 17, (9, 5), (2, 1), (12, 11), (4, 0, 4, 0)),
    "11x11": (2, 3, (11, 11), (1, 1), (15, 13), (5, 5, 5, 5)),
    "one tile": (7, 6, (5, 5), (1, 1), (6, 6), (0, 0, 0, 0)),
}


def _model(size: Size, relu: bool = False, **attributes: Any) -> onnx.ModelProto:
    inside, outputs, kernel, strides, image, pads = size
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((outputs, inside, *kernel)) / np.sqrt(inside * np.prod(kernel))
    given = {"strides": strides, "pads": pads, **attributes}
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", **given)]
    nodes.append(helper.make_node("Relu" if relu else "Neg", ["c"], ["y"]))
    stored = {"w": weight, "b": rng.standard_normal(outputs)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, inside, *image])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _layers(model: onnx.ModelProto, **given: Any) -> list[dict[str, Any]]:
    layers: list[dict[str, Any]] = generate_c_folder(
        model.SerializeToString(), Path("m.onnx"), "net", **given
    )[1]["layers"]
    return layers


SMALL: Size = (12, 16, (5, 5), (1, 1), (12, 12), (0, 0, 0, 0))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles for networks that are small enough for a test."""
    monkeypatch.setattr(fast_conv, "LEAST_GAIN", 0)


# --- The form ---


@pytest.mark.parametrize("points", [3, 4, 5, 6])
def test_products_of_points_give_a_convolution(points: int) -> None:
    """With the inverse of the points' powers, which the kernel applies to inputs, in exact steps."""
    taps = points - 1
    finite = np.array(fast_conv.POINTS[: points - 1])
    # A polynomial at the points and infinity; inputs take the transpose's inverse.
    powers = np.vstack([finite[:, None] ** np.arange(points), np.eye(points)[-1]])
    scale = [*(np.prod(p - np.delete(finite, k)) for k, p in enumerate(finite)), 1.0]
    inputs = np.diag(scale) @ np.linalg.inv(powers).T
    outputs = np.vstack([np.append(finite**k, float(k == 1)) for k in range(2)])
    x, g = np.random.default_rng(points).standard_normal((2, points))
    found = outputs @ ((weight_matrix(points) @ g[:taps]) * (inputs @ x))
    np.testing.assert_allclose(found, np.correlate(x, g[:taps]), atol=1e-12)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("most", [3, 4, 5])
def test_pieces_are_every_tap_once(size: Size, equal: bool, most: int) -> None:
    kernel, strides = size[2:4]
    counted = np.zeros(kernel, int)
    for each in fast_conv._passes(kernel, strides, most, equal):
        assert len({(a.points, b.points) for a, b in each.pieces}) == 1
        for piece in each.pieces:
            assert all(1 <= taps.count < taps.points <= 6 for taps in piece)
            rows, columns = (
                slice(t.start, t.start + step * t.count, step)
                for t, step in zip(piece, strides, strict=True)
            )
            counted[rows, columns] += 1
    assert (counted == 1).all()


@pytest.mark.parametrize("tiles", range(1, 40))
def test_few_places_of_the_groups_stay_empty(tiles: int) -> None:
    groups = fast_conv._groups(tiles)
    assert set(groups) <= {3, 4}
    assert sum(groups) - tiles == (3 - tiles if tiles < 3 else int(tiles == 5))


def test_large_windows_of_many_channels_are_in_tiles() -> None:
    capsnet = fast_form(256, 256, (9, 9), (2, 2), (6, 6))
    assert capsnet is not None
    assert [p.points for p in capsnet.passes] == [(6, 6), (6, 5), (5, 6), (5, 5)]
    assert capsnet.cost < 0.4 * 81 * 256 * 256 * 36
    weight = np.zeros((20, 3, 9, 9), np.float32)
    assert pack_transformed(weight, (2, 2), capsnet).size == 121 * 3 * 24


@pytest.mark.parametrize(
    "given",
    [
        (256, 256, (3, 3), (1, 1), (20, 20)),
        (256, 256, (9, 17), (1, 1), (20, 20)),
        (256, 256, (9, 9), (3, 3), (20, 20)),
        (256, 256, (9, 9), (1, 1), (1, 1)),
        (1, 256, (9, 9), (1, 1), (20, 20)),
        (2048, 2048, (9, 9), (2, 2), (6, 6)),
    ],
    ids=[
        "small window",
        "large window",
        "stride 3",
        "one output",
        "one channel",
        "too many weights",
    ],
)
def test_others_stay_direct(given: tuple[Any, ...]) -> None:
    assert fast_form(*given) is None


@pytest.mark.usefixtures("always")
def test_groups_and_dilation_stay_direct() -> None:
    grouped: Size = (12, 1, *SMALL[2:])
    layers = [_layers(m)[0]["operator"] for m in (_model(SMALL), _model(SMALL, dilations=[2, 2]))]
    assert layers == ["FastConv", "Conv"]
    model = _model(grouped)
    weight = np.ones((12, 1, 5, 5), np.float32)
    for tensor, array in zip(model.graph.initializer, (weight, weight[:, 0, 0, 0]), strict=True):
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    model.graph.node[0].attribute.append(helper.make_attribute("group", 12))
    assert _layers(model)[0]["operator"] == "Conv"


# --- What fits ---


def _needs(model: onnx.ModelProto, folder: Path, fit: dict[str, int]) -> dict[str, int]:
    """Bytes of flash and RAM, of the folder that is written."""
    onnx.save(model, folder.with_suffix(".onnx"))
    memory = write_c(folder.with_suffix(".onnx"), folder, name="net", fit=fit).description["memory"]
    return {
        "flash": memory["constant_bytes"] + memory["code_bound"],
        "ram": memory["arena_bytes"] + memory["input_bytes"] + memory["output_bytes"],
    }


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["flash", "ram"])
def test_what_does_not_fit_is_direct(kind: str, tmp_path: Path) -> None:
    model = _model(SMALL)
    fast = _needs(model, tmp_path / "fast", {})
    assert _needs(model, tmp_path / "same", {kind: fast[kind]}) == fast
    direct = _needs(model, tmp_path / "direct", {kind: fast[kind] - 1})
    assert direct[kind] < fast[kind]
    with pytest.raises(UsageError, match="does not fit"):
        _needs(model, tmp_path / "none", {kind: direct[kind] - 1})
    assert origin_of(tmp_path / "direct").fit == {kind: fast[kind] - 1}


@pytest.mark.usefixtures("always")
def test_what_saves_most_is_in_tiles_where_not_all_fits() -> None:
    model = _model(SMALL)
    weight = np.random.default_rng(1).standard_normal((12, 16, 5, 5)).astype(np.float32)
    model.graph.node.append(helper.make_node("Conv", ["y", "v"], ["z"], name="smaller"))
    model.graph.initializer.append(numpy_helper.from_array(weight, "v"))
    model.graph.output[0].name = "z"

    def forms(**given: Any) -> list[str]:
        operators = [row["operator"] for row in _layers(model, **given)]
        return [name for name in operators if "Conv" in name]

    memory = generate_c_folder(model.SerializeToString(), Path("m.onnx"), "net")[1]["memory"]
    flash = memory["constant_bytes"] + memory["code_bound"]
    assert forms() == forms(fit={"flash": flash}) == ["FastConv", "FastConv"]
    assert forms(fit={"flash": flash - 1}) == ["FastConv", "Conv"]


# --- The results ---


def _compared(names: Sequence[str], tmp_path: Path, flags: Sequence[str]) -> None:
    for name in names:
        model, path = _model(SIZES[name], relu="stride" in name), tmp_path / f"{len(name)}.onnx"
        onnx.save(model, path)
        shape = [1, SIZES[name][0], *SIZES[name][4]]
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        want = ort.InferenceSession(path).run(None, {"x": x})[0]
        net = Compiled(path, path.with_suffix(""))
        assert net.description["layers"][0]["operator"] == "FastConv"
        found = net.run(x)["y"]
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5, err_msg=name)
        for flag in flags:
            net.again(flag)
            assert np.array_equal(net.run(x)["y"], found), (name, flag)


@pytest.mark.usefixtures("always")
def test_results_are_those_of_the_file(tmp_path: Path) -> None:
    _compared(["6x6 of stride 2"], tmp_path, ())


@pytest.mark.thorough
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", SIZES)
def test_vectors_give_the_same_bits(name: str, tmp_path: Path) -> None:
    _compared([name], tmp_path, ("-DCAPS_PORTABLE", "-march=native"))


@pytest.mark.thorough
@pytest.mark.usefixtures("always")
def test_nothing_is_undefined(tmp_path: Path) -> None:
    cases = []
    for number, size in enumerate(SIZES.values()):
        data = _model(size).SerializeToString()
        files, description = generate_c_folder(data, Path("m.onnx"), f"n{number}")
        cases.append(Case(files, description, extreme_inputs((1, size[0], *size[4]))))
    for flags in (["-O0"], ["-O0", "-DCAPS_PORTABLE"]):
        assert run_sanitized(cases, tmp_path / flags[-1], flags) == ""
