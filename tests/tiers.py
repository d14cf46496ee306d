"""The tiers of the tests: which of them a run takes, and what a test of the fast tier may cost.

A test without a mark is in the fast tier. ``tests/README.md`` describes the marks.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import hashlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

LIMIT = 1.0  # CPU seconds of a fast test on the machines that the probes were measured on
_USER = 0.058  # CPU seconds of the probe of user time (AMD EPYC, idle)
_SYSTEM = 0.045  # CPU seconds of the probe of system time (Intel Xeon, idle)
_SHARING = 1.25  # times as long where other workers use the same caches and memory
_COST = "cpu_seconds"


def _times() -> tuple[float, float]:
    """User and system seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.children_user, times.system + times.children_system


class _Shared:
    """CPU seconds that no single test causes: first imports, and fixtures that several tests use."""

    def __init__(self) -> None:
        self.user, self.system, self._depth = 0.0, 0.0, 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._begin = _times()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            user, system = _times()
            self.user += user - self._begin[0]
            self.system += system - self._begin[1]

    @property
    def active(self) -> bool:
        return self._depth > 0


shared = _Shared()


def _own() -> tuple[float, float, float]:
    """User and system seconds so far, without what is shared; and the time on the clock."""
    user, system = _times()
    return user - shared.user, system - shared.system, time.monotonic()


def _slowness() -> tuple[float, float]:
    """How many times as long user and system time take at the moment; at least 1.25.

    Virtual machines differ most in system time: fresh memory costs some of them several times as much.
    """
    begin = time.process_time()
    digest = b""
    for _ in range(200_000):
        digest = hashlib.blake2s(digest, digest_size=8).digest()
    user = time.process_time() - begin
    bytearray(1 << 26)
    system = time.process_time() - begin - user
    return _SHARING * max(1.0, user / _USER), _SHARING * max(1.0, system / _SYSTEM)


@functools.cache
def _start_hypothesis() -> None:
    """Draw an example: before the first, Hypothesis reads the constants of all our modules."""
    import hypothesis
    from hypothesis import strategies

    @hypothesis.settings(max_examples=1, database=None)
    @hypothesis.given(strategies.text() | strategies.integers())
    def draw(_: str | int) -> None:
        pass

    draw()


def _imported(
    name: str,
    globals: Any = None,
    locals: Any = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> bool:
    """Whether an import, by the arguments of ``__import__``, only looks a module up: millions do."""
    module = None if level else sys.modules.get(name)
    return module is not None and all(hasattr(module, each) for each in fromlist or ())


def register(config: pytest.Config) -> None:
    """Install what measures, and in the process that prints the summary what reports."""
    real = builtins.__import__

    def measured(*arguments: Any, **options: Any) -> Any:
        if shared.active or _imported(*arguments, **options):
            return real(*arguments, **options)
        with shared:
            return real(*arguments, **options)

    builtins.__import__ = measured
    config.add_cleanup(lambda: setattr(builtins, "__import__", real))
    config.pluginmanager.register(sys.modules[__name__], "tiers")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Costs(config.getoption("costs")), "costs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a function's cases marked ``sample(k)``, all but ``k`` evenly spaced ones become thorough."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for each in cases.values():
        mark = each[0].get_closest_marker("sample")
        assert mark is not None
        (kept,) = mark.args
        chosen = {round(k * (len(each) - 1) / max(1, kept - 1)) for k in range(kept)}
        for number, item in enumerate(each):
            if number not in chosen:
                item.add_marker("thorough")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:
    """Neither what makes a shared fixture nor what ends it belongs to the test that runs then."""
    if fixturedef.scope == "function":
        return (yield)
    ending = contextlib.ExitStack()
    fixturedef.addfinalizer(ending.close)  # the first to be added is the last to run
    with shared:
        value = yield
    fixturedef.addfinalizer(lambda: ending.enter_context(shared))
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        with shared:
            _start_hypothesis()
    item.stash[_BEGIN] = _own()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        user, system, clock = (
            end - begin for end, begin in zip(_own(), item.stash[_BEGIN], strict=True)
        )
        # A child of an earlier test may end in this one, and its time then seems to be of this test.
        cost = min(user + system, clock * (os.cpu_count() or 1))
        over = (
            not any(item.get_closest_marker(tier) for tier in ("thorough", "slow")) and cost > LIMIT
        )
        if over:
            slower_user, slower_system = _slowness()
            over = user / slower_user + system / slower_system > LIMIT
        report.user_properties.append((_COST, (cost, over)))
    return report


_BEGIN = pytest.StashKey[tuple[float, float, float]]()


class Costs:
    """In the process that prints the summary: what the tests cost."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._costs: dict[str, float] = {}
        self._over: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _COST and report.when == "teardown":
                cost, over = value
                self._costs[report.nodeid] = cost
                if over:
                    self._over[report.nodeid] = cost

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._file:
            rows = sorted(self._costs.items(), key=lambda row: -row[1])
            Path(self._file).write_text("".join(f"{cost:.3f}\t{name}\n" for name, cost in rows))
        if self._over and os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._over:
            return
        terminalreporter.section("too slow for the fast tier", red=True)
        for name, cost in sorted(self._over.items(), key=lambda row: -row[1]):
            terminalreporter.line(f"{cost:6.1f} CPU-seconds  {name}")
        terminalreporter.line(
            f"A test without a mark may take {LIMIT:g} CPU-second: make it cheaper, or mark it "
            "`thorough` (tests/README.md)."
        )
