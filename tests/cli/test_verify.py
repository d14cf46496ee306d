"""``capsedge verify``: the last line, the exit code, the certificate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="the reference: pip install 'capsedge[export]'")

import capsedge  # noqa: E402
from capsedge.cli import app  # noqa: E402
from capsedge.models import build  # noqa: E402
from capsedge.models.checkpoint import save_checkpoint  # noqa: E402
from tests.exporters.nets import digits  # noqa: E402
from tests.exports import Exports  # noqa: E402


@pytest.fixture(scope="module")
def made(exported: Exports) -> tuple[Path, Path]:
    """A checkpoint and the file exported from it."""
    found = exported(digits("dynamic"))
    return found.checkpoint, found.path


def _run(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, error message; in this process, as torch takes seconds to load."""
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    if isinstance(result.exception, capsedge.CapsedgeError):
        said = f"{result.exception}\n{result.exception.command}"
        return int(result.exception.exit_code), result.stdout, said
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.thorough
def test_passes(made, tmp_path) -> None:
    checkpoint, path = made
    arguments = (path, "--checkpoint", checkpoint, "--limit", 4, "-o", tmp_path / "c.json")
    program = [sys.executable, "-c", "from capsedge.cli import main; main()", "verify"]
    done = subprocess.run([*program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "PASSED"
    assert "lengths" in done.stdout
    assert "top-1 agreement" in done.stdout
    assert json.loads((tmp_path / "c.json").read_text())["verdict"] == "PASSED"


def test_fails_with_exit_code_4_and_the_routing_errors(made, tmp_path) -> None:
    checkpoint, path = made
    out = tmp_path / "c.json"
    arguments = ("--limit", 2, "--tolerance", "lengths:0,0", "--ops", "portable", "-o", out)
    code, text, message = _run(path, "--checkpoint", checkpoint, *arguments)
    assert code == 4, message
    assert text.splitlines()[-1] == "FAILED"
    assert "Routing errors" in text
    certificate = json.loads(out.read_text())  # written all the same
    assert certificate["verdict"] == "FAILED"
    assert certificate["routing_errors"]["rows"]


def test_json_is_one_document(made) -> None:
    checkpoint, path = made
    _, text, _ = _run(path, "--checkpoint", checkpoint, "--limit", 2, "--json")
    document = json.loads(text)
    assert document["schema"] == 1
    assert document["samples"]["images"] == 2


def test_exit_codes_of_bad_input(made, tmp_path) -> None:
    checkpoint, path = made
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(path.read_bytes()[:3000])
    other = tmp_path / "other.safetensors"
    save_checkpoint(build("digits-em"), other)
    for arguments, code, word in (
        ((path,), 2, "--checkpoint"),
        ((path, "--checkpoint", other), 6, "not exported from"),
        ((path, "--checkpoint", tmp_path / "none.safetensors"), 2, "no such file"),
        ((path, "--checkpoint", "digits-dinamic"), 2, "digits-dynamic"),
        ((path, "--checkpoint", "capsnet-mnist"), 2, "no trained weights"),
        ((path, "--checkpoint", checkpoint, "--tolerance", "poses:x"), 2, "--tolerance"),
        ((path, "--checkpoint", checkpoint, "--data", tmp_path / "no"), 2, "no"),
        ((cut, "--checkpoint", checkpoint), 6, "ONNX"),
        ((tmp_path / "none.onnx", "--checkpoint", checkpoint), 2, "none.onnx"),
        (
            (path, "--checkpoint", checkpoint, "--limit", 2, "-o", tmp_path / "no" / "c.json"),
            2,
            "c.json",
        ),
    ):
        found, _, message = _run(*arguments)
        assert found == code, (arguments, message)
        assert word in message, (arguments, message)


def test_without_torch(made) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from capsedge.cli import main; sys.argv[1:] = ['verify', sys.argv[1]]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(made[1])], capture_output=True, text=True
    )
    assert done.returncode == 3
    assert "capsedge[export]" in done.stderr
    assert "Traceback" not in done.stderr


# Ensembles


@pytest.mark.thorough
def test_an_ensemble(tmp_path) -> None:
    members = ["digits-dynamic", "digits-em", "--limit", 2]
    code, printed, said = _run(*members, "-o", tmp_path / "c.json")
    assert code == 0, said
    assert printed.splitlines()[-1] == "PASSED"
    assert "digits-em.safetensors" in printed
    document = json.loads((tmp_path / "c.json").read_text())
    assert [m["chain"][-1]["file"] for m in document["members"]] == [
        "digits-dynamic.onnx",
        "digits-em.onnx",
    ]
    code, printed, _ = _run(*members, "--json")
    assert json.loads(printed)["kind"] == "ensemble"


def test_one_file_by_its_name() -> None:
    code, printed, said = _run("digits-em", "--limit", 2)
    assert code == 0, said
    assert "digits-em.onnx" in printed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "needs MODEL"),
        (["digits-em", "digits-em"], "twice"),
        (["digits-em", "digits-dynamic", "--inputs", __file__], "--inputs"),
        (
            ["PATH", "--checkpoint", __file__, "--checkpoint", __file__],
            "2 checkpoints for one file",
        ),
    ],
)
def test_ensembles_that_contradict(made, arguments: list[str], says: str) -> None:
    given = [made[1] if word == "PATH" else word for word in arguments]
    code, _, said = _run(*given)
    assert code == 2
    assert says in said
