"""What strangers send over the wire: memory stays within a bound, the server answers others, and says why."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from capsedge.runtime.files.protobuf import length_delimited as field
from capsedge.spec import limits
from tests.serving.conftest import images, tensor
from tests.serving.models import DIGITS
from tests.serving.running import SECONDS, Server, get, post, served

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not Path("/proc/self/clear_refs").exists(), reason="memory is read as on Linux"
    ),
]
RATIO, REST = (
    16,
    64 * limits.MIB,
)  # docs/reference/limits.md: bytes of memory for a byte received, and besides
SIZE = 8 * limits.MIB
SERVICE = "/inference.GRPCInferenceService/"
MODEL = field(1, b"digits")


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server whose memory is measured."""
    with served(f"digits={DIGITS}", "--batch", "1") as running:
        assert running.document, running.said
        yield running


def memory(server: Server, name: str) -> int:
    """``VmRSS``, the memory now, or ``VmHWM``, the most since `forget`; in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def forget(server: Server) -> int:
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")
    return memory(server, "VmRSS")


def filled(start: bytes, unit: bytes, end: bytes, size: int = SIZE) -> bytes:
    """A document of about a size, with a unit as often as it takes."""
    return start + unit * ((size - len(start) - len(end)) // len(unit)) + end


def document(data: bytes, shape: object = (1, 1, 28, 28), datatype: str = "FP32") -> bytes:
    said = (
        f'{{"inputs":[{{"name":"images","shape":{json.dumps(shape)},"datatype":"{datatype}","data":'
    )
    return said.encode() + data + b"}]}"


def bodies() -> dict[str, bytes]:
    """Documents of 8 MiB each, made when the test runs."""
    return {
        "empty inputs": filled(b'{"inputs":[{}', b",{}", b"]}"),
        "empty lists": filled(b'{"inputs":[[]', b",[]", b"]}"),
        "empty texts": filled(b'{"inputs":[""', b',""', b"]}"),
        "short texts": filled(b'{"inputs":["ab"', b',"ab"', b"]}"),
        "empty outputs": filled(b'{"inputs":[],"outputs":[{}', b",{}", b"]}"),
        "deep lists": filled(b'{"inputs":', b"[", b"}"),
        "deep objects": filled(b"", b'{"inputs":', b""),
        "names": filled(b'{"inputs":[],"parameters":{"a":0', b',"a":0', b"}}"),
        "whole numbers": document(filled(b"[0", b",0", b"]")),
        "fractions": document(filled(b"[0.5", b",0.5", b"]")),
        "large numbers": document(filled(b"[18446744073709551615", b",18446744073709551615", b"]")),
        "digits": document(filled(b"[", b"1", b"]")),
        "truth values": document(filled(b"[true", b",true", b"]")),
        "null": document(filled(b"[null", b",null", b"]")),
        "rows of one number": document(filled(b"[[0]", b",[0]", b"]")),
        "rows in rows": document(filled(b"[[[[0]]]", b",[[[0]]]", b"]")),
        "empty rows": document(filled(b"[[]", b",[]", b"]")),
        "spaces": filled(b"{", b" ", b"}"),
        "spaces in a list": document(filled(b"[1,", b" ", b"1]")),
        "an id": filled(b'{"inputs":[],"id":"', b"x", b'"}'),
        "an id of escapes": filled(b'{"inputs":[],"id":"', b"\\u0041", b'"}'),
        "an id of quotes": filled(b'{"inputs":[],"id":"', b'\\"', b'"}'),
        "an id beyond ASCII": filled(b'{"inputs":[],"id":"', "😀".encode(), b'"}'),
        "a name": document(b"[]").replace(b"images", b"x" * SIZE),
        "base64": document(filled(b'["', b"AAAA", b'"]'), [1], "BYTES"),
        "base64 with escapes": document(filled(b'["', b"AA\\/\\/", b'"]'), [1], "BYTES"),
        "many files": document(filled(b'["AAAA"', b',"AAAA"', b"]"), [SIZE], "BYTES"),
        "no end": filled(b'{"inputs":[{"data":[0', b",0", b""),
        "no JSON": b"\xff" * SIZE,
    }  # fmt: skip


def binary(shape: bytes, datatype: bytes, data: bytes) -> tuple[bytes, int]:
    """A body with one binary tensor, and the bytes of its JSON."""
    said = b'{"inputs":[{"name":"images","shape":[%b],"datatype":"%b","parameters":' % (
        shape,
        datatype,
    )
    text = said + b'{"binary_data_size":%d}}]}' % len(data)
    return text + data, len(text)


def binary_bodies() -> dict[str, tuple[bytes, int]]:
    """Bodies of 8 MiB with binary tensors."""
    return {
        "fractions": binary(b"%d" % (SIZE // 4), b"FP32", bytes(SIZE)),
        "truth values": binary(b"%d" % SIZE, b"BOOL", bytes(SIZE)),
        "bytes": binary(b"%d" % SIZE, b"INT8", bytes(SIZE)),
        "more than the shape": binary(b"1", b"FP32", bytes(SIZE)),
        "empty texts": binary(b"%d" % (SIZE // 4), b"BYTES", bytes(SIZE)),
        "short texts": binary(b"%d" % (SIZE // 6), b"BYTES", b"\2\0\0\0ab" * (SIZE // 6)),
        "sizes": binary(b"%b9" % (b"9999999999999999999," * (SIZE // 20)), b"FP32", bytes(4)),
        "tensors for nobody": (b'{"inputs":[]}' + bytes(SIZE), 13),
        "all of it JSON": (binary(b"1", b"BYTES", bytes(SIZE))[0], SIZE),
    }


def message(
    contents: bytes, shape: bytes = b"\x01\x01\x1c\x1c", datatype: bytes = b"FP32"
) -> bytes:
    described = field(1, b"images") + field(2, datatype) + field(3, shape)
    return MODEL + field(5, described + field(5, contents))


def messages() -> dict[str, bytes]:
    """The same, as messages."""
    return {
        "empty inputs": filled(MODEL, b"\x2a\x00", b""),
        "empty outputs": filled(MODEL, b"\x32\x00", b""),
        "empty parameters": filled(MODEL, b"\x22\x00", b""),
        "parameters": filled(MODEL, b"\x22\x05\x0a\x01a\x12\x00", b""),
        "empty raw contents": filled(MODEL, b"\x3a\x00", b""),
        "unknown fields": filled(MODEL, b"\xf8\x3f\x01", b""),
        "names": filled(b"", MODEL, b""),
        "groups": filled(MODEL, b"\x0b", b""),
        "truth values": message(field(1, b"\x01" * SIZE)),
        "numbers of a byte": message(field(2, b"\x01" * SIZE)),
        "numbers of two bytes": message(field(3, b"\x80\x01" * (SIZE // 2))),
        "numbers of ten bytes": message(field(3, (b"\xff" * 9 + b"\x01") * (SIZE // 10))),
        "a number without end": message(field(3, b"\xff" * SIZE)),
        "numbers one by one": message(b"\x10\x01" * (SIZE // 2)),
        "fractions": message(field(6, b"\0\0\x80\x3f" * (SIZE // 4))),
        "fractions of 64 bits": message(field(7, bytes(SIZE)), datatype=b"FP64"),
        "empty texts": message(b"\x42\x00" * (SIZE // 2), datatype=b"BYTES"),
        "a text": message(field(8, b"x" * SIZE), b"\x01", b"BYTES"),
        "sizes": message(b"", b"\x01" * SIZE),
        "a name": MODEL + field(5, field(1, b"x" * SIZE)),
        "raw fractions": message(b"") + field(7, bytes(SIZE)),
        "empty raw files": message(b"", datatype=b"BYTES") + field(7, bytes(SIZE)),
        "no message": b"\xff" * SIZE,
    }  # fmt: skip


def grown(server: Server, act: Callable[[], object]) -> int:
    """The most memory that an act took, in bytes, while others asked how the server is."""
    stop = threading.Event()

    def others() -> int:
        answered = 0
        while not stop.is_set():
            answered += get(f"{server.rest}/v2/health/live")[0] == 200
            time.sleep(0.02)
        return answered

    before = forget(server)
    with ThreadPoolExecutor(1) as clients:
        asking = clients.submit(others)
        try:
            act()
        finally:
            stop.set()
        assert asking.result() > 0
    return memory(server, "VmHWM") - before


def test_memory_for_a_byte_of_json(own: Server) -> None:
    infer = f"{own.rest}/v2/models/digits/infer"
    answers: list[tuple[int, dict[str, Any]]] = []
    failed = []
    for name, body in bodies().items():
        answers.clear()
        taken = grown(own, lambda body=body: answers.append(post(infer, body)))  # type: ignore[misc]
        status, said = answers[0]
        if status != 400 or len(said["error"]) > 2000 or taken > RATIO * len(body) + REST:
            failed.append((name, status, taken >> 20, len(body) >> 20, str(said)[:100]))
    assert not failed
    assert post(infer, {"inputs": [tensor("images", images(1, 1, 28, 28))]})[0] == 200
    assert own.said == ""


def test_memory_for_a_byte_of_a_binary_tensor(own: Server) -> None:
    infer = f"{own.rest}/v2/models/digits/infer"
    answers: list[tuple[int, dict[str, Any]]] = []
    failed = []
    for name, (body, length) in binary_bodies().items():
        answers.clear()
        headers = {"Inference-Header-Content-Length": str(length)}
        taken = grown(own, lambda b=body, h=headers: answers.append(post(infer, b, h)))  # type: ignore[misc]
        status, said = answers[0]
        if status != 400 or len(said["error"]) > 2000 or taken > RATIO * len(body) + REST:
            failed.append((name, status, taken >> 20, len(body) >> 20, str(said)[:100]))
    assert not failed
    assert own.said == ""


def test_memory_for_a_byte_of_protobuf(own: Server) -> None:
    import grpc

    failed = []
    with grpc.insecure_channel(own.grpc) as channel:
        infer = channel.unary_unary(f"{SERVICE}ModelInfer")

        def ask(message: bytes) -> None:
            errors.append(infer.future(message, timeout=SECONDS).exception())

        for name, message in messages().items():
            errors: list[Any] = []
            taken = grown(own, lambda message=message: ask(message))  # type: ignore[misc]
            code = errors[0].code()
            if code != grpc.StatusCode.INVALID_ARGUMENT or taken > RATIO * len(message) + REST:
                failed.append((name, code, taken >> 20, len(message) >> 20))
    assert not failed
    assert own.said == ""


def test_messages_that_arrive_together_take_turns(own: Server) -> None:
    """30 connections with 30 MiB each: all are answered, and the server never holds all of them."""
    import grpc

    message = MODEL + field(7, bytes(30 * limits.MIB)) + b"\xff"
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]

    def ask(_number: int) -> Any:
        with grpc.insecure_channel(own.grpc, options) as channel:
            infer = channel.unary_unary(f"{SERVICE}ModelInfer")
            return infer.future(message, timeout=SECONDS).exception().code()

    codes: list[Any] = []
    with ThreadPoolExecutor(30) as clients:
        taken = grown(own, lambda: codes.extend(clients.map(ask, range(30))))
    assert set(codes) <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert taken < 2 * limits.IN_FLIGHT_BYTES  # with what the C library keeps of what was freed


def test_compressed_messages_are_not_unpacked(own: Server) -> None:
    import grpc

    failed = []
    with grpc.insecure_channel(own.grpc, [("grpc.max_send_message_length", -1)]) as channel:
        infer = channel.unary_unary(f"{SERVICE}ModelInfer")
        for kind in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            before = forget(own)
            error = infer.future(
                bytes(4 * limits.REQUEST_BYTES), SECONDS, compression=kind
            ).exception()
            taken = memory(own, "VmHWM") - before
            if error.code() != grpc.StatusCode.UNIMPLEMENTED or taken > REST:
                failed.append((kind, error.code(), taken >> 20))
    assert not failed
    assert own.said == ""


def test_messages_that_do_not_end_hold_nobody_up(own: Server) -> None:
    """As many as may arrive at the same time, and one more that is answered."""
    import grpc

    gate = threading.Event()

    def never() -> Iterator[bytes]:
        gate.wait(SECONDS)
        yield b""

    with contextlib.ExitStack() as stack:
        stack.callback(gate.set)
        for _ in range(2 * limits.CONCURRENT_MESSAGES):
            channel = stack.enter_context(grpc.insecure_channel(own.grpc))
            stack.callback(channel.stream_unary(f"{SERVICE}ModelInfer").future(never()).cancel)
        channel = stack.enter_context(grpc.insecure_channel(own.grpc))
        live = channel.unary_unary(f"{SERVICE}ServerLive")
        assert live(b"", timeout=SECONDS) == b"\x08\x01"


def test_grpc_says_what_is_wrong(own: Server) -> None:
    import grpc

    wrong = {
        ("ModelInfer", field(1, b"x")): "NOT_FOUND",
        ("ModelReady", field(1, b"x")): "NOT_FOUND",
        ("ModelMetadata", field(1, b"x" * 3000)): "NOT_FOUND",
        ("ModelReady", MODEL + field(2, b"9")): "NOT_FOUND",
        ("ModelMetadata", field(1, b"x" * 5000)): "INVALID_ARGUMENT",
        ("ServerLive", b"x" * 5000): "INVALID_ARGUMENT",
        ("ServerReady", b"\xff\xff"): "INVALID_ARGUMENT",
        ("ModelInfer", b"\xff\xff"): "INVALID_ARGUMENT",
        ("ModelInfer", message(b"", b"\0" + (b"\x80" * 8 + b"\x40") * 2)): "INVALID_ARGUMENT",
        ("RepositoryModelLoad", b"\xff"): "UNIMPLEMENTED",
        ("RepositoryModelUnload", b""): "UNIMPLEMENTED",
        ("RepositoryIndex", b"\xff"): "INVALID_ARGUMENT",
        ("Never\n\x1b[2J", b""): "UNIMPLEMENTED",
        ("ModelInfer", bytes(limits.REQUEST_BYTES + 1)): "RESOURCE_EXHAUSTED",
    }  # fmt: skip
    failed = []
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(own.grpc, options) as channel:
        for (method, asked), wanted in wrong.items():
            error = channel.unary_unary(SERVICE + method).future(asked, timeout=SECONDS).exception()
            if error.code().name != wanted or len(error.details()) > 1000:
                failed.append((method, wanted, error.code().name, error.details()[:200]))
        large = (("x", "y" * 100_000),)
        ready = channel.unary_unary(f"{SERVICE}ServerReady")
        error = ready.future(b"", timeout=SECONDS, metadata=large).exception()
        assert error.code().name == "RESOURCE_EXHAUSTED", error
    assert not failed
    assert own.said == ""
    assert "Never" not in get(own.metrics)[1]


def asked(server: Server, sent: bytes, end: bool = False) -> bytes:
    """What comes back until the server hangs up; it does at once if the client ends what it sends."""
    received = b""
    address = "127.0.0.1", int(server.rest.rpartition(":")[2])
    # It may hang up in the middle.
    with socket.create_connection(address, SECONDS) as client, contextlib.suppress(OSError):
        client.sendall(sent)
        if end:
            client.shutdown(socket.SHUT_WR)
        while part := client.recv(2**16):
            received += part
    return received


GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
POST = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
HEADS = {
    "a header of 100 KB": (GET + b"X: " + b"x" * 100_000 + b"\r\n\r\n", 431),
    "a line of 100 KB": (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    "300 headers": (GET + b"X: y\r\n" * 300 + b"\r\n", 431),
    "two hosts": (GET + b"Host: example.org\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    "two kinds of length": (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
    "two encodings": (POST + b"Content-Encoding: gzip\r\nContent-Encoding: identity\r\n\r\n", 400),
    "a length below 0": (POST + b"Content-Length: -1\r\n\r\n{}", 400),
    "a length that says too much": (POST + b"Content-Length: 99999999\r\n\r\n{}", 413),
    "gzip": (POST + b"Content-Encoding: GZIP\r\nContent-Length: 2\r\n\r\n{}", 415),
    "two lengths of JSON": (
        POST + b"Inference-Header-Content-Length: 2\r\n" * 2 + b"Content-Length: 2\r\n\r\n{}", 400,
    ),
    "more JSON than the body has": (
        POST + b"Inference-Header-Content-Length: 99999999\r\nContent-Length: 2\r\n\r\n{}", 400,
    ),
    "a chunk of 2**64": (POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{}", 400),
    "a chunk with a note of 100 KB": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"x" * 100_000, 431,
    ),
    "10,000 requests at once": (GET.replace(b"Connection: close\r\n", b"\r\n") * 10_000, None),
    "a body that does not come": (POST + b"Content-Length: 9\r\n\r\n{", None),
}  # fmt: skip


def test_heads_of_requests(own: Server) -> None:
    failed = []
    for name, (sent, wanted) in HEADS.items():
        before = forget(own)
        received = asked(own, sent, wanted is None)
        taken = memory(own, "VmHWM") - before
        status = int(received[9:12]) if received.startswith(b"HTTP/1.1 ") else None
        if (wanted is not None and status != wanted) or taken > RATIO * len(sent) + REST:
            failed.append((name, wanted, received[:80], taken >> 20))
    assert not failed
    assert own.said == ""


def test_answers_that_nobody_takes(own: Server) -> None:
    """The answers to as many images as a request may have, on four connections whose clients do not read."""
    given = {"inputs": [tensor("images", images(1, 1, 28, 28))]}
    one = post(f"{own.rest}/v2/models/digits/infer", given)[1]
    values = sum(len(output["data"]) for output in one["outputs"])
    count = limits.REQUEST_VALUES // max(values, 784)
    zeros = b"[%b]" % b",".join([b"0"] * (784 * count))
    body = document(zeros, [count, 1, 28, 28])
    head = POST + b"Content-Length: %d\r\n\r\n" % len(body)
    address = "127.0.0.1", int(own.rest.rpartition(":")[2])
    before = forget(own)
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(address, SECONDS)) for _ in range(4)
        ]
        for client in clients:
            client.sendall(head + body)
        found = {client.recv(12) for client in clients}
        assert get(f"{own.rest}/v2/health/live")[0] == 200
        taken = memory(own, "VmHWM") - before
    assert found == {
        b"HTTP/1.1 200",
        b"HTTP/1.1 503",
    }  # the first is on its way, the others may come again
    assert taken < limits.IN_FLIGHT_BYTES + 4 * RATIO * len(body) + REST, taken >> 20


def test_a_body_that_says_it_is_compressed_is_not_unpacked(own: Server) -> None:
    status, said = post(
        f"{own.rest}/v2/models/digits/infer", b"\x1f\x8b", {"Content-Encoding": "gzip"}
    )
    assert status == 415, said


def test_names_that_come_back(own: Server) -> None:
    """An id comes back in the body alone, and what a client makes up reaches no log and no metric."""
    evil = "\r\nX-Evil: 1\x1b[2J\u202e"
    given = {"inputs": [tensor("images", images(1, 1, 28, 28))], "outputs": [{"name": "lengths"}]}
    body = json.dumps({**given, "id": evil, "parameters": {evil: evil, "headers": {"X-Evil": "1"}}})
    received = asked(own, POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body.encode()))
    head, _, answer = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), received[:300]
    assert b"X-Evil" not in head
    assert json.loads(answer)["id"] == evil
    assert evil.encode() not in answer
    assert post(f"{own.rest}/v2/models/%0d%0aevil/infer", b"{}")[0] == 404
    assert "vil" not in get(own.metrics)[1]
    assert own.said == ""


def test_predictions_come_without_tensors_that_nobody_asked_for(own: Server) -> None:
    infer = f"{own.rest}/v2/models/digits/infer"
    given = {"inputs": [tensor("images", images(1, 1, 28, 28))]}
    wanted = {"predictions": True, "top_k": 1}
    status, answer = post(infer, {**given, "parameters": wanted})
    assert (status, answer["outputs"]) == (200, [])
    assert len(json.loads(answer["parameters"]["predictions"])[0]["labels"]) == 1
    named = {**given, "parameters": wanted, "outputs": [{"name": "lengths"}]}
    assert [o["name"] for o in post(infer, named)[1]["outputs"]] == ["lengths"]
    assert {o["name"] for o in post(infer, given)[1]["outputs"]} >= {"lengths", "poses"}


def test_another_name_is_told_before_the_contents_are_read(own: Server) -> None:
    one = {"name": "x", "shape": [1, 1, 28, 28], "datatype": "BYTES", "data": ["a"]}
    status, answer = post(f"{own.rest}/v2/models/digits/infer", {"inputs": [one]})
    assert (status, answer["error"]) == (
        400,
        "The request has the inputs x. The model takes images.",
    )
