"""Names in the generated source, and strings of a model in the syntaxes of the folder's files."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from capsedge.errors import UsageError
from capsedge.exporters.c.reserved_names import FILES, WORDS
from capsedge.runtime.files.text import printable

_DEVICE = re.compile(r"(?:com|lpt)\d")  # files of these names are devices on Windows
_LONGEST = 48


def _reserved(name: str) -> str:
    """Why a network, its symbols and files, cannot have a name; empty if it can."""
    lower = name.lower()
    if len(name) > _LONGEST:
        return f"It has {len(name)} characters; {_LONGEST} is the most."
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name, re.ASCII):
        return "It takes letters, digits and underscores, a letter first."
    if lower in WORDS:
        return "It is a word of C or C++."
    if lower in FILES or _DEVICE.fullmatch(lower):
        return "A header, a file of the folder, a target of CMake or a device has this name."
    if lower.startswith("caps_"):
        return "The generated source uses such names itself."
    return ""


def check_prefix(name: str) -> str:
    """Check the symbol prefix that the user chose.

    Raises:
        UsageError: it is no C identifier, or reserved.
    """
    if why := _reserved(name):
        raise UsageError(f"Invalid --name {printable(name)}.", why, "For example: `--name digits`.")
    return name


def prefix_of(stem: str) -> str:
    """A prefix from the name of a file: ``digits-em.int8`` is ``digits_em_int8``."""
    name = _identifier(stem)
    if not name or not name[0].isalpha() or _reserved(name):
        name = f"model_{name}"[:_LONGEST].rstrip("_")
    return name


def _identifier(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
    return name[:_LONGEST].rstrip("_")


def field_of(name: str, taken: Collection[str]) -> str:
    """A member of a structure from the name of an output.

    Macros would replace it. They are upper case by convention, so such a name gets a prefix, and so do words
    and those of our own sizes. No two members differ only in case, because their sizes are macros.
    """
    field = _identifier(name)
    lower = field.lower()
    macro = field == field.upper() or re.match(r"(?:PRI|SCN)[a-z]", field)
    if macro or not field[0].isalpha() or lower in WORDS or lower in ("input", "picture"):
        field = f"output_{field}".rstrip("_")
    others = {other.upper() for other in taken}
    unique, number = field, 2
    while unique.upper() in others:
        unique, number = f"{field}_{number}", number + 1
    return unique


def parameter_of(name: str) -> str:
    """A parameter from the name of an input, behind ``input_``: no type, macro or variable begins so."""
    return f"input_{_identifier(name)}".rstrip("_")


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
