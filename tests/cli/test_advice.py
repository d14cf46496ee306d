"""The commands and options that messages name: all exist, and following them helps."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from capsedge.cli import app
from capsedge.errors import CapsedgeError
from tests.conftest import ROOT
from tools.docs.commands import verbs

VERBS: dict[str, click.Command] = dict(verbs(app))
PACKAGES = ("capsedge",)
_COMMAND = re.compile(r"(`?)capsedge ([a-z]+)(?![\w.])([^`;\n]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*\w")
OTHERS = (
    "pip install",
    "ray start",
    "tf2onnx",
    "apt-get",
    "xcode-select",
    "nvidia-smi",
    ":root{",
    "cmake",
    "linked with",
    "linker's",
    "-Wl,",
)  # texts with options of these


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module but its docstrings, with {} for what is filled in; lines of each."""
    tree = ast.parse(path.read_text())
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        text = _text(node)
        if text is not None:
            skipped.update(map(id, ast.walk(node)))
            yield getattr(node, "lineno", 0), text


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None and right is None else f"{left or '{}'}{right or '{}'}"
    return None


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Verb and words of each command in a text; prose about capsedge is none."""
    for quoted, verb, rest in _COMMAND.findall(text):
        if verb == "deploy" and (target := re.match(r" ([a-z]+)(.*)", rest)):
            verb, rest = f"deploy {target[1]}", target[2]
        if verb not in VERBS and not quoted:
            continue
        if not quoted:
            rest = re.split(r"[.,:)](?: |$)| \(| to | and | or | is ", rest)[0]
        try:
            yield verb, shlex.split(rest.rstrip("."))
        except ValueError:
            yield verb, rest.split()


def options_of(verb: str) -> set[str]:
    found = {"--help"}
    for parameter in VERBS[verb].params:
        found.update((*parameter.opts, *parameter.secondary_opts))
    return found


def wrong(verb: str, words: list[str]) -> str:
    """What is wrong with a command; empty for nothing."""
    if verb not in VERBS:
        return f"there is no verb '{verb}'"
    unknown = [w for w in words if w.startswith("--") and w.split("=")[0] not in options_of(verb)]
    if unknown:
        return f"{verb} has no {', '.join(unknown)}"
    given = [w for w in words if w != "..."]
    context = click.Context(VERBS[verb], resilient_parsing=True)
    last = given[-1] if given else ""
    if last.startswith("--") or last == "-o":  # prose names an option without its value
        given = given[:-1]
    try:
        VERBS[verb].make_parser(context).parse_args(given)
    except click.UsageError as error:
        return f"{verb}: {error.format_message()}"
    return ""


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            inside = path.relative_to(ROOT).parents
            linked = any((ROOT / part).is_symlink() for part in inside if str(part) != ".")
            # Families name the options of their authors' programs.
            if not linked and "families" not in path.parts:
                yield path


@pytest.mark.thorough
def test_every_command_in_a_message_parses() -> None:
    """Over all texts of the package: verbs and options exist, and options that need a value have one."""
    failures, seen = [], 0
    everything = set().union(*map(options_of, VERBS), *(p.opts for p in app.params))
    for path in modules():
        for line, text in texts(path):
            place = f"{path.relative_to(ROOT)}:{line}"
            for verb, words in commands(text):
                seen += 1
                if problem := wrong(verb, words):
                    failures.append(f"{place}: {problem} in {text!r}")
            unknown = {o for o in _OPTION.findall(text) if o not in everything}
            if unknown and " " in text and not any(other in text for other in OTHERS):
                failures.append(f"{place}: no verb has {', '.join(sorted(unknown))}: {text!r}")
    assert seen > 80
    assert not failures, "\n".join(failures)


def test_the_check_finds_what_is_wrong() -> None:
    found = {
        text: [p for v, w in commands(text) if (p := wrong(v, w))]
        for text in (
            "Run `capsedge optimise x.onnx`.",
            "Run `capsedge export --wth trace`.",
            "Run `capsedge optimize x.onnx -o y.onnx --iters 3`.",
            "Run `capsedge export --with trace -o x.onnx`.",
            "capsedge reads self-contained files only",
        )
    }
    assert [len(problems) for problems in found.values()] == [1, 1, 1, 0, 0], found


CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, pictures: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.pictures = pictures
        self.stem = nn.Conv2d(1, 8, 5, stride=3)
        self.W = nn.Parameter(0.3 * torch.randn(1, 18, 3, 4, 4))
        self.decoder = nn.Linear(12, 144)

    def forward(self, x):
        u = squash(self.stem(x).reshape(x.size(0), 18, 4))
        votes = (self.W @ u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros(x.size(0), 18, 3)
        for i in range(2):
            v = squash((torch.softmax(b, 2)[..., None] * votes).sum(1))
            if i < 1:
                b = b + (votes * v[:, None]).sum(-1)
        if not self.pictures:
            return v.norm(dim=-1)
        alone = (torch.eye(3)[None, :, :, None] * v[:, None]).flatten(2)
        return {
            "lengths": v.norm(dim=-1),
            "poses": v,
            "reconstruction": torch.sigmoid(self.decoder(alone)).view(-1, 3, 1, 12, 12),
        }

def squash(s):
    n = (s * s).sum(-1, keepdim=True)
    return n / (1 + n) * s / torch.sqrt(n + 1e-8)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: a network of their own, exported with and without a description."""
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("advice")
    (folder / "net.py").write_text(CODE)
    namespace: dict[str, type] = {}
    exec(CODE, namespace)
    torch.save(namespace["Net"]().state_dict(), folder / "net.pt")
    (folder / "labels.txt").write_text("a\nb\nc\n")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12), np.uint8)
    Image.fromarray(pixels).save(folder / "image.png")
    own = f"export --module {folder}/net.py:Net --weights {folder}/net.pt --example 1x12x12"
    said(f"{own} -o {folder}/bare.onnx")
    said(f"{own} --classes a,b,c --range 0-1 -o {folder}/own.onnx")
    return folder


