"""Make mutants of a source file: mutmut's operators for Python, changes of single tokens for C++."""

from __future__ import annotations

import difflib
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

SEED = 37


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: relative to the root of the repository.
        line: where the changed expression begins.
        statement: the first line of the statement around it.
        imported: whether the line runs on import, not when a test calls it.
        text: the whole file with the change.
    """

    file: str
    line: int
    statement: int
    imported: bool
    text: str

    def diff(self, original: str) -> str:
        """The lines that changed."""
        lines = difflib.unified_diff(
            original.splitlines(), self.text.splitlines(), n=0, lineterm=""
        )
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


Place = tuple[int, int, bool]  # line, statement and imported of a mutant


_LEFT_ALONE = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom, cst.Raise)


class _Places(cst.CSTVisitor):
    """Every node that an operator changes, except in excluded code and in texts for people."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Place, cst.CSTNode, cst.CSTNode]] = []
        self._functions = self._statement = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _LEFT_ALONE):
            return False
        if isinstance(node, cst.SimpleString) and " " in node.value:
            return False  # text for people
        line = self.get_metadata(PositionProvider, node).start.line
        if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            self._statement = line
        self._functions += isinstance(node, cst.FunctionDef | cst.Lambda)
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                place = (line, self._statement, self._functions == 0)
                self.found += [(place, node, changed) for changed in operator(node)]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self._functions -= isinstance(original_node, cst.FunctionDef | cst.Lambda)


def python_mutants(root: Path, file: str, covered: set[int]) -> Iterator[Mutant]:
    """At most one mutant per covered line, in a random order that is always the same."""
    original = (root / file).read_text(encoding="utf-8")
    wrapper = MetadataWrapper(cst.parse_module(original))
    places = _Places()
    wrapper.visit(places)
    chance = random.Random(f"{SEED} {file}")
    lines: dict[int, list[tuple[Place, cst.CSTNode, cst.CSTNode]]] = defaultdict(list)
    for found in places.found:
        if {found[0][0], found[0][1]} & covered:
            lines[found[0][0]].append(found)
    for line in chance.sample(sorted(lines), len(lines)):
        for place, node, changed in chance.sample(lines[line], len(lines[line])):
            new = wrapper.module.deep_replace(node, changed)
            assert isinstance(new, cst.Module)
            if _compiles(new.code) and new.code != original:
                yield Mutant(file, *place, new.code)
                break


def _compiles(code: str) -> bool:
    try:
        compile(code, "mutant", "exec")
    except SyntaxError:
        return False
    return True


_TOKENS = (
    (" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
    (" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "), (" * ", " / "), (" / ", " * "),
    (" % ", " / "), ("std::min", "std::max"), ("std::max", "std::min"), ("true", "false"), ("false", "true"),
)  # fmt: skip
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_IGNORED = re.compile(r"//.*$|\"[^\"]*\"|^\s*#.*$")


def cpp_mutants(root: Path, file: str) -> Iterator[Mutant]:
    """The same for C++, where every line counts as covered; some mutants do not compile."""
    original = (root / file).read_text(encoding="utf-8")
    lines = original.splitlines(keepends=True)
    chance = random.Random(f"{SEED} {file}")
    for at in chance.sample(range(len(lines)), len(lines)):
        changes = list(_changes(lines[at]))
        if changes:
            text = "".join([*lines[:at], chance.choice(changes), *lines[at + 1 :]])
            yield Mutant(file, at + 1, at + 1, False, text)


def _changes(line: str) -> Iterator[str]:
    # Comments and strings stay in place, but nothing in them is changed.
    code = _IGNORED.sub(lambda found: "\0" * len(found[0]), line)
    for old, new in _TOKENS:
        for found in re.finditer(re.escape(old), code):
            yield line[: found.start()] + new + line[found.end() :]
    for found in _NUMBER.finditer(code):
        yield line[: found.start()] + str(int(found[0]) + 1) + line[found.end() :]
