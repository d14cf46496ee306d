"""Which requests run together, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from capsedge.serving.dynamic_batching import DynamicBatcher
from tests.serving.running import SECONDS


class Runs:
    """Batches that were started; each ends when it is allowed to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Semaphore(0)

    def __call__(self, asked: Sequence[int]) -> list[str | Exception]:
        self.batches.append(list(asked))
        assert self.go.acquire(timeout=SECONDS)
        if 99 in asked:
            raise RuntimeError("all fail")
        return [ValueError(str(one)) if one < 0 else str(one) for one in asked]


def gathered(
    play: Callable[[DynamicBatcher[int, str], Runs], Coroutine[Any, Any, None]], **options: Any
) -> list[list[int]]:
    """The batches of a play; a request of n stands for n images."""

    async def run() -> list[list[int]]:
        runs = Runs()
        at_once = options.pop("at_once", 1)
        with ThreadPoolExecutor(at_once) as threads:
            await play(DynamicBatcher(runs, threads, at_once, abs, **options), runs)
        return runs.batches

    return asyncio.run(asyncio.wait_for(run(), SECONDS))


async def started(runs: Runs, count: int) -> None:
    while len(runs.batches) < count:
        await asyncio.sleep(0.001)


def ask(gatherer: DynamicBatcher[int, str], *asked: int) -> list[asyncio.Task[str]]:
    return [asyncio.ensure_future(gatherer.submit(one)) for one in asked]


def test_a_lone_request_starts_at_once_and_the_rest_gathers() -> None:
    async def play(gatherer: DynamicBatcher[int, str], runs: Runs) -> None:
        first = ask(gatherer, 1)
        await started(runs, 1)
        rest = ask(gatherer, 2, 3, 4, 1, 9, 1)
        await asyncio.sleep(0.01)
        assert runs.batches == [[1]]
        runs.go.release(9)
        assert await asyncio.gather(*first, *rest) == ["1", "2", "3", "4", "1", "9", "1"]

    # In their order, up to eight images; what is larger is alone.
    assert gathered(play, size=8) == [[1], [2, 3], [4, 1], [9], [1]]


def test_nothing_is_gathered_without_a_size() -> None:
    async def play(gatherer: DynamicBatcher[int, str], runs: Runs) -> None:
        runs.go.release(4)
        assert await asyncio.gather(*ask(gatherer, 1, 2, 1, 1)) == ["1", "2", "1", "1"]

    assert gathered(play) == [[1], [2], [1], [1]]


def test_as_many_batches_run_as_may() -> None:
    async def play(gatherer: DynamicBatcher[int, str], runs: Runs) -> None:
        tasks = []
        for _ in range(4):
            tasks += ask(gatherer, 1)
            await asyncio.sleep(0.01)
        await started(runs, 2)
        assert len(runs.batches) == 2
        runs.go.release(4)
        await asyncio.gather(*tasks)

    assert gathered(play, size=8, at_once=2) == [[1], [1], [1, 1]]


def test_an_error_is_that_of_its_request() -> None:
    async def play(gatherer: DynamicBatcher[int, str], runs: Runs) -> None:
        tasks = ask(gatherer, 1, 2, -3, 2)
        runs.go.release(2)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(one) for one in found] == ["1", "2", "-3", "2"]
        assert isinstance(found[2], ValueError)

    assert gathered(play, size=8) == [[1], [2, -3, 2]]


def test_a_batch_that_breaks_is_an_error_of_all_and_the_next_runs() -> None:
    async def play(gatherer: DynamicBatcher[int, str], runs: Runs) -> None:
        runs.go.release(2)
        first, second = ask(gatherer, 99, 1)
        with pytest.raises(RuntimeError, match="all fail"):
            await first
        assert await second == "1"

    assert gathered(play, size=8) == [[99], [1]]


@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_goes_away_takes_no_answer_with_it(begun: bool) -> None:
    async def play(gatherer: DynamicBatcher[int, str], runs: Runs) -> None:
        first = ask(gatherer, 1)
        await started(runs, 1)
        gone, other = ask(gatherer, 2, 3)
        await asyncio.sleep(0)
        if begun:
            runs.go.release()
            await started(runs, 2)
        gone.cancel()
        runs.go.release(2)
        assert await asyncio.gather(*first, other) == ["1", "3"]
        assert gone.cancelled()

    assert gathered(play, size=8) == [[1], [2, 3] if begun else [3]]


def test_all_clients_of_a_batch_go_away() -> None:
    async def play(gatherer: DynamicBatcher[int, str], runs: Runs) -> None:
        first = ask(gatherer, 1)
        await started(runs, 1)
        gone = ask(gatherer, 2, 3)
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        runs.go.release(2)
        await asyncio.gather(*first)
        assert await ask(gatherer, 4)[0] == "4"

    assert gathered(play, size=8) == [[1], [4]]


def test_a_batch_waits_where_it_is_told_to() -> None:
    async def play(gatherer: DynamicBatcher[int, str], runs: Runs) -> None:
        runs.go.release(9)
        early = ask(gatherer, 1, 2)
        await asyncio.sleep(0.01)
        assert not runs.batches
        full = ask(gatherer, 5)  # starts without waiting further
        await asyncio.gather(*early, *full)
        await asyncio.gather(*ask(gatherer, 1, 1))  # starts when the time is over

    assert gathered(play, size=8, seconds=0.2) == [[1, 2, 5], [1, 1]]


def test_only_requests_of_one_kind_run_together() -> None:
    async def play(gatherer: DynamicBatcher[int, str], runs: Runs) -> None:
        first = ask(gatherer, 1)
        await started(runs, 1)
        rest = ask(gatherer, 3, 2, 4, 1)
        await asyncio.sleep(0.01)
        assert runs.batches == [[1]]  # no kind is full
        full = ask(gatherer, 2)
        runs.go.release(9)
        answers = await asyncio.gather(*first, *rest, *full)
        assert answers == ["1", "3", "2", "4", "1", "2"]

    # Even ones are full, and do not wait for those that came before.
    batches = gathered(play, size=8, kind=lambda one: one % 2)
    assert batches == [[1], [2, 4, 2], [3, 1]]
