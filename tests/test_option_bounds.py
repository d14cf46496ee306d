"""Every number that an option takes has bounds, for Python and the command line, and is written in ASCII."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capsedge
from capsedge.cli import app
from capsedge.cli._commands import VerbOption
from capsedge.cli._options import MetadataOptions
from capsedge.cli._types import Real, Several, Whole, single_value_type
from capsedge.errors import UsageError
from capsedge.exporters.build_options import BuildOptions
from capsedge.exporters.export_options import ExportOptions
from capsedge.optimization.optimize_options import OptimizeOptions
from capsedge.optimization.sweep_options import SweepOptions
from capsedge.options import (
    Declared,
    Options,
    bounds,
    declared,
    options_of,
    parse_number,
    parse_whole,
)
from capsedge.runtime.backends.backend import parse_device
from capsedge.serving.serve_options import ServeOptions
from capsedge.serving.served_models import _as_number
from capsedge.verification.verify_options import VerifyOptions
from tools.docs.commands import verbs

PUBLIC = list(
    {kind: None for name in capsedge.__all__ for kind in options_of(getattr(capsedge, name))}
)
# Texts beyond every bound, or that only Python's own conversion takes for numbers.
NEVER = [
    "9" * 25,
    "9" * 5000,
    "-" + "9" * 25,
    "٣",
    "３",
    "²",
    "1_0",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "",
    "0x1",
]
# Options whose text holds numbers in a grammar of their own: verb, option, texts that no bound allows.
TEXTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("optimize", "--batch"): ("0", "-1", "4097"),
    ("serve", "--batch"): ("0", "-1", "1025"),
    ("build", "--batch"): ("0", "-1", "2147483648", "1:2", "2:1:3", "1:2:٣"),
    ("build", "--length"): ("0", "-1", "2147483648", "1:2", "2:1:3"),
    ("build", "--workspace"): ("0", "-1", "9999999999999G", "٣G"),
    ("build", "--fit"): ("flash=٣K", "flash=-1", "flash=9999999999999"),
    ("build", "--compute-capability"): ("8.٩", "888.9"),
    ("export", "--tolerance"): ("1e-5", "-1,0", "1e7,0", "0,٣"),
    ("verify", "--tolerance"): ("1e-5", "-1,0", "1e7,0", "0,٣"),
    ("sweep", "--iters"): ("0", "101", "1..101", "1..٣", "-1"),
    ("export", "--size"): ("0x1", "1x32769", "28", "٣x٣", "9999999999x28"),
    ("export", "--mean"): ("1e30", "٣"),
    ("export", "--std"): ("0", "1e30", "٣"),
}  # fmt: skip


def numbers(kind: type[Options]) -> list[Declared]:
    return [each for each in declared(kind) if each.kind in (int, float) and not each.option.parse]


def test_every_number_of_a_dataclass_has_both_bounds() -> None:
    found = [(kind.__name__, each) for kind in PUBLIC for each in numbers(kind)]
    assert len(found) > 50
    assert not [
        f"{name}.{each.name}" for name, each in found if None in (each.option.min, each.option.max)
    ]


def test_every_number_of_a_verb_has_both_bounds() -> None:
    free = [
        f"{name} {option.opts[-1]}"
        for name, option, value in _numeric()
        if value.min is None or value.max is None
    ]
    assert not free


def _numeric() -> Iterator[tuple[str, VerbOption, Whole | Real]]:
    for name, verb in verbs(app):
        for option in verb.params:
            value = single_value_type(option.type)
            if isinstance(option, VerbOption) and isinstance(value, (Whole, Real)):
                yield name, option, value


def _refused(verb: click.Command, option: str, text: str) -> UsageError:
    context = click.Context(verb, resilient_parsing=False)
    (found,) = [p for p in verb.params if option in p.opts]
    with pytest.raises(UsageError) as raised:
        found.type_cast_value(context, (text,) if getattr(found, "multiple", False) else text)
    return raised.value


def test_a_number_of_a_verb_beyond_its_bounds_is_refused_in_words() -> None:
    known = dict(verbs(app))
    for name, option, value in _numeric():
        label = max(option.opts, key=len)
        assert value.min is not None
        assert value.max is not None
        step = 1 if isinstance(value, Whole) else 1e-3 * max(1.0, abs(value.max))
        beyond = [
            f"{value.min - step:.10g}",
            f"{value.max + step:.10f}".removesuffix(".0000000000"),
        ]
        for text in [*beyond, *NEVER]:
            if isinstance(option.type, Several) and text == "":
                continue  # an empty list
            said = _refused(known[name], label, text)
            assert label in said.what, (name, label, text)
            assert len(said.what) < 120, (name, label, text)
            assert bounds(value.min, value.max) in said.why, (name, label, text)
        for at in (value.min, value.max):
            text = str(at)
            assert option.type_cast_value(click.Context(known[name]), (text,) if option.multiple else text)\
                in (at, (at,), ((at,),))  # fmt: skip


def test_python_refuses_the_same_numbers() -> None:
    for kind in PUBLIC:
        for each in numbers(kind):
            low, high = each.option.min, each.option.max
            assert low is not None
            assert high is not None
            wrong: list[Any] = [
                low - 1,
                high + 1,
                10**400,
                -(10**400),
                math.nan,
                math.inf,
                "1",
                True,
            ]
            for value in wrong:
                with pytest.raises(UsageError, match=each.name) as raised:
                    kind(**{each.name: (value,) if each.several else value})
                assert raised.value.why.startswith("It must be"), (kind, each.name, value)


def _made(kind: Any, option: click.Parameter, text: str) -> None:
    """What a verb makes of the text of one option before it does anything."""
    value = (text,) if getattr(option, "multiple", False) else text
    made = kind(**{str(option.name): option.type_cast_value(click.Context(app), value)})
    if isinstance(made, MetadataOptions):
        made.description()


def test_texts_with_numbers_in_them_are_bounded() -> None:
    known = dict(verbs(app))
    kinds = {
        "optimize": OptimizeOptions, "serve": ServeOptions, "build": BuildOptions,
        "export": ExportOptions, "verify": VerifyOptions, "sweep": SweepOptions,
    }  # fmt: skip
    for (name, label), wrong in TEXTS.items():
        (option,) = [p for p in known[name].params if label in p.opts]
        kind: Any = kinds[name]
        if option.name not in kind.__dataclass_fields__:
            kind = MetadataOptions
        for text in (*wrong, *(each for each in NEVER if each)):
            with pytest.raises(UsageError) as raised:
                _made(kind, option, text)
            assert len(raised.value.what) < 120, (name, label, text)


@pytest.mark.parametrize("given", [5, "1..5", (0,), (101,), (10**30,), (True,), (1.5,), ("1",)])
def test_iterations_of_a_sweep(given: Any) -> None:
    with pytest.raises(UsageError, match="Invalid iterations"):
        SweepOptions(iterations=given)


@pytest.mark.parametrize("text", [*NEVER, "0", "65537", "1,0", ","])
def test_batch_sizes_of_inspect(text: str) -> None:
    (option,) = [p for p in dict(verbs(app))["inspect"].params if p.name == "batch"]
    with pytest.raises(UsageError, match="--batch"):
        option.type_cast_value(click.Context(app), (text,))


@pytest.mark.parametrize("text", ["cuda:²", "cuda:٣", "cuda:" + "9" * 5000, "cuda:-1", "cuda:"])
def test_devices(text: str) -> None:
    with pytest.raises(UsageError, match="Unknown device"):
        parse_device(text)


@given(st.text(max_size=12))
@settings(max_examples=100, deadline=None)
def test_any_text_is_a_number_of_ascii_or_refused(text: str) -> None:
    for parse in (parse_whole, parse_number):
        try:
            found = parse(text)
        except ValueError:
            continue
        assert text.strip().isascii()
        assert math.isfinite(found)


def test_versions_of_a_model_are_numbers_of_ascii() -> None:
    assert [_as_number(version)[0] for version in ("12", "٣", "²", "v1")] == [12, -1, -1, -1]
