"""Signals, from the first import to the end: no traceback, no temporary file, 128 and the number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.paths.table import IMAGE, honest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Sends the process a signal when it first imports a module, or calls a function of os.
START = """
import os, sys
wanted, number = sys.argv[1], int(sys.argv[2])
sys.argv = ["capsedge", *sys.argv[3:]]
if wanted.startswith("os."):
    real = getattr(os, wanted[3:])
    def call(*arguments, **options):
        if any(".capsedge-" in str(a) for a in arguments) or wanted == "os.fsync":
            os.kill(os.getpid(), number)
        return real(*arguments, **options)
    setattr(os, wanted[3:], call)
else:
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == wanted:
                sys.meta_path.remove(self)
                os.kill(os.getpid(), number)
    sys.meta_path.insert(0, Finder())
from capsedge.__main__ import main
main()
"""


def heard() -> None:
    """Signals that the tests' own parent may have had them ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start(
    wanted: str, number: int, *words: object, folder: Path
) -> subprocess.CompletedProcess[str]:
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", START, wanted, str(int(number)), *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
        preexec_fn=heard,
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "module",
    [
        "capsedge.cli", "click", "json", "capsedge.runtime.files.writing", "capsedge.cli.infer",
        "numpy", "capsedge.runtime.session.session", "PIL", "onnxruntime.capi", "PIL.Image",
    ],
)  # fmt: skip
def test_interrupt_amid_an_import(module: str, tmp_path: Path) -> None:
    done = start(module, signal.SIGINT, "infer", IMAGE, folder=tmp_path)
    if done.returncode == 0 and "digit-7" in done.stdout:
        pytest.skip(f"this version does not import {module}")
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", SIGNALS, ids=lambda s: s.name)
@pytest.mark.parametrize("moment", ["os.open", "os.fsync", "os.replace", "os.unlink"])
def test_signal_amid_a_write(moment: str, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "seen.png").write_text("older")
    done = start(
        moment, number, "infer", IMAGE, "--reconstruct", tmp_path / "seen.png", folder=tmp_path
    )
    assert done.returncode == 128 + number, done.stderr
    assert "Traceback" not in done.stderr
    assert "no unfinished file is left behind" in done.stderr
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["seen.png", "tmp"]
    found = (tmp_path / "seen.png").read_bytes()
    assert found == b"older" or found.startswith(b"\x89PNG")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)],
    ids=lambda s: s.name,
)
def test_temporary_folders_go(number: signal.Signals, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="sweep needs torch")
    (tmp_path / "tmp").mkdir()
    data = honest(tmp_path / "honest")["sweep"]["data"][1]
    (tmp_path / "new").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "capsedge", "sweep", "--checkpoint", "digits-em", "--data", data,
         "-o", tmp_path / "new" / "s.json"],
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")}, stderr=subprocess.PIPE, text=True,
        preexec_fn=heard,
    )  # fmt: skip
    for _ in range(600):
        if any((tmp_path / "tmp").glob("capsedge-*")) or process.poll() is not None:
            break
        time.sleep(0.05)
    was_there = any((tmp_path / "tmp").glob("capsedge-*"))
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert was_there, said
    assert process.returncode == 128 + number, said
    assert "terminated: no unfinished file is left behind" in said
    assert not any((tmp_path / "tmp").glob("capsedge-*"))  # PyTorch's own folder stays
    assert not any((tmp_path / "new").iterdir())


def test_ignored_signals_stay_ignored() -> None:
    """As under nohup, or in the background of a script."""
    code = (
        "import os, signal, sys\n"
        "for s in (signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)\n"
        "sys.argv = ['capsedge', 'config']\n"
        "from capsedge.cli import _process as _signals\n"
        "with _signals.raising():\n"
        "    os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGHUP)\n"
        "print('went on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "went on\n", done.stderr


def test_a_signal_that_an_import_drops_is_sent_again(tmp_path: Path) -> None:
    """Libraries clear errors in C while they are imported, and Ctrl-C among them."""
    (tmp_path / "drops.py").write_text(
        "import signal\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "except BaseException:\n"
        "    pass\n"
    )
    code = (
        "import sys, time\n"
        "from capsedge.cli import _process\n"
        "def work():\n"
        "    import drops\n"
        "    print('went on', flush=True)\n"
        "    time.sleep(30)\n"
        "try:\n"
        "    with _process.raising(): work()\n"
        "except _process.Terminated as error:\n"
        "    _process.note_arrival(error)\n"
        "    print('arrived', _process.exit_code())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=20
    )  # fmt: skip
    assert done.stdout == "went on\narrived 143\n", done.stderr
