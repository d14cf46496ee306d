"""The files of docs/how-to/service.md: each command, option, path and port in them exists, and runs."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from capsedge.options import declared
from capsedge.serving.serve_options import ServeOptions
from capsedge.serving.server_model import parse_model_names
from tests.conftest import ROOT
from tests.serving.in_process import ask, get, running
from tests.serving.running import SECONDS

FOLDER = ROOT / "docs/how-to/service"
PAGE = (ROOT / "docs/how-to/service.md").read_text(encoding="utf-8")
UNIT = (FOLDER / "capsedge.service").read_text(encoding="utf-8")
CONTAINER = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
EXPOSURE = 2.0  # of systemd-analyze: 0 is confined, 10 is not


def setting(name: str) -> str:
    """The only value of a setting of the unit."""
    (found,) = re.findall(rf"^{name}=(.+)$", UNIT, re.M)
    return str(found)


def instruction(name: str) -> str:
    """The only instruction of this name in the Dockerfile."""
    (found,) = re.findall(rf"^{name} (.+)$", CONTAINER, re.M)
    return str(found)


def check_serve(words: list[str]) -> dict[str, str]:
    """The options of a `capsedge serve`, each of which exists, with models that it takes."""
    known = {name: one.name for one in declared(ServeOptions) for name in one.option.names}
    options, models = dict[str, str](), []
    rest = iter(words)
    for word in rest:
        if word.startswith("-"):
            options[known[word]] = next(rest)
        else:
            models.append(word)
    parse_model_names(models)
    ServeOptions(
        port=int(options["port"]), host=options["host"], stop_timeout=float(options["stop_timeout"])
    )
    return options


def test_the_unit_starts_asks_and_stops_the_server_rightly() -> None:
    command, verb, *words = shlex.split(setting("ExecStart"))
    assert verb == "serve"
    assert f"python3 -m venv {Path(command).parents[1]}" in PAGE
    options = check_serve(words)
    assert options["host"] == "127.0.0.1"
    model = words[-1].partition("=")[2]
    assert f"install -D -m 644 digits.onnx {model}" in PAGE
    asked = urlsplit(shlex.split(setting("ExecStartPost"))[-1])
    assert (asked.port, asked.path) == (int(options["port"]), "/v2/health/ready")
    assert int(setting("TimeoutStopSec")) > float(options["stop_timeout"])
    assert setting("SuccessExitStatus") == "143"
    assert (setting("DynamicUser"), setting("ProtectSystem")) == ("yes", "strict")


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is missing")
    unit = tmp_path / "capsedge.service"
    command = setting("ExecStart").split()[0]
    unit.write_text(UNIT.replace(command, "/bin/true").replace("/usr/bin/curl", "/bin/true"))

    def run(*words: str) -> str:
        done = subprocess.run(
            [tool, *words, str(unit)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert unit.name not in done.stderr  # where it names settings that it does not know
        return done.stdout

    run("verify")
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", run("security", "--offline=yes"))
    assert found is not None
    assert float(found[1]) <= EXPOSURE


def test_the_container_is_built_from_what_there_is() -> None:
    *copied, _ = instruction("COPY").split()
    assert copied == ["dist/*.whl", "constraints.txt"]
    assert (ROOT / "constraints.txt").exists()
    assert re.search(r"^wheels:", (ROOT / "Makefile").read_text(), re.M)
    (wanted,) = re.findall(r'"capsedge\[(.+?)\]"', instruction("RUN"))
    for extra in wanted.split(","):
        assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.M)
    # The package itself never comes from an index, where its name may be someone else's.
    assert re.search(r"--no-index .*--no-deps capsedge .*pip install .*\[cpu,serve\]", CONTAINER)
    user = instruction("USER")
    assert f"--uid {user} " in instruction("RUN")
    command, verb, *words = json.loads(instruction("ENTRYPOINT"))
    assert (command, verb) == ("capsedge", "serve")
    options = check_serve([*words, *json.loads(instruction("CMD"))])
    first = int(options["port"])
    assert instruction("EXPOSE").split() == [str(port) for port in (first, first + 1, first + 2)]
    (granted,) = re.findall(r"--stop-timeout (\d+) \\\n", PAGE)
    assert int(granted) > float(options["stop_timeout"])
    assert "--read-only" in PAGE


def test_the_container_reports_its_health(tmp_path: Path) -> None:
    words: list[str] = json.loads(
        re.findall(r"^\s*HEALTHCHECK .*? CMD (\[.+\])$", CONTAINER, re.M)[0]
    )
    assert words[0] == "python"

    async def healthy(port: int) -> bool:
        command = [word.replace(":8080/", f":{port}/") for word in words[1:]]
        assert command != words[1:]
        none = asyncio.subprocess.DEVNULL
        check = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=none)
        return await check.wait() == 0

    async def run() -> list[Any]:
        async with running(tmp_path) as server:
            port = server.address.ports.rest
            found = [await healthy(port)]
            server.server._stopping.ready = False
            found += [await healthy(port), (await ask(server, get("/v2/health/ready"))).status]
        return [*found, await healthy(port)]

    assert asyncio.run(asyncio.wait_for(run(), SECONDS)) == [True, False, 503, False]


# --- The commands of both files, as plain processes: only the ports and the places of files are others ---


def free_port() -> int:
    """The first of three free ports in a row, as REST, gRPC and the figures take them."""
    for _ in range(100):
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                for port in (first + 1, first + 2):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return int(first)
    raise AssertionError("there are no three free ports in a row")


def moved(words: list[str], places: Mapping[str, str]) -> list[str]:
    """The words of a command, each of whose parts in ``places`` occurs and is replaced."""
    text = "\0".join(words)
    for old, new in places.items():
        assert old in text, old
        text = text.replace(old, new)
    return text.split("\0")


def ended(command: list[str], until: Callable[[], bool], **others: Any) -> tuple[int, str]:
    """Run a server until it is ready, stop it as services are stopped: its code, and what it said."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **others
    ) as server:
        try:
            end = time.monotonic() + SECONDS
            while not until():
                assert server.poll() is None, server.communicate()[1]
                assert time.monotonic() < end, "it did not become ready"
                time.sleep(0.1)
            server.terminate()
            _, said = server.communicate(timeout=SECONDS)
        finally:
            server.kill()
    return server.returncode, said


