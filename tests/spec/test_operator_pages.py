"""The pages of the operators: one for each, complete, found from the index, with files that are there.

That they are up to date is `test_generated`; that links lead somewhere, `tests/test_docs.py`.
"""

from __future__ import annotations

import re

import pytest

from capsedge.spec.operator_meanings import MEANINGS, meaning
from capsedge.spec.operators import OPERATORS, Operator
from tests.conformance.gaps import gap
from tests.conftest import ROOT
from tools.spec import operator_pages, operator_sources, outputs
from tools.spec.operator_pages import FOLDER, PAGES, page_of

TEXTS = {name: (ROOT / page_of(name)).read_text(encoding="utf-8") for name in PAGES}


def names_of(o: Operator) -> set[str]:
    couplings = {"couplings"} if o.couplings and o.torch else set()
    return {*o.input_names, *o.output_names, *o.attribute_names, *couplings}


def test_every_operator_has_a_page_which_index_and_navigation_name() -> None:
    pages = {page_of(name) for name in OPERATORS}
    assert {f.relative_to(ROOT).as_posix() for f in (ROOT / FOLDER).iterdir()} == pages
    index = (ROOT / f"{FOLDER}.md").read_text(encoding="utf-8")
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in pages:
        assert f"({page.removeprefix('docs/reference/')})" in index
        assert f": {page.removeprefix('docs/')}\n" in navigation, (
            "add the page to nav of mkdocs.yml"
        )


@pytest.mark.parametrize("name", PAGES)
def test_what_is_written_by_hand_is_a_source_and_a_formula(name: str) -> None:
    text = TEXTS[name].partition("<!-- spec: values -->")[0]
    assert text.startswith(f"# {name}\n")
    assert re.search(r"\]\(https://", text), "link the paper"
    if name != "VoteRouting":  # of which the formula is that of DynamicRouting
        assert re.search(r"^    \S.* = ", text, re.MULTILINE), "a formula, indented"


@pytest.mark.parametrize("name", PAGES)
def test_every_input_output_and_attribute_has_a_meaning(name: str) -> None:
    assert set(MEANINGS[name]) == names_of(OPERATORS[name])
    for each in names_of(OPERATORS[name]):
        assert re.search(rf"^\| `{each}`", TEXTS[name], re.MULTILINE), each
    with pytest.raises(ValueError, match=f"does not say what 'nothing' of {name} is"):
        meaning(name, "nothing")


@pytest.mark.parametrize("name", PAGES)
def test_implementations_are_found(name: str) -> None:
    o, found = OPERATORS[name], {}
    for each in operator_sources.implementations(name):
        found[each.what] = each.files
        code = "".join((ROOT / file).read_text(encoding="utf-8") for file in each.files)
        assert all(re.search(rf"\b{function}\(", code) for function in each.names if each.files)
        assert all((ROOT / file).is_file() for file in (*each.files, *each.tests))
    assert found["float64 oracle"]
    assert found["function body"]
    assert found["CPU kernel"]
    assert bool(found["PyTorch"]) == bool(o.torch)
    assert bool(found["CUDA kernel"]) == bool(found["TensorRT plugin"]) == o.plugin
    in_c = gap("c", name, "float32") is None
    assert bool(found["C and WebAssembly"]) == in_c, (
        "a translator, or a line of tests/conformance/gaps.py"
    )


def test_a_new_operator_gets_a_page_to_be_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    page = f"{FOLDER}/new.md"
    monkeypatch.setattr(operator_pages, "page_of", lambda name: page)
    monkeypatch.setattr(operator_pages, "PAGES", ("Squash",))
    monkeypatch.setattr(outputs, "PARTS", {page: operator_pages.parts("Squash")})
    made = outputs.outputs()[ROOT / page]
    assert made.startswith("# Squash\n\n<!-- spec: values -->\n| input | shape |")
    assert made.rpartition("## Where it is")[2] == TEXTS["Squash"].rpartition("## Where it is")[2]


def test_what_is_not_said_stops_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_pages, "CASES", ())
    with pytest.raises(ValueError, match=r"cases.py has no case of Squash"):
        operator_pages.places("Squash")

    def unknown(*_: object) -> None:
        raise KeyError("Squash")

    monkeypatch.setattr(operator_pages, "tolerance", unknown)
    with pytest.raises(ValueError, match=r"tolerance.py has no figures for Squash"):
        operator_pages.places("Squash")
