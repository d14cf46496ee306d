"""`capsedge serve` over the wire: ``python -m tests.fuzz.serve_target NAME SECONDS INPUTS FOLDER``.

Requests that are changed at random go to a server on the loopback address, over HTTP and over gRPC. An input
fails that is answered with a status that docs/how-to/serve.md does not name, or not at all, that ends the
server or makes it write a line, or that takes more memory than docs/reference/limits.md says. It runs in a
process of its own, since grpc does not survive a fork.
"""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.fuzz import requests
from tests.fuzz.target import Budget, Outcome, Target

NAMES = ("HTTP to a server", "gRPC to a server")
HTTP = frozenset({200, 400, 404, 405, 408, 413, 415, 421, 429, 431, 503})
GRPC = frozenset({"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"})
METHODS = (
    "ModelInfer",
    "ModelStreamInfer",
    "ModelReady",
    "ModelMetadata",
    "ServerLive",
    "RepositoryIndex",
)
RATIO, REST = 16, 64 << 20  # as in docs/reference/limits.md
SECONDS = 60  # for one answer
_WORDS = (
    b"{}", b"[]", b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\\u0000", b"null", b"true",
    b"1e999", b"-0", b"9" * 30, b"4611686018427387904", b'"data":', b'"shape":[0]', b'"inputs":[{}]',
    b"\xff", b"\0", b"\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n",
    b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n",
    b"0\r\n\r\n", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x2a\x00", b"\x0b", b"\xff\xff\xff\xff",
)  # fmt: skip
Send = Callable[[bytes], str]


def mutated(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    """Data with up to four changes: bits, words, repeated, lost or exchanged parts."""
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.choice((1, 2, 8, 64, 1024)))
        other = draw.choice(others)
        start = draw.randrange(len(other) + 1)
        put = draw.choice(
            (
                bytes(draw.randrange(256) for _ in range(draw.randint(1, 4))),
                draw.choice(_WORDS),
                draw.choice(_WORDS) * draw.choice((10, 1000, 50_000)),
                data[at:end] * draw.randint(2, 50),
                other[start : start + 200],
                b"",
            )
        )
        data = data[:at] + put + data[draw.choice((at, end)) :]
        if len(data) > 1 << 20:
            data = data[: 1 << 20]
    return data


def main(name: str, seconds: float, inputs: int, folder: Path) -> dict[str, Any]:
    """Send requests until the time is over."""
    from tests.serving.running import served

    draw = random.Random(time.time_ns())
    seeds = list(_seeds(name))
    statuses: dict[str, int] = {}
    failures: list[str] = []
    count, until = 0, time.monotonic() + seconds
    with served(f"digits={requests.ZOO}", "--batch", "1") as server:
        send = _http(server) if name == NAMES[0] else _grpc(server, draw)
        for seed in seeds:
            send(seed)  # allocates what every request needs
        start = _memory(server.pid)
        while time.monotonic() < until and (not inputs or count < inputs) and len(failures) < 10:
            data = mutated(draw.choice(seeds), draw, seeds)
            count += 1
            (folder / "last").write_bytes(data)
            said = len(server.said)
            Path(f"/proc/{server.pid}/clear_refs").write_text("5")
            try:
                status = send(data)
            except Exception as error:  # no answer
                status = f"{type(error).__name__}: {error}"[:200]
            statuses[status] = statuses.get(status, 0) + 1
            wrong = _wrong(name, status) or server.said[said:]
            if not wrong and _memory(server.pid) - start > RATIO * len(data) + 4 * REST:
                wrong = f"{_memory(server.pid) - start >> 20} MiB for {len(data):,} bytes"
            if wrong:
                kept = folder / f"failed-{len(failures)}"
                kept.write_bytes(data)
                failures.append(f"{kept}: {' '.join(wrong.split())[:300]}")
        code = server.end()
        if code != 143:
            failures.append(f"the server ended with {code}: {server.said[-300:]}")
    return {"inputs": count, "statuses": statuses, "failures": failures}


def _memory(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def _seeds(name: str) -> Sequence[bytes]:
    if name == NAMES[1]:
        return list(requests.messages())
    whole = []
    for body in requests.documents():
        head = "POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        whole.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode()
        whole.append(chunked + body + b"\r\n0\r\n\r\n")
    for path in ("/v2/health/ready", "/v2/models/digits", "/v2", "/metrics"):
        whole.append(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
    # As bodies, whose length `_http` corrects.
    return [*whole, *requests.documents()]


def _wrong(name: str, status: str) -> str:
    if name == NAMES[1]:
        return "" if status in GRPC else status
    return "" if status == "none" or (status.isdigit() and int(status) in HTTP) else status


def _http(server: Any) -> Send:
    address = "127.0.0.1", int(server.rest.rpartition(":")[2])

    def send(data: bytes) -> str:
        if not data[:1].isalpha():  # a body alone: its length is right
            head = f"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}"
            data = f"{head}\r\nConnection: close\r\n\r\n".encode() + data
            return _status(address, data, False)
        return _status(address, data, True)

    return send


def _status(address: tuple[str, int], data: bytes, half: bool) -> str:
    """The status of the first answer; ``none`` where half a request gets none."""
    received = b""
    with socket.create_connection(address, SECONDS) as client:
        try:
            client.sendall(data)
            if half:
                client.settimeout(0.1)
            while len(received) < 12 and (part := client.recv(2**16)):
                received += part
        except (ConnectionError, TimeoutError):
            if not half and not received:
                raise
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", received)
    return found[1].decode() if found else "none" if half and not received else repr(received)


def _grpc(server: Any, draw: random.Random) -> Send:
    import grpc

    channel = grpc.insecure_channel(server.grpc, [("grpc.max_send_message_length", -1)])

    def send(data: bytes) -> str:
        method = draw.choice((*METHODS, *["ModelInfer"] * 10))
        call = channel.stream_stream(f"/inference.GRPCInferenceService/{method}")
        answers = call(iter([data] * draw.choice((1, 1, 1, 2))), timeout=SECONDS)
        try:
            for _ in answers:
                pass
        except grpc.RpcError:
            pass
        return str(answers.code().name)

    return send


def run(name: str, budget: Budget) -> Outcome:
    """Run a target in a process of its own."""
    budget.folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    words = [name, str(budget.seconds), str(budget.inputs), str(budget.folder)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.serve_target", *words],
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    (budget.folder / "log").write_text(done.stdout + done.stderr)
    outcome = Outcome(seconds=time.monotonic() - started)
    if done.returncode:
        outcome.failures = [f"exit {done.returncode}: {done.stderr[-300:]}"]
        return outcome
    found = json.loads(done.stdout)
    outcome.inputs, outcome.failures = found["inputs"], found["failures"]
    outcome.coverage = [(found["inputs"], len(found["statuses"]))]
    return outcome


TARGETS = tuple(Target(name, partial(run, name)) for name in NAMES)

if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))))
