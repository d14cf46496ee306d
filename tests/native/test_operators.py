"""The native table of operators (native/generated/operators.h) beside Python's, and what it says of nodes."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsedge.spec.operators import OPERATORS, Value
from tests.conformance.cases import CASES, OUTPUTS, make

from .builds import NATIVE
from .library import Array, NativeError, Operator, load, unwritten

pytestmark = pytest.mark.skipif(
    load() is None, reason="the native library is not built: pip install -e . with a C++ compiler"
)


def native_table() -> list[dict[str, Any]]:
    library = load()
    assert library is not None
    return json.loads(library.capsedge_kernel_operators())  # type: ignore[no-any-return]


def names(items: list[dict[str, Any]]) -> list[str]:
    return [item["name"] for item in items]


def _value(value: Value) -> dict[str, Any]:
    def bits(some: tuple[str, ...]) -> int:
        return sum(1 << axis for axis, name in enumerate(value.shape) if name in some)

    return {
        "name": value.name,
        "type": value.type,
        "optional": value.optional,
        "shape": list(value.shape),
        "ones": bits(value.ones),
        "per_image": value.per_image,
        "body_ones": bits(value.body_ones),
    }


def python_table() -> list[dict[str, Any]]:
    """The table of `capsedge.spec`, as the native one is given."""
    return [
        {
            "name": o.name,
            "inputs": [_value(v) for v in o.inputs],
            "outputs": [_value(v) for v in o.outputs],
            "attributes": [asdict(a) for a in o.attributes],
            "quantizes": o.quantizes or None,
            "plugin": o.plugin,
        }
        for o in OPERATORS.values()
    ]


def same(native: Any, python: Any) -> bool:
    """Equal as the operators see them: numbers in FP32."""
    if isinstance(native, float) or isinstance(python, float):
        return bool(np.float32(native) == np.float32(python))
    return bool(native == (list(python) if isinstance(python, tuple) else python))


def test_python_has_the_same_operators() -> None:
    native, python = native_table(), python_table()
    assert names(native) == names(python)
    for ours, theirs in zip(native, python, strict=True):
        attributes = zip(ours.pop("attributes"), theirs.pop("attributes"), strict=True)
        for one, other in attributes:
            assert same(one.pop("default"), other.pop("default")), (ours["name"], one["name"])
            assert one == other
        assert ours == theirs


def test_an_int8_weight_brings_its_scale() -> None:
    operators = {o["name"]: o for o in native_table()}
    quantized = {n: o for n, o in operators.items() if o["quantizes"]}
    assert quantized.keys() == {f"Quantized{o['quantizes']}" for o in quantized.values()}
    for operator in quantized.values():
        plain = operators[operator["quantizes"]]
        assert operator["attributes"] == plain["attributes"]
        assert operator["outputs"] == plain["outputs"]
        inputs = [p for p in operator["inputs"] if p["name"] != "weight_scale"]
        assert names(inputs) == names(plain["inputs"])
        letters = {p["name"]: p["type"] for p in operator["inputs"]}
        assert (letters.pop("weight"), letters.pop("weight_scale")) == ("b", "f")
        assert set(letters.values()) == {"T"}


@pytest.mark.parametrize("operator", native_table() if load() else [], ids=lambda o: o["name"])
def test_every_operator_has_a_kernel(operator: dict[str, Any]) -> None:
    examples = {"iterations": 1, "inverse_temperatures": (1.0,), "agreement_scale": 0.25}
    required = [a["name"] for a in operator["attributes"] if a["default"] is None]
    Operator(operator["name"], {name: examples[name] for name in required})
    for missing in required:
        with pytest.raises(NativeError, match=f"{operator['name']}: attribute '{missing}' is miss"):
            Operator(operator["name"], {n: examples[n] for n in required if n != missing})


@pytest.mark.parametrize("name", OPERATORS)
def test_an_absent_attribute_has_its_default(name: str) -> None:
    case = next(c for c in CASES if c.operator == name)
    table = next(o for o in native_table() if o["name"] == name)["attributes"]
    required = {a["name"]: case.attributes[a["name"]] for a in table if a["default"] is None}
    everything = {a["name"]: a["default"] for a in table} | required
    example = make(case, "float32" if "float32" in case.dtypes else "uint8")
    inputs = [*example.inputs.values()]

    def compute(attributes: dict[str, Any]) -> list[Array]:
        shapes = [example.wanted[output].shape for output in OUTPUTS[name]]
        outputs = [unwritten(shape, inputs[0].dtype) for shape in shapes]
        Operator(name, attributes).run(inputs, outputs)
        return outputs

    for absent, given in zip(compute(required), compute(everything), strict=True):
        np.testing.assert_array_equal(absent, given)


PROGRAM = """
#include <cstdio>
#include "input_shapes.h"
int main() {
  using namespace capsedge;
  const OperatorSpec& op = *find_operator("DynamicRouting");
  const int64_t u[] = {2, 6, 8}, weight[] = {6, 3, 4, 8}, prior[] = {6, 3}, bias[] = {3, 4};
  const ShapeView inputs[] = {{u, 3}, {weight, 4}, {prior, 2}, {bias, 2}};
  std::printf("%s|%s|%zu|%ld", InputShapes(op).wrong(inputs, 4).c_str(), op.wanted_inputs().c_str(),
              op.source_of("J").size.axis, static_cast<long>(op.attribute("iterations").integers[0]));
}
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", "|4 to 7|1|3"),
        ('{"bias", \'T\', false, {"J", "Pout"}', '{"bias", \'T\', false, {"Pout", "J"}',
         "input 'bias' has shape [3, 4]: wanted [4, 3]|4 to 7|1|3"),
        ('{"mask", \'T\', true', '{"mask", \'T\', false', "|5 to 7|1|3"),
        ('{"iterations", AttributeType::kInt, false, false, true, {3}',
         '{"iterations", AttributeType::kInt, false, false, true, {4}', "|4 to 7|1|4"),
    ],
)  # fmt: skip
def test_the_generated_table_is_what_is_read(old: str, new: str, said: str, tmp_path: Path) -> None:
    """With a shape, an input or a default changed in it, nodes are judged by the change."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    shutil.copytree(NATIVE / "generated", tmp_path / "generated")
    table = tmp_path / "generated" / "operators.h"
    text = table.read_text()
    assert old in text
    table.write_text(text.replace(old, new, 1))
    (tmp_path / "program.cpp").write_text(PROGRAM)
    kernels = NATIVE / "kernels"
    subprocess.run(
        [compiler, "-std=c++17", "-O0", f"-I{tmp_path}", f"-I{NATIVE}", f"-I{kernels}", "program.cpp",
         str(kernels / "operators.cpp"), str(kernels / "input_shapes.cpp"), "-o", "program"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True)
    assert done.stdout == said
