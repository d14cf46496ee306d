"""Function bodies where the operators that they are made of are written naively, as TensorRT writes some."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx.inliner
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tests.conformance.backends import Arrays, OrtFunctions
from tests.conformance.cases import CASES, Case
from tests.conformance.modes import check
from tests.conformance.selection import selected
from tests.tables import table


class Softplus(OpRun):  # type: ignore[misc]
    """ln(1 + eˣ) word for word: infinite in FP32 where x is above 88."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        with np.errstate(over="ignore"):
            return (np.log(np.exp(x) + x.dtype.type(1)).astype(x.dtype),)


class NaiveBodies(OrtFunctions):
    """The bodies in numpy."""

    name = "naive-bodies"

    def prepare(self, case: Case, inputs: Arrays, dtype: str) -> Callable[[], Arrays]:
        model = onnx.load_model_from_string(self._model(case, inputs, dtype))
        evaluator = ReferenceEvaluator(
            onnx.inliner.inline_local_functions(model), new_ops=[Softplus]
        )
        return lambda: dict(zip(case.outputs, evaluator.run(None, dict(inputs)), strict=True))


EM = [c for c in CASES if c.operator == "EMRouting"]


@pytest.mark.thorough
@table("case", selected(EM))
def test_em_routing(case: Case) -> None:
    row = check(NaiveBodies(), case, "float32")
    assert row.verdict == "ok", row


@pytest.mark.thorough
@table("case", EM)
def test_every_case_of_em_routing(case: Case) -> None:
    row = check(NaiveBodies(), case, "float32")
    assert row.verdict == "ok", row
