"""Names in the generated source, and strings of a model in the syntaxes of the folder's files."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from capsedge.errors import UsageError
from capsedge.runtime.files.text import printable

_KEYWORDS = frozenset(
    [
        "auto",
        "break",
        "case",
        "char",
        "const",
        "continue",
        "default",
        "do",
        "double",
        "else",
        "enum",
        "extern",
        "float",
        "for",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "register",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "typedef",
        "union",
        "unsigned",
        "void",
        "volatile",
        "while",
        "asm",
        "main",
        "and",
        "and_eq",
        "bitand",
        "bitor",
        "bool",
        "catch",
        "class",
        "compl",
        "concept",
        "constexpr",
        "delete",
        "explicit",
        "export",
        "false",
        "friend",
        "mutable",
        "namespace",
        "new",
        "not",
        "not_eq",
        "nullptr",
        "operator",
        "or",
        "or_eq",
        "private",
        "protected",
        "public",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typename",
        "using",
        "virtual",
        "wchar_t",
        "xor",
        "xor_eq",
    ]
)
_LONGEST = 48


def check_prefix(name: str) -> str:
    """Check the symbol prefix that the user chose.

    Raises:
        UsageError: it is no C identifier, or reserved.
    """
    if len(name) > _LONGEST:
        why = f"It has {len(name)} characters; {_LONGEST} is the most."
    elif not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name, re.ASCII):
        why = "It takes letters, digits and underscores, a letter first."
    elif name in _KEYWORDS:
        why = "It is a keyword of C or C++."
    elif name.startswith("caps_") or name in ("arena", "input", "outputs"):
        why = "The generated source uses this name itself."
    else:
        return name
    raise UsageError(f"Invalid --name {printable(name)}.", why, "For example: `--name digits`.")


def prefix_of(stem: str) -> str:
    """A prefix from the name of a file: ``digits-em.int8`` is ``digits_em_int8``."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", stem).strip("_")[:_LONGEST].rstrip("_")
    if not name or not name[0].isalpha():
        name = f"model_{name}".rstrip("_")[:_LONGEST]
    return f"{name}_model"[-_LONGEST:] if name in _KEYWORDS or name.startswith("caps_") else name


def field_of(name: str, taken: Collection[str]) -> str:
    """A member of a structure from the name of an output."""
    field = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:_LONGEST] or "output"
    field = field if field[0].isalpha() else f"output_{field}"
    field = f"{field}_" if field in _KEYWORDS else field
    unique, number = field, 2
    while unique in taken or unique.upper() in {t.upper() for t in taken}:
        unique, number = f"{field}_{number}", number + 1
    return unique


def c_string(text: str) -> str:
    """A C string literal of its UTF-8 bytes, in plain ASCII; no trigraph, no byte that runs into the next."""
    parts = []
    for byte in text.encode("utf-8", "surrogateescape"):
        letter = chr(byte)
        plain = 32 <= byte < 127 and letter not in '"\\?'
        parts.append(letter if plain else f"\\{byte:03o}")
    return '"' + "".join(parts) + '"'


def in_comment(text: str) -> str:
    """Text for a comment of C, CMake or YAML: one line of harmless ASCII characters."""
    return re.sub(r"[^A-Za-z0-9 _.,:+()\[\]-]", "_", text)[:120].strip() or "_"


def json_text(document: object) -> str:
    """JSON in ASCII, which is YAML too."""
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def property_value(text: str) -> str:
    """A value of a .properties file of Arduino: one line of plain characters."""
    return in_comment(text)
