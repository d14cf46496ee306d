"""Answers of the server are the bits of `Session.run`, over HTTP and gRPC, for every kind of model."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import capsedge
from capsedge.spec import limits
from tests.conftest import ROOT
from tests.serving.conftest import Ask, ask_binary, ask_grpc, ask_http, images, tensor
from tests.serving.running import SECONDS, Server, get, post

IMAGE = (ROOT / "capsedge/zoo/samples/digit-7.png").read_bytes()
ASKS = pytest.mark.parametrize("ask", [ask_http, ask_binary, ask_grpc])


def same(found: dict[str, NDArray[Any]], wanted: dict[str, NDArray[Any]]) -> None:
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, strict=True)


@ASKS
@pytest.mark.parametrize("count", [1, 3])
def test_digits(ask: Ask, count: int, server: Server, files: dict[str, Path]) -> None:
    given = images(count, 1, 28, 28)
    with capsedge.load(files["digits"], threads=1) as session:
        same(ask(server, "digits", {"images": given}), session.run(given))


@ASKS
@pytest.mark.parametrize("count", [1, 4, 9])
def test_a_fixed_batch_takes_any_number(
    ask: Ask, count: int, server: Server, files: dict[str, Path]
) -> None:
    given = images(count, 1, 8, 8)
    with capsedge.load(files["fixed"], threads=1) as session:
        parts = [found for _, found in session.run_batches(given)]
    wanted = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    same(ask(server, "fixed", {"images": given}), wanted)


@ASKS
def test_a_regression(ask: Ask, server: Server, files: dict[str, Path]) -> None:
    given = images(2, 1, 8, 8)
    with capsedge.load(files["angles"], threads=1) as session:
        wanted = session.run(given)
    same(ask(server, "angles", {"images": given}), wanted)
    same(ask(server, "angles", {"images": given}, ["tilt"]), {"tilt": wanted["tilt"]})


@ASKS
def test_several_inputs_of_other_types(ask: Ask, server: Server) -> None:
    x, shift = np.array([[0.1, 2, -3]], np.float16), np.array([[1, -1, 2**11]], np.int64)
    wanted = {"sum": x + shift.astype(np.float16), "more": np.zeros((1, 3), bool)}
    same(ask(server, "two", {"shift": shift, "x": x}), wanted)


@ASKS
def test_a_cascade(ask: Ask, server: Server, files: dict[str, Path]) -> None:
    given = images(5, 1, 8, 8)
    with capsedge.load(files["cascade"], threads=1) as session:
        wanted = session.run(given)
    assert wanted["escalated"].dtype == bool
    same(ask(server, "cascade", {"images": given}), wanted)


@pytest.mark.parametrize("ask", [ask_binary, ask_grpc])
def test_images_as_bytes(ask: Ask, server: Server, files: dict[str, Path]) -> None:
    with capsedge.load(files["digits"], threads=1) as session:
        wanted = session.run(session.prepare(IMAGE)[None])
        turned = session.run(session.prepare(IMAGE, invert=True)[None])
    given = {"images": np.array([IMAGE], object)}
    same(ask(server, "digits", given), wanted)
    same(ask(server, "digits", given, parameters={"invert": True}), turned)


def test_the_bytes_of_a_binary_answer(server: Server, files: dict[str, Path]) -> None:
    """One output as bytes after the JSON, whose length the header says, and another in JSON."""
    given = images(2, 1, 28, 28)
    with capsedge.load(files["digits"], threads=1) as session:
        wanted = session.run(given)
    text = json.dumps(
        {
            "inputs": [
                {"name": "images", "shape": [2, 1, 28, 28], "datatype": "FP32",
                 "parameters": {"binary_data_size": given.nbytes}},
            ],
            "outputs": [{"name": "poses", "parameters": {"binary_data": True}}, {"name": "lengths"}],
        }
    ).encode()  # fmt: skip
    sent = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": len(text),
    }
    answer = urllib.request.urlopen(
        urllib.request.Request(
            f"{server.rest}/v2/models/digits/infer", text + given.tobytes(), sent
        )
    )
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert answer.headers["Content-Type"] == "application/octet-stream"
    body = answer.read()
    poses, lengths = json.loads(body[:length])["outputs"]
    assert poses["parameters"] == {"binary_data_size": wanted["poses"].nbytes}
    assert "data" not in poses
    assert body[length:] == wanted["poses"].tobytes()
    assert np.array_equal(np.array(lengths["data"], np.float32), wanted["lengths"].ravel())
    assert "parameters" not in lengths


def test_a_large_answer_comes_in_parts(server: Server, files: dict[str, Path]) -> None:
    given = images(1000, 1, 28, 28)
    wanted = ask_grpc(server, "digits", {"images": given}, ["poses"])
    same(ask_binary(server, "digits", {"images": given}, ["poses"]), wanted)


def request(*files: bytes, **more: Any) -> dict[str, Any]:
    data = [base64.b64encode(file).decode() for file in files]
    return {
        "inputs": [{"name": "images", "shape": [len(data)], "datatype": "BYTES", "data": data}],
        **more,
    }


def test_images_in_json_and_their_predictions(server: Server, files: dict[str, Path]) -> None:
    asked = {"predictions": True, "threshold": 0.5}
    status, answer = post(
        f"{server.rest}/v2/models/digits/infer",
        request(IMAGE, IMAGE, parameters=asked, outputs=[{"name": "lengths"}], id="mine"),
    )
    assert (status, answer["id"], answer["model_name"]) == (200, "mine", "digits")
    assert [output["name"] for output in answer["outputs"]] == ["lengths"]
    with capsedge.load(files["digits"], threads=1) as session:
        wanted = [p.to_dict() for p in session.predict([IMAGE, IMAGE], threshold=0.5)]
    assert json.loads(answer["parameters"]["predictions"]) == wanted
    assert wanted[0]["labels"][0]["label"] == "7"


def test_a_small_answer_where_top_k_is_asked_for(server: Server, files: dict[str, Path]) -> None:
    """The best labels alone: no tensors, and no scores of the others."""
    infer = f"{server.rest}/v2/models/digits/infer"
    status, answer = post(infer, request(IMAGE, parameters={"top_k": 2}))
    assert (status, answer["outputs"]) == (200, [])
    with capsedge.load(files["digits"], threads=1) as session:
        wanted = session.predict(IMAGE, top_k=2)[0].to_dict()
    del wanted["scores"]
    assert json.loads(answer["parameters"]["predictions"]) == [wanted]
    assert len(wanted["labels"]) == 2
    whole = post(infer, request(IMAGE, parameters={"top_k": 2, "predictions": False}))[1]
    assert whole.get("parameters") is None
    assert whole["outputs"]


@pytest.mark.parametrize("name", ["angles", "cascade"])
def test_predictions_of_other_models(name: str, server: Server, files: dict[str, Path]) -> None:
    status, answer = post(
        f"{server.rest}/v2/models/{name}/infer",
        request(IMAGE, parameters={"predictions": True}, outputs=[]),
    )
    assert status == 200, answer
    with capsedge.load(files[name], threads=1) as session:
        wanted = [p.to_dict() for p in session.predict(IMAGE)]
    assert json.loads(answer["parameters"]["predictions"]) == wanted


def test_metadata(server: Server) -> None:
    import tritonclient.grpc as grpc

    document = json.loads(get(f"{server.rest}/v2/models/digits")[1])
    assert document["inputs"][0]["shape"] == [-1, 1, 28, 28]
    assert "base64" in document["inputs"][0]["parameters"]["images"]
    lengths = next(o for o in document["outputs"] if o["name"] == "lengths")
    assert json.loads(lengths["parameters"]["labels"]) == list("0123456789")
    assert document["parameters"]["routing"] == "dynamic"
    said = json.loads(get(f"{server.rest}/v2/models/angles")[1])["outputs"]
    assert json.loads(said[0]["parameters"]["values"]) == ["yaw", "pitch", "roll"]
    with grpc.InferenceServerClient(server.grpc) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("two")
        found = client.get_model_metadata("two")
    assert {(t.name, t.datatype, *t.shape) for t in found.inputs} == {
        ("x", "FP16", -1, -1),
        ("shift", "INT64", -1, -1),
    }
    assert get(f"{server.rest}/v2/health/ready")[0] == 200


def changed(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{**tensor("images", images(1, 1, 28, 28)), **changes}]}


WRONG = {
    "no request": ({}, "not an inference request"),
    "no JSON": (b"{", "not an inference request"),
    "no inputs": ({"inputs": []}, "The model takes images"),
    "another input": (changed(name="x"), "The model takes images"),
    "twice": ({"inputs": changed()["inputs"] * 2}, "given twice"),
    "a number": (changed(shape=[], data=[1.0]), "single number"),
    "another shape": (changed(shape=[1, 28, 28, 1]), "Expected: [N, 1, 28, 28]"),
    "another size": (changed(shape=[2, 1, 28, 28]), "784 values"),
    "negative": (changed(shape=[-1, 1, 28, 28]), "Sizes are whole numbers"),
    "huge": (changed(shape=[2**40, 1, 28, 28]), "too large"),
    "no images": (changed(shape=[0, 1, 28, 28], data=[]), "Its batch is 0"),
    "another type": (changed(datatype="INT64"), "not values of type INT64"),
    "text": (changed(data=["1"] * 784), "not values of type FP32"),
    "null": (changed(data=[None] * 784), "not numbers"),
    "ragged": (changed(data=[[1], [1, 2]]), "not values of type FP32"),
    "infinite": (changed(data=[1e39] * 784), "NaN or infinite"),
    "unknown output": ({**changed(), "outputs": [{"name": "x"}]}, "Its outputs: lengths"),
    "classification": (
        {**changed(), "outputs": [{"name": "lengths", "parameters": {"classification": 1}}]},
        "parameter 'predictions'",
    ),
    "top_k": ({**changed(), "parameters": {"predictions": True, "top_k": 0}}, "top_k is 0"),
    "no number": ({**changed(), "parameters": {"top_k": True}}, "top_k is True"),
    "threshold": ({**changed(), "parameters": {"predictions": True, "threshold": "x"}}, "threshold"),
    "no truth": ({**changed(), "parameters": {"predictions": 1}}, "true or false"),
    "no image": (request(b"hello"), "not a readable image"),
    "damaged image": (request(IMAGE, IMAGE[:99]), "Element 1 of the images"),
    "no base64": ({"inputs": [{**request(b"")["inputs"][0], "data": ["%"]}]}, "nor base64"),
    "not a string": ({"inputs": [{**request(b"")["inputs"][0], "data": [7]}]}, "not a string"),
    "fewer files": ({"inputs": [{**request(IMAGE)["inputs"][0], "shape": [2]}]}, "1 elements"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests_are_the_clients_errors(case: str, server: Server) -> None:
    document, says = WRONG[case]
    status, answer = post(f"{server.rest}/v2/models/digits/infer", document)
    assert status == 400, answer
    assert says in answer["error"]
    assert "Traceback" not in server.said


def test_wrong_requests_over_grpc(server: Server) -> None:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for shape, datatype, raw in (
            ([1, 1, 28, 28], "FP32", b"\0" * 9),
            ([1, 1, 28, 28], "FP99", b"\0" * 3136),
            ([2**62, 4], "FP32", b"\0" * 4),
            ([-4], "FP32", b"\0" * 4),
            ([1], "BYTES", b"\xff\xff\xff\xff1"),
        ):
            asked = service_pb2.ModelInferRequest(model_name="digits", raw_input_contents=[raw])
            asked.inputs.add(name="images", datatype=datatype, shape=shape)
            with pytest.raises(grpc.RpcError) as error:
                stub.ModelInfer(asked)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT, error.value
        asked = service_pb2.ModelInferRequest(model_name="other")
        with pytest.raises(grpc.RpcError) as error:
            stub.ModelInfer(asked)
        assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_what_is_closed(server: Server) -> None:
    import tritonclient.grpc as grpc
    from tritonclient.utils import InferenceServerException

    for path in ("repository/models/digits/unload", "models/digits/generate"):
        assert post(f"{server.rest}/v2/{path}", {})[0] == 404
    for path in ("/v2/docs", "/v2/health/else", "/v2/models/digits/docs", "/openapi.json", "/docs"):
        assert get(f"{server.rest}{path}")[0] == 404
    assert get(server.metrics.replace("/metrics", "/docs"))[0] == 404
    with grpc.InferenceServerClient(server.grpc) as client:
        for act in (client.load_model, client.unload_model):
            with pytest.raises(
                InferenceServerException, match="cannot be loaded or unloaded remotely"
            ):
                act("digits")
        assert client.is_model_ready("digits")


def test_the_list_of_models(server: Server, files: dict[str, Path]) -> None:
    import tritonclient.grpc as grpc
    import tritonclient.http as http

    wanted = [
        {"name": name, "version": "1", "state": "READY", "reason": ""} for name in sorted(files)
    ]
    assert json.loads(get(f"{server.rest}/v2/repository/index")[1]) == wanted
    with http.InferenceServerClient(server.rest.removeprefix("http://")) as client:
        assert client.get_model_repository_index() == wanted
    with grpc.InferenceServerClient(server.grpc) as client:
        listed = client.get_model_repository_index().models
    assert [(m.name, m.state) for m in listed] == [(name, "READY") for name in sorted(files)]


def test_limits_and_hosts(server: Server) -> None:
    infer = f"{server.rest}/v2/models/digits/infer"
    assert post(infer, b" " * (limits.REQUEST_BYTES + 1))[0] == 413
    assert post(infer, changed(), {"Content-Type": "text/plain"})[0] == 415
    assert (
        post(infer, changed(), {"Content-Type": "application/vnd.x+json; charset=utf-8"})[0] == 200
    )
    assert post(infer, b"x", {"Content-Encoding": "gzip"})[0] == 415
    assert post(infer, b"{}x", {"Inference-Header-Content-Length": "2"})[0] == 400
    assert post(infer, b"{}", {"Inference-Header-Content-Length": "²"})[0] == 400
    assert post(infer, {}, {"Host": "example.org"})[0] == 421
    assert post(infer, changed(), {"Host": "localhost:1"})[0] == 200
    many = request(*[IMAGE] * 11_000)
    assert post(infer, many)[0] == 400


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.rest.rpartition(":")[2])), SECONDS)


ENDLESS = {
    "line": (b"GET /", b"x"),
    "header": (b"GET /v2 HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"x"),
    "headers": (b"GET /v2 HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X: y\r\n"),
    "trailers": (
        b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n",
        b"X: y\r\n",
    ),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_headers_have_an_end(what: str, server: Server) -> None:
    start, more = ENDLESS[what]
    with connected(server) as client:
        client.sendall(start)
        with contextlib.suppress(ConnectionError):  # the server hangs up in the middle
            for _ in range(64):
                client.sendall(more * (limits.HEADER_BYTES // 16 // len(more)))
            with contextlib.suppress(OSError):  # not connected any more, in this system's words
                client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert client.recv(100).startswith(b"HTTP/1.1 431")


def test_a_body_in_many_parts_is_no_header(server: Server) -> None:
    """Of a chunked body only what is between its parts counts, and that until the next part."""
    body = json.dumps(changed()).encode().rjust(4 * limits.HEADER_BYTES)
    parts = [body[k : k + 64] for k in range(0, len(body), 64)]
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(server) as client:
        client.sendall(head + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_offers_of_other_protocols_are_declined(protocol: str, server: Server) -> None:
    """Java's client makes the first one with every new connection."""
    body = json.dumps({**changed(), "outputs": [{"name": "lengths"}]}).encode()
    head = (
        b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n"
        % len(body)
    )
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\n\r\n" % protocol.encode()
    said = server.said
    with connected(server) as client:
        for more in (offer, b"\r\n", offer):
            client.sendall(head + more + body)
            assert client.recv(2**16).startswith(b"HTTP/1.1 200")
    with connected(server) as client:
        client.sendall(b"".join([head + offer + body] * 50))
        assert client.recv(2**16).startswith(b"HTTP/1.1 200")
    with connected(server) as client:
        client.sendall(b"CONNECT example.org:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400")
    assert server.said == said


