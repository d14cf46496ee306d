"""The operators as PyTorch sees them: schema, fake shapes, gradients, export, half types, compile."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from capsedge.models import ops
from capsedge.spec.operators import OPERATORS as TABLE
from tests.tables import table

OPERATORS = torch.ops.capsedge


# Attributes of dynamic routing behind `leaky`.
PAPER = (False, False, False, False, 1.0, 1e-8)


def _normal(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = True) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64) * 0.7
    return x.to(dtype).requires_grad_(grad)


def _samples(dtype: torch.dtype = torch.float64, grad: bool = True) -> dict[str, tuple[Any, Any]]:
    """A call of every operator, through its raw signature: name to (operator, arguments)."""

    def t(*shape: int) -> Tensor:
        return _normal(*shape, dtype=dtype, grad=grad)

    a = torch.rand(2, 3, 3, 2).to(dtype).requires_grad_(grad)
    one = torch.rand(2, 2, 3, 2).to(dtype).requires_grad_(grad)
    return {
        "squash": (OPERATORS.squash, (t(3, 4, 5), 1, 1e-8)),
        "dynamic": (
            OPERATORS.dynamic_routing,
            (t(2, 4, 3), t(4, 2, 5, 3), t(4, 2), t(2, 5), None, None, None, 3, False, *PAPER),
        ),
        "dynamic leaky": (
            OPERATORS.dynamic_routing,
            (t(2, 4, 3), t(4, 2, 5, 3), t(4, 2), t(2, 5), None, None, None, 2, True, *PAPER),
        ),
        "dynamic one iteration": (
            OPERATORS.dynamic_routing,
            (t(2, 4, 3), t(4, 2, 5, 3), t(4, 2), t(2, 5), None, None, None, 1, False, *PAPER),
        ),
        "dynamic over children, shared weight": (
            OPERATORS.dynamic_routing,
            (
                t(2, 4, 3), t(1, 2, 5, 3), t(4, 2), t(2, 5), t(4, 2, 5), None, None,
                3, False, True, True, False, False, 0.5, 1e-8,
            ),
        ),
        "dynamic masked": (
            OPERATORS.dynamic_routing,
            (
                t(2, 4, 3), t(4, 2, 5, 3), t(1, 2), t(2, 5), t(1, 2, 5), t(2, 4, 1), t(2, 4),
                2, False, True, False, False, False, 1.0, 1e-8,
            ),
        ),
        "votes normalized": (
            OPERATORS.vote_routing,
            (t(2, 4, 3, 5), t(4, 3), t(3, 5), None, None, 3, True, False, False, True, True, 1.0, 1e-8),
        ),
        "em": (
            OPERATORS.em_routing,
            (
                t(2, 3, 3, 2, 4), a, t(2, 2, 2, 3, 2, 2), t(3), t(3), None,
                2, [1, 1], [0.1, 0.2], True, False, False, False, 1e-4, 0.0, 0.0, 0.0,
            ),
        ),
        "em shared": (
            OPERATORS.em_routing,
            (
                t(2, 2, 3, 2, 4), one, t(1, 1, 2, 3, 2, 2), t(3), t(3), None,
                3, [1, 1], [0.1, 0.2, 0.3], True, True, False, False, 1e-4, 1e-2, 1e-3, 0.1,
            ),
        ),
        "em with coordinates": (
            OPERATORS.em_routing,
            (
                t(2, 3, 3, 2, 4), a, t(2, 2, 2, 3, 2, 2), t(3), t(3), t(3, 3, 4),
                2, [1, 1], [0.1, 0.2], False, False, True, True, 1e-2, 0.0, 0.01, 0.0,
            ),
        ),
        "em with coordinates shared": (
            OPERATORS.em_routing,
            (
                t(2, 2, 3, 2, 4), one, t(1, 1, 2, 3, 2, 2), t(3), t(3), t(2, 3, 4),
                2, [1, 1], [0.1, 0.2], False, True, True, False, 1e-2, 0.1, 0.0, 0.2,
            ),
        ),
        "self-attention": (
            OPERATORS.self_attention_routing,
            (t(2, 4, 3), t(4, 2, 5, 3), t(4, 2), 1e-20),
        ),
        "attention matrix": (
            OPERATORS.attention_routing,
            (t(2, 4, 3, 2, 4), t(2, 2, 2, 3, 4), t(2, 2, 2, 3, 2, 2), t(4), t(4),
             [2, 1], True, 0.5, 1e-5),
        ),
        "attention vector": (
            OPERATORS.attention_routing,
            (t(2, 4, 3, 2, 3), t(2, 2, 2, 3, 5), t(2, 2, 2, 3, 3, 5), t(5), t(5),
             [2, 1], False, 0.5, 1e-5),
        ),
    }  # fmt: skip


NAMES = list(_samples())
# One of each operator: the compiler takes seconds.
COMPILED = (
    "squash", "dynamic leaky", "votes normalized", "em with coordinates shared", "self-attention",
    "attention vector",
)  # fmt: skip


def test_every_operator_has_a_sample() -> None:
    sampled = {operator._qualified_op_name for operator, _ in _samples().values()}
    assert sampled == {f"capsedge::{o.torch}" for o in TABLE.values() if o.torch}
    assert {_samples()[name][0]._qualified_op_name for name in COMPILED} == sampled


def _tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)


@table("name", NAMES)
def test_opcheck_without_a_compiler(name: str) -> None:
    operator, arguments = _samples()[name]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator.default, arguments, test_utils=tests)


@pytest.mark.thorough
@pytest.mark.parametrize("name", COMPILED)
def test_opcheck_with_a_compiler(name: str) -> None:
    operator, arguments = _samples()[name]
    torch.library.opcheck(operator.default, arguments, test_utils="test_aot_dispatch_dynamic")


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str) -> None:
    operator, arguments = _samples()[name]
    # Random directions instead of whole Jacobians; the conformance cases check each input alone.
    assert torch.autograd.gradcheck(lambda *t: operator(*t), arguments, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_one_gradient_alone_is_that_of_all_together(name: str) -> None:
    """Inputs that need no gradient get none, and the others' do not change."""
    operator, arguments = _samples()[name]

    def total(args: tuple[Any, ...]) -> Tensor:
        first = _tuple(operator(*args))[0]
        result: Tensor = (first * torch.linspace(-1, 1, first.numel()).reshape(first.shape)).sum()
        return result

    tensors = [x for x in arguments if isinstance(x, Tensor)]
    together = torch.autograd.grad(total(arguments), tensors)
    for index, wanted in enumerate(together):
        alone = [x.detach() for x in tensors]
        alone[index].requires_grad_()
        args = (*alone, *arguments[len(tensors) :])
        (found,) = torch.autograd.grad(total(args), [alone[index]])
        torch.testing.assert_close(found, wanted)


