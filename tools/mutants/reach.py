"""A pytest plugin that records which test reaches which line, and the cost of each test.

    MUTANTS_REACH='{"files": [...], "target": ...}' python -m pytest -p tools.mutants.reach tests/graph

Code in other processes is not seen. A fixture of a module or a session counts for every test that uses it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

VARIABLE = "MUTANTS_REACH"


@dataclass
class Test:
    """One test: CPU seconds, whether it is in the fast tier, and the fixtures that it uses."""

    fast: bool
    fixtures: list[str]
    cost: float = 0.0
    passed: bool = False


@dataclass
class Reach:
    """The measurements: the tests, and for each file and line the tests and fixtures that run it."""

    tests: dict[str, Test] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        """Add the record of one run."""
        said = json.loads(path.read_text(encoding="utf-8"))
        self.tests |= {name: Test(**fields) for name, fields in said["tests"].items()}
        for file, lines in said["lines"].items():
            mine = self.lines.setdefault(file, {})
            for line, names in lines.items():
                mine.setdefault(int(line), []).extend(names)

    def reaching(self, file: str, lines: set[int] | None) -> list[str]:
        """The passing tests that reach one of the lines, or any line."""
        known = self.lines.get(file, {})
        names = {
            name
            for line, all_names in known.items()
            if lines is None or line in lines
            for name in all_names
        }
        return [
            name
            for name in self.passing()
            if name in names or not names.isdisjoint(self.tests[name].fixtures)
        ]

    def passing(self) -> list[str]:
        """The tests that passed, the cheapest first."""
        found = [name for name, test in self.tests.items() if test.passed]
        return sorted(found, key=lambda name: (self.tests[name].cost, name))


if VARIABLE in os.environ:  # loaded as a plugin, before anything of the package is imported
    _ROOT = Path.cwd()
    _JOB = json.loads(os.environ[VARIABLE])
    _coverage = Coverage(
        data_file=None, config_file=False, include=[str(_ROOT / f) for f in _JOB["files"]]
    )
    _coverage.start()
    _tests: dict[str, Test] = {}
    _contexts = [""]


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        fast = not any(item.get_closest_marker(mark) for mark in ("thorough", "slow"))
        assert isinstance(item, pytest.Function)
        shared = [
            _name(fixture)
            for fixtures in item._fixtureinfo.name2fixturedefs.values()
            for fixture in fixtures
            if fixture.scope != "function"
        ]
        _tests[item.nodeid] = Test(fast, shared)


def _name(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


@contextmanager
def _reached_by(name: str) -> Iterator[None]:
    _contexts.append(name)
    _coverage.switch_context(name)
    try:
        yield
    finally:
        _contexts.pop()
        _coverage.switch_context(_contexts[-1])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    with _reached_by(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:
    if fixturedef.scope == "function":
        return (yield)
    with _reached_by(_name(fixturedef)):
        return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    test = _tests[report.nodeid]
    if report.when == "call":
        test.passed = report.passed
    if report.when == "teardown":
        test.passed = test.passed and report.passed
        properties: dict[str, Any] = dict(report.user_properties)
        test.cost = properties["cpu_seconds"][0]


def pytest_sessionfinish() -> None:
    _coverage.stop()
    data = _coverage.get_data()
    lines = {}
    for file in data.measured_files():
        contexts = data.contexts_by_lineno(file)
        lines[str(Path(file).relative_to(_ROOT))] = {
            line: [name for name in names if name] for line, names in contexts.items()
        }
    tests = {name: vars(test) for name, test in _tests.items()}
    Path(_JOB["target"]).write_text(json.dumps({"tests": tests, "lines": lines}), encoding="utf-8")