def test_requests_that_are_sent_at_once(server: Server) -> None:
    """Pipelined, with other answers each, and in their order."""
    sent = b""
    for count in (1, 2, 3):
        array = images(count, 1, 28, 28)
        body = json.dumps(
            {"inputs": [tensor("images", array)], "outputs": [{"name": "lengths"}]}
        ).encode()
        sent += (
            b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
            % len(body)
        )
        sent += b"Connection: close\r\n\r\n" * (count == 3) + b"\r\n" * (count < 3) + body
    received = b""
    with connected(server) as client:
        client.sendall(sent)
        while part := client.recv(2**16):
            received += part
    shapes = re.findall(rb'"shape":(\[\d+,10\])', received)
    assert shapes == [b"[1,10]", b"[2,10]", b"[3,10]"]


@pytest.mark.parametrize(
    ("rest", "status"),
    [(b"garbage\r\n\r\n", b"400"), (b"GET /v2 HTTP/1.1\r\n" + b"X: y\r\n" * 1000, b"431")],
)
def test_a_refusal_comes_after_the_answers_to_earlier_requests(
    server: Server, rest: bytes, status: bytes
) -> None:
    body = json.dumps(changed()).encode()
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
    received = b""
    with connected(server) as client:
        client.sendall((head % len(body) + body) * 2 + rest)
        while part := client.recv(2**16):
            received += part
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"200", status]


