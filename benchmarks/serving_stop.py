"""Answers that clients lose when `capsedge serve` gets SIGTERM while it works on their requests.

    python -m benchmarks.serving_stop                    # 200 requests each over REST and gRPC
    python -m benchmarks.serving_stop --turns 250 -- --stop-timeout 5   # longer ones; options of `serve`

The model multiplies matrices in a loop, so an inference takes as long as wanted. Every client sends one
request; once all have been sent, the server gets the signal. An answer is lost unless it is complete and
right, and a refusal is counted by its status.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

from capsedge.serving.grpc_messages import message

_SIZE = 256  # rows of the matrix
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_SENT = 2.0  # seconds after which all requests have been sent
Ask = Callable[[dict[str, Any], int], Awaitable[list[str]]]


def slow_model(path: Path, turns: int) -> None:
    """Write a model that multiplies its input by the unit matrix, again and again."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("MatMul", ["before", "unit"], ["after"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, [_SIZE, _SIZE]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, [_SIZE, _SIZE]),
        ],
    )  # fmt: skip
    nodes = [
        helper.make_node("Add", ["zeros", "x"], ["wide"]),
        helper.make_node("Loop", ["turns", "", "wide"], ["end"], body=body),
        helper.make_node("ReduceMax", ["end"], ["y"], keepdims=0),
    ]
    constants: dict[str, np.ndarray] = {
        "unit": np.eye(_SIZE, dtype=np.float32),
        "zeros": np.zeros((_SIZE, _SIZE), np.float32),
        "turns": np.array(turns, np.int64),
    }
    graph = helper.make_graph(
        nodes,
        "slow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)


async def rest(addresses: dict[str, Any], number: int) -> list[str]:
    """Send a request on each of so many connections."""
    port = int(addresses["rest"].rpartition(":")[2])

    async def ask(value: int) -> str:
        tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [value]}
        body = json.dumps({"inputs": [tensor]}).encode()
        request = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        status = ""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request.encode() + b"Connection: close\r\n\r\n" + body)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            status = head[9:12].decode()
            found = json.loads(body)
        except (ConnectionError, ValueError):
            return f"{status or 'nothing'}, not JSON"
        finally:
            writer.close()
        return "right" if status == "200" and found["outputs"][0]["data"] == [value] else status

    return await asyncio.gather(*(ask(1 + k % 9) for k in range(number)))


def over_grpc(channels: int) -> Ask:
    """Send the requests over so many connections."""

    async def ask(addresses: dict[str, Any], number: int) -> list[str]:
        own = [("grpc.use_local_subchannel_pool", 1)]
        opened = [grpc.aio.insecure_channel(addresses["grpc"], own) for _ in range(channels)]
        calls = [channel.unary_unary(_METHOD) for channel in opened]

        async def one(number: int) -> str:
            asked = message("ModelInferRequest")(model_name="slow")
            value = 1 + number % 9
            asked.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(
                value
            )
            try:
                data = await calls[number % channels](asked.SerializeToString())
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name} ({error.details()})"
            answer = message("ModelInferResponse").FromString(data)
            right = list(answer.outputs[0].contents.fp32_contents) == [value]
            return "right" if right else "wrong"

        found = await asyncio.gather(*map(one, range(number)))
        for channel in opened:
            await channel.close()
        return found

    return ask


ASKS: dict[str, Ask] = {
    "REST": rest,
    "gRPC, a connection each": over_grpc(200),
    "gRPC, one connection": over_grpc(1),
}


def stopped(
    ask: Ask, model: Path, number: int, options: list[str]
) -> tuple[Counter[str], float, str]:
    """What the clients of one server got, the seconds that it took to stop, and its log.

    Raises:
        SystemExit: it ended otherwise than by the signal.
    """
    words = [
        sys.executable,
        "-m",
        "capsedge",
        "serve",
        f"slow={model}",
        "--port",
        "0",
        "--json",
        *options,
    ]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        said = ""
        while not said.endswith("\n}\n"):
            said += server.stdout.readline()

        async def run() -> list[str]:
            loop = asyncio.get_running_loop()
            loop.call_later(_SENT, server.send_signal, signal.SIGTERM)
            return await ask(json.loads(said), number)

        started = time.monotonic()
        found = asyncio.run(run())
        if server.wait() != 128 + signal.SIGTERM:
            raise SystemExit(f"error: the server ended with {server.returncode}")
        return Counter(found), time.monotonic() - started - _SENT, server.stderr.read()


def main() -> None:
    """Print a line for each protocol."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--turns", type=int, default=100, help="matrix products in an inference")
    parser.add_argument("options", nargs="*", help="options of `capsedge serve`, after --")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "slow.onnx")
        slow_model(model, words.turns)
        for name, ask in ASKS.items():
            found, seconds, log = stopped(ask, model, words.requests, words.options)
            lost = words.requests - found["right"]
            print(
                f"{name}: {lost} of {words.requests} lost, stopped in {seconds:.1f} s: {dict(found)}"
            )
            print("  " + "\n  ".join(log.splitlines()[-3:]))


if __name__ == "__main__":
    main()
