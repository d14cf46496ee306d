"""One word for one thing (ARCHITECTURE.md, the glossary): names do not use words that readers had to guess.

Names are those of modules, classes, functions, methods, fields and constants of the package, options of the
command line, and fields of the metadata. Prose, parameters and local variables are free. Definitions are
found line by line, since parsing the package takes seconds.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path

from tests.tables import table

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "capsedge"

# A word -> what to call the thing instead.
WORDS = {
    "against": "what it is compared with",
    "anchor": "softmax, candidate",
    "anchors": "softmaxes, candidates",
    "answer": "prediction, outputs, response",
    "answerer": "what it makes",
    "answering": "what it does",
    "answers": "outputs, predictions, choices, rows",
    "aside": "where it runs",
    "beside": "where it is",
    "claim": "summary, declared",
    "confine": "sandbox",
    "confined": "sandbox",
    "cutting": "subgraph",
    "deformation": "augmentation",
    "deformed": "augmented",
    "double": "fp64",
    "doubt": "threshold, warning",
    "doubted": "escalated",
    "doubts": "warnings",
    "economy": "sampling",
    "families": "architectures, instances, groups",
    "given": "what it is: inputs, images, options, path",
    "held": "what it counts",
    "improved": "optimized",
    "improving": "optimizing",
    "judge": "criterion, check",
    "judged": "criterion, checked",
    "judgement": "equivalence",
    "judging": "metrics",
    "ledger": "routing_errors",
    "mark": "iteration_value",
    "marks": "iteration_values",
    "nothing": "typical_input, atypical",
    "own": "user",
    "passport": "engine_metadata",
    "passports": "engine_metadata",
    "place": "location, position, path",
    "places": "locations, positions, paths",
    "reading": "reader",
    "recognition": "fusion, identification",
    "recognize": "fuse, identify",
    "recognized": "fused, identified",
    "said": "declared, the text itself",
    "seen": "what is known of it",
    "stated": "declared",
    "taken": "what it is taken for",
    "told": "what is reported",
    "uncuttable": "subgraph error",
}
# Names that say too little alone.
BARE = {
    "Found": "what was found",
    "Left": "what was left, as what",
    "Request": "the options of which verb",
    "Source": "the source of what",
    "Work": "which task",
}

# MODULE:NAME, or NAME for every module, and why it may be called that.
ALLOWED = {
    "runtime.files.reading": "it reads files",
    "families": "the folder of the public networks whose weights are imported: `Family`",
    "FAMILIES": "the list of them",
    "held_out": "held-out images are what the field calls them",
    "_held_out": "the same",
    "_HELD_OUT": "the same",
    "runtime.onnx_file.forecast:_IN_PLACE": "operators that work in place",
    "runtime.files.text:_MARKS": "marks of Markdown",
    "models.em_layers:places": "a buffer of a module",
    "models.em_layers:seen": "a buffer of a module",
}

_DEFINITION = re.compile(
    r"^(?P<indent> *)(?:async )?(?P<kind>def|class) (?P<name>\w+)"
    r"|^(?P<constant>[A-Za-z_]\w*)(?:: [^=\n]+)? = "
    r"|^    (?P<field>[a-z_]\w*): (?=[\w\"'\[])",
    re.MULTILINE,
)
_TEXT = re.compile(r'"""[\s\S]*?"""')


def _words(name: str) -> list[str]:
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().strip("_").split("_")


def _names(text: str) -> Iterator[str]:
    """Names of classes, functions, methods, fields and constants."""
    in_class = False
    for match in _DEFINITION.finditer(_TEXT.sub('""', text)):
        if match["kind"]:
            if not match["indent"]:
                in_class = match["kind"] == "class"
            yield match["name"]
        elif match["constant"]:
            in_class = False
            yield match["constant"]
        elif in_class:
            yield match["field"]


def _modules() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if not {"native", "web"} & set(path.relative_to(PACKAGE).parts):
            name = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
            yield name, path.read_text(encoding="utf-8")


def _guesses(module: str, name: str) -> Iterator[str]:
    """What is wrong with a name, and what to write instead; used exceptions are noted."""
    for allowed in (f"{module}:{name}", name):
        if allowed in ALLOWED:
            _used.add(allowed)
            return
    for word in _words(name):
        if word in WORDS:
            yield f"{module}: {name} ('{word}': {WORDS[word]})"
    if name.lstrip("_") in BARE:
        yield f"{module}: {name} ({BARE[name.lstrip('_')]})"


_used: set[str] = set()


def test_names() -> None:
    """Modules, classes, functions, fields and constants."""
    wrong = []
    for module, text in _modules():
        if module in ALLOWED:
            _used.add(module)
        else:
            wrong += [line for part in module.split(".") for line in _guesses(module, part)]
        for name in dict.fromkeys(_names(text)):
            wrong += _guesses(module, name)
    assert not wrong, "\n".join([f"{len(wrong)} names", *wrong])
    stale = [name for name in ALLOWED if name not in _used and not name.startswith("--")]
    assert not stale, f"exceptions that nothing needs: {stale}"


def test_options() -> None:
    """Options of the command line."""
    wrong = []
    for path in sorted((PACKAGE / "cli").glob("*.py")):
        for option in re.findall(r'"(--[a-z][a-z-]*)[/"]', path.read_text(encoding="utf-8")):
            wrong += _guesses("cli", option.strip("-").replace("-", "_"))
    assert not wrong, "\n".join(wrong)


def test_metadata() -> None:
    """Fields of the metadata in files."""
    from capsedge.runtime.metadata.metadata import ModelMetadata

    def fields(kind: object) -> Iterator[str]:
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            for name, hint in typing.get_type_hints(kind).items():
                yield name
                yield from fields(hint)
        for argument in typing.get_args(kind):
            yield from fields(argument)

    names = dict.fromkeys(fields(ModelMetadata))
    assert len(names) > 20
    wrong = [line for name in names for line in _guesses("runtime.metadata.metadata", name)]
    assert not wrong, "\n".join(wrong)


@table(
    "text, names",
    [
        ("class A(B):\n    passport: str\n    def given(self): ...", ["A", "passport", "given"]),
        ('def f():\n    """Places:\n    place: int\n    """\n    held: int = 1', ["f"]),
        ("NOTHING: str = ''\nasync def told(): ...", ["NOTHING", "told"]),
    ],
)
def test_the_names_of_a_module(text: str, names: list[str]) -> None:
    assert list(_names(text)) == names