def test_an_answer_is_one_segment(server: Server) -> None:
    body = json.dumps({**changed(), "outputs": [{"name": "lengths"}]}).encode()
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
    with connected(server) as client:
        for _ in range(3):  # on one connection
            client.sendall(head % len(body) + body)
            answer = client.recv(2**16)
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"][0]["name"] == "lengths"


def test_metrics_do_not_grow_with_unknown_names(server: Server) -> None:
    for number in range(20):
        assert post(f"{server.rest}/v2/models/never-{number}/infer", {})[0] == 404
        assert get(f"{server.rest}/v2/never-{number}")[0] == 404
    post(f"{server.rest}/v2/models/digits/infer", changed())
    text = get(server.metrics)[1]
    assert "never-" not in text
    assert 'capsedge_infer_seconds_count{model="digits"' in text


def test_requests_at_the_same_time_get_their_own_answers(
    server: Server, files: dict[str, Path]
) -> None:
    given = [images(1 + k % 3, 1, 28, 28, seed=k) for k in range(40)]
    with capsedge.load(files["digits"], threads=1) as session:
        wanted = [session.run(array) for array in given]

    def ask(number: int) -> dict[str, NDArray[Any]]:
        how = ask_http if number % 2 else ask_grpc
        return how(server, "digits", {"images": given[number]})

    with ThreadPoolExecutor(16) as clients:
        for found, right in zip(clients.map(ask, range(len(given))), wanted, strict=True):
            same(found, right)
