"""Write the generated parts of the pages in docs/reference/operators: a page for every operator.

Its formula and its source are written by hand above them. Whatever else a page says is from the table of
operators, the conformance tests and the source tree.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from capsedge.spec.limits import DIFFERENCES, LIMITS
from capsedge.spec.operator_meanings import meaning
from capsedge.spec.operators import DENSE, OPERATORS, VOTES_AS_INPUT, Attribute, Value
from tests.conformance.cases import CASES, OUTPUTS
from tests.conformance.gaps import FEATURES, GAPS, TITLES, Gap, gaps_of
from tests.conformance.tolerance import AMPLIFYING, tolerance
from tools.spec.cpp_operators import snake
from tools.spec.operator_sources import Implementation, implementations
from tools.spec.pages import shape, table

FOLDER = "docs/reference/operators"
PAGES = tuple(o.name for o in OPERATORS.values() if not o.quantizes)
_MOST_TESTS = 3  # files that are listed one by one
_TYPES = {"T": "", "f": "FP32 ", "i": "INT32 ", "b": "INT8 ", "B": "uint8 "}


def page_of(name: str) -> str:
    """The page of an operator; one with INT8 weights is on that of its procedure."""
    return f"{FOLDER}/{snake(OPERATORS[name].procedure).replace('_', '-')}.md"


def skeleton(name: str) -> str:
    """A page to which the formula is to be added."""
    parts = "".join(f"\n<!-- spec: {part} -->\n<!-- /spec -->\n" for part in ("values", "places"))
    return f"# {name}\n{parts}"


def parts(name: str) -> Mapping[str, partial[str]]:
    """What makes the generated parts of an operator's page."""
    return {"values": partial(values, name), "places": partial(places, name)}


# --- Inputs, outputs and attributes ---


def values(name: str) -> str:
    """Inputs, outputs and attributes."""
    o = OPERATORS[name]
    tensors = [(_value(v), _dimensions(v), meaning(name, v.name)) for v in o.inputs]
    text = table(("input", "shape", "meaning"), tensors)
    results = [(f"`{v.name}`", _dimensions(v), meaning(name, v.name)) for v in o.outputs]
    if o.couplings and o.torch:
        dense = o.layout in (DENSE, VOTES_AS_INPUT)
        size = "`[N, I, J]`" if dense else "`[N, H', W', I, M]`"
        results.append(("`couplings`, PyTorch only", size, meaning(name, "couplings")))
    text += "\n" + table(("output", "shape", "meaning"), results)
    rows = [
        (f"`{a.name}`", a.type, _default(a), _allowed(a, meaning(name, a.name)))
        for a in o.attributes
    ]
    return text + "\n" + table(("attribute", "type", "default", "meaning"), rows)


def _value(v: Value) -> str:
    return f"`{v.name}`, optional" if v.optional else f"`{v.name}`"


def _dimensions(v: Value) -> str:
    words = " or ".join(f"`{axis}`" for axis in v.ones)
    one = f"; {words} may be 1" if words else ""
    return f"{_TYPES[v.type]}{shape(v)}{one}"


def _default(a: Attribute) -> str:
    if a.default is None:
        return "must be given"
    if isinstance(a.default, tuple):
        return f"`[{', '.join(map(str, a.default))}]`"
    return f"`{_number(a.default)}`"


def _number(value: float) -> str:
    """``1e-8``, not ``1e-08``."""
    return re.sub(r"(?<=e-)0", "", str(value))


def _allowed(a: Attribute, text: str) -> str:
    if a.flag:
        return f"0 or 1; {text}"
    return f"> 0; {text}" if a.positive and a.type == "float" else text


# --- Accuracy, limits, files, exceptions ---


def places(name: str) -> str:
    """Accuracy and limits, where it is computed and tested, and what backends lack."""
    return f"{_accuracy(name)}\n{_files(name)}\n{_lacking(name)}"


def _accuracy(name: str) -> str:
    o, output = OPERATORS[name], OUTPUTS[name][0]
    dtypes = ("uint8",) if name == "QuantizedConv" else ("float64", "float32", "float16")
    try:
        limits = [tolerance(name, output, "normal", dtype, 1.0) for dtype in dtypes]
    except KeyError as error:
        raise ValueError(f"tests/conformance/tolerance.py has no figures for {name}") from error
    rows = [
        (d, _number(float(f"{t.atol:g}")), _number(float(f"{t.rtol:g}")), t.reason)
        for d, t in zip(dtypes, limits, strict=True)
    ]
    text = (
        "## Accuracy and limits\n\n"
        "A result is right if it differs from the oracle's by at most `atol + rtol·|wanted|` "
        "([rules](../operators.md#tolerances)).\n\n"
        + table(("type", "atol", "rtol", "because of"), rows)
    )
    for (operator, kind), (factor, why) in AMPLIFYING.items():
        if operator == name:
            text += f"\nInputs `{kind}` may have {factor:g} times the error: {why}.\n"
    if o.iterates:
        own = [d for d in DIFFERENCES if d.limit == "ITERATIONS"]
        less = "".join(f"; {d.value} in {d.runtime.upper()}" for d in own)
        most = f"{LIMITS['ITERATIONS'].value} iterations{less}"
        text += f"\nA network has at most {most} ([limits](../limits.md)).\n"
    return text


