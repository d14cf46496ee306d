"""Collect every message of the package into one list, tests/cli/messages.txt, to read and to compare.

Errors (what, why, fix), warnings and printed lines come from the Python sources, errors of libcapsedge and of
the browser package from their calls, and usage errors from running command lines.
``python -m tools.docs.messages`` rewrites the list. ``{name}`` stands for a value, and ``(one|other)`` for a
choice of texts.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "capsedge"
LIST = ROOT / "tests/cli/messages.txt"

_CLASS = re.compile(r"^class (\w+)\(([\w., ]+)\):", re.MULTILINE)
_SENTENCE = re.compile(r"[A-Za-z`]\S*\s+\S*[A-Za-z{]")  # two words: neither a name nor a key
_ORDER = ("", "why", "fix")
_ROWS = "list[tuple[str, str]]"  # what functions return whose rows are printed
_PRINTS = ("say", "log", "log_next", "warn")  # functions of `capsedge.cli._output`
_KEYWORDS = {"what": "", "why": "why", "fix": "fix", "command": "command"}
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_MAKES_TEXT = re.compile(
    r"warning|note|_why|why_|reason|explain|cause|advice|hint|_fix|problem|closing|_error$"
)


class Message(NamedTuple):
    """A message.

    Attributes:
        kind: the class of an error; ``warning``, ``log`` or ``say``; or the function that receives the text.
        parts: its texts; each part has a name, such as ``why``, which is empty for the first.
    """

    kind: str
    parts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        (_, first), *more = self.parts
        return "\n".join([f"{self.kind}: {first}", *(f"    {name}: {text}" for name, text in more)])


def rooms() -> dict[str, list[Path]]:
    """The source files of each folder of the package, by its name; C++ and TypeScript by themselves."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).parts
        if "node_modules" not in inside:
            found[inside[0] if len(inside) > 1 else "capsedge"].append(path)
    found["libcapsedge"] = sorted((PACKAGE / "runtime/native/libcapsedge/src").glob("*.cpp"))
    found["web"] = [
        path
        for folder in ("src", "page/src")
        for path in sorted((PACKAGE / "runtime/web" / folder).rglob("*.ts"))
    ]
    return dict(sorted(found.items()))


def section(room: str, paths: Iterable[Path]) -> str:
    """The part of the list for a room."""
    read = {"libcapsedge": cpp_messages, "web": typescript_messages}.get(room, python_messages)
    lines = [f"===== {room} ====="]
    for path in paths:
        if found := dict.fromkeys(map(str, read(path.read_text(encoding="utf-8")))):
            lines += ["", f"# {path.relative_to(PACKAGE)}", *found]
    return "\n".join(lines) + "\n"


def sections(text: str) -> dict[str, str]:
    """The sections of a list, by room."""
    found = re.split(r"^(?====== )", text, flags=re.MULTILINE)[1:]
    return {part.split()[1]: part.rstrip("\n") + "\n" for part in found}


# --- Python ---


