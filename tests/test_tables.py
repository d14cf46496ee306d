"""A table runs every row, with the test's fixtures, and names the rows that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tables import table

seen: list[int] = []


@table("number, square", [(2, 4), (3, 9)])
def test_every_row_runs_with_the_fixtures(tmp_path: Path, number: int, square: int) -> None:
    assert tmp_path.is_dir()
    assert number**2 == square
    seen.append(number)


def test_every_row_has_run() -> None:
    seen.clear()
    test_every_row_runs_with_the_fixtures(tmp_path=Path())
    assert seen == [2, 3]


def test_all_failures_are_listed() -> None:
    @table("number", [0, 1, 2, 3])
    def uneven(number: int) -> None:
        if number == 2:
            with pytest.raises(ValueError, match="invalid"):
                int(number)
        assert number % 2 or number == 2, "even"
        if number == 3:
            raise KeyError("three")

    with pytest.raises(AssertionError) as caught:
        uneven()
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert lines[0] == "3 of 4 cases fail"
    assert [line for line in lines if line.startswith("number=")] == [
        "number=0", "number=2", "number=3",
    ]  # fmt: skip
    assert "KeyError: 'three'" in lines