@pytest.mark.thorough
def test_the_commands_of_the_unit_run(tmp_path: Path) -> None:
    port = str(free_port())
    command = shlex.split(setting("ExecStart"))
    stored = command[-1].partition("=")[2]
    model = shutil.copyfile(ROOT / "capsedge/zoo/digits-dynamic.onnx", tmp_path / "digits.onnx")
    start = [sys.executable, "-m", "capsedge"]
    start += moved(command[1:], {"8080": port, stored: str(model)})
    ask = moved(shlex.split(setting("ExecStartPost")), {":8080/": f":{port}/"})
    if shutil.which("curl") is None:
        pytest.skip("curl is missing: apt-get install curl")
    assert Path(ask[0]).name == "curl"
    served: list[int] = []

    def ready() -> bool:  # the unit's own command waits until the server answers
        done = subprocess.run(["curl", *ask[1:]], check=False, timeout=SECONDS)
        served.append(get_status(f"http://127.0.0.1:{port}/v2/models/digits/ready"))
        return done.returncode == 0

    code, said = ended(start, ready, cwd=tmp_path)
    assert served[-1] == 200
    assert str(code) == setting("SuccessExitStatus"), said
    assert "Traceback" not in said


@pytest.mark.thorough
@pytest.mark.parametrize("sealed", [False, True])
def test_the_commands_of_the_container_run(tmp_path: Path, sealed: bool) -> None:
    """Sealed: with all files read-only but the temporary ones, as the page starts it."""
    port = str(free_port())
    _, *words = json.loads(instruction("ENTRYPOINT"))
    start = [sys.executable, "-m", "capsedge"]
    start += moved([*words, *json.loads(instruction("CMD"))], {"8080": port})
    if sealed:
        own = shlex.quote(str(tmp_path))  # in place of /tmp, where this checkout may be
        seal = f"mount --rbind / / && mount -o remount,bind,ro / && mount -t tmpfs tmp {own}"
        within = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
        if subprocess.run([*within, seal], capture_output=True, check=False).returncode:
            pytest.skip("no mount of file systems here")
        start = [*within, f'{seal} && TMPDIR={own} exec "$@"', "sh", *start]
    health = re.findall(r"^\s*HEALTHCHECK .*? CMD (\[.+\])$", CONTAINER, re.M)[0]
    _, *check = moved(json.loads(health), {":8080/": f":{port}/"})

    def ready() -> bool:
        done = subprocess.run([sys.executable, *check], stderr=subprocess.DEVNULL, check=False)
        return done.returncode == 0

    code, said = ended(start, ready, cwd="/")
    assert code == 143, said
    assert "Traceback" not in said
    assert not ready()


def get_status(address: str) -> int:
    """The status of an answer; 0 without one."""
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            return int(answer.status)
    except urllib.error.URLError:
        return 0
