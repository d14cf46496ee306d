"""Write the specification for people: the tables in docs/reference."""

from __future__ import annotations

from collections.abc import Iterable

from capsedge.spec.exit_codes import MEANINGS
from capsedge.spec.fields import FIELDS, SCHEMA, MetadataField
from capsedge.spec.limits import DIFFERENCES, GIB, KIB, LIMITS, MIB, Limit
from capsedge.spec.operators import OPERATORS, Operator, Value
from capsedge.spec.web_arguments import WEB_ARGUMENTS

_UNITS = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_AS_POWER = 2**17  # smaller numbers are shown unchanged


def limits() -> str:
    """The limits, for docs/reference/limits.md."""
    rows = [(f"`{each.name}`", amount(each), each.meaning) for each in LIMITS.values()]
    return table(("limit", "value", "applies to"), rows)


def differences() -> str:
    """The runtimes with lower limits."""
    rows = [
        (f"`{each.limit}`", each.runtime, f"{each.value:,}", each.reason) for each in DIFFERENCES
    ]
    return table(("limit", "where", "value", "why"), rows)


def exit_codes() -> str:
    """The exit codes, for docs/reference/cli.md."""
    rows = [(str(code), meaning, examples) for code, meaning, examples in MEANINGS]
    return table(("code", "meaning", "examples"), rows)


def web_arguments() -> str:
    """The arguments of the npm package, for docs/how-to/browser.md."""
    rows = [(f"`{a.name}`", a.wanted, a.meaning) for a in WEB_ARGUMENTS]
    return table(("argument", "takes", "meaning"), rows)


OBJECTS = ("preprocessing", "outputs", "cascade", "origin", "trace")  # enumerations with a table


def properties() -> str:
    """The properties of a file, for docs/reference/metadata.md."""
    schema = ("`schema`", f"{SCHEMA}; a file of another schema is refused, before the rest is read")
    return table(("property", "value"), [schema, *((f"`{f.name}`", f.meaning) for f in FIELDS)])


def members(name: str) -> str:
    """The members of a property that is an object; for a trace, of one of its layers."""
    fields = next(each.members for each in FIELDS if each.name == name)
    if len(fields) == 1:
        fields = fields[0].members
    return table(("member", "value"), [(f"`{f.name}`", f.meaning + _parts(f)) for f in fields])


def _parts(field: MetadataField) -> str:
    names = ", ".join(f"`{each.name}`" for each in field.members)
    return f": {names}" if names else ""


def quantized_operators() -> str:
    """The operators with an INT8 weight instead of a floating-point one."""
    rows = [
        (f"`{o.name}`", _inputs(o), *(shape(v) for v in o.inputs if v.name.startswith("weight")))
        for o in OPERATORS.values()
        if o.quantizes
    ]
    return table(("ONNX type", "inputs", "weight, INT8", "weight_scale"), rows)


def _inputs(operator: Operator) -> str:
    return ", ".join(f"[{v.name}]" if v.optional else v.name for v in operator.inputs)


def shape(value: Value) -> str:
    return f"`[{', '.join(value.shape)}]`"


def amount(limit: Limit) -> str:
    """A value in readable form: 32 MiB, 2^26, 10,000."""
    if limit.unit == "bytes":
        for size, unit in _UNITS:
            if limit.value % size == 0:
                return f"{limit.value // size:,} {unit}"
    for value, end in ((limit.value, ""), (limit.value + 1, "-1")):
        if value >= _AS_POWER and value & (value - 1) == 0:
            return f"2^{value.bit_length() - 1}{end}"
    return f"{limit.value:,}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = list(head)
    lines = [f"| {' | '.join(line)} |\n" for line in (cells, *rows)]
    return "".join((lines[0], "|---" * len(cells) + "|\n", *lines[1:]))
