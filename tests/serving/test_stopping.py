"""A server that is stopped: what runs is answered, what is new is refused, and what is late too."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from capsedge.serving import stopping
from capsedge.serving.grpc_messages import message
from capsedge.spec import limits
from tests.serving.in_process import (
    INFER,
    METHOD,
    Client,
    Gate,
    Running,
    ask,
    call,
    channel,
    gated,
    get,
    infer_message,
    infer_request,
    running,
)
from tests.serving.running import SECONDS

Play = Callable[[Running], Coroutine[Any, Any, None]]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
HALF = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n" % INFER.encode()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    with gated(monkeypatch) as found:
        yield found


def played(play: Play, folder: Path, **options: Any) -> None:
    async def run() -> None:
        async with running(folder, **options) as server:
            await play(server)

    asyncio.run(asyncio.wait_for(run(), SECONDS))


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.005)


async def taken(server: Running, count: int) -> None:
    """Wait until the server works on so many requests."""
    await until(lambda: len(server.server._stopping._running) == count)


async def refusing(server: Running) -> None:
    server.server.stop(signal.SIGTERM)
    await until(lambda: server.server._stopping.refusing)


def values(answer: Any) -> list[float]:
    return list(answer.outputs[0].contents.fp32_contents)


def test_what_runs_is_answered_and_what_is_new_is_refused(gate: Gate, tmp_path: Path) -> None:
    count = 3 * limits.PIPELINED // 2  # more than one connection carries at once

    async def play(server: Running) -> None:
        idle, queued = await Client.connect(server), await Client.connect(server)
        assert (await idle.ask(infer_request(3))).document["outputs"][0]["data"] == [6]
        gate.close()
        clients = [await Client.connect(server) for _ in range(4)]
        for number, client in enumerate(clients):
            client.send(infer_request(number))
        queued.send(infer_request(7) + infer_request(8))
        slow = await Client.connect(server)
        slow.send(infer_request(9)[:-5])
        async with channel(server) as many, channel(server) as new:
            calls = [asyncio.ensure_future(call(many, infer_message(k))) for k in range(count)]
            await taken(server, limits.PIPELINED + 6)
            await refusing(server)
            assert (await ask(server, get("/v2/health/live"))).status == 200
            ready = await ask(server, get("/v2/health/ready"))
            assert (ready.status, ready.document) == (503, {"ready": False})
            for refused in (await ask(server, infer_request()), await idle.ask(infer_request())):
                assert (refused.status, refused.headers["connection"]) == (503, "close")
                assert refused.document == {"error": stopping.REFUSED}
            assert (await ask(server, get("/metrics"), server.address.ports.metrics)).status == 200
            assert await call(new, infer_message()) == UNAVAILABLE
            assert not (await call(new, b"", "ServerReady")).ready
            assert (await call(new, b"", "ServerLive")).live
            assert not server.ended.done()
            gate.open()
            slow.send(infer_request(9)[-5:])
            for number, client in enumerate(clients):
                answer = await client.answer()
                assert answer.document["outputs"][0]["data"] == [2 * number]
                assert answer.headers["connection"] == "close"
            for value in (7, 8):
                assert (await queued.answer()).document["outputs"][0]["data"] == [2 * value]
            assert (await slow.answer()).document["outputs"][0]["data"] == [18]
            found = await asyncio.gather(*calls)
        assert [values(one) for one in found] == [[2.0 * k] for k in range(count)]
        assert await server.ended == signal.SIGTERM

    played(play, tmp_path)


def test_what_runs_too_long_is_refused(gate: Gate, tmp_path: Path) -> None:
    async def play(server: Running) -> None:
        gate.close()
        silent = await Client.connect(server)
        late, head, body = [await Client.connect(server) for _ in range(3)]
        late.send(infer_request())
        head.send(HALF)
        body.send(HALF + b"\r\n{")
        async with channel(server) as one:
            called = asyncio.ensure_future(call(one, infer_message()))
            stream = one.stream_stream(METHOD + "ModelStreamInfer")()
            await stream.write(infer_message())
            await taken(server, 4)
            server.server.stop(signal.SIGTERM)
            for client, status in ((late, 503), (head, 408), (body, 408)):
                answer = await client.answer()
                assert answer.status == status
                assert "stopping" in answer.document["error"]
                assert await client.closed()
            assert await silent.closed()
            assert await called == UNAVAILABLE
            assert await stream.code() == UNAVAILABLE
        assert await server.ended == signal.SIGTERM

    played(play, tmp_path, stop_timeout=0.3)


def test_the_second_signal_ends_it_at_once(gate: Gate, tmp_path: Path) -> None:
    async def play(server: Running) -> None:
        gate.close()
        late = await Client.connect(server)
        late.send(infer_request())
        await taken(server, 1)
        await refusing(server)
        server.server.stop(signal.SIGHUP)  # as a terminal sends it beside another
        await asyncio.sleep(0.1)
        assert not server.ended.done()
        server.server.stop(signal.SIGINT)
        assert (await late.answer()).status == 503
        assert await server.ended == signal.SIGTERM

    played(play, tmp_path)


def test_requests_that_stop_arriving_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_QUIET", 0.1)

    async def play(server: Running) -> None:
        body = await Client.connect(server)
        body.send(HALF + b"\r\n{")
        async with channel(server) as one:
            stream = one.stream_stream(METHOD + "ModelStreamInfer")()
            await stream.write(infer_message())
            answer = message("ModelInferResponse").FromString(await stream.read())
            assert values(answer) == [2.0]
            await taken(server, 2)
            server.server.stop(signal.SIGTERM)
            assert (await body.answer()).status == 408
            assert await stream.code() == UNAVAILABLE
        assert await server.ended == signal.SIGTERM

    played(play, tmp_path)
