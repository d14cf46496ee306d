"""What the tests with NVIDIA's library share: the library, processes to build in, the count of engines."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "tensorrt_rtx_bindings"
REQUIRED = (
    "CAPSEDGE_REQUIRE_NVIDIA"  # `make test-nvidia` sets it: what is missing is then a failure
)
_ENGINE = "engine built by NVIDIA's library"

Build = Callable[..., list[dict[str, Any]]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """None of them is cheap: `make test-nvidia` and, with the library installed, `make test-all` run them."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("thorough")


@pytest.fixture(autouse=True, scope="session")
def library() -> Path:
    """The folder of TensorRT-RTX's libraries."""
    missing = [n for n in (PACKAGE, "tensorrt_rtx_libs") if importlib.util.find_spec(n) is None]
    if missing:
        words = f"{' and '.join(missing)} not installed: make test-nvidia"
        if os.environ.get(REQUIRED):
            pytest.fail(words)
        pytest.skip(words)
    found = importlib.util.find_spec("tensorrt_rtx_libs")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


@pytest.fixture
def environment(library: Path, tmp_path: Path) -> dict[str, str]:
    """Of a process that builds: with the name the parser opens for a plugin (docs/how-to/tensorrt.md)."""
    (tmp_path / "libtensorrt_rtx.so").symlink_to(library / "libtensorrt_rtx.so.1")
    paths = [str(tmp_path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(paths)}


@pytest.fixture
def build(
    environment: Mapping[str, str], tmp_path: Path, record_property: Callable[[str, object], None]
) -> Build:
    """Builds engines of models in one other process; what `worker` says of each."""

    def run(
        jobs: Sequence[tuple[Path, Mapping[str, Any]]],
        plugin: Path | None = None,
    ) -> list[dict[str, Any]]:
        given = [
            {"source": str(source), "target": str(tmp_path / f"{k}.engine"), "options": options}
            for k, (source, options) in enumerate(jobs)
        ]
        variables = {} if plugin is None else {"CAPSEDGE_TENSORRT_PLUGIN": str(plugin)}
        found = [
            json.loads(line)
            for line in process("tests.nvidia.worker", given, {**environment, **variables})
        ]
        for built in found:
            if "error" not in built:
                low, _, high = built["batch"]
                batch = "static" if low == high else "dynamic"
                row = (built["source"], built["precision"], batch, built["plugin"])
                record_property(_ENGINE, row)
        return found

    return run


def process(module: str, given: object, environment: Mapping[str, str]) -> list[str]:
    """Lines that a module of the tests prints for a document, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(given), capture_output=True, text=True, check=False, cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, f"{module} ended with {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many engines NVIDIA's library built, by precision, batch and mode."""
    rows = [
        tuple(value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == _ENGINE
    ]
    if not rows:
        return
    terminalreporter.section("engines that NVIDIA's TensorRT-RTX built, without a GPU")
    kinds = Counter(row[1:] for row in rows)
    for (precision, batch, mode), number in sorted(kinds.items()):
        models = len({row[0] for row in rows if row[1:] == (precision, batch, mode)})
        terminalreporter.line(
            f"{precision:<6} {batch:<8} {mode:<7} {number:>4} engines of {models} models"
        )
    terminalreporter.line(f"{len(rows):>28} engines in all")
