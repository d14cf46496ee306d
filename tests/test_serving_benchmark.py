"""The benchmark of the model server: clients notice every fault, and the page has the figures of its JSON."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import capsedge
from benchmarks.serving_clients import Tally, clients
from benchmarks.serving_page import BEGIN, END, JSON, PAGE, render
from benchmarks.serving_wire import Pixels, Question, Refused, Tensor, questions
from tests.conftest import ROOT

EM = ROOT / "capsedge/zoo/digits-em.onnx"
VALUES = np.array([0.25, 0.5], np.float32)
ASKED: list[Question] = [Tensor(b"ask\n", values=VALUES)]


def http(data: str, status: str = "200 OK") -> bytes:
    body = f'{{"id":"[1]","outputs":[{{"name":"y","shape":[1,2],"data":[{data}]}}]}}'
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


RIGHT = http("0.25,0.5")


@contextmanager
def answering(reply: Callable[[int], bytes]) -> Iterator[int]:
    """A server that answers the n-th line of a connection with ``reply(n)``; nothing ends the connection."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for number, _line in enumerate(self.rfile):
                answer = reply(number)
                if not answer:
                    return
                self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def tally(reply: Callable[[int], bytes], count: int = 2, seconds: float = 0.2) -> Tally:
    with answering(reply) as port:
        now = time.monotonic()
        return clients(port, ASKED, 0, count, (now, now + seconds))


def test_right_answers() -> None:
    found = tally(lambda _: RIGHT, seconds=0.5)
    assert len(found.seconds) >= found.in_time > 0
    assert (found.wrong, found.refused, found.broken, found.lost) == (0, 0, 0, 0)
    assert found.elapsed == pytest.approx(0.5)
    assert found.busy > 0


def test_an_answer_of_another_request() -> None:
    found = tally(lambda number: http("0.25,0.75") if number == 1 else RIGHT)
    assert found.wrong == 2  # one of each client
    assert found.seconds


def test_an_answer_that_nobody_asked_for() -> None:
    assert tally(lambda number: RIGHT * 2 if number == 1 else RIGHT).wrong >= 2


def test_a_refusal() -> None:
    found = tally(lambda number: http("", "503 Service Unavailable") if number == 1 else RIGHT)
    assert (found.refused, found.wrong) == (2, 0)


def test_a_connection_that_breaks() -> None:
    found = tally(lambda number: b"" if number == 1 else RIGHT)
    assert found.broken >= 2
    assert found.seconds


def test_no_server() -> None:
    with answering(lambda _: RIGHT) as port:
        pass
    now = time.monotonic()
    found = clients(port, ASKED, 0, 1, (now, now + 0.1))
    assert found.broken > 0
    assert not found.seconds


def test_a_lost_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.serving_clients.PATIENCE", 0.1)

    def silent(_number: int) -> bytes:
        time.sleep(1.0)
        return b""

    assert tally(silent).lost == 2


def test_answers_in_pieces() -> None:
    question, received = Tensor(b"", values=VALUES), bytearray()
    for byte in RIGHT[:-1]:
        received.append(byte)
        assert question.cut(received) is None
    received += RIGHT[-1:] + RIGHT
    assert question.cut(received) == b"0.25,0.5"
    assert received == RIGHT
    assert question.judged(b"0.25,0.5")
    assert not question.judged(b"0.25,0.51")
    assert question.known == {b"0.25,0.5"}


def test_pixels() -> None:
    question = Pixels(b"", label="7", score=0.98765)
    received = bytearray(b"7 0.98")
    assert question.cut(received) is None
    received += b"76\n"
    assert question.judged(question.cut(received) or b"")
    assert not question.judged(b"7 0.9800")
    assert not question.judged(b"1 0.9877")
    with pytest.raises(Refused, match="wanted"):
        question.cut(bytearray(b"error: wanted HEIGHT\n"))
    assert Pixels(b"", nothing="blank").judged(b"nothing to see: blank")


def test_questions_differ() -> None:
    with capsedge.load(EM, threads=1) as session:
        made = questions(session, 4)
    assert len({q.values.tobytes() for q in made["http"] if isinstance(q, Tensor)}) == 4
    body = json.loads(made["http"][0].request.partition(b"\r\n\r\n")[2])
    assert body["inputs"][0]["shape"] == [1, 1, 28, 28]
    assert made["pixels"][0].request.startswith(b"28 28 1\n")


def test_rounds_add_up() -> None:
    total = Tally(seconds=[1.0], in_time=1, wrong=1, elapsed=1.0, busy=0.2)
    total.beside(Tally(seconds=[2.0], lost=1, elapsed=1.0, busy=0.6))
    assert (total.seconds, total.elapsed, total.busy) == ([1.0, 2.0], 1.0, 0.6)
    total.after(Tally(in_time=2, broken=3, elapsed=3.0, busy=0.2))
    assert (total.elapsed, total.busy) == (4.0, pytest.approx(0.3))
    assert (total.in_time, total.wrong, total.lost, total.broken) == (3, 1, 1, 3)


def test_the_page_has_the_figures_of_its_file() -> None:
    document = json.loads(JSON.read_text(encoding="utf-8"))
    stands = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert stands.strip() == render(document).strip()
    assert not any(row["wrong"] + row["lost"] for m in document["models"] for row in m["rows"])
