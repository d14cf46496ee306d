"""Shell completion: names that verbs know, and where the shell completes files itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from capsedge.cli import _completion, app
from capsedge.importers import families
from capsedge.models.registry import MODELS
from capsedge.runtime import zoo
from capsedge.runtime.onnx_file.forecast import DEVICES
from capsedge.runtime.profiling.compare import PACKAGES
from capsedge.runtime.zoo import ROUTINGS
from capsedge.spec.vocabularies import PROVIDERS
from tools.docs.commands import verbs

TRAINED, FILES = list(zoo.MODELS), list(zoo.FILES)


def answered(line: str) -> list[tuple[str, str]]:
    """What bash is answered at the end of a line: kinds and values."""
    words = line.split(" ")
    found = CliRunner().invoke(
        app,
        env={
            "_CAPSEDGE_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
    )
    return [tuple(answer.split(",", 1)) for answer in found.stdout.split()]  # type: ignore[misc]


def offered(line: str) -> list[str]:
    """The names that bash offers at the end of a line."""
    return [value for kind, value in answered(line) if kind == "plain"]


def starting(names: Iterable[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("capsedge ex", ["export"]),
        ("capsedge train --model em-", starting(MODELS, "em-")),
        ("capsedge export --checkpoint em-", starting(MODELS, "em-")),
        ("capsedge sweep --checkpoint di", starting(TRAINED, "di")),
        ("capsedge sweep --checkpoint digits-e", ["digits-em"]),
        ("capsedge export --routing ", list(ROUTINGS)),
        ("capsedge import --family ", [f.name for f in families.FAMILIES]),
        ("capsedge import --family yu", ["yuxianmeng"]),
        ("capsedge inspect x.onnx --device orin-nano", starting(DEVICES, "orin-nano")),
        ("capsedge profile --compare ", list(PACKAGES)),
        ("capsedge profile --compare ort,to", ["ort,torch"]),
        ("capsedge profile --compare ort,or", []),
        ("capsedge infer --provider ", list(PROVIDERS)),
        ("capsedge quantize --precision ", ["int8", "fp16", "mixed"]),
        ("capsedge sweep --precision fp32,", ["fp32,fp16", "fp32,int8"]),
        ("capsedge build --target ", ["tensorrt", "tensorrt-rtx", "c", "wasm"]),
        ("capsedge export --with rec", ["reconstruction"]),
        ("capsedge export --ops ", ["auto", "fused", "portable"]),
        ("capsedge deploy ", ["web", "triton", "kserve"]),
        ("capsedge export --range ", ["0-1", "0-255", "-1-1"]),
        ("capsedge export --describe res", ["resize="]),
    ],
)
def test_names(line: str, wanted: list[str]) -> None:
    assert offered(line) == wanted


def test_variants_are_those_of_the_family() -> None:
    every = offered("capsedge import --variant ")
    with_variants = [f for f in families.FAMILIES if f.variants]
    assert with_variants
    for family in with_variants:
        mine = [v.name for v in family.variants]
        assert offered(f"capsedge import --family {family.name} --variant ") == mine
        assert set(mine) <= set(every)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ["null", "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"]
    monkeypatch.setattr(_completion.os, "listdir", lambda path: nodes)
    assert offered("capsedge infer --device ") == ["cpu", "cuda", "cuda:1"]
    assert offered("capsedge profile --device cu") == ["cuda", "cuda:1"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("capsedge quantize x.onnx --calib-data my", []),
        ("capsedge export -o ", []),
        ("capsedge batch digits-em s3", []),
        ("capsedge infer --model ", FILES),
        ("capsedge infer ", []),
        ("capsedge export --checkpoint di", starting(MODELS, "di")),
        ("capsedge export --module ", []),
        ("capsedge train --model em-", starting(MODELS, "em-")),
        ("capsedge verify ", FILES),
        ("capsedge verify x.onnx --checkpoint ", TRAINED),
        ("capsedge deploy web ", FILES),
    ],
)
def test_files_are_left_to_the_shell(line: str, names: list[str]) -> None:
    """First of all, since bash forgets the names that come before."""
    assert answered(line) == [("file", line.split(" ")[-1]), *(("plain", name) for name in names)]


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash(tmp_path: Path) -> None:
    """The script at work: where it is offered no name, bash completes files itself."""
    (tmp_path / "capsedge").write_text(
        f"#!{sys.executable}\nfrom capsedge.cli import app\napp.main()\n"
    )
    (tmp_path / "capsedge").chmod(0o755)
    script = CliRunner().invoke(app, ["--show-completion"], env={"SHELL": "/bin/bash"}).stdout
    steps = "\n".join(
        f"COMP_WORDS=({line} ''); COMP_CWORD={len(line.split())}; COMPREPLY=(); "
        '_capsedge_completion capsedge; echo "${COMPREPLY[*]}"'
        for line in (
            "capsedge infer --model",
            "capsedge export -o",
            "capsedge deploy",
            "capsedge verify",
        )
    )
    (tmp_path / "a.onnx").touch()
    (tmp_path / "folder").mkdir()
    done = subprocess.run(
        ["bash", "--norc", "-c", f"compopt() {{ echo compopt \"$@\"; }}\n{script}\n{steps}"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        *("compopt -o default", " ".join(FILES)),
        *("compopt -o default", ""),
        "web triton kserve",
        *("compopt -o default", " ".join(FILES)),
    ], done.stderr


def test_every_source_is_used() -> None:
    used = {
        parameter.declared.complete
        for verb in dict(verbs(app)).values()
        for parameter in verb.params
    }
    assert {name for name in used if isinstance(name, str)} == set(_completion.SOURCES)


def test_words_are_those_that_the_verbs_take() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from capsedge.calibration import ranges
    from capsedge.graph.target_runtimes import TARGETS
    from capsedge.spec import vocabularies as spec
    from capsedge.viz.figure_kinds import KINDS

    for line, known in {
        "quantize --method": ranges.METHODS,
        "export --target": TARGETS,
        "export --checkpoint": MODELS,
        "train --model": MODELS,
        "see --what": KINDS,
    }.items():
        assert set(offered(f"capsedge {line} ")) == set(known), line
    for option, words in {
        "ops": spec.OPS,
        "target": spec.RUNTIMES,
        "with": spec.EXTRA_OUTPUTS,
    }.items():
        assert set(offered(f"capsedge export --{option} ")) == set(words)
    assert set(offered("capsedge export --task ")) == set(spec.TASK_CHOICES)


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys\n"
        "from capsedge.cli import _completion\n"
        "import click\n"
        "ctx = click.Context(click.Command('x'))\n"
        "for known in _completion.SOURCES.values():\n"
        "    known(ctx)\n"
        "assert not {'torch', 'onnx', 'onnxruntime', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
