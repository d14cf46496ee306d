"""The process: signals, ports, folders and environments of strangers, and batching."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import capsedge
from benchmarks import serving_stop
from capsedge.serving.served_models import SIZES
from tests.serving.conftest import ask_grpc, ask_http, images, tensor
from tests.serving.models import DIGITS
from tests.serving.running import SECONDS, Server, get, post, served

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it_with_their_codes(number: signal.Signals) -> None:
    with served("digits-em") as server:
        assert get(f"{server.rest}/v2/health/ready")[0] == 200
        idle = socket.create_connection(("127.0.0.1", int(server.rest.rpartition(":")[2])))
        half = socket.create_connection(("127.0.0.1", int(server.rest.rpartition(":")[2])))
        half.sendall(
            b"POST /v2/models/digits-em/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
        )
        get(f"{server.rest}/v2/health/ready")  # by its answer, what was sent before was read
        assert server.end(number) == 128 + number
        assert "ended" in server.said
        assert half.recv(100).startswith(b"HTTP/1.1 408")
        assert idle.recv(100) == b""
        assert "Traceback" not in server.said
        idle.close()
        half.close()


def test_requests_that_run_are_answered_before_it_ends() -> None:
    with served(DIGITS) as server:
        given = images(512, 1, 28, 28)
        answers: list[Any] = []
        client = threading.Thread(
            target=lambda: answers.append(ask_grpc(server, "digits-dynamic", {"images": given}, ["lengths"]))
        )  # fmt: skip
        client.start()
        until = time.monotonic() + SECONDS
        running = 'capsedge_requests_running{protocol="grpc"} 1.0'
        while running not in get(server.metrics)[1] and time.monotonic() < until:
            pass
        assert server.end() == 143
        client.join()
    with capsedge.load(DIGITS, threads=1) as session:
        wanted = [found["lengths"] for _, found in session.run_batches(given)]
    np.testing.assert_array_equal(answers[0]["lengths"], np.concatenate(wanted))


def test_inferences_that_never_end_do_not_hold_it(tmp_path: Path) -> None:
    model = tmp_path / "slow.onnx"
    serving_stop.slow_model(model, 10**12)
    options = ["--stop-timeout", "0.1", "--batch", "1"]
    found, _, said = serving_stop.stopped(serving_stop.rest, model, 20, options)
    assert found == {"503": 20}
    assert "20 requests were refused" in said
    assert "Traceback" not in said


def test_more_connections_than_files_are_allowed_by_default() -> None:
    resource = pytest.importorskip("resource", reason="limits of files are Unix's")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        try:
            server = stack.enter_context(served("digits-em", "--batch", "1"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        port = int(server.rest.rpartition(":")[2])
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert get(f"{server.rest}/v2/health/ready")[0] == 200


@pytest.mark.parametrize("option", ["--port", "--grpc-port", "--metrics-port"])
def test_a_port_that_is_taken(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        any_port = [] if option == "--port" else ["--port", "0"]
        with served("digits-em", *any_port, option, port) as server:
            assert server.wait() == 3
    assert option in server.said
    assert "Traceback" not in server.said


def test_the_log_says_what_it_is_asked_for() -> None:
    evil = "\r\n\x1b[2Jforged \u202e"
    given = {"inputs": [tensor("images", images(1, 1, 28, 28))], "outputs": [{"name": "lengths"}]}
    for level in ("warning", "info"):
        with served("digits-em", "--batch", "1", "--log-level", level) as server:
            infer = f"{server.rest}/v2/models/digits-em/infer"
            assert post(infer, {**given, "id": "mine"})[1]["id"] == "mine"
            assert post(infer, given, {"X-Request-Id": "of-a-proxy"})[1]["id"] == "of-a-proxy"
            assert len(post(infer, {**given, "id": ""})[1]["id"]) == 32
            assert post(infer, {**given, "id": evil})[1]["id"] == evil
            assert post(infer, {"inputs": [], "id": "wrong"})[0] == 400
            ask_grpc(server, "digits-em", {"images": images(1, 1, 28, 28)}, request_id="third")
            assert server.end() == 143
            lines = server.said.splitlines()
        assert len(lines) == (7 if level == "info" else 1), lines  # the last one is "ended"
        if level == "warning":
            continue
        pattern = r"http 127\.0\.0\.1 POST /v2/models/digits-em/infer (200|400) \d+\.\d ms id=\S+"
        assert all(re.fullmatch(pattern, line) for line in lines[:5]), lines
        assert [line.rpartition("id=")[2] for line in lines[:2]] == ["mine", "of-a-proxy"]
        assert lines[3].endswith("id=???[2Jforged??")
        assert lines[4].endswith("id=wrong")
        assert re.fullmatch(
            r"grpc ipv4:127\.0\.0\.1:\d+ ModelInfer OK \d+\.\d ms id=third", lines[5]
        )


def test_a_strangers_folder_and_environment_change_nothing(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("UVICORN_ROOT_PATH=/stranger\nUVICORN_HOST=0.0.0.0\n")
    (tmp_path / "stranger.py").write_text("raise SystemExit(9)\n")
    before = sorted(tmp_path.iterdir())
    environment = {"UVICORN_ROOT_PATH": "/stranger", "UVICORN_PORT": "1", "UVICORN_APP": "stranger:app",
                   "WEB_CONCURRENCY": "3", "FORWARDED_ALLOW_IPS": "*"}  # fmt: skip
    with served(DIGITS, folder=tmp_path, environment=environment) as server:
        document = json.loads(get(f"{server.rest}/v2")[1])
        assert (document["name"], document["version"]) == ("capsedge", capsedge.__version__)
        assert "stranger" not in get(f"{server.rest}/v2/models/digits-dynamic")[1]
        found = ask_http(server, "digits-dynamic", {"images": images(1, 1, 28, 28)})
        assert found["lengths"].shape == (1, 10)
    assert sorted(tmp_path.iterdir()) == before


def test_versions_of_a_name() -> None:
    em = DIGITS.with_name("digits-em.onnx")
    with served(f"digits={DIGITS}", f"digits:2={em}") as server:  # the first is version 1
        models = {m["version"]: m["file"] for m in server.document["models"]}
        assert models == {"1": str(DIGITS), "2": str(em)}
        given = {"images": images(1, 1, 28, 28)}
        for version, path in (("1", DIGITS), ("2", em), ("", em)):  # the newest is the default
            with capsedge.load(path, threads=1) as session:
                wanted = session.run(given)["poses"]
            for ask in (ask_http, ask_grpc):
                found = ask(server, "digits", given, ["poses"], model_version=version)
                np.testing.assert_array_equal(found["poses"], wanted)
        assert get(f"{server.rest}/v2/models/digits/versions/3")[0] == 404
        listed = json.loads(get(f"{server.rest}/v2/models/digits")[1])["versions"]
        assert listed == ["1", "2"]


def test_a_batch_keeps_answers_apart() -> None:
    """Other outputs, other counts, wrong requests and clients that go away, all in the same batches."""
    with served(DIGITS, "--batch", "8", "--wait", "20") as server:
        assert server.document["models"][0]["batch"] == 8
        given = [images(1 + k % 3, 1, 28, 28, seed=k) for k in range(48)]
        with ThreadPoolExecutor(24) as clients:
            found = list(clients.map(lambda k: _one_of_a_batch(server, k, given[k]), range(48)))
        counted = get(server.metrics)[1]
    assert 'capsedge_batch_images_count{model="digits-dynamic",version="1"}' in counted
    with capsedge.load(DIGITS, threads=1) as session:
        for number, answer in enumerate(found):
            if answer is None:
                continue
            wanted = session.run(given[number])
            assert set(answer) == (set(wanted) if number % 2 else {"lengths"})
            for name, array in answer.items():
                # A matrix product of another height may differ in its last bits.
                np.testing.assert_allclose(array, wanted[name], rtol=1e-4, atol=1e-6)


def _one_of_a_batch(
    server: Server, number: int, given: NDArray[np.float32]
) -> dict[str, NDArray[Any]] | None:
    from tritonclient.utils import InferenceServerException

    if number % 6 == 0:
        document = {"inputs": [{**tensor("images", given), "shape": [7]}]}
        assert post(f"{server.rest}/v2/models/digits-dynamic/infer", document)[0] == 400
        return None
    if number % 6 == 2:
        with pytest.raises(InferenceServerException, match="Deadline"):
            ask_grpc(server, "digits-dynamic", {"images": given}, client_timeout=0.002)
        return None
    outputs = () if number % 2 else ("lengths",)
    return (ask_grpc if number % 3 else ask_http)(
        server, "digits-dynamic", {"images": given}, outputs
    )


def test_the_batch_is_measured_unless_it_is_given() -> None:
    with served(DIGITS) as server:
        (model,) = server.document["models"]
        assert model["batch"] in SIZES
        assert model["batch_gain"] > 0
        ask_http(server, "digits-dynamic", {"images": images(1, 1, 28, 28)})
        counted = 'capsedge_batch_images_bucket{le="1.0",model="digits-dynamic",version="1"} 1.0'
        assert counted in get(server.metrics)[1]


def test_wrong_words() -> None:
    with served(DIGITS, "--batch", "1", "--wait", "5") as server:
        assert server.wait() == 2
        assert "--wait" in server.said
    for size in ("0", "many", "-1"):
        with served(DIGITS, "--batch", size) as server:
            assert server.wait() == 2
            assert "--batch auto" in server.said
    with served(DIGITS, f"digits-dynamic={DIGITS}") as server:
        assert server.wait() == 2
        assert "digits-dynamic:2=" in server.said
    with served(DIGITS, "--log-level", "loud") as server:
        assert server.wait() == 2
        assert "error, warning, info" in server.said
    with served(DIGITS, "--port", "65534") as server:
        assert server.wait() == 2
        assert "--grpc-port" in server.said
    with served(DIGITS, "--host", "nowhere.invalid") as server:
        assert server.wait() == 3
        assert "--host" in server.said
