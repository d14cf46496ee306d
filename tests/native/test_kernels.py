"""The kernels through their C interface: levels, sentences for mistakes, numbers no case reaches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.conformance import oracle
from tests.tables import table

from .library import (
    Array,
    NativeError,
    Operator,
    compute,
    levels,
    load,
    output_shapes,
    unwritten,
)

pytestmark = pytest.mark.skipif(
    load() is None, reason="the native library is not built: pip install -e . with a C++ compiler"
)


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


SQUASH = ("Squash", {"axis": -1, "epsilon": 1e-8}, [zeros(2, 8)])
DYNAMIC = (
    "DynamicRouting",
    {"iterations": 3, "leaky": 0, "epsilon": 1e-8},
    [zeros(2, 6, 8), zeros(6, 3, 4, 8), zeros(6, 3), zeros(3, 4)],
)
PLAIN = {
    "iterations": 3, "leaky": 0, "over_children": 0, "replace": 0, "normalize": 0, "elementwise": 0,
    "agreement_scale": 1.0, "epsilon": 1e-8,
}  # fmt: skip
CONSTANT = (
    "DynamicRouting",
    PLAIN,
    [zeros(2, 6, 8), zeros(1, 3, 4, 8), zeros(6, 3), zeros(3, 4), zeros(6, 3, 4)],
)
MASKED = (
    "DynamicRouting",
    PLAIN,
    [
        zeros(2, 6, 8), zeros(6, 3, 4, 8), zeros(6, 3), zeros(3, 4), zeros(1, 3, 4),
        zeros(2, 6, 3), zeros(2, 6),
    ],
)  # fmt: skip
VOTES = ("VoteRouting", PLAIN, [zeros(2, 6, 3, 4), zeros(6, 3), zeros(3, 4)])
EM = (
    "EMRouting",
    {
        "iterations": 2,
        "strides": (1, 1),
        "inverse_temperatures": (0.1, 0.2),
        "coordinate_addition": 0,
        "shared": 0,
        "epsilon": 1e-6,
    },
    [zeros(2, 4, 4, 2, 16), zeros(2, 4, 4, 2), zeros(3, 3, 2, 5, 4, 4), zeros(5), zeros(5)],
)
ATTENTION = (
    "AttentionRouting",
    {"strides": (1, 1), "matrix_pose": 1, "agreement_scale": 0.25, "epsilon": 1e-5},
    [zeros(2, 4, 4, 2, 16), zeros(2, 2, 2, 5, 16), zeros(3, 3, 2, 5, 4, 4), zeros(16), zeros(16)],
)
UNIFORM = (
    "UniformRouting",
    {"strides": (1, 1), "matrix_pose": 1, "epsilon": 1e-5},
    [zeros(2, 4, 4, 2, 16), zeros(3, 3, 2, 5, 4, 4), zeros(16), zeros(16)],
)
NORMALIZATION = ("PoseNormalization", {"epsilon": 1e-5}, [zeros(2, 3, 16), zeros(16), zeros(16)])

FAST = (
    "FastConv",
    {"strides": (2, 1), "pads": (1, 0, 2, 4)},
    [zeros(2, 3, 9, 8), zeros(4, 3, 5, 5), zeros(4)],
)


def test_the_fastest_level_is_the_default() -> None:
    assert levels()[0] == "plain"
    assert Operator(*SQUASH[:2]).level == levels()[-1]


@pytest.mark.parametrize("level", levels())
def test_a_level_can_be_forced(level: str) -> None:
    assert Operator(*SQUASH[:2], level=level).level == level


def test_a_level_that_is_not_there_is_named() -> None:
    with pytest.raises(NativeError, match=r"CAPSEDGE_SIMD is 'mmx', but this machine runs plain"):
        Operator(*SQUASH[:2], level="mmx")


@pytest.mark.parametrize(
    ("operator", "change", "message"),
    [
        (
            SQUASH,
            {"epsilon": 0.0},
            r"Squash: attribute 'epsilon' is 0\.0+: wanted a number above zero",
        ),
        (
            DYNAMIC,
            {"iterations": 0},
            r"DynamicRouting: attribute 'iterations' is 0: wanted 1 to 100",
        ),
        (DYNAMIC, {"leaky": 2}, r"DynamicRouting: attribute 'leaky' is 2: wanted 0 or 1"),
        (DYNAMIC, {"iterations": (1, 2)}, r"attribute 'iterations' has 2 values: wanted one"),
        (
            DYNAMIC,
            {"over_children": 2},
            r"DynamicRouting: attribute 'over_children' is 2: wanted 0",
        ),
        (
            DYNAMIC,
            {"leaky": 1, "over_children": 1},
            r"'leaky' and 'over_children' exclude each other",
        ),
        (VOTES, {"iterations": 0}, r"VoteRouting: attribute 'iterations' is 0: wanted 1 to 100"),
        (EM, {"iterations": 3}, r"'iterations' is 3, but there are 2 inverse temperatures"),
        (EM, {"inverse_temperatures": ()}, r"'inverse_temperatures' is missing or empty"),
        (
            EM,
            {"strides": (0, 1)},
            r"EMRouting: attribute 'strides' is \[0, 1\]: wanted 2 numbers",
        ),
        (EM, {"strides": (1, 1, 1)}, r"attribute 'strides' is \[1, 1, 1\]: wanted 2 numbers"),
        (ATTENTION, {"matrix_pose": -1}, r"attribute 'matrix_pose' is -1: wanted 0 or 1"),
        (UNIFORM, {"strides": (2, 0)}, r"UniformRouting: attribute 'strides' is \[2, 0\]"),
        (NORMALIZATION, {"epsilon": 0.0}, r"PoseNormalization: attribute 'epsilon' is 0\.0+"),
        (FAST, {"pads": (0, -1, 0, 0)}, r"attribute 'pads' is \[0, -1, 0, 0\]: wanted 4 numbers"),
        (ATTENTION, {"agreement_scale": None}, r"attribute 'agreement_scale' is missing"),
        (
            ATTENTION,
            {"epsilon": float("nan")},
            r"attribute 'epsilon' is nan: wanted a number above",
        ),
    ],
)
def test_wrong_attributes_are_named(
    operator: tuple[str, dict[str, Any], list[Array]], change: dict[str, Any], message: str
) -> None:
    attributes = {k: v for k, v in {**operator[1], **change}.items() if v is not None}
    with pytest.raises(NativeError, match=message):
        Operator(operator[0], attributes)


@pytest.mark.parametrize(
    ("operator", "index", "shape", "message"),
    [
        (DYNAMIC, 0, (2, 6), r"input 'u' has shape \[2, 6\]: wanted \[N, I, Pin\]"),
        (DYNAMIC, 1, (5, 3, 4, 8), r"'weight' has shape \[5, 3, 4, 8\]: wanted \[6, J, Pout, 8\]"),
        (DYNAMIC, 2, (6, 4), r"input 'log_prior' has shape \[6, 4\]: wanted \[6, 3\]"),
        (DYNAMIC, 3, (4, 3), r"input 'bias' has shape \[4, 3\]: wanted \[3, 4\]"),
        (DYNAMIC, 1, (6, 0, 4, 8), r"'weight' has shape \[6, 0, 4, 8\]: wanted \[6, J, Pout, 8\]"),
        (CONSTANT, 1, (2, 3, 4, 8), r"'weight' has shape \[2, 3, 4, 8\]: wanted \[6, J, Pout, 8\]"),
        (CONSTANT, 4, (2, 3, 4), r"'vote_bias' has shape \[2, 3, 4\]: wanted \[6, 3, 4\]"),
        (VOTES, 0, (2, 6, 3), r"'votes' has shape \[2, 6, 3\]: wanted \[N, I, J, P\]"),
        (MASKED, 5, (3, 6, 3), r"'image_prior' has shape \[3, 6, 3\]: wanted \[2, 6, 3\]"),
        (MASKED, 6, (2, 5), r"input 'mask' has shape \[2, 5\]: wanted \[2, 6\]"),
        (VOTES, 1, (6, 4), r"'log_prior' has shape \[6, 4\]: wanted \[6, 3\]"),
        (EM, 0, (2, 4, 4, 2, 15), r"EMRouting: pose size 15 is not a square number"),
        (EM, 1, (2, 4, 4, 3), r"input 'a' has shape \[2, 4, 4, 3\]: wanted \[2, 4, 4, 2\]"),
        (EM, 2, (5, 3, 2, 5, 4, 4), r"the window of 5x3 is larger than the grid of 4x4"),
        (EM, 3, (6,), r"input 'beta_u' has shape \[6\]: wanted \[5\]"),
        (ATTENTION, 1, (2, 3, 2, 5, 16), r"'parent' has shape .*: wanted \[2, 2, 2, 5, 16\]"),
        (ATTENTION, 3, (15,), r"input 'scale' has shape \[15\]: wanted \[16\]"),
        (UNIFORM, 1, (3, 3, 3, 5, 4, 4), r"'weight' has shape .*: wanted \[Kh, Kw, 2, M, K, L\]"),
        (UNIFORM, 1, (5, 3, 2, 5, 4, 4), r"the window of 5x3 is larger than the grid of 4x4"),
        (UNIFORM, 3, (5,), r"UniformRouting: input 'bias' has shape \[5\]: wanted \[16\]"),
        (NORMALIZATION, 0, (), r"PoseNormalization: input 'x' has shape \[\]: wanted \[..., P\]"),
        (NORMALIZATION, 1, (3,), r"input 'scale' has shape \[3\]: wanted \[16\]"),
        (FAST, 0, (2, 4, 9, 8), r"'weight' has shape \[4, 3, 5, 5\]: wanted \[M, 4, Kh, Kw\]"),
        (FAST, 1, (4, 3, 13, 5), r"FastConv: the window of 13x5 is larger than the grid of 12x12"),
        (FAST, 1, (4, 3, 5, 4), r"'pads' is \[1, 0, 2, 4\] with windows .*: wanted less than"),
        (FAST, 2, (3,), r"FastConv: input 'bias' has shape \[3\]: wanted \[4\]"),
    ],
)
def test_wrong_shapes_are_named(
    operator: tuple[str, dict[str, Any], list[Array]],
    index: int,
    shape: tuple[int, ...],
    message: str,
) -> None:
    name, attributes, inputs = operator
    wrong = [zeros(*shape) if i == index else x for i, x in enumerate(inputs)]
    with pytest.raises(NativeError, match=message):
        Operator(name, attributes).run(wrong, [zeros(1)])


@pytest.mark.parametrize(
    ("operator", "index", "message"),
    [
        (SQUASH, 0, "Squash: input 'x' is neither float nor float16"),
        (NORMALIZATION, 0, "PoseNormalization: input 'x' is neither float nor float16"),
        (DYNAMIC, 1, "input 'weight' is neither float nor float16"),
        (EM, 2, "input 'weight' is neither float nor float16"),
        (UNIFORM, 1, "input 'weight' is neither float nor float16"),
        (FAST, 1, "input 'weight' is neither float nor float16"),
    ],
)
def test_wrong_types_are_named(
    operator: tuple[str, dict[str, Any], list[Array]], index: int, message: str
) -> None:
    name, attributes, inputs = operator
    wrong = [x.astype(np.int8) if i == index else x for i, x in enumerate(inputs)]
    outputs = [
        unwritten(shape, wrong[0].dtype) for shape in output_shapes(name, inputs, attributes)
    ]
    made = Operator(name, attributes)
    with pytest.raises(NativeError, match=message):
        made.run(wrong, outputs)
    if index > 0:
        with pytest.raises(NativeError, match=message):
            made.constant(index, wrong[index])


def test_an_output_of_another_type_is_refused() -> None:
    name, attributes, inputs = SQUASH
    with pytest.raises(NativeError, match="output 0 is not of the type of the first input"):
        Operator(name, attributes).run(inputs, [np.zeros((2, 8), np.float16)])


def test_an_axis_out_of_range_is_named() -> None:
    with pytest.raises(NativeError, match=r"Squash: axis 2 of input 'x', whose shape is \[2, 8\]"):
        Operator("Squash", {"axis": 2, "epsilon": 1e-8}).run([zeros(2, 8)], [zeros(2, 8)])


def test_shared_weights_want_a_window_of_one() -> None:
    name, attributes, inputs = EM
    with pytest.raises(NativeError, match="shared weights want a window of 1x1"):
        Operator(name, {**attributes, "shared": 1}).run(inputs, [zeros(1), zeros(1)])


@pytest.mark.parametrize(
    ("operator", "count", "wanted"),
    [(CONSTANT, 3, "4 to 7"), (EM, 4, "5 or 6"), (VOTES, 2, "3 to 5")],
)
def test_missing_inputs_are_counted(
    operator: tuple[str, dict[str, Any], list[Array]], count: int, wanted: str
) -> None:
    name, attributes, inputs = operator
    with pytest.raises(NativeError, match=f"{name}: {count} inputs: wanted {wanted}$"):
        Operator(name, attributes).run(inputs[:count], [zeros(1)])


def test_coordinates_are_of_one_kind() -> None:
    name, attributes, inputs = EM
    made = Operator(name, {**attributes, "coordinate_addition": 1})
    with pytest.raises(NativeError, match="'coordinates' and attribute 'coordinate_addition' excl"):
        made.run([*inputs, zeros(4, 4, 16)], [zeros(1), zeros(1)])


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(NativeError, match="no operator 'Pool': there are Squash, DynamicRouting"):
        Operator("Pool", {})


@pytest.mark.parametrize("level", levels())
def test_variances_survive_far_away_children(level: str) -> None:
    """Votes within 0.001 of 5, behind children of no weight at all that lie at 1000: the sum of squares about
    zero, or about the first children, would lose every digit of the variance."""
    rng = np.random.default_rng(3)
    children = 300
    pose = (5 + 1e-3 * rng.standard_normal((1, 1, 1, children, 4))).astype(np.float32)
    pose[:, :, :, :20] = 1000
    a = np.ones((1, 1, 1, children), np.float32)
    a[..., :20] = 0
    # The votes are the poses, exactly.
    weight = np.tile(np.eye(2, dtype=np.float32), (1, 1, children, 2, 1, 1))
    inputs = [pose, a, weight, zeros(2), zeros(2) + np.float32(1)]
    attributes = {
        "iterations": 1,
        "strides": (1, 1),
        "inverse_temperatures": (1e-3,),
        "epsilon": 1e-9,
    }
    found = compute("EMRouting", inputs, attributes, level=level)
    flags = ("coordinate_addition", "shared", "normalize_activations", "ones_first")
    wanted = oracle.em_routing(*inputs, **attributes, **dict.fromkeys(flags, False))
    # The cost is half the mass times a sum of four logarithms: an error of 1e-5 in a variance
    # moves it by 3e-3, and the activation by 1e-6.
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5)


@table("level, images", itertools.product(levels(), [1, 3, 4, 5, 9, 65]))
def test_an_image_does_not_depend_on_its_batch(level: str, images: int) -> None:
    rng = np.random.default_rng(images)
    u = rng.standard_normal((images, 70, 8)).astype(np.float32)
    rest = [
        rng.standard_normal((70, 10, 16, 8)).astype(np.float32),
        rng.standard_normal((70, 10)).astype(np.float32),
        rng.standard_normal((10, 16)).astype(np.float32),
    ]
    together = compute("DynamicRouting", [u, *rest], DYNAMIC[1], level=level)[0]
    for n in range(images):
        alone = compute("DynamicRouting", [u[n : n + 1], *rest], DYNAMIC[1], level=level)[0]
        np.testing.assert_array_equal(together[n : n + 1], alone)


@pytest.mark.parametrize("level", levels())
def test_weights_larger_than_a_cache(level: str) -> None:
    """32 MiB of them: votes are kept in memory, and nine images are routed in three rounds."""
    rng = np.random.default_rng(4)
    u = rng.standard_normal((9, 512, 16), np.float32)
    weight = rng.standard_normal((512, 32, 32, 16), np.float32) / 16
    rest = [zeros(512, 32), rng.standard_normal((32, 32), np.float32)]
    together = compute("DynamicRouting", [u, weight, *rest], PLAIN, level=level)[0]
    alone = compute("DynamicRouting", [u[8:], weight, *rest], PLAIN, level=level)[0]
    np.testing.assert_array_equal(together[8:], alone)
    votes = np.matmul(weight.reshape(512, 1024, 16), u.transpose(1, 2, 0)).transpose(2, 0, 1)
    given = np.ascontiguousarray(votes).reshape(9, 512, 32, 32)
    wanted = compute("VoteRouting", [given, *rest], PLAIN, level=level)[0]
    np.testing.assert_allclose(together, wanted, atol=1e-5)


@pytest.mark.parametrize("level", levels())
def test_nan_stays_in_its_image(level: str) -> None:
    name, attributes, inputs = DYNAMIC
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(x.shape).astype(np.float32) for x in inputs]
    clean = compute(name, inputs, attributes, level=level)[0]
    inputs[0][1, 2, 3] = np.nan
    found = compute(name, inputs, attributes, level=level)[0]
    np.testing.assert_array_equal(found[0], clean[0])
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize("grid", [(4, 4), (3, 3)])
def test_the_same_parents_for_every_image(grid: tuple[int, int]) -> None:
    """One is a single position, of which images are computed together."""
    name, attributes, inputs = ATTENTION
    rng = np.random.default_rng(5)
    shapes = [
        (3, *grid, 2, 16),
        (1, grid[0] - 2, grid[1] - 2, 5, 16),
        *(x.shape for x in inputs[2:]),
    ]
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    repeated = [given[0], np.repeat(given[1], 3, axis=0), *given[2:]]
    (one,), (three,) = compute(name, given, attributes), compute(name, repeated, attributes)
    np.testing.assert_array_equal(one, three)
    assert np.ptp(one, axis=0).max() > 0
