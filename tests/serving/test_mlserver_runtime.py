"""`CapsedgeModel` in an MLServer, where one is installed.

One process cannot have both MLServer and NVIDIA's client, whose messages have the same names: these tests run
by themselves.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capsedge
from tests.conftest import ROOT
from tests.serving.models import DIGITS
from tests.serving.running import SECONDS, get, post
from tests.serving.test_documented import IMAGE, PAGE

pytest.importorskip("mlserver", reason="MLServer is not installed: pip install mlserver")
pytestmark = pytest.mark.thorough


def asked(shape: list[int], data: Any, datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": "images", "shape": shape, "datatype": datatype, "data": data}],
        **more,
    }


def test_requests_of_mlserver() -> None:
    """Gathered by the runtime: each gets its outputs, and a wrong one fails alone."""
    from mlserver import ModelSettings
    from mlserver.errors import InferenceError
    from mlserver.types import InferenceRequest

    from capsedge.serving.mlserver_runtime import CapsedgeModel

    settings = ModelSettings(
        implementation=CapsedgeModel, name="digits", parameters={"uri": str(DIGITS)},
        max_batch_size=8, max_batch_time=0.3,
    )  # fmt: skip
    array = np.random.default_rng(0).random((1, 1, 28, 28), np.float32)
    wanted = {"outputs": [{"name": "lengths"}], "id": "mine", "parameters": {"top_k": 2}}

    async def run() -> list[Any]:
        model = CapsedgeModel(settings)
        assert await model.load()
        assert (await model.metadata()).parameters.routing == "dynamic"
        given = (asked([1, 1, 28, 28], array.ravel().tolist(), **wanted), asked([7], [1.0]))
        requests = [InferenceRequest(**document) for document in given]
        found = await asyncio.gather(*map(model.predict, requests), return_exceptions=True)
        assert await model.unload()
        return found

    answer, wrong = asyncio.run(run())
    assert isinstance(wrong, InferenceError)
    with capsedge.load(DIGITS, threads=1) as session:
        lengths = session.run(array)["lengths"]
    assert (answer.id, [o.name for o in answer.outputs]) == ("mine", ["lengths"])
    np.testing.assert_allclose(answer.outputs[0].data.root, lengths.ravel(), rtol=1e-4, atol=1e-6)
    assert len(json.loads(answer.parameters.predictions)[0]["labels"]) == 2


def test_an_mlserver_of_your_own(tmp_path: Path) -> None:
    """The settings of the page, with MLServer's own batching as well."""
    shown = re.search(r"^```json\n(.*?)^```$", PAGE, re.M | re.S)
    assert shown is not None
    settings = {**json.loads(shown[1]), "max_batch_size": 4, "max_batch_time": 0.01}
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
            image = base64.b64encode((ROOT / IMAGE).read_bytes()).decode()
            document = asked([1], [image], "BYTES", parameters={"top_k": 1})
            found = post(f"{address}/v2/models/digits/infer", document)[1]["parameters"]
            assert json.loads(found["predictions"])[0]["labels"][0]["label"] == "7"
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
