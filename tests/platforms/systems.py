"""What other systems lack, as typeshed knows it (the stubs that come with mypy), and processes without it."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from capsedge.runtime.backends import native_library

HIDDEN = Path(__file__).parent / "hidden"
SYSTEMS = {"win32": ("Windows", "AMD64"), "darwin": ("Darwin", "arm64")}
SUFFIXES = {"win32": ".dll", "darwin": ".dylib"}
_UNIX = ("fcntl", "grp", "pwd", "resource", "termios")  # modules that Windows lacks
_MODULES = (*_UNIX, "errno", "locale", "mmap", "os", "select", "signal", "socket", "time")


def _stub(module: str) -> Path:
    mypy = pytest.importorskip("mypy", reason="its stubs tell what other systems lack")
    folder = Path(mypy.__file__).parent / "typeshed" / "stdlib"
    single = folder / f"{module}.pyi"
    return single if single.exists() else folder / module / "__init__.pyi"


def _defined(body: list[ast.stmt], platform: str) -> Iterator[str]:
    """The names that a stub defines on a platform."""
    for node in body:
        if isinstance(node, ast.If):
            system = SimpleNamespace(platform=platform, version_info=sys.version_info)
            test = compile(ast.Expression(node.test), "<stub>", "eval")
            chosen = (
                node.body if eval(test, {"sys": system, "TYPE_CHECKING": True}) else node.orelse
            )
            yield from _defined(chosen, platform)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (t.id for t in targets if isinstance(t, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((a.asname or a.name) for a in node.names)


def _names(module: str, platform: str) -> set[str]:
    stub = ast.parse(_stub(module).read_text(encoding="utf-8"))
    found = set(_defined(stub.body, platform))
    for node in ast.walk(stub):  # `from _signal import *` and the like
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and node.module:
            found |= _names(node.module, platform)
    return found


@cache
def lacking(platform: str) -> dict[str, list[str]]:
    """By module, the names that Python has here and not on another platform."""
    found = {}
    for module in _MODULES:
        here = vars(importlib.import_module(module)).keys()
        lost = (here & _names(module, sys.platform)) - _names(module, platform)
        found[module] = sorted(lost)
    return found


@cache
def _libraries(platform: str) -> tempfile.TemporaryDirectory[str]:
    """A folder for the module path: what the native build installed here, by its names on another system."""
    folder = tempfile.TemporaryDirectory(prefix="capsedge-libraries-")
    library = native_library.installed(native_library.NAME)
    if library is not None:
        copied = Path(folder.name, "capsedge", "runtime", "_native")
        for file in library.parent.rglob("*"):
            if file.is_file():
                place = copied / file.relative_to(library.parent)
                place.parent.mkdir(parents=True, exist_ok=True)
                suffix = SUFFIXES[platform] if file.suffix == ".so" else file.suffix
                place.with_suffix(suffix).symlink_to(file)
    return folder


def run(
    platform: str, *command: str | Path, cwd: Path, libraries: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python as the package meets it on another system.

    Args:
        libraries: a folder with ``capsedge/runtime/_native``; by default, with what is built here.
        variables: more of its environment.
    """
    system, machine = SYSTEMS[platform]
    said = {
        "platform": platform, "system": system, "machine": machine, "hidden": lacking(platform),
        "absent": (*_UNIX, "uvloop") if platform == "win32" else (),
    }  # fmt: skip
    native = str(libraries or _libraries(platform).name)
    path = os.pathsep.join(filter(None, [str(HIDDEN), native, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", *command],
        cwd=cwd, capture_output=True, encoding="utf-8", check=False,
        env=os.environ | {"PYTHONPATH": path, "CAPSEDGE_PLATFORM": json.dumps(said)} | variables,
    )  # fmt: skip
