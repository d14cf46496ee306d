"""The programs and settings of docs/how-to/serve.md, as they stand there."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.serving.running import SECONDS, get, served

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("engine")]
PAGE = (ROOT / "docs/how-to/serve.md").read_text(encoding="utf-8")
IMAGE = "capsedge/zoo/samples/digit-7.png"


def run(folder: Path, program: str, *words: str) -> str:
    """What a program of the page prints, beside the package's folder as in a checkout."""
    found = re.search(
        rf"<!-- file: {re.escape(program)} -->\n```python\n(.*?)^```$", PAGE, re.M | re.S
    )
    assert found is not None
    (folder / program).write_text(found[1], encoding="utf-8")
    (folder / "capsedge").symlink_to(ROOT / "capsedge")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, program, *words], cwd=folder, env={**os.environ, "PATH": path},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_over_http(tmp_path: Path) -> None:
    assert run(tmp_path, "ask.py") == "7\n"


def test_over_grpc(tmp_path: Path) -> None:
    with served("digits-dynamic") as server:
        assert run(tmp_path, "ask_grpc.py", server.grpc, "digits-dynamic", IMAGE) == "7\n"


def test_an_mlserver_of_your_own(tmp_path: Path) -> None:
    """The settings of the page, with MLServer's own batching as well."""
    found = re.search(r"^```json\n(.*?)^```$", PAGE, re.M | re.S)
    assert found is not None
    settings = {**json.loads(found[1]), "max_batch_size": 4, "max_batch_time": 0.01}
    (tmp_path / "model-settings.json").write_text(json.dumps(settings))
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [s.getsockname()[1] for s in sockets]
    for one in sockets:
        one.close()
    names = ("http_port", "grpc_port", "metrics_port")
    document = {"host": "127.0.0.1", "parallel_workers": 0, **dict(zip(names, ports, strict=True))}
    (tmp_path / "settings.json").write_text(json.dumps(document))
    command = [str(Path(sys.executable).with_name("mlserver")), "start", str(tmp_path)]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
        try:
            address = f"http://127.0.0.1:{ports[0]}"
            assert _ready(f"{address}/v2/models/digits/ready", server), (
                tmp_path / "log"
            ).read_text()
            assert '"routing":"dynamic"' in get(f"{address}/v2/models/digits")[1]
            grpc = f"127.0.0.1:{ports[1]}"
            assert run(tmp_path, "ask_grpc.py", grpc, "digits", IMAGE) == "7\n"
        finally:
            server.terminate()
            server.wait(SECONDS)


def _ready(address: str, server: subprocess.Popen[bytes]) -> bool:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            if get(address)[0] == 200:
                return True
        except OSError:
            pass
        time.sleep(0.1)
    return False
