"""Every wrong shape, type and attribute is refused, in words that name what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from capsedge.errors import CapsedgeError, ExitCode, ShapeError
from capsedge.models import ops
from capsedge.spec.operators import OPERATORS as TABLE
from tests.tables import table

t = torch.zeros


def dynamic(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "u": t(2, 7, 3), "weight": t(7, 5, 4, 3), "log_prior": t(7, 5), "bias": t(5, 4),
    }  # fmt: skip
    return ops.dynamic_routing(**(arguments | changes))


def votes(**changes: Any) -> Any:
    arguments: dict[str, Any] = {"votes": t(2, 7, 5, 4), "log_prior": t(7, 5), "bias": t(5, 4)}
    return ops.vote_routing(**(arguments | changes))


def em(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "pose": t(2, 5, 4, 3, 9), "a": t(2, 5, 4, 3), "weight": t(2, 2, 3, 6, 3, 3),
        "beta_u": t(6), "beta_a": t(6), "inverse_temperatures": [0.1, 0.2],
    }  # fmt: skip
    return ops.em_routing(**(arguments | changes))


def em_added(**changes: Any) -> Any:
    return em(**({"coordinates": t(5, 4, 9), "normalize_activations": True} | changes))


def self_attention(**changes: Any) -> Any:
    arguments: dict[str, Any] = {"u": t(2, 7, 3), "weight": t(7, 5, 4, 3), "bias": t(7, 5)}
    return ops.self_attention_routing(**(arguments | changes))


def attention(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "pose": t(2, 5, 4, 3, 9), "parent": t(2, 4, 3, 6, 9), "weight": t(2, 2, 3, 6, 3, 3),
        "scale": t(9), "bias": t(9),
    }  # fmt: skip
    return ops.attention_routing(**(arguments | changes))


def vector(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "weight": t(2, 2, 3, 6, 9, 8), "parent": t(2, 4, 3, 6, 8), "scale": t(8), "bias": t(8),
        "matrix_pose": False,
    }  # fmt: skip
    return attention(**(arguments | changes))


def squash(**changes: Any) -> Any:
    return ops.squash(**({"x": t(2, 3)} | changes))


Call = Callable[..., Any]
# Call, the argument that is wrong, and what the message must contain besides the operator's name.
WRONG_SHAPES: list[tuple[Call, dict[str, Any], list[str]]] = [
    (dynamic, {"u": t(2, 7)}, ["'u'", "[2, 7]", "[N, I, Pin]"]),
    (dynamic, {"u": t(2, 8, 3)}, ["'weight'", "[7, 5, 4, 3]", "[8, J, Pout, 3]"]),
    (dynamic, {"weight": t(7, 5, 4)}, ["'weight'", "[7, 5, 4]", "[7, J, Pout, 3]"]),
    (dynamic, {"weight": t(7, 5, 3, 4)}, ["'weight'", "[7, 5, 3, 4]", "[7, J, Pout, 3]"]),
    (dynamic, {"log_prior": t(5, 7)}, ["'log_prior'", "[5, 7]", "[7, 5]"]),
    (dynamic, {"log_prior": t(1, 7, 5)}, ["'log_prior'", "[1, 7, 5]", "[7, 5]"]),
    (dynamic, {"bias": t(5)}, ["'bias'", "[5]", "[5, 4]"]),
    (dynamic, {"vote_bias": t(5, 4)}, ["'vote_bias'", "[5, 4]", "[7, 5, 4]"]),
    (dynamic, {"vote_bias": t(6, 5, 4)}, ["'vote_bias'", "[6, 5, 4]", "[7, 5, 4]"]),
    (dynamic, {"image_prior": t(2, 6, 5)}, ["'image_prior'", "[2, 6, 5]", "[2, 7, 5]"]),
    (dynamic, {"image_prior": t(7)}, ["'image_prior'", "[7]", "[2, 7, 5]"]),
    (dynamic, {"mask": t(2, 7, 1)}, ["'mask'", "[2, 7, 1]", "[2, 7]"]),
    (votes, {"mask": t(7, 2)}, ["'mask'", "[7, 2]", "[2, 7]"]),
    (dynamic, {"weight": t(1, 5, 4, 2)}, ["'weight'", "[1, 5, 4, 2]", "[1, J, Pout, 3]"]),
    (votes, {"votes": t(2, 7, 5)}, ["'votes'", "[2, 7, 5]", "[N, I, J, P]"]),
    (votes, {"log_prior": t(5, 7)}, ["'log_prior'", "[5, 7]", "[7, 5]"]),
    (votes, {"bias": t(5)}, ["'bias'", "[5]", "[5, 4]"]),
    (em, {"pose": t(2, 5, 4, 27)}, ["'pose'", "[2, 5, 4, 27]", "[N, H, W, C, P]"]),
    (em, {"a": t(2, 5, 4, 3, 1)}, ["'a'", "[2, 5, 4, 3, 1]", "[2, 5, 4, 3]"]),
    (em, {"a": t(2, 4, 5, 3)}, ["'a'", "[2, 4, 5, 3]", "[2, 5, 4, 3]"]),
    (em, {"a": t(1, 5, 4, 3)}, ["'a'", "[1, 5, 4, 3]", "[2, 5, 4, 3]"]),
    (em, {"weight": t(2, 2, 4, 6, 3, 3)}, ["'weight'", "[2, 2, 4, 6, 3, 3]", "[Kh, Kw, 3, M, 3, 3]"]),
    (em, {"weight": t(2, 2, 3, 6, 9)}, ["'weight'", "[2, 2, 3, 6, 9]", "[Kh, Kw, 3, M, 3, 3]"]),
    (em, {"beta_u": t(5)}, ["'beta_u'", "[5]", "[6]"]),
    (em, {"beta_a": t(6, 1)}, ["'beta_a'", "[6, 1]", "[6]"]),
    (em_added, {"coordinates": t(4, 5, 9)}, ["'coordinates'", "[4, 5, 9]", "[5, 4, 9]"]),
    (em_added, {"coordinates": t(5, 4, 3, 9)}, ["'coordinates'", "[5, 4, 3, 9]", "[5, 4, 9]"]),
    (em_added, {"coordinates": t(5, 4, 9).half()}, ["one floating-point type", "coordinates float16"]),
    (self_attention, {"u": t(2, 7)}, ["'u'", "[2, 7]", "[N, I, Pin]"]),
    (self_attention, {"weight": t(7, 5, 3, 4)}, ["'weight'", "[7, 5, 3, 4]", "[7, J, Pout, 3]"]),
    (self_attention, {"bias": t(5, 7)}, ["'bias'", "[5, 7]", "[7, 5]"]),
    (attention, {"pose": t(5, 4, 3, 9)}, ["'pose'", "[5, 4, 3, 9]", "[N, H, W, C, Pin]"]),
    (attention, {"parent": t(2, 3, 4, 6, 9)}, ["'parent'", "[2, 3, 4, 6, 9]", "[2, 4, 3, 6, 9]"]),
    (attention, {"parent": t(1, 4, 3, 6, 9)}, ["'parent'", "[1, 4, 3, 6, 9]", "[2, 4, 3, 6, 9]"]),
    (attention, {"weight": t(2, 2, 3, 6, 9, 9)}, ["'weight'", "[2, 2, 3, 6, 9, 9]"]),
    (attention, {"scale": t(8)}, ["'scale'", "[8]", "[9]"]),
    (attention, {"bias": t(9, 1)}, ["'bias'", "[9, 1]", "[9]"]),
    (vector, {"weight": t(2, 2, 3, 6, 8, 8)}, ["'weight'", "[2, 2, 3, 6, 8, 8]", "[Kh, Kw, 3, M, 9, P]"]),
    (vector, {"scale": t(9)}, ["'scale'", "[9]", "[8]"]),
]  # fmt: skip
WRONG_ATTRIBUTES: list[tuple[Call, dict[str, Any], list[str]]] = [
    (squash, {"axis": 2}, ["axis 2", "2 dimensions"]),
    (squash, {"axis": -3}, ["axis -3", "2 dimensions"]),
    (squash, {"epsilon": 0.0}, ["epsilon 0.0", "> 0"]),
    (dynamic, {"iterations": 0}, ["iterations 0", ">= 1"]),
    (dynamic, {"iterations": -1}, ["iterations -1", ">= 1"]),
    (dynamic, {"epsilon": -1e-8}, ["epsilon -1e-08", "> 0"]),
    (dynamic, {"softmax": "child"}, ["softmax 'child'", "'children'"]),
    (dynamic, {"update": "add"}, ["update 'add'", "'replace'"]),
    (dynamic, {"softmax": "children", "leaky": True}, ["leaky=True", "over the children"]),
    (votes, {"iterations": 0}, ["iterations 0", ">= 1"]),
    (votes, {"epsilon": 0.0}, ["epsilon 0.0", "> 0"]),
    (em, {"inverse_temperatures": []}, ["inverse temperature"]),
    (em, {"strides": [0, 1]}, ["strides [0, 1]"]),
    (em, {"strides": [1]}, ["strides [1]"]),
    (em, {"epsilon": 0.0}, ["epsilon 0.0", "> 0"]),
    (em, {"variance_epsilon": -1e-6}, ["variance_epsilon -1e-06", ">= 0"]),
    (em, {"activation_epsilon": -1e-6}, ["activation_epsilon -1e-06", ">= 0"]),
    (em, {"cost_epsilon": -1e-6}, ["cost_epsilon -1e-06", ">= 0"]),
    (em, {"weight": t(6, 2, 3, 6, 3, 3)}, ["6x2", "5x4"]),
    (em, {"shared": True}, ["shared", "1x1"]),
    (em, {"pose": t(2, 5, 4, 3, 8)}, ["8", "not a square"]),
    (
        em,
        {
            "pose": t(2, 5, 4, 3, 1),
            "weight": t(2, 2, 3, 6, 1, 1),
            "coordinate_addition": True,
        },
        ["coordinate addition"],
    ),
    (em_added, {"coordinate_addition": True}, ["'coordinates' and 'coordinate_addition'"]),
    (em_added, {"epsilon": 0.0}, ["epsilon 0.0", "> 0"]),
    (self_attention, {"epsilon": 0.0}, ["epsilon 0.0", "> 0"]),
    (attention, {"strides": [1, 1, 1]}, ["strides [1, 1, 1]"]),
    (attention, {"strides": [2, -1]}, ["strides [2, -1]"]),
    (attention, {"weight": t(2, 5, 3, 6, 3, 3)}, ["2x5", "5x4"]),
    (attention, {"epsilon": 0.0}, ["epsilon 0.0", "> 0"]),
    (attention, {"pose": t(2, 5, 4, 3, 10)}, ["10", "not a square"]),
]
OPERATORS = {
    squash: "Squash",
    dynamic: "DynamicRouting",
    votes: "VoteRouting",
    em: "EMRouting",
    em_added: "EMRouting",
    self_attention: "SelfAttentionRouting",
    attention: "AttentionRouting",
    vector: "AttentionRouting",
}


def test_every_operator_is_called_wrongly() -> None:
    called = {OPERATORS[call] for call, *_ in WRONG_SHAPES + WRONG_ATTRIBUTES}
    assert called == {o.name for o in TABLE.values() if o.torch}


@table("call, changes, words", WRONG_SHAPES + WRONG_ATTRIBUTES)
def test_refused_with_the_reason(call: Call, changes: dict[str, Any], words: list[str]) -> None:
    call()  # the unchanged call is right
    with pytest.raises(ShapeError) as error:
        call(**changes)
    message = str(error.value)
    for word in (OPERATORS[call], *words):
        assert word in message


@table(
    "call, name, dtype",
    [
        (call, name, dtype)
        for call, names in (
            (dynamic, ("u", "weight", "log_prior", "bias")),
            (em, ("pose", "a", "weight", "beta_u", "beta_a")),
            (attention, ("pose", "parent", "weight", "scale", "bias")),
        )
        for name in names
        for dtype in (torch.float64, torch.float16, torch.int64)
    ],
)
def test_mixed_types_are_refused(call: Call, name: str, dtype: torch.dtype) -> None:
    shapes = {
        dynamic: {"u": (2, 7, 3), "weight": (7, 5, 4, 3), "log_prior": (7, 5), "bias": (5, 4)},
        em: {
            "pose": (2, 5, 4, 3, 9), "a": (2, 5, 4, 3), "weight": (2, 2, 3, 6, 3, 3),
            "beta_u": (6,), "beta_a": (6,),
        },
        attention: {
            "pose": (2, 5, 4, 3, 9), "parent": (2, 4, 3, 6, 9), "weight": (2, 2, 3, 6, 3, 3),
            "scale": (9,), "bias": (9,),
        },
    }[call]  # fmt: skip
    with pytest.raises(ShapeError, match=OPERATORS[call]) as error:
        call(**{name: t(*shapes[name], dtype=dtype)})
    assert f"{name} {str(dtype).removeprefix('torch.')}" in str(error.value)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_squash_takes_floating_point_only(dtype: torch.dtype) -> None:
    with pytest.raises(ShapeError, match="Squash: input 'x' has type"):
        ops.squash(t(2, 3, dtype=dtype))


def test_errors_are_of_the_package() -> None:
    """One `except CapsedgeError`, or ValueError, catches them; the command exits with 2."""
    with pytest.raises(CapsedgeError) as error:
        dynamic(iterations=0)
    assert error.value.exit_code == ExitCode.USAGE
    assert isinstance(error.value, ValueError)
