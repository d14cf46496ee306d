"""Every refusal is JSON of the protocol; docs/how-to/serve.md lists the statuses that occur and no others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from capsedge.serving import inference
from capsedge.serving.client_limits import MemoryBudget
from capsedge.spec import limits
from tests.conftest import ROOT
from tests.serving.in_process import (
    INFER,
    METHOD,
    Answer,
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

PAGE = (ROOT / "docs/how-to/serve.md").read_text(encoding="utf-8")
TABLE = PAGE[PAGE.index("| HTTP | gRPC |") :].partition("\n\n")[0]
LISTED = {int(status) for status in re.findall(r"\b[1-5]\d\d\b", TABLE)}
CODES = set(re.findall(r"`([A-Z_]+)`", TABLE))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    with gated(monkeypatch) as found:
        yield found


def head(line: str, *headers: str) -> bytes:
    return "\r\n".join([line, "Host: localhost", *headers, "", ""]).encode()


REFUSED: dict[str, tuple[int, bytes]] = {
    "no HTTP": (400, b"hello\r\n\r\n"),
    "a method without a meaning": (400, head("FOO / HTTP/1.1")),
    "a version of HTTP": (400, head("GET /v2 HTTP/3.0")),
    "a preface of HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "a proxy's method": (400, head("CONNECT example.org:80 HTTP/1.1")),
    "a coding of the body": (400, head(f"POST {INFER} HTTP/1.1", "Transfer-Encoding: gzip")),
    "a length that is none": (400, head(f"POST {INFER} HTTP/1.1", "Content-Length: x")),
    "no length": (400, head(f"POST {INFER} HTTP/1.1")),
    "an expectation": (400, head(f"POST {INFER} HTTP/1.1", "Expect: 200-ok")),
    "no JSON": (400, infer_request().replace(b"{", b"[", 1)),
    "a wrong input": (400, infer_request().replace(b'"x"', b'"z"', 1)),
    "half of the JSON": (400, infer_request(headers="Inference-Header-Content-Length: 2\r\n")),
    "no JSON before tensors": (400, infer_request(headers="Inference-Header-Content-Length: 0\r\n")),
    "more JSON than there is": (400, infer_request(headers="Inference-Header-Content-Length: 999\r\n")),
    "JSON below 0": (400, infer_request(headers="Inference-Header-Content-Length: -1\r\n")),
    "two lengths of JSON": (400, infer_request(headers="Inference-Header-Content-Length: 2\r\n" * 2)),
    "bytes without the length of their JSON": (
        415, infer_request(headers="Content-Type: application/octet-stream\r\n"),
    ),
    "another path": (404, get("/v3")),
    "a model": (404, get("/v2/models/other")),
    "a version": (404, infer_request(path="/v2/models/double/versions/3/infer")),
    "a method": (405, get(INFER)),
    "another method": (405, head("DELETE /v2/models/double HTTP/1.1")),
    "a browser's question": (405, head(f"OPTIONS {INFER} HTTP/1.1", "Origin: http://a.example")),
    "a method of WebDAV": (405, head("PROPFIND /v2 HTTP/1.1")),
    "a large body": (413, head(f"POST {INFER} HTTP/1.1", f"Content-Length: {limits.REQUEST_BYTES + 1}")),
    "a kind of body": (415, infer_request(headers="Content-Type: text/plain\r\n")),
    "a compressed body": (415, infer_request(headers="Content-Encoding: gzip\r\n")),
    "another host": (421, get("/v2").replace(b"localhost", b"example.org")),
    "many headers": (431, head("GET /v2 HTTP/1.1", *["X: y"] * limits.HEADERS)),
    "a long header": (431, head("GET /v2 HTTP/1.1", "X: " + "y" * limits.HEADER_BYTES)),
}  # fmt: skip


def check_refusal(answer: Answer, status: int, what: str) -> None:
    assert answer.status == status, (what, answer)
    assert answer.headers["content-type"] == "application/json", what
    assert list(answer.document) == ["error"], what
    assert answer.document["error"].endswith("."), what
    assert (status == 405) == ("allow" in answer.headers), what


async def overloaded(server: Running, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The refusals that depend on what else the server does."""
    gate.failing = True
    check_refusal(await ask(server, infer_request()), 500, "the model fails")
    gate.failing = False
    with monkeypatch.context() as patch:
        patch.setattr(inference.Model, "infer", None)
        check_refusal(await ask(server, infer_request()), 500, "the server fails")
    gate.close()
    check_refusal(await ask(server, infer_request() * (limits.PIPELINED + 2)), 429, "pipelined")
    gate.open()
    with monkeypatch.context() as patch:
        patch.setattr(MemoryBudget, "limit", 0)
        check_refusal(await ask(server, infer_request()), 503, "memory")
    with monkeypatch.context() as patch:
        patch.setattr(limits, "REQUESTS", 1)
        check_refusal(await ask(server, get("/v2")), 503, "connections")
    with monkeypatch.context() as patch:
        patch.setattr(limits, "REQUEST_SECONDS", 0.01)
        for part in (infer_request()[:20], infer_request()[:-1]):
            check_refusal(await ask(server, part), 408, "late")
    return {500, 429, 503, 408}