def _files(name: str) -> str:
    rows = [(i.what, _listed(i), _tests(i.tests)) for i in implementations(name)]
    counts = [c.heavy for c in CASES if OPERATORS[c.operator].procedure == name]
    if not counts:
        raise ValueError(f"tests/conformance/cases.py has no case of {name}")
    twin = OPERATORS[name].int8
    with_int8 = f", with those of `{twin}`" if twin else ""
    return (
        "## Where it is\n\n"
        + table(("implementation", "files", "tests"), rows)
        + f"\n{len(counts)} conformance cases{with_int8}, {sum(counts)} of them layers of published models: "
        f"{_link('tests/conformance/cases.py')}. `make conformance OP={name}` runs them on every backend.\n"
    )


def _listed(i: Implementation) -> str:
    names = ", ".join(f"`{name}`" for name in i.names)
    found = ", ".join(map(_link, i.files))
    return (f"{names} in {found}" if names else found) if found else i.without


def _tests(paths: tuple[str, ...]) -> str:
    """Links to them, or to their folder where they are many."""
    folder = posixpath.commonpath(paths) if paths else ""
    return ", ".join(map(_link, paths if len(paths) <= _MOST_TESTS else (folder,))) or "-"


def _link(path: str) -> str:
    """Its label is a path, too: on the site there are no links to code."""
    label = path.removeprefix("capsedge/").removeprefix("runtime/native/")
    return f"[{label}]({posixpath.relpath(path, FOLDER)})"


def _lacking(name: str) -> str:
    o = OPERATORS[name]
    text = "## What backends lack\n\n" + _lacks(gaps_of(name))
    more = [each for each in gaps_of(o.int8) if each not in gaps_of(name)] if o.int8 else []
    if more:
        link = f"[`{o.int8}`](../operators.md#operators-with-int8-weights)"
        text += f"\nWith INT8 weights ({link}), in addition:\n\n{_lacks(more)}"
    return text


def _lacks(found: Sequence[tuple[str, Gap]]) -> str:
    """One row for each gap, with all its backends."""
    rows = [
        (_backends(b for b, each in found if each is g), _features(g), g.why, g.instead)
        for g in dict.fromkeys(g for _, g in found)
    ]
    return table(("backend", "nodes with", "why", "instead"), rows)


def _backends(names: Iterable[str]) -> str:
    return ", ".join(TITLES[name] for name in names)


def _features(g: Gap) -> str:
    words = " and ".join(FEATURES[feature] for feature in g.features)
    return ", ".join(filter(None, (words, " or ".join(g.types)))) or "any inputs"


# --- The overview ---


def index() -> str:
    """The operators with their pages, for docs/reference/operators.md."""
    rows = []
    for name in PAGES:
        o = OPERATORS[name]
        inputs = ", ".join(f"[{v.name}]" if v.optional else v.name for v in o.inputs)
        link = f"[`{name}`]({posixpath.relpath(page_of(name), posixpath.dirname(FOLDER))})"
        torch = f"`{o.torch}`" if o.torch else "(made by the exporter)"
        rows.append((link, torch, inputs, ", ".join(o.output_names)))
    return table(("ONNX type", "PyTorch", "inputs", "outputs"), rows)


def backends() -> str:
    """What backends lack, for docs/reference/operators.md."""
    rows = [(_backends(g.backends), _operators(g), _features(g), g.why, g.instead) for g in GAPS]
    return table(("backend", "operators", "nodes with", "why", "instead"), rows)


def _operators(g: Gap) -> str:
    """In words where they are many."""
    quantized = [n for n in OPERATORS if OPERATORS[n].in_8_bits]
    groups: dict[str, set[str]] = {
        "all": set(OPERATORS),
        "all but `QuantizedConv`": set(OPERATORS) - {"QuantizedConv"},
        "all with INT8 weights": set(quantized),
        "all that have a kernel": {n for n, o in OPERATORS.items() if o.has_cuda_kernel},
        "all with couplings": {n for n, o in OPERATORS.items() if o.couplings},
        "all with iterations": {n for n, o in OPERATORS.items() if o.iterates},
    }
    same = next((words for words, names in groups.items() if names == {*g.operators}), "")
    return same or ", ".join(f"`{name}`" for name in g.operators)
