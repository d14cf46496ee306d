"""The questions that `benchmarks.serving` sends and the answers it expects, by protocol."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw

import capsedge

PATH = "/v2/models/model/infer"
_LENGTH = re.compile(rb"content-length: *(\d+)\r\n", re.I)
_DATA = b'"data":['


@dataclass
class Question(ABC):
    """A request, ready to send, and its answer.

    Attributes:
        request: the bytes to send.
        known: answers already found right, which need not be checked again.
    """

    request: bytes
    known: set[bytes] = field(default_factory=set)

    @abstractmethod
    def cut(self, received: bytearray) -> bytes | None:
        """Take one complete answer from the received bytes; None if it is incomplete.

        Raises:
            Refused: the server refused the request.
        """

    @abstractmethod
    def right(self, answer: bytes) -> bool:
        """Whether an answer belongs to this question."""

    def judged(self, answer: bytes) -> bool:
        """Like ``right``, but remembering right answers."""
        if answer in self.known:
            return True
        found = self.right(answer)
        if found:
            self.known.add(answer)
        return found


class Refused(Exception):
    """An answer whose status is not 200."""


@dataclass
class Tensor(Question):
    """A tensor in JSON over HTTP, and the scores.

    Attributes:
        values: values of the output in row-major order. In a batch, the last bits may differ.
    """

    values: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    def cut(self, received: bytearray) -> bytes | None:
        end = received.find(b"\r\n\r\n") + 4
        found = _LENGTH.search(received, 0, end) if end > 3 else None
        if found is None or len(received) < end + int(found[1]):
            return None
        status, body = received[9:12], bytes(received[end : end + int(found[1])])
        del received[: end + int(found[1])]
        if status != b"200":
            raise Refused(body[:200].decode("utf-8", "replace"))
        start = body.find(_DATA) + len(_DATA)
        return body[start : body.find(b"]", start)]

    def right(self, answer: bytes) -> bool:
        found = np.array(json.loads(b"[%s]" % answer), np.float32)
        return found.shape == self.values.shape and np.allclose(found, self.values, 1e-4, 1e-5)


@dataclass
class Pixels(Question):
    """The pixels of an image in the C++ example's format, and the best class with its score."""

    label: str = ""
    score: float = 0.0
    nothing: str = ""

    def cut(self, received: bytearray) -> bytes | None:
        end = received.find(b"\n")
        if end < 0:
            return None
        answer = bytes(received[:end])
        del received[: end + 1]
        if answer.startswith(b"error"):
            raise Refused(answer.decode("utf-8", "replace"))
        return answer

    def right(self, answer: bytes) -> bool:
        if self.nothing:
            return answer.decode() == f"nothing to see: {self.nothing}"
        label, _, score = answer.decode().rpartition(" ")
        return label == self.label and abs(float(score) - self.score) < 2e-4


def questions(session: capsedge.Session, count: int) -> dict[str, list[Question]]:
    """Requests for randomly drawn images, by protocol: ``http`` and ``pixels``."""
    prep = session.metadata.preprocessing if session.metadata else None
    assert prep is not None
    channels, height, width = prep.shape
    rng = np.random.default_rng(0)
    made: dict[str, list[Question]] = {"http": [], "pixels": []}
    for _ in range(count):
        image = _stroke(rng, height, width, channels)
        made["http"].append(_tensor(session, image))
        made["pixels"].append(_pixels(session, image))
    return made


def _stroke(rng: np.random.Generator, height: int, width: int, channels: int) -> np.ndarray:
    """A thick random line ``[H, W, C]``, white on black, because models see nothing in noise."""
    size = (4 * width, 4 * height)
    picture = Image.new("L", size)
    corners = rng.uniform(0.2, 0.8, (5, 2)) * size
    ImageDraw.Draw(picture).line([tuple(c) for c in corners], 255, max(1, size[0] // 10), "curve")
    drawn = np.asarray(picture.resize((width, height), Image.Resampling.BOX))
    return np.repeat(drawn[..., None], channels, axis=2)


def _tensor(session: capsedge.Session, image: np.ndarray) -> Tensor:
    port, output = session.inputs[0], session.roles.all[0]
    array = session.prepare(image)[None]
    ((_, found),) = session.run_batches(array, [output])
    tensor = {
        "name": port.name, "shape": list(array.shape), "datatype": "FP32",
        "data": array.ravel().tolist(),
    }  # fmt: skip
    body = json.dumps({"inputs": [tensor], "outputs": [{"name": output}]}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return Tensor(head.encode() + body, values=found[output].ravel())


def _pixels(session: capsedge.Session, image: np.ndarray) -> Pixels:
    height, width, channels = image.shape
    (prediction,) = session.predict(image, layout="HWC")
    best = prediction.labels[0] if prediction.labels else None
    return Pixels(
        f"{height} {width} {channels}\n".encode() + image.tobytes(),
        label=best.name if best else "-",
        score=best.score if best else 0.0,
        nothing=prediction.atypical,
    )
