"""The C interface as Markdown, from its header."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEADER = Path(__file__).resolve().parents[2] / "runtime/native/libcapsedge/include/capsedge.h"
_CHAPTER = re.compile(r"^/\* -+ (.+?) -+ \*/$", re.MULTILINE)
_NAME = re.compile(
    r"\b(capsedge_\w+)\s*\(|^\}\s*(capsedge_\w+);|^typedef struct \w+ (capsedge_\w+);",
    re.MULTILINE,
)
_PAGE = re.compile(r"\bdocs/([\w/-]+\.md)")
_NOISE = re.compile(r"\bCAPSEDGE_(?:API|CHECKED) ")


@dataclass(frozen=True)
class Declaration:
    """A declaration of C with the comment before it; ``name`` is empty where it declares constants only."""

    name: str
    code: str
    comment: str


def markdown() -> str:
    """The rules at the head of the file, and a chapter for each of its parts."""
    text = HEADER.read_text(encoding="utf-8")
    pieces = _CHAPTER.split(text.partition("#ifdef __cplusplus\n}")[0])
    rules = _rules(_comment(pieces[0][: pieces[0].index("*/") + 2]))
    chapters = [
        _chapter(title, body) for title, body in zip(pieces[1::2], pieces[2::2], strict=True)
    ]
    return _PAGE.sub(r"[\1](../\1)", "\n\n".join([rules, *chapters]))


def _chapter(title: str, body: str) -> str:
    entries = []
    for declaration in declarations(body):
        heading = [f"### `{declaration.name}`"] if declaration.name else []
        code = f"```c\n{declaration.code}\n```"
        entries.append("\n\n".join([*heading, code, declaration.comment]).strip())
    return "\n\n".join([f"## {title}", *entries])


def declarations(body: str) -> list[Declaration]:
    """The declarations of a part of the header, which blank lines separate."""
    found = []
    for block in re.split(r"\n\s*\n", body.strip()):
        match = re.match(r"/\*.*?\*/\n?", block, re.DOTALL)
        comment = _comment(match[0]) if match else ""
        code = _NOISE.sub("", block[match.end() :] if match else block).strip()
        code = re.sub(r"\n {20,}(?=\w)", "\n    ", code)  # the continuation of a prototype
        if not code:
            raise ValueError(f"{HEADER.name}: a comment that belongs to no declaration:\n{block}")
        names = [next(filter(None, groups)) for groups in _NAME.findall(code)]
        found.append(Declaration("`, `".join(dict.fromkeys(names)), code, comment))
    return found


def _comment(text: str) -> str:
    """The text of a comment; lines that are set in by four spaces or more are code."""
    inner = text.strip().removeprefix("/*").removesuffix("*/")
    lines = [re.sub(r"^ \* ?", "", line) for line in inner.split("\n")]
    return "\n".join(line.rstrip() for line in lines).strip().replace("*_INIT", "`*_INIT`")


def _rules(text: str) -> str:
    """The paragraphs at the head, each of which begins with its subject; the first presents the file."""
    paragraphs = text.split("\n\n")[1:]
    return "\n\n".join(re.sub(r"^(\w+)\.", r"**\1.**", paragraph) for paragraph in paragraphs)