EDGES: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "squash of zeros": lambda: (ops.squash, (torch.zeros(2, 3, dtype=torch.float64),)),
    "squash of one zero vector": lambda: (
        ops.squash,
        (torch.tensor([[0.0, 0.0], [0.3, -0.4]], dtype=torch.float64),),
    ),
    "dynamic routing of zero children": lambda: (
        ops.dynamic_routing,
        (torch.zeros(1, 3, 2, dtype=torch.float64), _normal(3, 2, 4, 2), _normal(3, 2)),
    ),
    "attention with equal votes": lambda: (
        lambda pose, weight: ops.attention_routing(
            pose, None, weight,
            torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64),
        ),
        (torch.ones(1, 1, 1, 3, 4, dtype=torch.float64), _normal(1, 1, 3, 2, 2, 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_gradients_at_edges(name: str) -> None:
    function, arguments = EDGES[name]()
    leaves = tuple(x.detach().requires_grad_() for x in arguments)
    # Curvature at zero is 1/sqrt(epsilon) = 1e4, so the difference quotient errs by about its step.
    assert torch.autograd.gradcheck(function, leaves, eps=1e-7, atol=1e-4)


def test_gradient_of_squash_at_zero_is_zero() -> None:
    x = torch.zeros(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(ops.squash(x).sum(), [x])
    assert torch.equal(gradient, torch.zeros(3, 4))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_em_gradients_are_finite_where_every_activation_is_the_same(value: float) -> None:
    pose = _normal(1, 2, 2, 3, 16, dtype=torch.float32)
    a = torch.full((1, 2, 2, 3), value, requires_grad=True)
    weight = _normal(2, 2, 3, 5, 4, 4, dtype=torch.float32)
    beta = _normal(5, dtype=torch.float32)
    outputs = ops.em_routing(pose, a, weight, beta, beta, inverse_temperatures=[0.01, 0.02, 0.03])
    grads = torch.autograd.grad(outputs[0].sum() + outputs[1].sum(), (pose, a, weight, beta))
    assert all(torch.isfinite(g).all() for g in grads)


@table(
    "name, dtype",
    itertools.product(NAMES, [torch.float64, torch.float32, torch.float16, torch.bfloat16]),
)
def test_fake_outputs_are_like_real_ones(name: str, dtype: torch.dtype) -> None:
    operator, arguments = _samples(dtype, grad=False)[name]
    real = _tuple(operator(*arguments))
    with torch.device("meta"):
        meta = [x.to("meta") if isinstance(x, Tensor) else x for x in arguments]
        fake = _tuple(operator(*meta))
    for r, f in zip(real, fake, strict=True):
        assert (r.shape, r.dtype, r.stride()) == (f.shape, f.dtype, f.stride())
        assert r.dtype == dtype


@pytest.mark.parametrize("name", NAMES)
def test_outputs_do_not_alias_inputs(name: str) -> None:
    operator, arguments = _samples(grad=False)[name]
    inputs = {x.untyped_storage().data_ptr() for x in arguments if isinstance(x, Tensor)}
    for output in _tuple(operator(*arguments)):
        assert output.untyped_storage().data_ptr() not in inputs
        assert output.is_contiguous()


class _AllOperators(torch.nn.Module):
    """Every operator with the batch free; weights are buffers."""

    def __init__(self) -> None:
        super().__init__()
        for key, shape in {
            "w": (4, 2, 5, 3), "matrix": (2, 2, 2, 3, 2, 2), "classes": (1, 1, 3, 2, 2, 2),
            "beta": (3,), "beta2": (2,), "norm": (4,),
        }.items():  # fmt: skip
            self.register_buffer(key, torch.randn(shape))

    def forward(self, u: Tensor, pose: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        v, c = ops.dynamic_routing(u, self.w, leaky=True)  # type: ignore[arg-type]
        p, b, r = ops.em_routing(
            pose, a, self.matrix, self.beta, self.beta,  # type: ignore[arg-type]
            inverse_temperatures=[0.1, 0.2], coordinate_addition=True,
        )  # fmt: skip
        q, k = ops.attention_routing(
            p, None, self.classes, self.norm, self.norm  # type: ignore[arg-type]
        )  # fmt: skip
        return ops.squash(v), c, b, r, q, k


def test_export_with_a_free_batch() -> None:
    model = _AllOperators()

    def inputs(n: int) -> tuple[Tensor, ...]:
        torch.manual_seed(n)
        return torch.randn(n, 4, 3), torch.randn(n, 4, 4, 2, 4), torch.rand(n, 4, 4, 2)

    batch = torch.export.Dim("batch")
    program = torch.export.export(model, inputs(3), dynamic_shapes=({0: batch},) * 3)
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    wanted = {"squash", "dynamic_routing", "em_routing", "attention_routing"}
    assert {f"capsedge.{name}.default" for name in wanted} <= called
    for n in (1, 2, 7):
        for found, expected in zip(program.module()(*inputs(n)), model(*inputs(n)), strict=True):
            torch.testing.assert_close(found, expected)


@table("name, dtype", itertools.product(NAMES, [torch.float16, torch.bfloat16]))
def test_half_types_accumulate_in_fp32(name: str, dtype: torch.dtype) -> None:
    """The result is the FP32 result of the rounded inputs, rounded once more and nowhere between."""
    operator, arguments = _samples(dtype, grad=False)[name]
    single = [x.float() if isinstance(x, Tensor) else x for x in arguments]
    found, wanted = _tuple(operator(*arguments)), _tuple(operator(*single))
    for f, w in zip(found, wanted, strict=True):
        assert torch.equal(f, w.to(dtype))


@pytest.mark.parametrize("size", [256.0, 3e4])
def test_half_norms_beyond_the_range_of_half(size: float) -> None:
    """A squared norm above 65504 is ordinary in FP32: the direction stays and the length is 1."""
    x = torch.full((1, 4), size, dtype=torch.float16)
    assert torch.equal(ops.squash(x), torch.full((1, 4), 0.5, dtype=torch.float16))


def test_a_long_half_sum_does_not_stall() -> None:
    """4,096 votes of 1/4: a float16 running sum would stop growing at 512."""
    u = torch.full((1, 4096, 1), 1.0, dtype=torch.float16)
    weight = torch.full((4096, 1, 1, 1), 0.25, dtype=torch.float16)
    pose = torch.full((1, 1, 1, 4096, 1), 1.0, dtype=torch.float16)
    bias = torch.tensor([[-1024.0]], dtype=torch.float16)
    v, _ = ops.dynamic_routing(u, weight, bias=bias, iterations=1)
    assert v.item() == 0.0
    half = torch.full((1, 1, 4096, 1, 1, 1), 0.25, dtype=torch.float16)
    mean, _, _ = ops.em_routing(
        pose, torch.ones(1, 1, 1, 4096, dtype=torch.float16), half,
        torch.zeros(1, dtype=torch.float16), torch.zeros(1, dtype=torch.float16),
        inverse_temperatures=[1e-4],
    )  # fmt: skip
    assert mean.item() == 0.25


@pytest.mark.parametrize("name", NAMES)
def test_autocast_leaves_the_arithmetic_alone(name: str) -> None:
    """Under autocast FP32 inputs still give the FP32 result, forward and backward."""
    operator, arguments = _samples(torch.float32, grad=False)[name]
    wanted = _tuple(operator(*arguments))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = operator(*arguments)
        # The definition runs again in backward, here under autocast too.
        u = arguments[0].clone().requires_grad_()
        (inside,) = torch.autograd.grad(_tuple(operator(u, *arguments[1:]))[0].sum(), [u])
    (outside,) = torch.autograd.grad(_tuple(operator(u, *arguments[1:]))[0].sum(), [u])
    assert torch.equal(inside, outside)
    for f, w in zip(_tuple(found), wanted, strict=True):
        assert f.dtype == torch.float32
        assert torch.equal(f, w)


def test_gradients_keep_the_half_type() -> None:
    weight = torch.randn(3, 2, 4, 2, dtype=torch.bfloat16, requires_grad=True)
    v, _ = ops.dynamic_routing(torch.randn(2, 3, 2, dtype=torch.bfloat16), weight)
    (gradient,) = torch.autograd.grad(v.sum(), [weight])
    assert gradient.dtype == torch.bfloat16
    assert torch.isfinite(gradient).all()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend: str) -> None:
    model = _AllOperators()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for n in (2, 5):
        inputs = torch.randn(n, 4, 3), torch.randn(n, 4, 4, 2, 4), torch.rand(n, 4, 4, 2)
        for found, wanted in zip(compiled(*inputs), model(*inputs), strict=True):
            torch.testing.assert_close(found, wanted)
