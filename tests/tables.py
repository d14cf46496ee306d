"""A table of cheap cases as one test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def table(names: str, rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize``, but one test, which runs every row and lists those that fail.

    Rows share the test's fixtures.

    >>> @table("number, square", [(2, 4), (3, 9)])
    ... def test_squares(number: int, square: int) -> None:
    ...     assert number**2 == square
    """
    columns = [name.strip() for name in names.split(",")]
    values = [dict(zip(columns, row if len(columns) > 1 else [row], strict=True)) for row in rows]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            if not values:
                pytest.skip("the table is empty")
            failed = []
            for row in values:
                try:
                    test(**fixtures, **row)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append(f"{_name(row)}\n    {type(error).__name__}: {error}")
            assert not failed, "\n".join([f"{len(failed)} of {len(values)} cases fail", *failed])

        signature = inspect.signature(test)
        others = [p for name, p in signature.parameters.items() if name not in columns]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate


def _name(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={' '.join(repr(value).split()):.70}" for name, value in row.items())
