"""Convert this package's docstrings to the Google style that griffe reads.

Names that share an explanation (``height, width: ...``) become one entry each, also in ``Attributes``; double
backticks are already Markdown. ``Example`` becomes ``Examples``, the only heading below which griffe reads
doctests as code: elsewhere an output such as ``['a']`` is a Markdown reference.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^( *)Example:$")
_SHARED = re.compile(r"^(?P<indent> +)(?P<names>\w+(?:, \w+)+): (?P<text>.*)$")


class OwnStyle(Extension):
    """Converts this package's docstrings to those that griffe reads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    """The docstring with an entry for each name, and its example as code."""
    lines = text.split("\n")
    out: list[str] = []
    at = 0
    while at < len(lines):
        found = _SHARED.match(lines[at])
        at += 1
        if not found:
            out.append(_EXAMPLE.sub(r"\1Examples:", lines[at - 1]))
            continue
        block = [found["text"]]
        deeper = found["indent"] + " "
        while at < len(lines) and lines[at].startswith(deeper):
            block.append(lines[at])
            at += 1
        for name in found["names"].split(", "):
            out += [f"{found['indent']}{name}: {block[0]}", *block[1:]]
    return "\n".join(out)
