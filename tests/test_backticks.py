"""Names in backticks in docstrings and comments exist: in code, or as a file."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "capsedge"
PYTHON = sorted(PACKAGE.rglob("*.py"))
OTHERS = [
    path
    for folder in ("runtime/native", "runtime/web/src", "runtime/web/page/src", "exporters/c/kernels")
    for path in sorted((PACKAGE / folder).rglob("*"))
    if path.suffix in (".cpp", ".h", ".hpp", ".cu", ".cuh", ".ts", ".c") and "node_modules" not in path.parts
]  # fmt: skip
FOLDERS = ("capsedge/runtime/native", "capsedge/spec", "docs", "spec", "tests", "tools")
# What is named and is of another program: roots of dotted names, and names of ONNX, C and the shell.
FOREIGN_ROOTS = {
    "click", "grpc", "h5py", "json", "np", "numpy", "onnx", "onnx_ir", "onnxruntime", "os", "pickle",
    "pyarrow", "ray", "rich", "signal", "socket", "sys", "tarfile",
    "tools", "torch", "typing", "uvicorn", "zipfile",
}  # fmt: skip
_NAME = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")
_PYTHON_PROSE = re.compile(r'"""[^"].*?"""|(?:^|  )# [^\n]*', re.S | re.M)
_OTHER_PROSE = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_NUMBERED = re.compile(r"_(\d+|iter\d+_\w+)$")  # DynamicRouting_2 is a second body of an operator
_WORD = re.compile(r"[A-Za-z_]\w*")


def split(text: str, python: bool) -> tuple[str, list[tuple[int, str]]]:
    """The code without docstrings and comments, and these with their lines."""
    pattern = _PYTHON_PROSE if python else _OTHER_PROSE
    prose = [(text.count("\n", 0, m.start()) + 1, m[0]) for m in pattern.finditer(text)]
    return pattern.sub("", text), prose


def names(prose: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for line, text in prose:
        yield from ((line, found) for found in _NAME.findall(text))


def test_names_in_backticks_exist() -> None:
    known: set[str] = {*dir(builtins), "self", "this"}
    within: dict[str, set[str]] = {}  # words of the modules of a name
    mentioned: list[tuple[Path, int, str]] = []
    for path in (*PYTHON, *OTHERS):
        known.update(path.relative_to(PACKAGE).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        code, prose = split(text, path.suffix == ".py")
        words = set(_WORD.findall(code))
        known |= words
        for part in path.relative_to(PACKAGE).with_suffix("").parts:
            within.setdefault(part, set()).update(words, [path.stem])
        mentioned += [(path, *each) for each in names(prose)]
    files = {p.name for folder in FOLDERS for p in (ROOT / folder).rglob("*.*")}
    files |= {path.name for path in (*PYTHON, *OTHERS)} | {"capsedge.", "capsedge.json", "main.c"}

    def exists(name: str) -> bool:
        first, *rest = (
            _NUMBERED.sub("", p) for p in name.removeprefix("capsedge.").strip(".").split(".")
        )
        if name in files or first in FOREIGN_ROOTS:
            return True
        # `module.name` is in that module or room; `Class.member` may be anywhere.
        here = within[first] if first in within and rest else known
        return first in known and all(part in here for part in rest)

    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, line, name in mentioned
        if not exists(name)
    ]
    assert len(mentioned) > 500
    assert not wrong, "\n".join(wrong)
