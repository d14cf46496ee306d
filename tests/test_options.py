"""Options that are described once: fields of a dataclass for Python, the command line and the docs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import capsedge
from capsedge.cli import app
from capsedge.errors import UsageError
from capsedge.options import Options, declared, option, takes, tolerance
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


def test_a_keyword_of_the_options_is_answered_with_the_right_spelling() -> None:
    with pytest.raises(TypeError) as caught:
        capsedge.export(None, "m.onnx", iterations=3)  # type: ignore[call-arg,arg-type]
    assert "capsedge.export(..., options=capsedge.ExportOptions(iterations=3))" in str(caught.value)
    with pytest.raises(TypeError, match="unexpected keyword argument 'iters'"):
        capsedge.export(None, "m.onnx", iters=3)  # type: ignore[call-arg,arg-type]


def test_a_function_keeps_its_signature() -> None:
    @takes(Sample)
    def make(name: str, options: Sample = Sample()) -> str:
        """Make one."""
        return f"{name}{options.level}"

    assert make("n", Sample(level=2)) == "n2"
    assert make.__doc__ == "Make one."


@pytest.mark.parametrize("text", ["1e-5", "1e-5,x", "-1,0", "nan,0", "inf,0", "1,2,3", ""])
def test_wrong_tolerances(text: str) -> None:
    with pytest.raises(UsageError, match="Invalid --tolerance"):
        tolerance(text)


# By the dataclass: the verb that takes it.
VERBS = {
    "BatchOptions": "batch",
    "BuildOptions": "build",
    "CascadeOptions": "cascade",
    "ExportOptions": "export",
    "ImportOptions": "import",
    "KServeOptions": "deploy kserve",
    "OptimizeOptions": "optimize",
    "ProfileOptions": "profile",
    "PruneOptions": "prune",
    "QuantizeOptions": "quantize",
    "RuntimeOptions": "infer",
    "ServeOptions": "serve",
    "SweepOptions": "sweep",
    "TrainOptions": "train",
    "TritonOptions": "deploy triton",
    "VerifyOptions": "verify",
}


def test_every_public_dataclass_of_options_belongs_to_a_verb() -> None:
    assert {name for name in capsedge.__all__ if name.endswith("Options")} == set(VERBS)


@pytest.mark.parametrize("name", VERBS)
def test_the_command_line_has_every_option(name: str) -> None:
    kind = getattr(capsedge, name)
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
    homes = sorted({getattr(capsedge, name).__module__ for name in VERBS})
    code = (
        f"import importlib, sys\n"
        f"for name in {homes}:\n"
        "    importlib.import_module(name)\n"
        "assert not {'torch', 'onnx', 'onnxruntime', 'numpy', 'click'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
