"""What the extras install: of the two packages that are the module ``onnxruntime``, never both."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.release import interpreters
from tests.release.conftest import missing

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RUNTIMES = {"onnxruntime", "onnxruntime-gpu"}
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]["optional-dependencies"]


def named(extra: str) -> set[str]:
    """The packages that an extra names, and the extras in it."""
    found: set[str] = set()
    for line in EXTRAS[extra]:
        own = re.fullmatch(r"capsedge\[(.*)\]", line)
        if own:
            found |= set().union(*(named(inner) for inner in own[1].split(",")))
        else:
            found.add(re.match(r"[\w.-]+", line)[0].lower())  # type: ignore[index]
    return found


def test_only_two_extras_choose_an_onnxruntime() -> None:
    """A third would bring one together with ``[gpu]``, which then loses its CUDA provider."""
    choosing = {extra: named(extra) & RUNTIMES for extra in EXTRAS}
    assert {extra: found for extra, found in choosing.items() if found} == {
        "cpu": {"onnxruntime"},
        "gpu": {"onnxruntime-gpu"},
        "dev": {"onnxruntime"},  # for checkouts; the tests run on the CPU
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("extras", "runtimes"),
    [
        ("cpu", {"onnxruntime"}),
        ("gpu", {"onnxruntime-gpu"}),
        ("export", set()),
        ("import", set()),
        ("build", set()),
        ("cpu,export", {"onnxruntime"}),
        ("gpu,export", {"onnxruntime-gpu"}),
        ("gpu,import,profile", {"onnxruntime-gpu"}),
        ("dev", {"onnxruntime"}),
    ],
)
def test_what_pip_would_install(extras: str, runtimes: set[str], tmp_path: Path) -> None:
    """The packages of others may name an ONNX Runtime too; only pip can tell."""
    report = tmp_path / "report.json"
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--dry-run", "--ignore-installed", "--report", report, f"{ROOT}[{extras}]",
        ],
        check=True,
    )  # fmt: skip
    said = json.loads(report.read_text(encoding="utf-8"))["install"]
    names = {package["metadata"]["name"].lower() for package in said}
    assert names & RUNTIMES == runtimes


def test_every_pair_of_extras_but_the_two_agrees() -> None:
    for pair in combinations(sorted(EXTRAS.keys() - {"dev"}), 2):
        together = named(pair[0]) | named(pair[1])
        assert (together >= RUNTIMES) == (pair == ("cpu", "gpu")), pair


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("extras", ["cpu", "cpu,export"])
@pytest.mark.parametrize("version", interpreters.supported())
@pytest.mark.parametrize("system", ["x86_64-pc-windows-msvc", "aarch64-apple-darwin"])
def test_extras_resolve_on_other_systems(system: str, version: str, extras: str) -> None:
    """As wheels alone. pip resolves for its own system's markers, whatever its --platform; uv does not."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        missing("uv resolves for another system, and is not installed: make test-release")
    done = subprocess.run(
        [
            uv, "pip", "compile", "--quiet", "--no-annotate", "--python-platform", system,
            "--python-version", version, "--only-binary", ":all:", "pyproject.toml",
            *(f"--extra={extra}" for extra in extras.split(",")),
        ],
        cwd=ROOT, env=os.environ | {"MACOSX_DEPLOYMENT_TARGET": "14.0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {line.split("==")[0] for line in done.stdout.splitlines() if "==" in line}
    assert {"numpy", "onnxruntime"} <= found
    assert ("torch" in found) == ("export" in extras)
