"""Headers that a compiler may leave out: GCC 13 and later no longer include <cstdint> on the side."""

from __future__ import annotations

import re
from pathlib import Path

from .builds import NATIVE

_USED = re.compile(r"\bu?int(?:8|16|32|64|ptr)_t\b")
_INCLUDED = re.compile(r'#include [<"]([^>"]+)[>"]')
_GIVES = {"cstdint", "stdint.h", "png.h"}


def test_fixed_width_integers_are_declared() -> None:
    """Each file that uses them includes <cstdint>, itself or through files of ours."""
    sources = [path for path in NATIVE.rglob("*") if path.suffix in {".cpp", ".h", ".cu"}]
    texts = {path: re.sub(r"//.*", "", path.read_text(encoding="utf-8")) for path in sources}
    included = {path: _INCLUDED.findall(text) for path, text in texts.items()}

    def declared(path: Path, seen: set[Path]) -> bool:
        seen.add(path)
        if not _GIVES.isdisjoint(included[path]):
            return True
        ours = [other for name in included[path] for other in sources if other.match(f"*/{name}")]
        return any(declared(other, seen) for other in ours if other not in seen)

    users = [path for path in sources if _USED.search(texts[path])]
    assert len(users) > 100
    assert not [str(path.relative_to(NATIVE)) for path in users if not declared(path, set())]
