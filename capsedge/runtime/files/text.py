"""Make foreign text harmless to display, and numbers readable."""

from __future__ import annotations

import re
import unicodedata

# Joiners, which emoji and Persian names need; unlike other invisible characters, they reorder nothing.
_JOINERS = "\u200c\u200d"


def printable(text: object) -> str:
    """The text as one line that has no effect on a terminal.

    Control codes, line breaks, characters that reorder text and all other invisible characters become escapes
    (``\\x1b``, ``\\n``, ``\\u202e``), and so do bytes of a file name that are not text (``\\xff``).
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if _harmless(c) else _escape(c) for c in text)


def _harmless(letter: str) -> bool:
    return letter.isprintable() or letter in _JOINERS or unicodedata.category(letter) == "Zs"


def _escape(letter: str) -> str:
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name, as Python carries it
        return f"\\x{code - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode()


_MARKS = re.compile(
    r"[\\`*\[\]|~$@]"
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # within a word it is not emphasis
    r"|(?<=www)\.|(?<=[A-Za-z]):(?=//)"  # addresses, which some renderers turn into links
)


def markdown(text: object) -> str:
    """The text as Markdown that shows it literally: no HTML, links, emphasis or ends of table cells."""
    plain = printable(text)
    plain = _MARKS.sub(lambda match: "\\" + match[0], plain)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# --- Readable numbers: times, sizes, counts ---


def format_bytes(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def format_count(count: float) -> str:
    """A large number with a prefix: ``3.2 M``."""
    amount = float(count)
    for unit in ("", " k", " M", " G"):
        if abs(amount) < 1000:
            return f"{amount:.0f}" if not unit else f"{amount:.3g}{unit}"
        amount /= 1000
    return f"{amount:.3g} T"


def format_milliseconds(value: float) -> str:
    """A time in milliseconds with three significant digits or more."""
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 10 else f"{value:.3f}"


def encodable(name: str) -> str:
    """A name as UTF-8 can hold it: bytes that are not text become escapes (``\\xff``)."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return printable(name)
    return name
