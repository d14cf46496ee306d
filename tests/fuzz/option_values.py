"""Option values under fuzz: what a verb makes of the text of one option before it does anything.

An input names an option by its first two bytes; the rest is the text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import click

import capsedge
from capsedge.cli import app
from capsedge.cli._commands import VerbOption
from capsedge.cli._options import MetadataOptions, UserModuleOptions
from capsedge.cli._types import Several
from capsedge.options import Options, declared
from capsedge.runtime.backends.backend import parse_device
from tools.docs.commands import verbs

VALUES = (
    "0", "1", "-1", "2", "28x28", "1:8:32", "1,8", "1..5", "1e-5,1e-4", "0.5", "512M", "flash=256K,ram=64K",
    "8.6,8.9", "cuda:1", "1:4", "0.485,0.456", "a,b", "hist:*50:int64,user:int64", "1x28x28,10", '{"a": 1}',
)  # fmt: skip
HOSTILE = (
    "9" * 25, "9" * 5000, "-" + "9" * 25, "٣", "３", "²", "1_0", "nan", "-inf", "1e999", "1e-999", "",
    "9223372036854775808", "-9223372036854775809", "4294967296", "0x10", "1" + "0" * 400, "9999999999x28",
    "cuda:²", "cuda:" + "9" * 5000, "1:" + "9" * 25, "1.." + "9" * 25, "hist:" + "9" * 5000 + ":int64",
    "3x" * 500 + "3", "[" * 5000, '{"a":' + "9" * 5000 + "}", '{"a": 1e999}', "\x1b[2J", "\x00", "\udcff",
)  # fmt: skip


def _example(text: str) -> object:
    from torch import nn

    from capsedge.models.user.example_inputs import _parsed

    class _Module(nn.Module):
        """Looks nothing up."""

    return _parsed(text) and _Module()


# What the verbs do with texts that are no fields of a dataclass of options, before anything else.
TEXTS: dict[str, Callable[[str], object]] = {
    "export --example": _example,
    **dict.fromkeys(
        [f"{verb} --device" for verb in ("infer", "see", "batch", "profile", "serve", "inspect")],
        parse_device,
    ),
}


@functools.cache
def options() -> list[tuple[str, VerbOption]]:
    """Every option of every verb that takes a value."""
    return [
        (name, option)
        for name, verb in verbs(app)
        for option in verb.params
        if isinstance(option, VerbOption) and not option.is_flag
    ]


@functools.cache
def _kinds() -> tuple[type[Options], ...]:
    public = [getattr(capsedge, name) for name in capsedge.__all__ if name.endswith("Options")]
    return (*public, MetadataOptions, UserModuleOptions)


def read(data: bytes) -> object:
    """Give an option a text."""
    found = options()
    name, option = found[int.from_bytes(data[:2], "little") % len(found)]
    text = data[2:].decode("utf-8", "surrogateescape")
    value = option.type_cast_value(click.Context(app), (text,) if option.multiple else text)
    made: list[Any] = []
    for kind in _kinds():
        if any(each.option is option.declared for each in declared(kind)):
            passed = sum(value, ()) if isinstance(option.type, Several) else value
            made.append(kind(**{str(option.name): passed}))
            if isinstance(made[-1], MetadataOptions):
                made.append(made[-1].description())
    use = TEXTS.get(f"{name} {max(option.opts, key=len)}")
    return made, use and use(text)


def seeds() -> Iterable[bytes]:
    """Honest texts, a few for each option."""
    for number in range(len(options())):
        for value in (VALUES[number % len(VALUES)], VALUES[(7 * number + 3) % len(VALUES)]):
            yield number.to_bytes(2, "little") + value.encode()


def hostile() -> dict[str, bytes]:
    """Every hostile text for every option."""
    return {
        f"{name} {option.opts[-1]}, text {number}": at.to_bytes(2, "little")
        + text.encode("utf-8", "surrogateescape")
        for at, (name, option) in enumerate(options())
        for number, text in enumerate(HOSTILE)
    }
