"""``--module``: the user's code runs, its errors show its lines, and nothing is left beside it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

torch = pytest.importorskip("torch", reason="modules are PyTorch's")

import capsedge  # noqa: E402
from capsedge.cli import app  # noqa: E402
from capsedge.models.user.module import UserModuleSpec, load_user_module  # noqa: E402
from capsedge.runtime.profiling.worker import Specification  # noqa: E402
from capsedge.verification.reference import check_torch  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.exporters import own_nets  # noqa: E402

HELPER = "WIDTH = 4\n"
CODE = """
import argparse
import torch
from helper_of_caps import WIDTH

print("a line that is no result")
argparse.ArgumentParser().parse_args()


class Stem(torch.nn.Module):
    def __init__(self, width, bias=True):
        super().__init__()
        self.layer = torch.nn.Conv2d(1, width, 3, bias=bias)
        if width > 90:
            raise ValueError("too wide")

    def forward(self, images):
        return self.layer(images.cuda()).mean((2, 3))


def make(width=WIDTH):
    return Stem(width)


NUMBER = 3
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's code, from which commands are started."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "caps.py").write_text(CODE)
    (folder / "helper_of_caps.py").write_text(HELPER)
    shutil.copy(own_nets.__file__, folder / "nets.py")
    monkeypatch.chdir(tmp_path)
    return folder


def run(*arguments: object) -> tuple[int, str, Any]:
    """Exit code, standard output, and the error."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if isinstance(result.exception, capsedge.CapsedgeError):
        return int(result.exception.exit_code), result.stdout, result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.thorough
def test_export_verify_profile(user: Path) -> None:
    torch.save({"model": own_nets.Plain().state_dict()}, "caps.tar")
    own = ("--module", user / "nets.py:Plain", "--weights", "caps.tar")
    code, out, err = run("export", *own, "--example", "4", "-o", "caps.onnx", "--json")
    assert code == 0, err
    said = json.loads(out)
    assert said["fusion"]["fused"][0]["operator"] in ("DynamicRouting", "Squash")
    assert said["operators"]["capsedge::DynamicRouting"] == 1
    assert said["next"][0].startswith("capsedge verify caps.onnx --module ")
    assert [p.name for p in user.iterdir() if p.is_dir()] == []  # no __pycache__
    np.savez("own.npz", x=np.random.default_rng(0).random((6, 4), np.float32))
    code, out, err = run("export", *own, "--inputs", "own.npz", "--dry-run")  # the example too
    assert code == 0, err
    assert "fused      DynamicRouting" in out


@pytest.mark.thorough
def test_a_folder_of_its_own_and_prints(user: Path) -> None:
    own = ("--module", "code/caps.py:make", "--args", "[5]")
    code, out, err = run("export", *own, "--example", "1x8x8", "-o", "s.onnx", "--json")
    assert code == 0, err
    assert json.loads(out)["outputs"] == {"output": ["N", 5]}  # the user's print is not in it
    code, out, err = run("verify", "s.onnx", *own, "-o", "c.json")
    assert code == 0, err
    assert out.splitlines()[-1] == "PASSED"
    link = json.loads(Path("c.json").read_text())["chain"][0]
    assert link["kind"] == "module"
    assert link["user_module"] is True
    assert link["code"] == "caps.py:make"
    # Other weights (the seed is the same, the width is not) are found out.
    code, _, error = run("verify", "s.onnx", "--module", "code/caps.py:make", "--args", "[6]")
    assert code == 6, error
    code, out, err = run(
        "profile", "s.onnx", "--compare", "torch", *own, "--duration", "0.05", "--no-operators", "--json"
    )  # fmt: skip
    assert code == 0, err
    assert {e["name"] for e in json.loads(out)["comparisons"][0]["entries"]} >= {"torch"}
    assert not list(user.glob("__pycache__"))


TOKENS = """
import torch


class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(9, 6)

    def forward(self, weights, words):
        return (self.table(words) * weights[..., None]).sum(1)
