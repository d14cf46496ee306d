"""Write docs/reference/c.md, the reference of the C interface, from the comments in capsedge.h.

python tools/c_reference.py          # writes the page
python tools/c_reference.py --check  # exits with 1 if the page does not match the header
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "capsedge" / "runtime" / "native" / "libcapsedge" / "include" / "capsedge.h"
PAGE = ROOT / "docs" / "reference" / "c.md"

PART = re.compile(
    r"/\* ---- (?P<section>.+?) ---- \*/"
    r"|(?:/\*\*? (?P<comment>(?:(?!\*/).)*?)\s*\*/\n)?"
    r"(?P<code>typedef (?:struct|enum) \w+ \{.*?\} \w+;|typedef struct \w+ \w+;|enum \{[^}]*\};"
    r"|CAPSEDGE_API [^;]*;)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Part:
    """A piece of the header.

    Attributes:
        section: the title of a section; empty for a declaration.
        name: the declared name.
        words: its comment, without the asterisks and the example.
        code: the declaration, without macros that only matter to compilers.
        example: C statements; empty if the comment has none.
    """

    section: str = ""
    name: str = ""
    words: str = ""
    code: str = ""
    example: str = ""

    @property
    def is_function(self) -> bool:
        """Whether it declares a function."""
        return self.code.endswith(");")


def parts(header: str) -> Iterator[Part]:
    """The sections and declarations of the header, in order."""
    body = header[header.index("#define CAPSEDGE_VERSION") :]
    for found in PART.finditer(body):
        if found["section"]:
            yield Part(section=found["section"])
            continue
        words, example = _split(found["comment"] or "")
        code = re.sub(r"CAPSEDGE_(API|CHECKED) ", "", found["code"])
        if code.endswith(");"):
            code = re.sub(r"\s+", " ", code)
        yield Part(name=_name(code), words=words, code=code, example=example)


def _split(comment: str) -> tuple[str, str]:
    """The prose and the example of a comment."""
    lines = [re.sub(r"^ \* ?", "", line) for line in comment.splitlines()]
    code = [line for line in lines if line.startswith("    ")]
    prose = [line for line in lines if not line.startswith("    ")]
    return "\n".join(prose).strip(), textwrap.dedent("\n".join(code))


def _name(code: str) -> str:
    if code.endswith(");"):
        return re.sub(r".*?(\w+)\(.*", r"\1", code)
    return re.sub(r".*?(\w+);$", r"\1", code, flags=re.DOTALL) if "typedef" in code else ""


def page(header: str) -> str:
    """The page in Markdown."""
    lines = [
        "# C reference",
        "",
        "Generated from the comments in `capsedge.h` by `python tools/c_reference.py`; the guide is",
        "[In C and C++](../how-to/libcapsedge.md). In the examples, `check()` ends the program if a",
        "status is not `NULL`. A null pointer, a closed handle or a handle of another kind always",
        "gives `CAPSEDGE_USAGE`.",
    ]
    for part in parts(header):
        lines += ["", *(_section(part) if part.section else _declaration(part))]
    return "\n".join(lines) + "\n"


def _section(part: Part) -> list[str]:
    return [f"## {part.section}"]


def _declaration(part: Part) -> list[str]:
    lines = [f"### {part.name}", ""] if part.name else []
    if part.words:
        lines += [*_prose(part.words), ""]
    lines += ["```c", *_wrapped(part), "```"]
    if part.example:
        lines += ["", "```c", *part.example.splitlines(), "```"]
    return lines


def _prose(words: str) -> list[str]:
    """Ownership, threads and errors as a list below the description."""
    flat = " ".join(words.split())
    first, *rest = re.split(r" (?=(?:Ownership|Threads|Errors)\b[^.:]{0,20}:)", flat)
    lines = _filled(first)
    if rest:
        lines.append("")
    for entry in rest:
        title, _, text = entry.partition(": ")
        lines += _filled(f"- **{title}**: {text}", indent="  ")
    return lines


def _filled(text: str, indent: str = "") -> list[str]:
    marked = re.sub(r"(?<![`\w*])(\*?(?:capsedge_|CAPSEDGE_)\w+|\*session)(?!`)", r"`\1`", text)
    return textwrap.wrap(marked, 118, subsequent_indent=indent, break_long_words=False)


def _wrapped(part: Part) -> list[str]:
    if not part.is_function:
        return part.code.splitlines()
    return textwrap.wrap(
        part.code, 110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def main() -> int:
    made = page(HEADER.read_text(encoding="utf-8"))
    if "--check" in sys.argv[1:]:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == made
        if not current:
            print(f"{PAGE} differs from the header: python tools/c_reference.py", file=sys.stderr)
        return 0 if current else 1
    PAGE.write_text(made, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
