"""``capsedge build``: options, a machine without TensorRT, and a build over stand-ins."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from capsedge.cli import app
from capsedge.errors import CapsedgeError, UsageError
from capsedge.exporters.build_options import BuildOptions, _size
from capsedge.options import declared
from tests.exporters.nets import network
from tests.exports import Exports
from tests.tensorrt import fake
from tests.tensorrt.fixtures import cudart, gpu  # noqa: F401


@pytest.fixture(scope="module")
def model(exported: Exports) -> Path:
    return exported(network("attention")).path


@pytest.mark.thorough
def test_without_tensorrt(model: Path, tmp_path: Path) -> None:
    """The command as a person runs it: what is missing, how to get it, exit code 3, nothing written."""
    try:
        import tensorrt  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("TensorRT is installed here")
    target = tmp_path / "x.engine"
    for extra in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "capsedge", "build", str(model), "-o", str(target), *extra],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 3
        assert "TensorRT is not installed" in done.stderr
        assert "capsedge[tensorrt" in done.stderr or "JetPack" in done.stderr
        assert "Traceback" not in done.stderr
        if extra:
            assert json.loads(done.stdout)["exit_code"] == 3
    assert not target.exists()


@pytest.mark.thorough
def test_build_never_imports_torch(model: Path) -> None:
    """A TensorRT that is missing, here or by name, ends the command where it would start to build."""
    code = (
        "import sys; sys.modules['tensorrt'] = None\n"
        "from capsedge.cli import app\n"
        "from capsedge.errors import EnvironmentProblem\n"
        "try: app(['build', sys.argv[1]], standalone_mode=False)\n"
        "except EnvironmentProblem as error: print(error.what)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True)
    assert re.fullmatch(r"TensorRT .*\nFalse\n", done.stdout), done.stdout + done.stderr


@pytest.mark.thorough
def test_build_c_never_imports_torch(model: Path, tmp_path: Path) -> None:
    code = (
        "import atexit, sys\n"
        "from capsedge.cli import app\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        "app(['build', '--target', 'c', sys.argv[1], '-o', sys.argv[2], '--json'], standalone_mode=False)"
    )
    words = [sys.executable, "-c", code, str(model), str(tmp_path / "c")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout.endswith("False\n"), done.stdout + done.stderr
    assert '"kind": "capsedge-c"' in done.stdout


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--target", "c", "--plugin", "native"], "--plugin does not apply to --target c."),
        (["--target", "c", "--workspace", "1G"], "--workspace does not apply to --target c."),
        (["--name", "digits"], "--name does not apply to --target tensorrt."),
        (["--fit", "ram=1K"], "--fit does not apply to --target tensorrt."),
    ],
)
def test_an_option_of_another_target_is_refused(model: Path, given: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["build", str(model), *given])
    assert isinstance(result.exception, UsageError)
    assert named in str(result.exception)


def test_build_over_stand_ins(model: Path, tmp_path: Path, gpu: Any) -> None:  # noqa: F811
    target = tmp_path / "m.engine"
    given = [
        "build", str(model), "-o", str(target), "--plugin", "native", "--batch", "1:2:4",
        "--workspace", "512M", "--timing-cache", str(tmp_path / "cache"),
    ]  # fmt: skip
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "precision  fp32; built:" in result.stdout
    assert "1 to 4, best 2" in result.stdout
    assert "building: 100%" in result.stderr
    assert fake.RECORDED["workspace"] == 512 << 20
    assert target.is_file()
    assert (tmp_path / "cache").is_file()
    result = CliRunner().invoke(app, [*given, "--json"])
    document = json.loads(result.stdout)
    assert document["batch"] == [1, 2, 4]
    assert document["plugin"] == "native"


@pytest.mark.parametrize(
    "options",
    [
        ["--target", "c", "--batch", "1:2:4"],
        ["--batch", "1:2"],
        ["--batch", "a:b:c"],
        ["--batch", "4:2:1"],
        ["--workspace", "much"],
        ["--workspace", "1"],
        ["--plugin", "both"],
        ["--precision", "int8"],
        ["--optimization-level", "9"],
        ["-o", "/nonexistent/x.engine"],
    ],
)
def test_wrong_options(model: Path, options: list[str], gpu: Any) -> None:  # noqa: F811
    result = CliRunner().invoke(app, ["build", str(model), *options])
    assert isinstance(result.exception, UsageError)


@pytest.mark.parametrize("batch", ["0", "65536", "0:0:1"])
def test_a_batch_of_c_says_what_is_taken(batch: str) -> None:
    """The suggestion is one that the target accepts."""
    with pytest.raises(UsageError) as caught:
        BuildOptions(target="c", batch=_size("batch", batch))
    suggested = caught.value.fix.partition("--batch ")[2].rstrip("`.")
    assert BuildOptions(target="c", batch=int(suggested)).batches == (int(suggested),) * 3


def test_sizes() -> None:
    (workspace,) = (each for each in declared(BuildOptions) if each.name == "workspace")
    assert workspace.option.parse is not None
    for text, size in (("512M", 512 << 20), ("2g", 2 << 30), ("7", 7)):
        assert workspace.option.parse(text) == size


def test_damaged_models(tmp_path: Path, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for content in (b"", b"no onnx", b"\x08\x0a"):
        path = tmp_path / "broken.onnx"
        path.write_bytes(content)
        result = CliRunner().invoke(app, ["build", str(path)])
        assert isinstance(result.exception, CapsedgeError), result.exception
    monkeypatch.chdir(tmp_path)
    assert isinstance(CliRunner().invoke(app, ["build", "."]).exception, UsageError)
