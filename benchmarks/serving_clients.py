"""Clients of `benchmarks.serving`: each sends images over a connection of its own and checks the answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from capsedge.runtime.session import Session


@dataclass(frozen=True)
class Question:
    """A request, ready to send, and the answer to it.

    Attributes:
        body: JSON.
        values: of the output, in row-major order.
        exact: whether the answer has to have the same bits; those of a batch may differ in the last.
    """

    body: bytes
    values: np.ndarray
    exact: bool

    def answered(self, body: bytes) -> bool:
        """Whether an answer is the right one."""
        found = np.array(json.loads(body)["outputs"][0]["data"], np.float32)
        if self.exact:
            return np.array_equal(found, self.values)
        return found.shape == self.values.shape and np.allclose(found, self.values, 1e-4, 1e-5)


def questions(session: Session, count: int, exact: bool) -> list[Question]:
    """Requests for the scores of images of noise, one image each."""
    port, output = session.inputs[0], session.answer_outputs[0]
    shape = [1, *(int(size) for size in port.shape[1:])]  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        image = rng.random(shape, np.float32)
        ((_, found),) = session.run_batches(image, [output])
        tensor = {
            "name": port.name, "shape": shape, "datatype": "FP32", "data": image.ravel().tolist(),
        }  # fmt: skip
        document = {"inputs": [tensor], "outputs": [{"name": output}]}
        made.append(Question(json.dumps(document).encode(), found[output].ravel(), exact))
    return made


@dataclass
class Tally:
    """What clients saw.

    Attributes:
        seconds: from a request to its answer, of right answers.
        wrong: answers that belong to another request, or to none.
        refused: answers with another status than 200.
        broken: connections that broke before an answer.
        elapsed: seconds of the whole.
    """

    seconds: list[float] = field(default_factory=list)
    wrong: int = 0
    refused: int = 0
    broken: int = 0
    elapsed: float = 0.0

    def add(self, other: Tally) -> None:
        """Add another round."""
        self.seconds += other.seconds
        self.wrong, self.refused = self.wrong + other.wrong, self.refused + other.refused
        self.broken, self.elapsed = self.broken + other.broken, self.elapsed + other.elapsed


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes
) -> tuple[int, bytes]:
    """Send a request, and read the status and the body of its answer."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    header = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(header.partition("content-length:")[2].partition("\r\n")[0])
    return int(header.split(" ", 2)[1]), await reader.readexactly(length)


async def client(
    port: int, path: str, asked: Sequence[Question], first: int, until: float, tally: Tally
) -> None:
    """Ask one question after another, over a new connection where one breaks."""
    number = first
    while time.perf_counter() < until:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            tally.broken += 1
            await asyncio.sleep(0.05)
            continue
        try:
            while time.perf_counter() < until:
                question = asked[number % len(asked)]
                start = time.perf_counter()
                status, body = await exchange(reader, writer, path, question.body)
                took = time.perf_counter() - start
                number += 1
                if status != 200:
                    tally.refused += 1
                elif question.answered(body):
                    tally.seconds.append(took)
                else:
                    tally.wrong += 1
        except (OSError, asyncio.IncompleteReadError):
            tally.broken += 1
        finally:
            writer.close()


async def load(
    port: int, path: str, asked: Sequence[Question], clients: int, seconds: float
) -> Tally:
    """Clients that ask at the same time, each beginning with another question."""
    tally, start = Tally(), time.perf_counter()
    await asyncio.gather(
        *(client(port, path, asked, 7 * k, start + seconds, tally) for k in range(clients))
    )
    tally.elapsed = time.perf_counter() - start
    return tally