"""


@pytest.mark.thorough
def test_several_inputs(user: Path) -> None:
    """Every command that ``export`` names next works, and on the arrays that were given."""
    (user / "tokens.py").write_text(TOKENS)
    rng = np.random.default_rng(0)
    weights, words = rng.random((20, 7), np.float32), rng.integers(0, 9, (20, 7))
    np.savez("data.npz", labels=np.zeros(20), words=words, weights=weights)
    np.savez("example.npz", weights=weights[:2], words=words[:2])
    own = ("--module", "code/tokens.py:Tokens")
    for option, used in (("--example", "example.npz"), ("--inputs", "data.npz")):
        code, out, err = run("export", *own, option, used, "-o", "tokens.onnx", "--json")
        assert code == 0, err
        verify, profile = json.loads(out)["next"]
        assert verify.endswith(f"--inputs {used}")
        code, out, err = run(*shlex.split(verify)[1:], "--json")
        assert code == 0, err
        assert json.loads(out)["samples"]["source"] == used
    code, out, err = run(
        *shlex.split(profile)[1:], "--duration", "0.05", "--no-operators", "--json"
    )
    assert code == 0, err
    assert {e["name"] for e in json.loads(out)["comparisons"][0]["entries"]} >= {"torch"}
    code, _, err = run("verify", "tokens.onnx", "--module", "code/tokens.py:Tokens")
    assert code == 0, err  # whole numbers are drawn within the table
    np.savez("data.npz", weights=weights + 5, words=words)
    code, out, err = run(*shlex.split(verify)[1:])
    assert code == 0, err
    assert "None of the hard cases" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--module", "caps.py"), "does not name a module"),
        (("--module", "gone.py:Stem"), "Cannot read gone.py"),
        (("--module", "code/caps.py:Sten"), "--module code/caps.py:Stem"),
        (("--module", "code/caps.py:NUMBER"), "is not a PyTorch module"),
        (("--module", "no_such_package_here.caps:Stem"), "Install no_such_package_here"),
        (("--module", "code/caps.py:Stem"), "width, bias=True"),
        (("--module", "code/caps.py:Stem", "--args", "{width: 3}"), "is not JSON"),
        (("--module", "code/caps.py:Stem", "--args", '{"width": 99}'), "raise ValueError"),
        (("--module", "code/broken.py:Stem"), "broken.py:2"),
        (("--module", "code/ends.py:Stem"), "__main__"),
        (("--module", "code/caps.py:make", "--example", "1xx"), "not the shape of an input"),
        (("--module", "code/caps.py:make", "--checkpoint", "x.pt"), "cannot be used together"),
        (("--weights", "x.pt"), "--weights needs --module"),
    ],
)
def test_refused(user: Path, arguments: tuple[str, ...], message: str) -> None:
    (user / "broken.py").write_text("import torch\nclass Stem(:\n")
    (user / "ends.py").write_text("raise SystemExit(0)\n")
    torch.save({}, "x.pt")
    example = (
        () if "--example" in arguments or "--module" not in arguments else ("--example", "1x8x8")
    )
    code, _, error = run("export", *arguments, *example, "-o", "m.onnx")
    assert code == 2, error
    assert message in str(error)
    assert "Traceback" not in str(error)
    assert "capsedge/cli" not in str(error)
    assert not Path("m.onnx").exists()


def test_the_way_from_the_checkpoint_error(user: Path) -> None:
    torch.save(own_nets.Plain().state_dict(), "caps.pt")
    code, _, error = run("export", "--checkpoint", "caps.pt")
    assert code == 6
    assert "export --module" in error.command
    assert "docs/how-to/your-model.md" in error.command
    assert "docs/how-to/your-model.md" in str(error)
    assert (ROOT / "docs/how-to/your-model.md").is_file()


@pytest.mark.parametrize(
    ("output", "option", "value"),
    [
        ("code/caps.py", "--module", "code/caps.py:make"),
        ("link.py", "--module", "code/caps.py:make"),
        ("hard.onnx", "--module", "code/caps.py:make"),
        ("named.onnx", "--module", "code_by_name:make"),
        ("example.npz", "--example", "example.npz"),
        ("example.npz", "--inputs", "example.npz"),
        ("weights.pt", "--weights", "weights.pt"),
        ("labels.txt", "--classes", "labels.txt"),
    ],
)
def test_no_output_replaces_what_the_command_reads(
    user: Path, monkeypatch: pytest.MonkeyPatch, output: str, option: str, value: str
) -> None:
    Path("link.py").symlink_to(user / "caps.py")
    Path("hard.onnx").hardlink_to(user / "caps.py")
    (user / "code_by_name.py").write_text(CODE)
    Path("named.onnx").hardlink_to(user / "code_by_name.py")
    np.savez("example.npz", images=np.zeros((2, 1, 8, 8), np.float32))
    torch.save({}, "weights.pt")
    Path("labels.txt").write_text("a\nb\nc\nd\n")
    monkeypatch.syspath_prepend(user)
    before = Path(output).read_bytes()
    given = {"--module": "code/caps.py:make", "--example": "1x8x8", option: value, "-o": output}
    code, _, error = run("export", *(word for pair in given.items() for word in pair))
    assert code == 2, error
    assert "It is an input" in str(error)
    assert Path(output).read_bytes() == before


@pytest.mark.parametrize("option", ["--module", "--example", "--reference-code"])
def test_no_pipe_is_opened(user: Path, option: str) -> None:
    """Reading one would wait forever."""
    value = {
        "--module": "pipe.py:make",
        "--example": "pipe.npz",
        "--reference-code": "pipe.py:make",
    }
    os.mkfifo(value[option].partition(":")[0])
    if option == "--reference-code":
        torch.save({}, "weights.pt")
        words: tuple[str, ...] = ("import", "weights.pt")
    else:
        own = {"--module": "code/caps.py:make", "--example": "1x8x8"}
        words = ("export", *(w for name, v in own.items() if name != option for w in (name, v)))
    code, _, error = run(*words, option, value[option])
    assert code == 2, error
    assert "It is a pipe" in str(error)


@pytest.mark.parametrize(
    "text", ["[" * 5000, '{"width": NaN}', '{"width": 3, "width": 4}', "[1e999]"]
)
def test_arguments_that_are_not_json(user: Path, text: str) -> None:
    code, _, error = run(
        "export", "--module", "code/caps.py:make", "--args", text, "--example", "1x8x8"
    )
    assert code == 2
    assert "is not JSON" in str(error)


def test_lines_of_the_users_error_stay_lines(user: Path) -> None:
    (user / "long.py").write_text("raise ValueError('first\\nsecond')\n")
    code, _, error = run("export", "--module", "code/long.py:Net", "--example", "4")
    assert code == 2
    assert "\n" not in error.why
    assert error.details[0] == "second"


UNSAVED = """
import torch
class Unsaved(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)
        self.W = torch.randn(4, 2)
    def forward(self, x):
        return self.layer(x) @ self.W
