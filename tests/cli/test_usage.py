"""Usage errors: of every verb in the words and the form of all other errors, with exit code 2."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from capsedge.cli import _run, app
from capsedge.cli._types import Path, Real, Text, Whole, single_value_type
from capsedge.errors import UsageError
from tests.conftest import ROOT
from tools.docs.commands import verbs

VERBS: dict[str, Any] = dict(verbs(app))


def said(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["capsedge", *words])
    code = _run()
    out, err = capsys.readouterr()
    return code, out, err


def required(verb: str) -> list[str]:
    """Words for what a verb needs."""
    words = verb.split()
    for parameter in VERBS[verb].params:
        if parameter.required:
            option = parameter.opts[0] if parameter.opts[0].startswith("-") else ""
            words += [*([option] if option else []), "x"]
    return words


def wrong() -> Iterator[tuple[str, list[str], str]]:
    """What is wrong with a command line, the line, and a word that its error has."""
    yield "unknown verb", ["infr"], "infer"
    yield "unknown target", ["deploy", "wbe"], "web"
    yield "unknown option before the verb", ["--bogus", "infer"], "--bogus"
    for verb, command in VERBS.items():
        whole = required(verb)
        yield "unknown option", [*whole, "--bogus-option"], "--bogus-option"
        yield "unknown letter", [*whole, "-Z"], "-Z"
        yield "misspelt option", [*whole, "--jsno"], "--help"
        positional = [p for p in command.params if p.param_type_name == "argument"]
        if not any(p.nargs == -1 for p in positional):
            yield "one argument too many", [*whole, *"xyz"], "Unexpected argument"
        for parameter in command.params:
            option = max((*parameter.opts, *parameter.secondary_opts), key=len)
            empty = [*verb.split(), *([option] if option.startswith("-") else []), ""]
            if isinstance(parameter.type, (Path, Text)):
                yield f"empty {option}", empty, "is empty."
            if parameter.required:
                shown = option if option.startswith("-") else parameter.shown.removesuffix("...")
                yield f"without {option}", _without(whole, verb, parameter), f"needs {shown}."
            if not option.startswith("-"):
                continue
            if parameter.is_flag:
                yield "value of a switch", [*whole, f"{option}=3"], "takes no value"
                continue
            yield "no value", [*whole, option], "needs a value"
            if not parameter.multiple:
                twice = [*whole, option, "1", option, "1"]
                again = "needs a value" if option == "-o" else f"{option} is given twice."
                yield "given twice", twice, again
            number = single_value_type(parameter.type)
            if isinstance(number, (Whole, Real)):
                yield "no number", [*whole, option, "many"], f"Invalid {option} many."
                low, high = number.min, number.max
                if low is not None:
                    yield "too low", [*whole, option, str(low - 1)], f"Invalid {option}"
                if high is not None:
                    yield "too high", [*whole, option, str(high + 1)], f"Invalid {option}"
                if (low, high) != (None, None) and isinstance(number, Real):
                    yield "NaN", [*whole, option, "nan"], f"Invalid {option}"


def _without(whole: list[str], verb: str, parameter: Any) -> list[str]:
    """The words without those of a parameter, or of all arguments from it on."""
    if parameter.opts[0].startswith("-"):
        at = whole.index(parameter.opts[0])
        return whole[:at] + whole[at + 2 :]
    options = [w for p in VERBS[verb].params if p.required and p.opts[0].startswith("-")
               for w in (p.opts[0], "x")]  # fmt: skip
    before = [p for p in VERBS[verb].params if p.param_type_name == "argument"]
    return [*verb.split(), *options, *["x"] * before.index(parameter)]


def test_every_verb_refuses_in_the_same_words(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    failures, count = [], 0
    for what, words, word in wrong():
        count += 1
        code, out, err = said(words, monkeypatch, capsys)
        lines = err.splitlines()
        good = code == 2 and not out and 2 <= len(lines) <= 3 and lines[0].startswith("error: ")
        strange = any(
            s in err for s in ("Usage:", "Input should", "Traceback", "bug", "Try '", "╭")
        )
        if not good or strange or word not in err:
            failures.append((what, words, code, out, err))
    assert not failures, failures[:5]
    assert count > 500


@pytest.mark.parametrize("words", [["infer", "--top", "0", "x.png"], ["infr"], ["infer"]])
def test_as_json(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    code, out, err = said([*words, "--json"], monkeypatch, capsys)
    document = json.loads(out)
    assert (code, document["exit_code"]) == (2, 2)
    assert err.splitlines()[0] == f"error: {document['error']}"


def test_what_is_meant_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    _, _, err = said(["infer", "--top", "0", "x.png"], monkeypatch, capsys)
    assert err.splitlines() == [
        "error: Invalid --top 0.", "It takes a whole number from 1 to 2147483647.", "For example: --top 1."
    ]  # fmt: skip
    _, _, err = said(["train", "--size", "48x48"], monkeypatch, capsys)
    assert err.splitlines()[-1] == "For example: --size 48."
    _, _, err = said(["infer", "none-*.png"], monkeypatch, capsys)
    assert "Path(" not in err
    assert "unquoted, so the shell expands it" in err
    _, _, err = said(["infer", "--tpo", "3", "x.png"], monkeypatch, capsys)
    assert "Did you mean --top?" in err
    _, _, err = said(["sweep", "--model", "x"], monkeypatch, capsys)
    assert "Did you mean --help?" not in err
    _, _, err = said(["optimize", "x.onnx", "--score-kind", "logits"], monkeypatch, capsys)
    assert err.splitlines()[1] == "It is a field: --describe score_kind=VALUE."


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["serve", "x.onnx", "--graphs", "--no-graphs"], "--graphs/--no-graphs is given twice."),
        (["infer", "--json", "x.png", "--json"], "--json is given twice."),
        (["infer", "-o", "a.npz", "--output", "b.npz"], "--output is given twice."),
        (["profile", "x.onnx", "--compare", ","], "--compare has no value."),
    ],
)
def test_options_that_are_given_again(
    words: list[str], error: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    code, _, err = said(words, monkeypatch, capsys)
    assert (code, err.splitlines()[0]) == (2, f"error: {error}")


def test_lists_may_be_given_in_parts(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    line = ["inspect", "capsedge/zoo/digits-em.onnx", "--json"]
    monkeypatch.chdir(ROOT)
    one = said([*line, "--batch", "1,4"], monkeypatch, capsys)
    assert one[0] == 0
    assert one == said([*line, "--batch", "4", "--batch", "1"], monkeypatch, capsys)


@pytest.mark.parametrize(
    "line",
    [
        "train --data {here} -o {here}/run.safetensors",
        "sweep --data {here} --keep {here}/points.json",
        "deploy web digits-em -o {here}/index.html",
        "deploy triton digits-em -o {here}/models.zip",
        "build {zoo}/digits-attention.onnx --target c -o {here}/net.c",
    ],
)
def test_a_folder_is_not_named_like_a_file(
    line: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("onnxscript")
    words = line.format(here=tmp_path, zoo=ROOT / "capsedge/zoo").split()
    code, _, err = said(words, monkeypatch, capsys)
    assert code == 2
    assert err.splitlines()[0] == f"error: {words[-1]} would be a folder."
    assert list(tmp_path.iterdir()) == []


def test_several_examples_are_several_inputs() -> None:
    from capsedge.cli.export import _example
    from capsedge.models.user.module import UserModuleSpec

    own = UserModuleSpec("net.py:Net", "", "")
    assert _example(own, ["1x8", "user:int64,4"], None) == "1x8,user:int64,4"
    with pytest.raises(UsageError, match="takes one file"):
        _example(own, ["a.npy", "b.npy"], None)


def test_control_codes_are_not_printed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    _, _, err = said(["infer", "--\x1b[31mred", "x.png"], monkeypatch, capsys)
    assert "\x1b" not in err
    assert r"\x1b" in err


@pytest.mark.parametrize("words", [[], ["deploy"]])
def test_without_a_word_the_help_is_printed(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    code, out, err = said(words, monkeypatch, capsys)
    assert (code, err) == (2, "")
    assert out.startswith("Usage: capsedge")


@pytest.mark.parametrize(
    ("shell", "file", "settings"),
    [
        ("bash", ".bash_completions/capsedge.sh", ".bashrc"),
        ("zsh", ".zfunc/_capsedge", ".zshrc"),
        ("fish", ".config/fish/completions/capsedge.fish", ""),
    ],
)
def test_completion_is_installed_once(
    shell: str,
    file: str,
    settings: str,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    for _ in range(2):
        code, _, err = said(["--install-completion"], monkeypatch, capsys)
        assert code == 0, err
    script = (tmp_path / file).read_text()
    assert "_CAPSEDGE_COMPLETE" in script
    if settings:
        assert len((tmp_path / settings).read_text().splitlines()) == 1
    code, out, _ = said(["--show-completion"], monkeypatch, capsys)
    assert (code, out) == (0, script)
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    code, _, err = said(["--install-completion"], monkeypatch, capsys)
    assert code == 3
    assert "tcsh" in err


def test_the_table_of_verbs_says_what_the_verbs_say() -> None:
    from capsedge.cli._verbs import GROUPS
    from capsedge.cli._verbs import VERBS as TABLE

    rows = {**TABLE, **{f"{g} {n}": verb for g, of in GROUPS.items() for n, verb in of.items()}}
    wrong = {
        name: rows[name].help
        for name, command in VERBS.items()
        if command.help.split("\n\n")[0].replace("\n", " ") != rows[name].help
    }
    assert wrong == {}
    files = {p.stem for p in (ROOT / "capsedge/cli").glob("[a-z]*.py")}
    assert files == {verb.module.partition(":")[0] for verb in TABLE.values()} - {""} | {"deploy"}
