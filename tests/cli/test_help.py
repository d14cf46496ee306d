"""``--help``: every option is explained, and nothing of an explanation is taken for markup."""

from __future__ import annotations

import re

from click.testing import CliRunner

from capsedge.cli import app
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


def test_documented_in_the_order_of_the_help():
    page = (ROOT / "docs/reference/cli.md").read_text()
    assert re.findall(r"^\| `([a-z ]+)` \|", page, re.MULTILINE) == list(VERBS)


def test_version():
    import capsedge

    assert CliRunner().invoke(app, ["--version"]).output.strip() == capsedge.__version__