"""


def test_weights_that_lack_a_tensor_are_refused_by_verify_and_profile(user: Path) -> None:
    (user / "unsaved.py").write_text(UNSAVED)
    spec = UserModuleSpec(str(user / "unsaved.py:Unsaved"))
    net = load_user_module(spec).module
    torch.save(net.state_dict(), "w.pt")
    weights = (net.W.T @ net.layer.weight, net.W.T @ net.layer.bias)
    stored = [
        numpy_helper.from_array(w.detach().numpy(), n) for w, n in zip(weights, "WB", strict=True)
    ]
    ports = [helper.make_tensor_value_info(n, 1, ["N", k]) for n, k in (("x", 3), ("y", 2))]
    gemm = helper.make_node("Gemm", ["x", "W", "B"], ["y"], transB=1)
    graph = helper.make_graph([gemm], "net", ports[:1], ports[1:], stored)
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[opset]), "net.onnx")
    code, _, error = run("verify", "net.onnx", "--module", spec.module, "--weights", "w.pt")
    assert (code, error.details[0][:8]) == (5, "W [4, 2]")
    np.savez("inputs.npz", x=np.ones((1, 3), np.float32))
    named = UserModuleSpec(spec.module, "w.pt").to_json()
    with pytest.raises(capsedge.UnsupportedModelError, match=r"that w\.pt does not hold") as caught:
        check_torch(Specification("torch", "net.onnx", inputs="inputs.npz", module=named))
    assert "W [4, 2] (unsaved.py:" in caught.value.why


@pytest.mark.thorough
def test_a_profile_against_weights_that_lack_a_tensor_ends_with_5(user: Path) -> None:
    (user / "unsaved.py").write_text(UNSAVED)
    own = str(user / "unsaved.py:Unsaved")
    net = load_user_module(UserModuleSpec(own)).module
    torch.save(net.state_dict(), "w.pt")
    capsedge.export(net, "net.onnx", example=torch.rand(2, 3))
    given = ("--module", own, "--weights", "w.pt", "--duration", "0.05")
    code, _, error = run("profile", "net.onnx", "--compare", "torch", *given)
    assert code == 5, error
    assert "W [4, 2]" in error.why
