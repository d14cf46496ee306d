"""A verb judges its paths before its environment: with nothing installed, a wrong path is exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.paths.table import Parameter, command, honest, parameters

# Every package that an extra of pyproject.toml brings; numpy, Pillow, click and rich are always there.
HIDDEN = (
    "av", "fsspec", "grpc", "h5py", "httptools", "litert", "matplotlib", "onnx", "onnx_graphsurgeon",
    "onnx_ir", "onnxruntime", "onnxscript", "openvino", "orjson", "prometheus_client", "pyarrow",
    "ray", "safetensors", "starlette", "tensorrt", "tensorrt_rtx", "torch", "uvicorn",
)  # fmt: skip
BARE = f"""
import contextlib, io, json, sys
from pathlib import Path
for name in {HIDDEN}:
    sys.modules[name] = None
import capsedge.deploy.web
from capsedge.cli import _run
capsedge.deploy.web.SITE = Path("/nowhere")  # as in a checkout without `make web`
for line in sys.stdin:
    sys.argv = ["capsedge", *json.loads(line)]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = _run()
    print(json.dumps([code, said.getvalue()]))
"""
# Verbs that need no more than the package itself.
BARE_ENOUGH = ("inspect", "deploy kserve")
PICTURES = ("plot", "png", "picture", "reconstruct", "output")


def bare(lines: list[list[str]]) -> list[tuple[int, str]]:
    """The exit codes and the words of command lines in one process without optional packages."""
    done = subprocess.run(
        [sys.executable, "-c", BARE], input="\n".join(map(json.dumps, lines)),
        cwd=ROOT, text=True, capture_output=True, check=True,
    )  # fmt: skip
    return [(code, said) for code, said in map(json.loads, done.stdout.splitlines())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="writes weights: pip install 'capsedge[export]'")
    return tmp_path_factory.mktemp("places")


@pytest.fixture(scope="module")
def given(folder: Path) -> dict[str, dict[str, list[str | Path]]]:
    return honest(folder / "honest")


def wrong(parameter: Parameter, folder: Path) -> Iterator[tuple[str, Path]]:
    """Paths that this parameter cannot take."""
    role = parameter.role
    assert role is not None
    suffix = ".png" if parameter.name in PICTURES else ".onnx"
    suffix = ".safetensors" if parameter.name in ("checkpoint", "init") else suffix
    yield "below a file", folder / f"file.txt/x{suffix}"
    updates = role.reads and bool(role.written(Path("x")))
    if role.reads and not updates:
        yield "missing", folder / f"missing{suffix}"
        yield "dangling link", folder / "dangling"
    if role.written(Path("x")) and not role.creates:
        yield "in no folder", folder / f"no-folder/x{suffix}"
        yield "a folder", folder / "empty"
    if role.creates and parameter.verb.startswith("deploy"):
        yield "another's folder", folder / "full"


@pytest.mark.thorough
def test_wrong_paths(folder: Path, given: dict[str, dict[str, list[str | Path]]]) -> None:
    (folder / "file.txt").write_text("")
    (folder / "empty").mkdir()
    (folder / "full").mkdir()
    (folder / "full/precious.txt").write_text("")
    (folder / "dangling").symlink_to("nowhere.onnx")
    cases = [
        (f"{parameter}: {kind}", command(given[parameter.verb], {parameter: path}, parameter.verb))
        for parameter in parameters()
        for kind, path in wrong(parameter, folder)
    ]
    found = bare([line for _, line in cases])
    failed = [
        f"{name}: exit code {code}: {said}"
        for (name, _), (code, said) in zip(cases, found, strict=True)
        if code != 2 or not said.startswith("error: ")
    ]
    assert failed == []


@pytest.mark.thorough
def test_models_that_are_folders_or_empty(
    folder: Path, given: dict[str, dict[str, list[str | Path]]]
) -> None:
    (folder / "hollow.onnx").write_bytes(b"")
    (folder / "folder.onnx").mkdir()
    cases = [
        (p, code, command(given[p.verb], {p: folder / name}, p.verb))
        for p in parameters()
        if p.name in ("model", "models", "small", "large") and p.verb not in ("train",)
        for name, code in (("hollow.onnx", 6), ("folder.onnx", 2))
    ]
    assert len(cases) >= 20
    found = bare([line for _, _, line in cases])
    failed = [
        f"{p}: {found}, not {wanted}"
        for (p, wanted, _), found in zip(cases, found, strict=True)
        if found[0] != wanted
    ]
    assert failed == []


@pytest.mark.thorough
def test_right_paths_reach_the_environment(
    folder: Path, given: dict[str, dict[str, list[str | Path]]]
) -> None:
    """What is missing is named with the command that installs it, never as a bug."""
    verbs = sorted(given)
    found = bare([command(given[verb], {}, verb) for verb in verbs])
    failed = []
    for verb, (code, said) in zip(verbs, found, strict=True):
        ends = code == (0 if verb in BARE_ENOUGH else 3)
        if not ends or (code and not ("pip install" in said or "make web" in said)):
            failed.append(f"{verb}: exit code {code}: {said}")
    assert failed == []
