"""Options that are described once: fields of a dataclass for Python, the command line and the docs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import capsedge
from capsedge.cli import app
from capsedge.errors import UsageError
from capsedge.options import Options, declared, option, parse_tolerance, takes_options
from tools import keywords
from tools.docs.commands import verbs


@dataclass(frozen=True)
class Sample(Options):
    """How a sample is made."""

    level: int = option(3, "How much.", min=1, max=5)
    kind: Literal["a", "b"] | None = option(None, "Which.", "-k", "--kind")
    words: tuple[Literal["x", "y"], ...] = option((), "Several.")
    folder: Path | None = option(None, "Where.", path="reads")
    hidden: str = option("", "For Python alone.", python_only=True)


def test_a_field_states_names_type_and_limits() -> None:
    level, kind, words, folder, hidden = declared(Sample)
    assert (level.name, level.kind, level.optional, level.default) == ("level", int, False, 3)
    assert (level.option.names, level.option.min, level.option.max) == (("--level",), 1, 5)
    assert (kind.kind, kind.optional, kind.option.choices) == (str, True, ("a", "b"))
    assert kind.option.names == ("-k", "--kind")
    assert (words.several, words.option.choices) == (True, ("x", "y"))
    assert (folder.kind, folder.option.path) == (Path, "reads")
    assert hidden.option.names == ()


def test_help_lists_the_fields() -> None:
    assert str(Sample.__doc__).splitlines()[0] == "How a sample is made."
    assert "level: How much." in str(Sample.__doc__)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"level": 0}, "from 1 to 5"),
        ({"level": float("nan")}, "It must be a whole number"),
        ({"level": "3"}, "It must be a whole number"),
        ({"level": 2.5}, "It must be a whole number"),
        ({"level": True}, "It must be a whole number"),
        ({"folder": 3}, "It must be a path"),
        ({"hidden": 3}, "It must be a text"),
        ({"words": "x"}, "It must be a tuple"),
        ({"kind": "c"}, "Choose one of: a, b"),
        ({"words": ("x", "z")}, "Choose one of: x, y"),
    ],
)
def test_wrong_values_are_refused_when_the_object_is_made(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Sample(**given)


def test_honest_values_are_kept() -> None:
    made = Sample(level=5, kind="b", words=("x", "y"))
    assert (made.level, made.kind, made.words) == (5, "b", ("x", "y"))
    given: dict[str, Any] = {"folder": "here", "words": ["x"]}
    assert Sample(**given) == Sample(folder=Path("here"), words=("x",))


@takes_options(Sample)
def make(name: str, options: Sample = Sample(), *, loud: bool = False, **_keywords: Any) -> str:
    """Make one.

    Args:
        name: of what.
        loud: in capitals.

    Returns:
        A text.
    """
    text = f"{name}{options.level}"
    return text.upper() if loud else text


def test_options_are_keyword_arguments() -> None:
    assert make("n") == "n3"
    assert make("n", level=2, loud=True) == "N2"
    assert make("n", Sample(level=4)) == make("n", options=Sample(level=4)) == "n4"
    with pytest.raises(UsageError, match=r"Invalid level 9\.\nIt must be from 1 to 5"):
        make("n", level=9)


def test_wrong_keywords_are_named_with_the_nearest_right_one() -> None:
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'levl'. Did you mean 'level'\?"
    ):
        make("n", levl=3)
    with pytest.raises(TypeError, match=r"argument 'x'. help\(capsedge.make\) lists them"):
        make("n", x=3)
    with pytest.raises(TypeError, match="make\\(\\) got both options and level"):
        make("n", Sample(), level=2)
    with pytest.raises(UsageError, match="options has the type int"):
        make("n", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Did you mean 'iterations'"):
        capsedge.export(None, "m.onnx", iteratons=3)  # type: ignore[call-arg,arg-type]


def test_help_of_a_function_lists_its_options() -> None:
    shown = str(inspect.signature(make))
    assert "options" not in shown
    assert "level: 'int' = 3" in shown
    assert shown.index("loud") < shown.index("level")
    lines = str(make.__doc__).splitlines()
    assert lines.index("Options:") < lines.index("    level: How much.") < lines.index("Returns:")
    for name in ("load", "export", "quantize", "verify", "profile", "build", "train"):
        assert "Options:" in str(getattr(capsedge, name).__doc__)


def test_type_checkers_know_the_same_options() -> None:
    assert keywords.TARGET.read_text() == keywords.text(), "run `python -m tools.keywords`"


@pytest.mark.parametrize("text", ["1e-5", "1e-5,x", "-1,0", "nan,0", "inf,0", "1,2,3", ""])
def test_wrong_tolerances(text: str) -> None:
    with pytest.raises(UsageError, match="Invalid --tolerance"):
        parse_tolerance(text)


# By the options' TypedDict: the verb that takes them.
VERBS = {
    "BatchKeywords": "batch",
    "BuildKeywords": "build",
    "CascadeKeywords": "cascade",
    "ExportKeywords": "export",
    "ImportKeywords": "import",
    "KServeKeywords": "deploy kserve",
    "OptimizeKeywords": "optimize",
    "ProfileKeywords": "profile",
    "PruneKeywords": "prune",
    "QuantizeKeywords": "quantize",
    "RuntimeKeywords": "infer",
    "ServeKeywords": "serve",
    "SweepKeywords": "sweep",
    "TrainKeywords": "train",
    "TritonKeywords": "deploy triton",
    "VerifyKeywords": "verify",
}


def test_no_dataclass_of_options_is_public() -> None:
    assert not [name for name in capsedge.__all__ if name.endswith("Options")]
    assert set(keywords.KINDS) == set(VERBS)


@pytest.mark.parametrize("name", VERBS)
def test_the_command_line_has_every_option(name: str) -> None:
    kind = keywords.kind_of(keywords.KINDS[name][0])
    verb = dict(verbs(app))[VERBS[name]]
    given = {p.name: p for p in verb.params}
    for each in declared(kind):
        assert (each.name in given) == bool(each.option.names), each.name
        if each.option.names:
            assert given[each.name].help == each.option.help
            assert given[each.name].preset == each.default
    assert kind() == kind(**{
        p.name: p.preset for p in verb.params if p.name in kind.__dataclass_fields__
    })  # fmt: skip


def test_modules_of_options_are_light() -> None:
    homes = sorted({keywords.kind_of(kinds[0]).__module__ for kinds in keywords.KINDS.values()})
    code = (
        f"import importlib, sys\n"
        f"for name in {homes}:\n"
        "    importlib.import_module(name)\n"
        "assert not {'torch', 'onnx', 'onnxruntime', 'numpy', 'click'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
