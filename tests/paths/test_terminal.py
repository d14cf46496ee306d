"""Names of files and in files, on a terminal and in a pipe: shown as escapes, obeyed nowhere."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from capsedge.cli import _output
from tests.conftest import ROOT
from tests.paths.table import IMAGE, ZOO, run

# Title of the window, colour, C1's CSI, right-to-left override, a line of one's own, rich's markup.
EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e\nPASSED\r[bold red]x[/][/]\x7f\u2066"
SHOWN = r"\x1b]0;owned\x07\x1b[31m\x9b2J\u202e\nPASSED\r[bold red]x[/][/]\x7f\u2066"
# What rich draws tables with, and moves a bar by.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose every name is evil, under an evil name."""
    folder = tmp_path_factory.mktemp("evil")
    model = onnx.load(ZOO / "digits-dynamic.onnx")
    model.producer_name = EVIL
    for entry in model.metadata_props:
        if entry.key == "capsedge.class_names":
            entry.value = json.dumps([f"{k}{EVIL}" for k in range(10)])
    nodes = model.graph.node
    for node in nodes:
        node.name = f"{node.name}{EVIL}"
    onnx.save(model, folder / f"model{EVIL.replace('/', '')}.onnx")
    (folder / f"image{EVIL.replace('/', '')}.png").write_bytes(IMAGE.read_bytes())
    (folder / f"broken{EVIL.replace('/', '')}.png").write_bytes(b"no image")
    (folder / "out").mkdir()
    return folder


def of(folder: Path, start: str) -> str:
    return str(next(p for p in folder.iterdir() if p.name.startswith(start)))


COMMANDS = {
    "inspect": lambda f: ["inspect", of(f, "model")],
    "inspect --forecast": lambda f: ["inspect", of(f, "model"), "--forecast"],
    "infer": lambda f: ["infer", "-m", of(f, "model"), str(f), "--reconstruct", str(f / "out/x.png")],
    "profile": lambda f: ["profile", of(f, "model"), "--duration", "0.1", "--warmup", "0",
                          "--report", str(f / "report.md")],
    "verify": lambda f: ["verify", of(f, "model")],
    "quantize": lambda f: ["quantize", of(f, "model"), "--calib-data", of(f, "image")],
    "cascade": lambda f: ["cascade", of(f, "model"), of(f, "model"), "--data", of(f, "image"),
                          "-o", str(f / "out/pair.onnx")],
    "no such file": lambda f: ["inspect", str(f / EVIL.replace("/", ""))],
    "no such option": lambda f: [f"--{EVIL}"],
    "no such verb": lambda f: [EVIL],
    "no such value": lambda f: ["infer", str(IMAGE), "--top", EVIL],
    "no such name": lambda f: ["train", "--model", EVIL, "--data", str(f), "-o", str(f / "r")],
    "no such batch": lambda f: ["inspect", of(f, "model"), "--batch", EVIL],
}  # fmt: skip


def call(words: list[str], terminal: bool) -> str:
    """What a person sees."""
    command = [sys.executable, "-m", "capsedge", *words]
    environment = os.environ | {"COLUMNS": "400", "TERM": "xterm-256color"}
    if not terminal:
        done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT, env=environment)
        assert done.returncode != 1, done.stderr
        return (done.stdout + done.stderr).decode()
    master, slave = pty.openpty()
    with subprocess.Popen(
        command, stdout=slave, stderr=slave, cwd=ROOT, env=environment
    ) as process:
        os.close(slave)
        seen = b""
        try:
            while part := os.read(master, 65536):
                seen += part
        except OSError:  # the terminal has no writer any more
            pass
    os.close(master)
    assert process.returncode != 1, seen.decode()
    # The terminal's own line ends; those of the text would be preceded by escapes.
    return _COLOURS.sub("", seen.decode().replace("\r\n", "\n"))


def wrong(name: str, seen: str) -> list[str]:
    """What a person should not see, or should and does not."""
    found = [f"{c!r}" for line in seen.split("\n") for c in line if not c.isprintable()]
    if "\nPASSED" in seen.removesuffix("PASSED\n").replace("PASSED: ", ""):
        found.append("a line of the name's own")
    if name in ("inspect --forecast", "no such value"):
        return found  # they name neither the file nor what was given
    # Colours of the name itself would have been taken for rich's.
    wanted = ("x1b]0;owned", r"\x07\x1b[31m")
    return found + [f"no {text}" for text in wanted if text not in seen]


