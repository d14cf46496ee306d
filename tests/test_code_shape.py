"""The shape of the code: a class name stands for one thing, functions are short, and few lines repeat.

Lists of exceptions only shrink. Definitions are found line by line, since parsing the package takes seconds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from tests.conftest import ROOT
from tests.tables import table
from tools import repeats

PACKAGE = ROOT / "capsedge"
MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
    if not {"native", "node_modules"} & {*path.parts}
}
_CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
_FUNCTION = re.compile(r" *(?:async )?def (\w+)")
_TEXT = re.compile(r'"""[\s\S]*?"""')

# Names that stand for several things, each in the words of its own field, and for how many.
SHARED = {
    "Children": 2,  # of a window, of a dense layer
    "Layer": 2,  # steps of two function bodies
    "Search": 2,  # for two kinds of routing
    "Writer": 3,  # of nodes, in three rewrites
}
LONGEST = 60  # lines of code of a function
REPEATS = 17  # runs of six lines or more that stand in several places (`python -m tools.repeats`)


def functions(text: str) -> Iterator[tuple[str, int]]:
    """Every function with its lines of code: without docstring, blanks and comments."""
    begun: list[list[int]] = []
    names: list[str] = []
    for line in _TEXT.sub('""', text).split("\n"):
        code = line.strip()
        if not code or code == '""' or code.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        while begun and indent <= begun[-1][0] and code[0] not in ")]}":
            yield names.pop(), begun.pop()[1]
        for each in begun:
            each[1] += 1
        if match := _FUNCTION.match(line):
            begun.append([indent, 1])
            names.append(match[1])
    yield from zip(names, (lines for _, lines in begun), strict=True)


def test_a_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, text in MODULES.items():
        for name in _CLASS.findall(_TEXT.sub('""', text)):
            places[name.lstrip("_")].append(module)
    wrong = {n: found for n, found in places.items() if len(found) > SHARED.get(n, 1)}
    assert not wrong, "rename them"
    stale = {n: count for n, count in SHARED.items() if len(places[n]) < count}
    assert not stale, "these need no exception, or a smaller one"


def test_functions_are_short() -> None:
    long = {
        f"{module}:{name}"
        for module, text in MODULES.items()
        for name, lines in functions(text)
        if lines > LONGEST
    }
    assert not long, "split them"


@table(
    "text, lines",
    [
        ("def f() -> None:\n    pass\n", {"f": 2}),
        ('def f(\n    x: int,\n) -> int:\n    """Two\n    lines."""\n\n    # why\n    return x\n', {"f": 4}),
        ("class A:\n  def f(self):\n    def g():\n      return 1\n    return g\nx = 1", {"f": 4, "g": 2}),
    ],
)  # fmt: skip
def test_lines_of_functions(text: str, lines: dict[str, int]) -> None:
    assert dict(functions(text)) == lines


def test_few_lines_repeat() -> None:
    files = repeats.files()
    assert len(files) > 400
    assert not {*files} & {*repeats.GENERATED}
    found = [str(each) for each in repeats.repeats(files)]
    assert len(found) <= REPEATS, "\n".join(["use one piece of code for both places", *found])
    assert len(found) >= REPEATS, f"the number only falls: REPEATS = {len(found)}"


def _module(*lines: str) -> repeats.Lines:
    return repeats.code("\n".join(lines))


def test_what_repeats() -> None:
    six = [f"x{k} = f({k})" for k in range(6)]
    assert not list(repeats.repeats({"a": _module(*six), "b": _module(*six[:5])}))
    spread = ['"""Doc."""', "import os", *six[:3], "", "# why", *six[3:], "y = 1"]
    (found,) = repeats.repeats({"a": _module("z = 0", *six, "y = 2"), "b": _module(*spread)})
    assert found == repeats.Repeat("a", 2, "b", 3, 6)
    (found,) = repeats.repeats({"a": _module(*six, "y = 1"), "b": _module("if x:", *six, "y = 1")})
    assert found.lines == 7
    (found,) = repeats.repeats({"a": _module(*six, *six)})
    assert (found.first_line, found.other_line) == (1, 7)
