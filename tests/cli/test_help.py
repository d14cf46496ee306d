"""``--help``: every option is explained, and nothing of an explanation is taken for markup."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from capsedge.cli import app
from capsedge.cli._verbs import FIRST_COMMANDS
from tests.conftest import ROOT
from tools.docs.commands import verbs

VERBS = dict(verbs(app))


def test_explanations_are_shown_whole():
    lost = []
    for verb, command in VERBS.items():
        shown = CliRunner().invoke(
            app, [*verb.split(), "--help"], env={"COLUMNS": "400", "NO_COLOR": "1"}
        )
        text = " ".join(shown.output.split())
        for parameter in command.params:
            explanation = " ".join((getattr(parameter, "help", None) or "").split())
            if not explanation or explanation not in text:
                lost.append(f"{verb} {parameter.name}")
    assert lost == []


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_fit_the_terminal(columns: int) -> None:
    for verb in ("", "deploy", *VERBS):
        shown = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": str(columns)})
        lines = shown.output.splitlines()
        assert max(map(len, lines)) <= min(columns, 112), (verb, max(lines, key=len))


def test_the_examples_parse() -> None:
    lines = [command.example for command in VERBS.values()]
    for line in (*lines, *(line for line, _ in FIRST_COMMANDS)):
        words = shlex.split(line.replace("$(", "").replace(")", ""))
        at = words.index("capsedge") + 1
        verb = max((v for v in VERBS if words[at : at + len(v.split())] == v.split()), key=len)
        command = VERBS[verb]
        context = click.Context(command, resilient_parsing=True)
        values, rest, _ = command.make_parser(context).parse_args(words[at + len(verb.split()) :])
        missing = [p.name for p in command.params if p.required and not values.get(p.name)]
        assert (rest, missing) == ([], []), line


def test_documented_in_the_order_of_the_help():
    page = (ROOT / "docs/reference/cli.md").read_text()
    assert re.findall(r"^\| `([a-z ]+)` \|", page, re.MULTILINE) == list(VERBS)


def test_version():
    import capsedge

    assert CliRunner().invoke(app, ["--version"]).output.strip() == capsedge.__version__
