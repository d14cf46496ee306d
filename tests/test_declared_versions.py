"""The versions that README and docs name are those that constraints.txt pins and pyproject.toml asks for."""

from __future__ import annotations

import re
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAMES = {"ONNX Runtime": "onnxruntime", "OpenVINO": "openvino", "PyTorch": "torch"}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def pins() -> dict[str, set[str]]:
    """The pinned versions of each package; several where they depend on Python's."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            version = str(pin.specifier).removeprefix("==")
            found.setdefault(canonicalize_name(pin.name), set()).add(version)
    return found


def minimums() -> dict[str, set[str]]:
    """The least versions that the package and its extras ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    found: dict[str, set[str]] = {}
    for text in [*project["dependencies"], *(line for lines in extras.values() for line in lines)]:
        wanted = Requirement(text)
        for specifier in wanted.specifier:
            if specifier.operator == ">=":
                found.setdefault(canonicalize_name(wanted.name), set()).add(specifier.version)
    return found


def stated(text: str) -> list[tuple[str, str, str]]:
    """Package, version, and what follows, where the text names a package and a version."""
    known = "|".join(map(re.escape, sorted([*NAMES, *pins()], key=len, reverse=True)))
    pattern = rf"(?<![\w.-])({known})\s+(\d+(?:\.\d+)+)(?![\w.]*\d)( or (?:newer|later))?"
    return [
        (canonicalize_name(NAMES.get(name, name)), version, after)
        for name, version, after in re.findall(pattern, text)
    ]


def wrong(text: str) -> list[str]:
    """Versions that contradict the pins: exact ones, of three numbers, and least ones."""
    faults = []
    for package, version, least in stated(text):
        allowed = (minimums() if least else pins()).get(package, {version})
        if (least or version.count(".") >= 2) and version not in allowed:
            faults.append(f"{package} {version}{least}, wanted {', '.join(sorted(allowed))}")
    return faults


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_versions_of_the_documentation(page) -> None:
    assert wrong(page.read_text()) == []


def test_pins_satisfy_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for lines in extras for line in lines)]
    for wanted in map(Requirement, lines):
        for version in pins().get(canonicalize_name(wanted.name), ()):
            assert wanted.specifier.contains(version), f"{wanted.name}: {version} is pinned"


def test_a_contradiction_is_found() -> None:
    assert wrong("measured with ONNX Runtime 1.30.2 and torch 1.0.0") == [
        f"onnxruntime 1.30.2, wanted {', '.join(sorted(pins()['onnxruntime']))}",
        f"torch 1.0.0, wanted {', '.join(sorted(pins()['torch']))}",
    ]
    assert wrong("It needs ONNX Runtime 1.18 or newer.") == [
        "onnxruntime 1.18 or newer, wanted 1.19"
    ]
    assert wrong("It needs ONNX Runtime 1.19 or newer.") == []


def test_the_page_on_installing_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs/how-to/install.md").read_text()
    for_users = {
        name
        for row in re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", row)
    }
    last = re.search(r"The extras (.*?) are\s+for", text, re.DOTALL)
    assert last is not None
    for_developers = set(re.findall(r"`([\w-]+)`", last[1]))
    assert for_users | for_developers == set(project["optional-dependencies"])
