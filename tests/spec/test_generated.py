"""What is generated from capsedge/spec is up to date, and nothing states its facts a second time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import pytest

from capsedge.spec import exit_codes, limits
from capsedge.spec.fields import ENGINE_FIELDS, FIELDS, INPUT_FIELDS, MetadataField
from capsedge.spec.limits import DIFFERENCES, LIMITS, OPTIONS, runtime_limit
from capsedge.spec.onnx_wire import DOMAINS, ELEMENT_TYPES, FIELD_NUMBERS, SCHEMA, VIEWS
from capsedge.spec.operators import OPERATORS
from capsedge.spec.vocabularies import OUTPUT_NAMES, VOCABULARIES
from tests.conftest import ROOT
from tools.spec.outputs import FILES, outputs
from tools.spec.pages import amount

SOURCES = {
    ROOT / "capsedge/runtime/native": "c h cpp cu",
    ROOT / "capsedge/runtime/web/src": "ts",
    ROOT / "capsedge/runtime/web/page/src": "ts",
    ROOT / "capsedge/exporters/c": "c h mjs mts",
}


def test_what_is_generated_is_up_to_date() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in outputs().items()
        if path.read_bytes() != text.encode()
    ]
    assert not stale, f"run `python -m tools.spec`, which makes {', '.join(stale)}"


def test_limits_have_their_own_names() -> None:
    constants = {name: value for name, value in vars(limits).items() if type(value) is int}
    assert {name: each.value for name, each in LIMITS.items()} == {
        name: value for name, value in constants.items() if name not in ("KIB", "MIB", "GIB")
    }
    assert set(OPTIONS) < set(LIMITS)


def test_differences_are_smaller_and_say_why() -> None:
    for each in DIFFERENCES:
        assert 0 < each.value < LIMITS[each.limit].value
        assert each.reason
        assert runtime_limit(each.runtime, each.limit) == each.value
    assert runtime_limit("cuda", "WIDTH") == limits.WIDTH


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("JSON_BYTES", "32 MiB"),
        ("REQUEST_VALUES", "2^23"),
        ("WIDTH", "65,536"),
        ("FILE_BYTES", "2^31-1"),
    ],
)
def test_amounts_are_for_people(value: str, said: str) -> None:
    assert amount(LIMITS[value]) == said


def test_fields_are_those_of_the_messages() -> None:
    rows = re.findall(r"^(\w+) (.*(?:\n    .*)*)", SCHEMA, re.MULTILINE)
    numbers = {name: set(map(int, re.findall(r"\b(\d+) ", text))) for name, text in rows}
    names = {
        "Entry": "StringStringEntryProto",
        "Opset": "OperatorSetIdProto",
        "Value": "ValueInfoProto",
    }
    names |= {"Shape": "TensorShapeProto", "Dimension": "Dimension", "Element": "Tensor"}
    for name, number in FIELD_NUMBERS.items():
        first = name.split("_")[0].capitalize()
        assert number in numbers[names.get(first, f"{first}Proto")], name


# --- No fact twice ---


def sources() -> Iterator[tuple[Path, str]]:
    """Code in C, C++, CUDA and TypeScript that is written by hand."""
    generated = {ROOT / name for name in FILES}
    for folder, kinds in SOURCES.items():
        for kind in kinds.split():
            for path in folder.rglob(f"*.{kind}"):
                if path not in generated and "mock" not in path.parts and "tests" not in path.parts:
                    yield path, path.read_text(encoding="utf-8")


def words(name: str) -> str:
    """A name in any style, without its style: `kJsonValues`, `JSON_VALUES` and `jsonValues` are one."""
    return re.sub(r"^k(?=[A-Z])", "", name).replace("_", "").lower()


def fields_of(fields: Iterable[MetadataField]) -> Iterator[str]:
    """Their names, and those of their members."""
    for field in fields:
        yield field.name
        yield from fields_of(field.members)


# What one list or union may be a copy of.
SETS: Mapping[str, frozenset[str]] = {
    "operators": frozenset(OPERATORS),
    **{f"attributes of {o.name}": frozenset(o.attribute_names) for o in OPERATORS.values()},
    **{f"inputs of {o.name}": frozenset(o.input_names) for o in OPERATORS.values()},
    **{name: frozenset(kinds) - {""} for name, kinds in VOCABULARIES.items()},
    "outputs": frozenset(OUTPUT_NAMES),
    "domains": frozenset(DOMAINS) - {""},
    "views": frozenset(VIEWS),
    "element types": frozenset(name for name, _ in ELEMENT_TYPES.values()),
    "fields of an input": frozenset(field.name for field in INPUT_FIELDS),
    "properties": frozenset(field.name for field in FIELDS),
    "fields of an engine": frozenset(field.name for field in ENGINE_FIELDS),
    **{
        f"members of {field.name}": frozenset(member.name for member in field.members)
        for field in (*FIELDS, *ENGINE_FIELDS)
        if field.members
    },
}
KNOWN = {
    words(name)
    for name in (
        *(*LIMITS, *(f"MOST_{name}" for name in LIMITS)),
        *(*chain(*SETS.values()), *fields_of(FIELDS), *fields_of(ENGINE_FIELDS)),
        *(value.name for o in OPERATORS.values() for value in o.outputs),
        *(name for name in vars(exit_codes.ExitCode) if name.isupper()),
        *FIELD_NUMBERS,
    )
}
# Names that mean something else, too: a wire type, a processor's feature, a plugin's own field.
OTHERS = {"bytes", "file", "int8", "multiprocessors", "names", "shared"}
_CONSTANT = re.compile(
    r"\b(k[A-Z]\w*|[A-Z][A-Z0-9_]{2,})(?:\[\w*\])?(?:\s*:[^=;]+)?(?:\s*=\s*(?=[-\d\"'{\[])|(?=\{))"
    r"|#define\s+(\w+)\s+(?=[-\d\"'{(])"
)
_NUMBER = re.compile(r"\w\.(number [!=]==? [1-9]\d*)")  # of a field of ONNX
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD = r"[\"']([\w. -]*)[\"']"
_LIST = re.compile(rf"{_WORD}(?:\s*[,|]\s*{_WORD})+")


def copies(text: str) -> Iterator[str]:
    """Constants of code that bear a name of the specification, and lists of half or more of its words."""
    code = _COMMENT.sub("", text)
    for constant in _CONSTANT.finditer(code):
        name = constant[1] or constant[2]
        if words(name) in KNOWN - OTHERS:
            yield name
    yield from _NUMBER.findall(code)
    for listed in _LIST.finditer(code):
        found = set(re.findall(_WORD, listed[0]))
        yield from (
            f"{name}: {listed[0]}"
            for name, all_words in SETS.items()
            if len(found & all_words) > 1 and 2 * len(found & all_words) >= len(all_words)
        )


def test_no_fact_stands_in_code_by_hand() -> None:
    assert not [
        f"{path.relative_to(ROOT)}: {copy}" for path, text in sources() for copy in copies(text)
    ]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("constexpr int64_t kJsonValues = 500'000;", "kJsonValues"),
        ("constexpr size_t kRows = 3, kMostIterations = 64;", "kMostIterations"),
        ("#define CAPSEDGE_ROWS 3\n#define WIDTH 65536", "WIDTH"),
        ("export const IMAGE_SIDE: number = 32_768;", "IMAGE_SIDE"),
        ('constexpr char kDynamicRouting[] = "DynamicRouting";', "kDynamicRouting"),
        ('const AGREEMENT_SCALE = "agreement_scale";', "AGREEMENT_SCALE"),
        ("constexpr float kAgreementScale{1.0f}, kRows = 3;", "kAgreementScale"),
        ('static const char kTypicalInput[] = "capsedge.typical_input";', "kTypicalInput"),
        ("if (field.number == 14) {", "number == 14"),
        ("enum Code { OK, USAGE = 2 };", "USAGE"),
        ('export type Resize = "stretch" | "pad" | "crop";', 'Resize: "stretch" | "pad" | "crop"'),
        (
            'names = {"beta_u", "beta_a", "weight"}',
            'inputs of EMRouting: "beta_u", "beta_a", "weight"',
        ),
    ],
)
def test_copies_are_found(code: str, found: str) -> None:
    assert found in set(copies(code))
