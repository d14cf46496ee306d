"""What a stranger's names may do to a terminal or a page: nothing."""

from __future__ import annotations

import pytest

from capsedge.runtime.files.text import markdown, printable
from tests.tables import table

CODES = [*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x061C, *range(0x200E, 0x2010),
         *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF, 0xE0001, 0xE0041]  # fmt: skip


@table("code", CODES)
def test_codes_are_escaped(code: int):
    text = printable(f"a{chr(code)}b")
    assert chr(code) not in text
    assert text.isprintable()
    assert text.startswith("a\\")


def test_what_is_seen():
    assert printable("\x1b[31mred\x9b0m\nPASSED\u202e") == "\\x1b[31mred\\x9b0m\\nPASSED\\u202e"
    assert printable("a\udcffb") == "a\\xffb"
    assert printable("a\ud800b") == "a\\ud800b"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("conv_1.weight", "conv_1.weight"),
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("a|b", r"a\|b"),
        ("[x](http://evil)", r"\[x\](http\://evil)"),
        ("![x](y)", r"!\[x\](y)"),
        ("`code`", r"\`code\`"),
        ("*a* _b_ ~~c~~", r"\*a\* \_b\_ \~\~c\~\~"),
        ("a\nb", r"a\\nb"),
        ("www.evil.org", r"www\.evil.org"),
        ("&lt;", "&amp;lt;"),
        ("$x$ @all", r"\$x\$ \@all"),
        ("1.5 ms, 20 %", "1.5 ms, 20 %"),
    ],
)
def test_markdown(name: str, shown: str):
    assert markdown(name) == (shown if "\n" not in name else "a\\\\nb")
