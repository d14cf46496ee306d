"""What must hold for any input: lengths, couplings, symmetry, finite results."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from capsedge.models import ops

examples = settings(max_examples=40, deadline=None, derandomize=True)

DTYPES = st.sampled_from([torch.float32, torch.float64])
SEEDS = st.integers(0, 2**31)
SIZES = st.integers(1, 9)
SIDES = st.integers(1, 4)
# From below the smallest squared norm that FP32 can hold to the largest.
EXPONENTS = st.floats(-30, 18)


def _normal(seed: int, *shapes: Sequence[int], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(list(shape), generator=generator, dtype=dtype) for shape in shapes]


@examples
@given(SEEDS, st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data(), DTYPES)
def test_squash_shape(seed: int, shape: list[int], data: st.DataObject, dtype: torch.dtype) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    (x,) = _normal(seed, shape, dtype=dtype)
    y = ops.squash(x, axis=axis)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    torch.testing.assert_close(y, ops.squash(x.movedim(axis, -1)).movedim(-1, axis))


@examples
@given(SEEDS, st.integers(1, 40), EXPONENTS, DTYPES)
def test_squash_of_any_norm(seed: int, size: int, exponent: float, dtype: torch.dtype) -> None:
    (direction,) = _normal(seed, (size,))
    direction = direction / direction.norm()
    x = (direction * 10.0**exponent).to(dtype)
    y = ops.squash(x)
    assert torch.isfinite(y).all()
    length = y.double().norm().item()
    # Below 1, but FP32 rounds 1 - 1e-10 to 1 and its square root may round up.
    assert length <= 1 + 1e-6
    if exponent > -8:
        torch.testing.assert_close(y.double() / length, direction, rtol=1e-5, atol=1e-6)
    if exponent > -2:
        n2 = x.double().square().sum().item()
        assert length == pytest.approx(n2 / (1 + n2), rel=1e-4)
    assert length < 1 or exponent > 3


@examples
@given(SEEDS, st.integers(1, 20), st.floats(0.001, 100), st.floats(1.01, 100))
def test_squash_grows_with_the_norm(seed: int, size: int, norm: float, more: float) -> None:
    (x,) = _normal(seed, (size,))
    x = x / x.norm() * norm
    assert ops.squash(x * more).norm() > ops.squash(x).norm()


@examples
@given(SEEDS, st.integers(0, 3), SIZES, SIZES, SIZES, SIZES, st.integers(1, 5), st.booleans())
def test_dynamic_routing_couplings(
    seed: int, n: int, i: int, j: int, pin: int, pout: int, iterations: int, leaky: bool
) -> None:
    u, weight, prior, bias = _normal(seed, (n, i, pin), (i, j, pout, pin), (i, j), (j, pout))
    v, c = ops.dynamic_routing(u, weight, prior, bias, iterations=iterations, leaky=leaky)
    assert v.shape == (n, j, pout)
    assert c.shape == (n, i, j)
    assert (v.norm(dim=-1) < 1).all()
    assert (c >= 0).all()
    total = c.sum(-1)
    if leaky:
        assert (total < 1).all()
    else:
        torch.testing.assert_close(total, torch.ones_like(total))


@examples
@given(SEEDS, SIZES, SIZES, st.booleans())
def test_dynamic_routing_children_have_no_order(seed: int, i: int, j: int, leaky: bool) -> None:
    u, weight, prior, bias = _normal(seed, (2, i, 3), (i, j, 4, 3), (i, j), (j, 4))
    order = torch.randperm(i, generator=torch.Generator().manual_seed(seed))
    v, c = ops.dynamic_routing(u, weight, prior, bias, leaky=leaky)
    w, d = ops.dynamic_routing(u[:, order], weight[order], prior[order], bias, leaky=leaky)
    torch.testing.assert_close(w, v)
    torch.testing.assert_close(d, c[:, order])


@examples
@given(SEEDS, SIZES, SIZES)
def test_dynamic_routing_parents_have_no_order(seed: int, i: int, j: int) -> None:
    u, weight, prior, bias = _normal(seed, (2, i, 3), (i, j, 4, 3), (i, j), (j, 4))
    order = torch.randperm(j, generator=torch.Generator().manual_seed(seed))
    v, c = ops.dynamic_routing(u, weight, prior, bias)
    w, d = ops.dynamic_routing(u, weight[:, order], prior[:, order], bias[order])
    torch.testing.assert_close(w, v[:, order])
    torch.testing.assert_close(d, c[:, :, order])


@examples
@given(SEEDS, EXPONENTS, DTYPES, st.booleans())
def test_dynamic_routing_of_any_norm(
    seed: int, exponent: float, dtype: torch.dtype, leaky: bool
) -> None:
    u, weight = _normal(seed, (2, 5, 4), (5, 3, 6, 4))
    u = (u * 10.0 ** min(exponent, 17.0)).to(dtype)
    v, c = ops.dynamic_routing(u, weight.to(dtype), leaky=leaky)
    assert torch.isfinite(v).all()
    assert torch.isfinite(c).all()
    assert (v.double().norm(dim=-1) <= 1 + 1e-6).all()


@examples
@given(SEEDS, st.integers(1, 5))
def test_images_do_not_see_each_other(seed: int, n: int) -> None:
    u, weight = _normal(seed, (n, 4, 3), (4, 2, 5, 3))
    together, _ = ops.dynamic_routing(u, weight)
    for index in range(n):
        alone, _ = ops.dynamic_routing(u[index : index + 1], weight)
        torch.testing.assert_close(together[index : index + 1], alone)


@examples
@given(
    SEEDS, st.integers(0, 2), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3),
    st.integers(1, 4), SIDES, st.integers(1, 3), st.booleans(), st.data(),
)  # fmt: skip
def test_em_routing(
    seed: int, n: int, h: int, w: int, c: int, m: int, side: int, iterations: int,
    shared: bool, data: st.DataObject,
) -> None:  # fmt: skip
    kernel = (1, 1) if shared else (data.draw(st.integers(1, h)), data.draw(st.integers(1, w)))
    strides = [data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))]
    coordinates = side > 1 and data.draw(st.booleans())
    p = side * side
    pose, weight, beta_u, beta_a = _normal(
        seed, (n, h, w, c, p), (*kernel, c, m, side, side), (m,), (m,)
    )
    a = torch.rand(n, h, w, c, dtype=torch.float64)
    out, b, r = ops.em_routing(
        pose, a, weight, beta_u, beta_a, inverse_temperatures=[0.1 * (k + 1) for k in range(iterations)],
        strides=strides, coordinate_addition=coordinates, shared=shared,
    )  # fmt: skip
    grid = (1, 1) if shared else tuple((x - k) // s + 1 for x, k, s in zip((h, w), kernel, strides))  # noqa: B905
    children = (h * w if shared else kernel[0] * kernel[1]) * c
    assert out.shape == (n, *grid, m, p)
    assert b.shape == (n, *grid, m)
    assert r.shape == (n, *grid, children, m)
    assert torch.isfinite(out).all()
    assert ((b >= 0) & (b <= 1)).all()
    torch.testing.assert_close(r.sum(-1), torch.ones_like(r[..., 0]))


def _em_one_window(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    pose, weight, beta_u, beta_a = _normal(
        seed, (2, 1, 1, 6, 16), (1, 1, 6, 3, 4, 4), (3,), (3,), dtype=dtype
    )
    a = torch.rand(2, 1, 1, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return pose, a, weight, beta_u, beta_a


@examples
@given(SEEDS)
def test_em_routing_children_and_parents_have_no_order(seed: int) -> None:
    pose, a, weight, beta_u, beta_a = _em_one_window(seed)
    generator = torch.Generator().manual_seed(seed)
    i, j = torch.randperm(6, generator=generator), torch.randperm(3, generator=generator)
    lambdas = [0.001, 0.002]
    out, b, r = ops.em_routing(pose, a, weight, beta_u, beta_a, inverse_temperatures=lambdas)
    out2, b2, r2 = ops.em_routing(
        pose[:, :, :, i], a[:, :, :, i], weight[:, :, i][:, :, :, j], beta_u[j], beta_a[j],
        inverse_temperatures=lambdas,
    )  # fmt: skip
    torch.testing.assert_close(out2, out[..., j, :])
    torch.testing.assert_close(b2, b[..., j])
    torch.testing.assert_close(r2, r[:, :, :, i][..., j])


@examples
@given(SEEDS)
def test_em_routing_ignores_children_that_are_off(seed: int) -> None:
    """A child with activation zero moves nothing, wherever it votes."""
    pose, a, weight, beta_u, beta_a = _em_one_window(seed)
    a[:, :, :, 2] = 0
    lambdas = [0.001, 0.002, 0.003]
    out, b, _ = ops.em_routing(pose, a, weight, beta_u, beta_a, inverse_temperatures=lambdas)
    pose[:, :, :, 2] *= 1e3
    out2, b2, _ = ops.em_routing(pose, a, weight, beta_u, beta_a, inverse_temperatures=lambdas)
    torch.testing.assert_close(out2, out)
    torch.testing.assert_close(b2, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_em_routing_with_activations_near_zero(dtype: torch.dtype) -> None:
    pose, a, *rest = (x.to(dtype) for x in _em_one_window(1))
    found = ops.em_routing(
        pose, torch.full_like(a, 1e-20), *rest, inverse_temperatures=[0.01, 0.02, 0.03]
    )
    assert all(torch.isfinite(x).all() for x in found)


@examples
@given(SEEDS, EXPONENTS, DTYPES)
def test_em_routing_of_any_norm(seed: int, exponent: float, dtype: torch.dtype) -> None:
    pose, *rest = (x.to(dtype) for x in _em_one_window(seed))
    found = ops.em_routing(
        # Squared deviations, summed, must stay within FP32.
        pose * 10.0 ** min(exponent, 16.0),
        *rest,
        inverse_temperatures=[0.001, 0.002, 0.003],
    )
    assert all(torch.isfinite(x).all() for x in found)


@examples
@given(
    SEEDS, st.integers(0, 2), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3),
    st.integers(1, 4), st.booleans(), st.data(),
)  # fmt: skip
def test_attention_routing(
    seed: int, n: int, h: int, w: int, c: int, m: int, matrix: bool, data: st.DataObject
) -> None:
    kernel = (data.draw(st.integers(1, h)), data.draw(st.integers(1, w)))
    strides = [data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))]
    side = data.draw(SIDES)
    pin, p = (side * side,) * 2 if matrix else (data.draw(SIZES), data.draw(SIZES))
    grid = tuple((x - k) // s + 1 for x, k, s in zip((h, w), kernel, strides))  # noqa: B905
    pose, parent, weight, scale, bias = _normal(
        seed, (n, h, w, c, pin), (n, *grid, m, p),
        (*kernel, c, m, side, side) if matrix else (*kernel, c, m, pin, p), (p,), (p,),
    )  # fmt: skip
    out, r = ops.attention_routing(
        pose, parent, weight, scale, bias, strides=strides, matrix_pose=matrix
    )
    assert out.shape == parent.shape
    assert r.shape == (n, *grid, kernel[0] * kernel[1] * c, m)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(r.sum(-1), torch.ones_like(r[..., 0]))
    # Without scale and bias the pose has mean zero.
    plain, _ = ops.attention_routing(
        pose, parent, weight, torch.ones_like(scale), torch.zeros_like(bias),
        strides=strides, matrix_pose=matrix,
    )  # fmt: skip
    torch.testing.assert_close(plain.mean(-1), torch.zeros_like(plain[..., 0]))
    torch.testing.assert_close(out, plain * scale + bias)


@examples
@given(SEEDS)
def test_attention_routing_children_and_parents_have_no_order(seed: int) -> None:
    pose, parent, weight, scale, bias = _normal(
        seed, (2, 1, 1, 5, 4), (2, 1, 1, 3, 4), (1, 1, 5, 3, 2, 2), (4,), (4,)
    )
    generator = torch.Generator().manual_seed(seed)
    i, j = torch.randperm(5, generator=generator), torch.randperm(3, generator=generator)
    out, c = ops.attention_routing(pose, parent, weight, scale, bias)
    out2, c2 = ops.attention_routing(
        pose[:, :, :, i], parent[:, :, :, j], weight[:, :, i][:, :, :, j], scale, bias
    )
    torch.testing.assert_close(out2, out[..., j, :])
    torch.testing.assert_close(c2, c[:, :, :, i][..., j])


def test_attention_routing_starts_uniform() -> None:
    pose, weight, norm = _normal(3, (2, 3, 3, 4, 16), (2, 2, 4, 5, 4, 4), (16,))
    out, c = ops.attention_routing(pose, None, weight, norm, norm)
    torch.testing.assert_close(c, torch.full_like(c, 1 / 5))
    zeros, _ = ops.attention_routing(pose, torch.zeros_like(out), weight, norm, norm)
    assert torch.equal(zeros, out)


@examples
@given(SEEDS, EXPONENTS, DTYPES)
def test_attention_routing_of_any_norm(seed: int, exponent: float, dtype: torch.dtype) -> None:
    pose, parent, weight, scale, bias = _normal(
        seed, (2, 1, 1, 5, 4), (2, 1, 1, 3, 4), (1, 1, 5, 3, 2, 2), (4,), (4,), dtype=dtype
    )
    pose = pose * 10.0 ** min(exponent, 17.0)
    out, c = ops.attention_routing(pose, parent, weight, scale, bias)
    assert torch.isfinite(out).all()
    assert torch.isfinite(c).all()


@pytest.mark.parametrize("iterations", [1, 4])
@pytest.mark.parametrize("leaky", [False, True])
def test_defaults_are_zeros(iterations: int, leaky: bool) -> None:
    u, weight = _normal(5, (2, 4, 3), (4, 2, 5, 3))
    found = ops.dynamic_routing(u, weight, iterations=iterations, leaky=leaky)
    zeros = torch.zeros(4, 2, dtype=u.dtype), torch.zeros(2, 5, dtype=u.dtype)
    wanted = ops.dynamic_routing(u, weight, *zeros, iterations=iterations, leaky=leaky)
    assert all(torch.equal(f, w) for f, w in zip(found, wanted, strict=True))
    if iterations == 1:
        torch.testing.assert_close(found[1], torch.full_like(found[1], 1 / (3 if leaky else 2)))


@pytest.mark.parametrize("children", [2, 40])
def test_settings_of_the_paper_make_the_paper(children: int) -> None:
    u, weight, prior, bias = _normal(
        7, (2, children, 3), (children, 4, 5, 3), (children, 4), (4, 5)
    )
    wanted = ops.dynamic_routing(u, weight, prior, bias)
    zeros = torch.zeros(children, 4, 5, dtype=u.dtype)
    votes = torch.einsum("ijoq,biq->bijo", weight, u)
    for found in (
        ops.dynamic_routing(u, weight, prior, bias, vote_bias=zeros),
        ops.vote_routing(votes, prior, bias),
    ):
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("update", ["accumulate", "replace"])
def test_couplings_over_the_children_sum_to_one(update: str) -> None:
    (votes,) = _normal(8, (3, 6, 4, 5))
    _, c = ops.vote_routing(votes, softmax="children", update=update)  # type: ignore[arg-type]
    torch.testing.assert_close(c.sum(1), torch.ones_like(c.sum(1)))


def test_k_means_routing() -> None:
    """As published: from the mean of the votes, T times normalize, agree, weigh; squash at the end."""
    (votes,) = _normal(9, (2, 7, 3, 4))
    parent = votes.mean(1)
    for _ in range(3):
        parent = torch.nn.functional.normalize(parent, dim=-1)
        c = (votes * parent[:, None]).sum(-1).softmax(-1)
        parent = (c[..., None] * votes).sum(1)
    found, _ = ops.vote_routing(
        votes, iterations=4, update="replace", normalize=True, epsilon=1e-16
    )
    torch.testing.assert_close(found, ops.squash(parent, epsilon=1e-16))