def test_results_and_messages_are_escaped(capsys: Any) -> None:
    _output.say(EVIL)
    _output.log(EVIL)
    assert capsys.readouterr() == (f"{SHOWN}\n", f"{SHOWN}\n")


def test_codes_are_shown(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """In a file or a pipe."""
    monkeypatch.setenv("COLUMNS", "400")
    failed = []
    for name, words in COMMANDS.items():
        code = run(words(folder), monkeypatch)
        seen = "".join(capsys.readouterr())
        if code == 1 or wrong(name, seen):
            failed.append((name, code, wrong(name, seen), seen))
    assert failed == []


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "terminal"), [("inspect", False), *((name, True) for name in COMMANDS)]
)
def test_codes_are_shown_by_processes(name: str, terminal: bool, folder: Path) -> None:
    seen = call(COMMANDS[name](folder), terminal)
    assert wrong(name, seen) == [], seen


@pytest.mark.parametrize("name", ["inspect", "infer", "no such file"])
def test_json_is_escaped_as_json(name: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "capsedge", *COMMANDS[name](folder), "--json"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.isascii()
    assert all(c.isprintable() or c == "\n" for c in done.stdout)
    assert EVIL.replace("/", "") in _texts(json.loads(done.stdout))


def _texts(value: object) -> str:
    """All texts of a document, as they are."""
    if isinstance(value, dict):
        return "".join(f"{k}{_texts(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "".join(map(_texts, value))
    return str(value)


@pytest.mark.thorough
def test_report_is_no_page_of_its_own(tmp_path: Path) -> None:
    model = onnx.load(ZOO / "digits-dynamic.onnx")
    for k, node in enumerate(model.graph.node):
        node.name = f"<img src=x onerror=alert(1)>|[a](http://evil)`{EVIL}{k}"
    path = tmp_path / "<b>[x](http:x)`m`.onnx"
    onnx.save(model, path)
    report = tmp_path / "report.md"
    page = tmp_path / "report.html"
    call(
        ["profile", str(path), "--duration", "0.1", "--report", str(report), "--report", str(page)],
        False,
    )
    text = report.read_text()
    assert "<" not in text
    assert re.search(r"(?<!\\)[`\[]", text) is None
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "<img" not in page.read_text()


@pytest.mark.thorough
def test_one_place_prints() -> None:
    """Nothing of the package prints past the functions that escape; workers talk to their parent."""
    allowed = {"capsedge/cli/_output.py",
               "capsedge/runtime/profiling/worker.py", "capsedge/graph/fusion/optimize_graph.py"}  # fmt: skip
    for room in ("capsedge",):
        for file in (ROOT / room).rglob("*.py"):
            name = str(file.relative_to(ROOT))
            if name in allowed or "native" in name:
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    "print", "sys.stdout.write", "sys.stderr.write", "click.echo", "rich.print",
                ):  # fmt: skip
                    pytest.fail(f"{name}:{node.lineno} prints")


WRITING = {"write_text", "write_bytes", "savez", "savefig", "tofile", "imsave", "save_file"}
WRITES = {  # what is written there is none of a person's files
    "capsedge/calibration/quantizable_layers.py", "capsedge/batch_inference/sources.py",
    "capsedge/runtime/profiling/startup.py", "capsedge/runtime/profiling/worker.py",
    "capsedge/cli/_process.py", "capsedge/runtime/result_summary.py", "capsedge/runtime/files/writing.py",
    "capsedge/models/torch_file.py", "capsedge/runtime/video/outputs.py",
}  # fmt: skip


@pytest.mark.thorough
def test_one_place_writes() -> None:
    """Files of a person are written by ``runtime.files`` alone."""
    for room in ("capsedge",):
        for file in (ROOT / room).rglob("*.py"):
            name = str(file.relative_to(ROOT))
            if name in WRITES or "native" in name:
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                called = ast.unparse(node.func)
                last = called.rpartition(".")[2]
                modes = [ast.literal_eval(a) for a in node.args[1:2] if isinstance(a, ast.Constant)]
                if (
                    (last in WRITING and called not in ("write_text", "write_bytes"))
                    or (last == "open" and any(set(str(m)) & set("wax+") for m in modes))
                    or called
                    in ("torch.save", "onnx.save", "shutil.move", "os.replace", "os.rename")
                ):
                    if last in ("save", "savefig") and "buffer" in ast.unparse(node.args[-1]):
                        continue
                    pytest.fail(f"{name}:{node.lineno} writes by {called}")