@functools.cache
def error_classes() -> frozenset[str]:
    """Names of the classes of errors that the package defines, and ValueError."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    classes = [match.groups() for text in texts for match in _CLASS.finditer(text)]
    known, before = {"Exception", "ValueError", "RuntimeError"}, 0
    while before < len(known):
        before = len(known)
        known |= {name for name, bases in classes if known & {*bases.split(", ")}}
    return frozenset(known - {"Exception"})


def python_messages(text: str) -> Iterator[Message]:
    """The messages of a module, in order; those of a function that receives texts, at its calls."""
    tree = ast.parse(text)
    nodes = list(_in_order(tree))
    module = _assigned(node for node in tree.body if isinstance(node, ast.Assign))
    makers = {f.name for node, f in nodes if f and isinstance(node, ast.Call) and _passes(node, f)}
    local: dict[_Function | None, _Names] = {None: _Names(module)}
    for node, around in nodes:
        if not isinstance(node, (ast.Call, ast.AugAssign, ast.Return, ast.Yield, ast.Tuple)):
            continue
        if around is not None and around not in local:
            local[around] = _Names(module | _assigned(ast.walk(around)))
        found = _message(node, around, makers, local[around])
        if found is not None:
            yield found


def _in_order(tree: ast.AST) -> Iterator[tuple[ast.AST, _Function | None]]:
    """Nodes in source order, each with its enclosing function."""
    waiting: list[tuple[ast.AST, _Function | None]] = [(tree, None)]
    while waiting:
        node, around = waiting.pop()
        yield node, around
        around = node if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else around
        waiting += [(child, around) for child in reversed([*ast.iter_child_nodes(node)])]


def _message(
    node: ast.AST, around: _Function | None, makers: set[str], names: _Names
) -> Message | None:
    """The message in a node, if there is one."""
    if isinstance(node, ast.Call):
        name = _name(node.func)
        if name in error_classes():
            return _error(name, node, names)
        if name in _PRINTS or name in makers:
            arguments = [*node.args, *(k.value for k in node.keywords)]
            texts = [names.text(argument) for argument in arguments]
            return _of_texts(name, [text for text in texts if _SENTENCE.search(text)])
        texts = list(map(names.text, node.args))
        if name == "append" and _is_warning(node.func):
            return _of_texts("warning", texts)
        if name == "Row" and texts[:1] in (["warning"], ["note"]):
            return _of_texts("warning", texts[1:])
        if name == "Table":
            notes = [k.value for k in node.keywords if k.arg == "notes"]
            titles = [text for text in texts[:1] if _SENTENCE.search(text)]
            return _of_texts("table", titles + [t for each in notes for t in names.texts_in(each)])
    elif isinstance(node, ast.Tuple):
        if around is not None and _is_row(node, around):
            return _of_texts("row", [" ".join(map(names.text, node.elts))])
    elif isinstance(node, ast.AugAssign) and _is_warning(node.target):
        return _of_texts("warning", list(names.texts_in(node.value)))
    elif (
        isinstance(node, (ast.Return, ast.Yield))
        and around is not None
        and node.value is not None
        and _MAKES_TEXT.search(around.name)
    ):
        return _of_texts(around.name, list(names.texts_in(node.value)))
    return None


def _is_row(node: ast.Tuple, around: _Function) -> bool:
    """Whether it is a name and a value, in a function that returns such rows."""
    if around.returns is None or ast.unparse(around.returns) != _ROWS or len(node.elts) != 2:
        return False
    name = node.elts[0]
    return isinstance(name, ast.JoinedStr) or (
        isinstance(name, ast.Constant) and isinstance(name.value, str)
    )


def _error(name: str, call: ast.Call, names: _Names) -> Message | None:
    """The parts of an error."""
    parts = list(zip(_ORDER, map(names.text, call.args), strict=False))
    parts += [(_KEYWORDS[k.arg], names.text(k.value)) for k in call.keywords if k.arg in _KEYWORDS]
    kept = [(part, text) for part, text in parts if text]
    if not any(_SENTENCE.search(text) for _, text in kept):
        return None
    return Message(name, tuple(kept))


def _of_texts(kind: str, texts: Sequence[str]) -> Message | None:
    kept = [text for text in texts if _SENTENCE.search(text)]
    return (
        Message(kind, tuple(("" if k == 0 else "then", t) for k, t in enumerate(kept)))
        if kept
        else None
    )


def _passes(call: ast.Call, function: _Function) -> bool:
    """Whether a call makes an error from a text passed to its function."""
    if _name(call.func) not in error_classes():
        return False
    given = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)} - {"self", "name"}
    shown = [p for a in call.args for p in ([a] if isinstance(a, ast.Name) else _filled(a))]
    return bool(given & {part.id for part in shown if isinstance(part, ast.Name)})


def _filled(node: ast.AST) -> list[ast.expr]:
    """The values in an f-string."""
    return [part.value for part in ast.walk(node) if isinstance(part, ast.FormattedValue)]


def _is_warning(node: ast.AST) -> bool:
    """Whether a list has warnings or notes, by its name."""
    text = ast.unparse(node)
    return "warnings" in text or "notes" in text


def _name(node: ast.AST) -> str:
    """The last name of ``a.b.c``, of a call or of a subscript."""
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "attr", "") or getattr(node, "id", "")


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """The values assigned to each name."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in nodes:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for one, value in pairs:
                if isinstance(one, ast.Name):
                    found[one.id].append(value)
    return found


