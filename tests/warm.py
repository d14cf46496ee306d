"""Programs in processes that have imported PyTorch and ONNX already, which takes longer than most programs.

A server imports them once and forks for every program. It starts no threads of its own and runs nothing
before it forks, so a program finds what a new process would.

    python -m tests.warm
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

from tests.conftest import ROOT

SECONDS = 300
# Not onnxruntime: it starts a thread, which a fork does not have.
_SLOW = (
    "numpy",
    "torch",
    "torch.onnx",
    "torch.export",
    "torch._dynamo",
    "onnx",
    "onnxscript",
    "onnxscript.optimizer",
    "networkx",
    "sympy",
)


class Warm:
    """A running server."""

    def __init__(self, requests: IO[str], answers: IO[str]) -> None:
        self._requests, self._answers = requests, answers

    def run(self, program: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run ``capsedge ...`` or ``python -c CODE`` in a folder, for at most ``SECONDS``."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)]
            job = {"program": program, "cwd": str(cwd), "out": files[0], "err": files[1]}
            print(json.dumps(job), file=self._requests, flush=True)
            code = int(self._answers.readline())
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read())
        return subprocess.CompletedProcess(program, code, *texts)


@contextmanager
def warm(environment: dict[str, str], root: Path = ROOT) -> Iterator[Warm]:
    """A server, until the block ends."""
    command = [sys.executable, "-m", "tests.warm"]
    with subprocess.Popen(
        command, cwd=root, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield Warm(server.stdin, server.stdout)
        server.stdin.close()


def _serve() -> None:
    for module in _SLOW:
        __import__(module)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(job)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _run(job: dict[str, Any]) -> NoReturn:
    """In the fork: the program, its output in files, and the end without the destructors of the server."""
    signal.alarm(SECONDS)
    for number, name, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, job["out"], os.O_WRONLY),
        (2, job["err"], os.O_WRONLY),
    ):
        os.dup2(os.open(name, mode), number)
    os.chdir(job["cwd"])
    code = 1
    try:
        _program(job["program"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _program(words: list[str]) -> None:
    if words[0] == "capsedge":
        sys.path[0] = str(Path(sys.executable).parent)
        sys.argv = words
        from capsedge.cli import main

        main()
        return
    _, option, code = words
    assert option == "-c", words
    sys.path[0] = ""
    sys.argv = ["-c"]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _serve()