def test_every_refusal_over_http(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> set[int]:
        found = set()
        async with running(tmp_path) as server:
            for what, (status, data) in REFUSED.items():
                check_refusal(await ask(server, data), status, what)
                found.add(status)
            port = server.address.ports.metrics
            check_refusal(await ask(server, get("/v2"), port), 404, "of the metrics")
            whole = await Client.connect(server)
            for path in ("/v2", "/v2/"):
                assert (await whole.ask(get(path))).status == 200
            return found | await overloaded(server, gate, monkeypatch)

    assert asyncio.run(asyncio.wait_for(run(), SECONDS)) == LISTED


def test_every_refusal_over_grpc(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refusals(server: Running) -> dict[str, object]:
        async with channel(server) as one:
            found = {
                "nonsense": await call(one, b"\xff"),
                "a model": await call(one, infer_message(name="other")),
                "a version": await call(one, infer_message(version="3")),
                "closed": await call(one, b"", "RepositoryModelLoad"),
            }
            packed = one.unary_unary(METHOD + "ServerLive")(b"", compression=grpc.Compression.Gzip)
            found["compressed"] = await packed.code()
            gate.failing = True
            found["the model fails"] = await call(one, infer_message())
            with monkeypatch.context() as patch:
                patch.setattr(MemoryBudget, "limit", 0)
                found["memory"] = await call(one, infer_message())
            server.server.stop(15)
            while not server.server._stopping.refusing:
                await asyncio.sleep(0.01)
            found["stopping"] = await call(one, infer_message())
            return found

    async def run() -> dict[str, object]:
        async with running(tmp_path) as server:
            hold = await Client.connect(server)
            hold.send(infer_request()[:-1])  # so that it does not end
            return await refusals(server)

    found = asyncio.run(asyncio.wait_for(run(), SECONDS))
    code = grpc.StatusCode
    assert found == {
        "nonsense": code.INVALID_ARGUMENT, "a model": code.NOT_FOUND, "a version": code.NOT_FOUND,
        "closed": code.UNIMPLEMENTED, "compressed": code.UNIMPLEMENTED,
        "the model fails": code.INTERNAL, "memory": code.RESOURCE_EXHAUSTED,
        "stopping": code.UNAVAILABLE,
    }  # fmt: skip
    assert {one.name for one in found.values() if isinstance(one, code)} == CODES


def test_details_have_no_effect_on_a_terminal(gate: Gate, tmp_path: Path) -> None:
    async def run() -> str:
        async with running(tmp_path) as server, channel(server) as one:
            asked = one.unary_unary(METHOD + "ModelInfer")(infer_message(name="\x1b[2J\u202e\n"))
            return str(await asked.details())

    found = asyncio.run(asyncio.wait_for(run(), SECONDS))
    assert "\\x1b[2J" in found
    assert found.isprintable()


def test_every_version_answers_and_is_counted(gate: Gate, tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, "1", "2", "10") as server:
            for version in ("1", "2", "10"):
                path = f"/v2/models/double/versions/{version}"
                answer = await ask(server, infer_request(path=f"{path}/infer"))
                assert (answer.status, answer.document["model_version"]) == (200, version)
                assert (await ask(server, get(f"{path}/ready"))).status == 200
                about = (await ask(server, get(path))).document
                assert about["versions"] == ["1", "2", "10"]
            assert (await ask(server, infer_request())).document["model_version"] == "10"
            async with channel(server) as one:
                assert (await call(one, infer_message(version="2"))).model_version == "2"
            metrics = await ask(server, get("/metrics"), server.address.ports.metrics)
            counted = r'capsedge_batch_images_count\{model="double",version="(\d+)"\}'
            assert {"1", "2", "10"} <= set(re.findall(counted, metrics.body.decode()))

    asyncio.run(asyncio.wait_for(run(), SECONDS))