class _Names(dict[str, list[ast.expr]]):
    """The values assigned to a function's names, used to show texts."""

    def text(self, node: ast.AST) -> str:
        """A text as it is shown."""
        match node:
            case ast.Constant(value=str(value)):
                return value.replace("\n", "\\n")
            case ast.Constant(value=value):
                return "" if value is None else str(value)
            case ast.JoinedStr(values=values):
                return "".join(map(self.text, values))
            case ast.FormattedValue(value=value):
                return self.text(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.text(left) + self.text(right)
            case ast.IfExp(body=body, orelse=other):
                return self._choice([body, other])
            case ast.BoolOp(op=ast.Or(), values=values):
                return self._choice(values)
            case ast.Starred(value=value):
                return self.text(value)
            case ast.Name(id=name) if name in self:
                values = self[name]
                known = _Names({n: v for n, v in self.items() if n != name})
                found = known._choice(values)
                return found if _SENTENCE.search(found) else f"{{{name}}}"
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str())), args=[argument]):
                return self.text(argument)  # ", ".join(...)
            case ast.Call(args=[argument]) if not isinstance(argument, ast.Starred):
                return self.text(argument)  # str(...), format_bytes(...)
            case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
                return self.text(element)
        name = _name(node)
        return f"{{{name}}}" if name else "{...}"

    def _choice(self, nodes: Iterable[ast.AST]) -> str:
        found = list(dict.fromkeys(map(self.text, nodes)))
        return found[0] if len(found) == 1 else f"({'|'.join(found)})"

    def texts_in(self, node: ast.AST) -> Iterator[str]:
        """The texts of an expression: the longest, not their parts."""
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp, ast.IfExp)):
            text = self.text(node)
            if _SENTENCE.search(text):
                yield text
            return
        for child in ast.iter_child_nodes(node):
            yield from self.texts_in(child)


# --- Usage errors ---

# Wrong in every way that the parser detects; the verbs' own checks are in their sources.
_COMMAND_LINES = (
    "infr",
    "deploy wbe",
    "--bogus infer",
    "infer",
    "quantize x.onnx",
    "infer image.png --tpo 3",
    "infer image.png -Z",
    "infer image.png --top",
    "infer image.png --top many",
    "infer image.png --top 0",
    "infer image.png --threshold 2",
    "infer image.png --json=yes",
    "inspect a.onnx b.onnx",
    "doctor now",
)


def usage_errors() -> str:
    """The parser's messages for wrong command lines."""
    from capsedge.cli import app
    from capsedge.errors import UsageError

    lines = ["===== usage ====="]
    for line in _COMMAND_LINES:
        try:
            app.main(line.split())
        except UsageError as error:
            said = (("", error.what), ("why", error.why), ("fix", error.command))
            lines += ["", f"$ capsedge {line}"]
            lines += [str(Message("UsageError", tuple((p, t) for p, t in said if t)))]
    return "\n".join(lines) + "\n"


# --- C++ and TypeScript ---


def cpp_messages(text: str) -> Iterator[Message]:
    """Errors of libcapsedge: ``Failure(code, what, why, fix)``, and reasons that become failures."""
    for name, arguments in _calls(text, r"\b(Failure|JsonError|Error)\("):
        yield from _written(name, arguments[1:] if name == "Failure" else arguments)


def typescript_messages(text: str) -> Iterator[Message]:
    """Errors of the browser package: ``new CapsedgeError(code, what, hint)``."""
    for _, arguments in _calls(text, r"\bnew (CapsedgeError)\("):
        code, *texts = arguments
        found = [("" if k == 0 else "hint", _literals(t)) for k, t in enumerate(texts[:2])]
        yield Message(_literals(code), tuple((part, text) for part, text in found if text))


def _written(name: str, arguments: Sequence[str]) -> Iterator[Message]:
    parts = list(zip(_ORDER, map(_literals, arguments), strict=False))
    kept = tuple((part, text) for part, text in parts if text)
    if any(_SENTENCE.search(text) for _, text in kept):
        yield Message(name, kept)


_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|`(?:[^`\\]|\\.)*`|\'(?:[^\'\\]|\\.)\'|//[^\n]*|.', re.DOTALL
)


def _calls(text: str, pattern: str) -> Iterator[tuple[str, list[str]]]:
    """Names and arguments of the calls that a pattern finds."""
    for match in re.finditer(pattern, text):
        depth, arguments = 1, [""]
        for token in _TOKEN.finditer(text, match.end()):
            depth += (token[0] in "([{") - (token[0] in ")]}")
            if depth == 0:
                break
            if depth == 1 and token[0] == ",":
                arguments.append("")
            elif not token[0].startswith("//"):
                arguments[-1] += token[0]
        yield match[1], arguments


def _literals(code: str) -> str:
    """The texts of an expression joined, with ``{name}`` for everything else."""
    out = ""
    between = ""
    for token in [*_TOKEN.finditer(code), None]:
        if token is not None and token[0][0] not in '"`':
            between += token[0]
            continue
        words = re.findall(r"[A-Za-z_]\w*", re.sub(r"std::|to_string|string|substr", "", between))
        if words:
            out += "{" + words[-1 if "(" not in between else 0] + "}"
        between = ""
        if token is not None:
            out += re.sub(
                r"\$\{([^}]*)\}", lambda m: "{" + m[1].split(".")[-1] + "}", token[0][1:-1]
            )
    return out


def main() -> None:
    """Write the list."""
    parts = [usage_errors(), *(section(room, paths) for room, paths in rooms().items())]
    LIST.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
