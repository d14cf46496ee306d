"""Einsum becomes matrix products with the same results, or stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.fusion.matrix_products import write_matrix_products

SIZES = {"b": 3, "i": 4, "j": 2, "k": 5, "p": 6, "q": 1}


def einsum(
    equation: str, terms: Sequence[str], stored: Sequence[str] = (), free: str = ""
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A graph of one Einsum, and what it is fed."""
    rng = np.random.default_rng(0)
    names = "xw"[: len(terms)]
    arrays = {
        name: rng.standard_normal([SIZES[k] for k in term]).astype(np.float32)
        for name, term in zip(names, terms, strict=True)
    }
    shapes = {
        name: ["N" if k == free else SIZES[k] for k in term]
        for name, term in zip(names, terms, strict=True)
    }
    graph = helper.make_graph(
        [helper.make_node("Einsum", list(names), ["y"], equation=equation)],
        "g",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name])
            for name in names
            if name not in stored
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(arrays[name], name) for name in stored],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return made, {name: a for name, a in arrays.items() if name not in stored}


def check_same(made: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[str]:
    """The operators of the rewritten graph, whose result was compared."""
    (want,) = ort.InferenceSession(made.SerializeToString()).run(None, feeds)
    write_matrix_products(made)
    (got,) = ort.InferenceSession(made.SerializeToString()).run(None, feeds)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return [node.op_type for node in made.graph.node]


@pytest.mark.parametrize(
    ("equation", "terms"),
    [
        ("bij,bijp->bjp", ("bij", "bijp")),  # weighted sums
        ("bijp,bjp->bij", ("bijp", "bjp")),  # agreements
        ("bip,ijpk->bijk", ("bip", "ijpk")),  # votes
        ("bik, kp", ("bik", "kp")),  # an implicit result
        ("i,i->", ("i", "i")),
        ("bi,jk->bijk", ("bi", "jk")),
        ("bijp->bj", ("bijp",)),
        ("qb,bi->iq", ("qb", "bi")),
    ],
)
def test_equations(equation: str, terms: Sequence[str]) -> None:
    assert "Einsum" not in check_same(*einsum(equation, terms))


def test_weights_are_stored_as_they_are_needed() -> None:
    found = check_same(*einsum("bip,ijpk->bijk", ("bip", "ijpk"), stored="w", free="b"))
    assert found.count("Transpose") == 2  # of the children and the votes
    assert found.count("MatMul") == 1


@pytest.mark.parametrize(
    ("equation", "terms"), [("bii->bi", ("bii",)), ("...i,ij->...j", ("bi", "ij"))]
)
def test_diagonals_and_dots_stay(equation: str, terms: Sequence[str]) -> None:
    assert check_same(*einsum(equation, terms)) == ["Einsum"]


@pytest.mark.thorough
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_equation(data: st.DataObject) -> None:
    terms = [
        "".join(data.draw(st.permutations(sorted(data.draw(st.sets(st.sampled_from("bijkpq")))))))
        for _ in range(data.draw(st.integers(1, 2)))
    ]
    letters = sorted({*"".join(terms)})
    kept = data.draw(st.sets(st.sampled_from(letters))) if letters else set()
    result = "".join(data.draw(st.permutations(sorted(kept))))
    free = data.draw(st.sampled_from(["", *letters]))
    stored = ["w"] if len(terms) == 2 and free not in terms[1] and data.draw(st.booleans()) else []
    if "" in terms:
        return  # ONNX Runtime reads no scalars here
    check_same(*einsum(f"{','.join(terms)}->{result}", terms, stored, free))
