"""Tables on terminals of every width: no number is broken over lines, nothing is lost."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from capsedge.cli._output import print_report, print_table
from capsedge.runtime.result_summary import Report, Table

COLUMNS = ("output", "max abs", "mean abs", "relative", "NMSE", "atol", "rtol", "worst/allowed", "")
ROWS = [
    ("lengths", *["1.23e-07"] * 4, "1e-05", "0", "0.012", "ok"),
    ("poses", *["4.56e-08"] * 4, "0.0001", "0.0001", "0.001", "ok"),
    ("reconstruction", *["7.89e-07"] * 4, "0.0001", "0", "0.009", "over"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(
    width: int,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    monkeypatch: pytest.MonkeyPatch,
    essential: Sequence[str] = (),
) -> list[str]:
    """The lines on a terminal, without their styles."""
    for name, value in {"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    print_table("Title", columns, rows, essential)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert lines[0].strip() == "Title"
    assert max(map(len, lines)) <= width
    return lines


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_numbers_stay_whole(width: int, monkeypatch: pytest.MonkeyPatch):
    lines = drawn(width, COLUMNS, ROWS, monkeypatch)
    cells = [cell.strip() for line in lines for cell in line.replace("┃", "│").split("│")]
    for cell in {cell for row in ROWS for cell in row}:
        assert cells.count(cell) == sum(row.count(cell) for row in ROWS), cell
    assert set(COLUMNS) <= set(cells)


def test_a_narrow_terminal_shows_what_is_essential(monkeypatch: pytest.MonkeyPatch):
    essential = ("output", "max abs", "worst/allowed")
    wide = drawn(150, COLUMNS, ROWS, monkeypatch, essential)
    assert all(column in wide[2] for column in COLUMNS)
    lines = drawn(60, COLUMNS, ROWS, monkeypatch, essential)
    assert sum(line.startswith("│") for line in lines) == len(ROWS)
    heading = [cell.strip() for cell in lines[2].strip("┃").split("┃")]
    assert heading == list(essential)
    assert "".join(lines[-2:]).startswith("Left out: mean abs, relative, NMSE")
    narrower = drawn(30, COLUMNS, ROWS, monkeypatch, essential)
    assert sum("mean abs" in line for line in narrower) > 1  # transposed: nothing is left out


def test_long_names_are_folded(monkeypatch: pytest.MonkeyPatch):
    name = "a/folder/with/a/long/name/" * 3 + "digit-7.png"
    lines = drawn(50, ("image", "class", "length"), [(name, "7", "0.9576")], monkeypatch)
    first = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert "".join(first) == name
    assert any("0.9576" in line for line in lines)


def test_no_rows(monkeypatch: pytest.MonkeyPatch):
    assert drawn(40, COLUMNS, [], monkeypatch)


class Found(Report):
    """A report of every part."""

    warnings = ("it is small",)

    def _lines(self) -> list[str]:
        return ["of a test"]

    def rows(self) -> list[tuple[str, str]]:
        return [("file", "a.onnx"), ("multiply-adds", "12")]

    def tables(self) -> list[Table]:
        return [
            Table("Parts", ("name", "count"), [("a", "1")], notes=["and 2 more"]),
            Table("Nothing", ("name", "count"), []),
        ]

    def closing(self) -> list[str]:
        return ["PASSED"]

    def to_dict(self) -> dict[str, Any]:
        return {"file": "a.onnx"}


def test_a_report_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(Found(), False, ("model", "net"))
    printed = capsys.readouterr()
    assert printed.err == "warning: it is small\n"
    assert [line.rstrip() for line in printed.out.splitlines()] == [
        "model         net",
        "file          a.onnx",
        "multiply-adds 12",
        "Parts",
        "  name  count",
        "  a     1",
        "",
        "and 2 more",
        "",
        "PASSED",
    ]


def test_a_report_with_a_heading_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    class Titled(Found):
        heading = "Found"

    print_report(Titled(), False)
    assert capsys.readouterr().out.startswith("Found\n  file           a.onnx\n")


def test_a_report_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(Found(), True, ("model", "net"), more={"next": []})
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"file": "a.onnx", "next": []}
    assert printed.err == "warning: it is small\n"


def test_a_notebook_shows_what_is_printed() -> None:
    page = Found()._repr_html_()
    for text in ("a.onnx", "multiply-adds", "Parts", "and 2 more", "it is small", "PASSED"):
        assert text in page
    assert "Nothing" not in page
    assert repr(Found()) == "<Found of a test>"