def run(line: str) -> CapsedgeError | None:
    """Run a command; its error, or None if it did what it should."""
    done = CliRunner().invoke(app, shlex.split(line))
    if isinstance(done.exception, CapsedgeError):
        return done.exception
    assert done.exit_code == 0, (line, done.output, done.exception)
    return None


def said(line: str) -> None:
    """Run a command that works."""
    error = run(line)
    assert error is None, (line, str(error))


# What a user runs, and what then works with the file that the advice makes; FILE is the new one.
SITUATIONS = {
    "a trace of an own network": (
        "see own.onnx image.png --what couplings -o p.png",
        "see FILE image.png --what couplings -o p.png",
    ),
    "images for a file that nobody described": (
        "infer --model bare.onnx image.png",
        "infer --model FILE image.png",
    ),
    "pictures of an own network": (
        "see own.onnx image.png --what reconstructions -o p.png",
        "see FILE image.png --what reconstructions -o p.png",
    ),
    "dimensions of an own network": (
        "see own.onnx image.png --what dimensions -o p.png",
        "see FILE image.png --what dimensions -o p.png",
    ),
}


def filled(words: list[str], folder: Path, pictures: bool) -> list[str]:
    """An advised command with a user's own files for its placeholders."""
    values = {
        "CODE.py:Net": f"{folder}/net.py:Net",
        "WEIGHTS": f"{folder}/net.pt",
        "labels.txt": f"{folder}/labels.txt",
        "NEW.onnx": f"{folder}/new.onnx",
        "described.onnx": f"{folder}/new.onnx",
    }
    # `pictures` stands for the change of the network's forward that the advice asks for.
    return [values.get(word, word) for word in words] + ["--args", "[true]"] * pictures


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
def test_following_the_advice_works(situation: str, place: Path) -> None:
    line, then = (
        re.sub(r"\b(own|bare|image|p)\.(onnx|png)", rf"{place}/\1.\2", text)
        for text in SITUATIONS[situation]
    )
    error = run(line)
    assert error is not None, "there is nothing to advise"
    ((verb, words), *_) = [c for c in commands(error.command) if c[1]]
    assert wrong(verb, words) == ""
    assert [verb, *words] != shlex.split(line), "the advice is what was just run"
    pictures = "'reconstruction'" in error.command
    said(shlex.join([verb, *filled(words, place, pictures)]))
    said(then.replace("FILE", f"{place}/new.onnx"))


@pytest.mark.slow
def test_verify_names_the_module_to_who_came_with_one(place: Path) -> None:
    for file in ("own.onnx", "bare.onnx"):
        error = run(f"verify {place}/{file}")
        assert error is not None
        assert "--module CODE.py:" in error.command
        assert "--checkpoint" not in error.command or file == "bare.onnx"
        said(f"verify {place}/{file} --module {place}/net.py:Net --weights {place}/net.pt")


@pytest.mark.thorough
def test_a_forecast_that_cannot_be_made_is_measured_instead(tmp_path: Path) -> None:
    """Where sizes depend on values, the advice is another verb, which works."""
    onnx = pytest.importorskip("onnx")
    x = onnx.helper.make_tensor_value_info("x", 1, ["N", 4])
    y = onnx.helper.make_tensor_value_info("y", 1, [2, "k"])
    nodes = [
        onnx.helper.make_node("NonZero", ["x"], ["i"]),
        onnx.helper.make_node("Cast", ["i"], ["y"], to=1),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10
    )
    onnx.save(model, tmp_path / "nonzero.onnx")
    error = run(f"inspect {tmp_path}/nonzero.onnx --forecast")
    assert error is not None
    ((verb, words),) = commands(error.command)
    assert verb == "profile"
    assert str(tmp_path / "nonzero.onnx") in words
    said(shlex.join([verb, *words, "--duration", "0.01", "--no-operators"]))
