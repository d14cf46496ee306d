"""Write what `capsedge doctor --report` compares with: operator cases, and scores of the bundled models.

    python -m tools.report_reference        # capsedge/runtime/report_reference.npz

The cases are those of `tests/conformance`, at most `_LARGEST` bytes each, as files of one node with inputs,
the float64 oracle's outputs and tolerances. The scores are those of the function bodies on this machine.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.runtime.load import load
from capsedge.runtime.machine_report import REFERENCE, sample_files, scores_of
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.zoo import MODELS, zoo_model
from capsedge.spec.operators import OPERATORS
from tests.conformance.cases import CASES, OUTPUTS, Case, make
from tests.conformance.native import one_node
from tests.conformance.selection import selected

_LARGEST = 2048  # bytes of the arrays of a case, where the operator has one as small
_CONSTANTS = ("weight", "weight_scale", "log_prior")


def _dtype(case: Case) -> str:
    return "uint8" if case.operator == "QuantizedConv" else "float32"


def _size(case: Case) -> int:
    example = make(case, _dtype(case))
    return 4 * sum(a.size for a in (*example.inputs.values(), *example.wanted.values()))


def _small(operator: str) -> list[Case]:
    """Small cases that the CPU has kernels for, with an image at least; if there is none, the smallest."""
    cases = [
        c
        for c in CASES
        if c.operator == operator
        and not (c.heavy or c.gap("cpu", _dtype(c)) or "empty batch" in c.features)
    ]
    return [c for c in cases if _size(c) <= _LARGEST] or [min(cases, key=_size)]


def chosen() -> list[Case]:
    """Small cases of every operator, with every kind of input and every setting that small ones have."""
    return [case for operator in OPERATORS for case in selected(_small(operator))]


def reference() -> dict[str, Any]:
    """The arrays of the file by name."""
    arrays: dict[str, NDArray[Any]] = {}
    cases = []
    for number, case in enumerate(chosen()):
        example = make(case, _dtype(case))
        model = one_node(case.operator, case.attributes, example.inputs, _CONSTANTS)
        arrays[f"{number}/model"] = np.frombuffer(model, np.uint8)
        for name, array in example.inputs.items():
            if name not in _CONSTANTS:
                arrays[f"{number}/in/{name}"] = array
        outputs = {}
        for name in OUTPUTS[case.operator]:
            arrays[f"{number}/out/{name}"] = example.wanted[name].astype(np.float32)
            outputs[name] = [example.tolerances[name].atol, example.tolerances[name].rtol]
        cases.append({"case": str(case), "operator": case.operator, "outputs": outputs})
    arrays["cases"] = np.frombuffer(json.dumps(cases).encode("ascii"), np.uint8)
    for name in MODELS:
        path = zoo_model(name)
        assert path is not None
        with load(path, RuntimeOptions(ops="portable")) as session:
            arrays[f"scores/{name}"] = scores_of(session, sample_files(name))
    return arrays


def main() -> None:
    """Write the file."""
    content = io.BytesIO()
    np.savez_compressed(content, **reference())
    REFERENCE.write_bytes(content.getvalue())
    print(f"{REFERENCE}: {len(chosen())} cases, {len(content.getvalue()):,} bytes")


if __name__ == "__main__":
    main()
