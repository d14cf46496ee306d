"""Shell completion: names that verbs know, and files by their suffixes."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from capsedge import families, zoo
from capsedge.cli import _completion, app
from capsedge.models.registry import MODELS
from capsedge.runtime.backends.providers import PROVIDERS
from capsedge.runtime.profiling.compare import PACKAGES
from capsedge.runtime.reading.forecast import DEVICES
from capsedge.zoo import ROUTINGS
from tests.places.table import callbacks

VERBS = callbacks()
TRAINED = list(zoo.MODELS)


def offered(line: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    found = CliRunner().invoke(
        app,
        env={
            "_CAPSEDGE_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
    )
    return [answer.partition(",")[2] for answer in found.stdout.split()]


def starting(names: Iterable[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("capsedge ex", ["export"]),
        ("capsedge train --model em-", starting(MODELS, "em-")),
        ("capsedge export --model em-", starting(MODELS, "em-")),
        ("capsedge verify x.onnx --model ", TRAINED),
        ("capsedge sweep --model digits-e", ["digits-em"]),
        ("capsedge export --routing ", list(ROUTINGS)),
        ("capsedge import --as ", [f.name for f in families.FAMILIES]),
        ("capsedge import --as yu", ["yuxianmeng"]),
        ("capsedge inspect x.onnx --device orin-nano", starting(DEVICES, "orin-nano")),
        ("capsedge profile --compare ", list(PACKAGES)),
        ("capsedge profile --compare ort,to", ["ort,torch"]),
        ("capsedge profile --compare ort,or", []),
        ("capsedge infer --provider ", list(PROVIDERS)),
        ("capsedge quantize --precision ", ["int8", "fp16", "mixed"]),
        ("capsedge sweep --precision fp32,", ["fp32,fp16", "fp32,int8"]),
        ("capsedge build --target ", ["tensorrt", "tensorrt-rtx"]),
        ("capsedge export --with rec", ["reconstruction"]),
        ("capsedge export --ops ", ["auto", "fused", "portable"]),
        ("capsedge deploy ", ["web", "triton", "kserve"]),
        ("capsedge export --resize ", ["stretch", "pad", "crop", "center"]),
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
        assert offered(f"capsedge import --as {family.name} --variant ") == mine
        assert set(mine) <= set(every)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ["null", "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"]
    monkeypatch.setattr(_completion.os, "listdir", lambda path: nodes)
    assert offered("capsedge infer --device ") == ["cpu", "cuda", "cuda:1"]
    assert offered("capsedge profile --device cu") == ["cuda", "cuda:1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files of many kinds."""
    for name in ("a.onnx", "b.engine", "c.safetensors", "d.pth", "e.png", "f.JPG", "g.npz", "h.toml",
                 "i.py", "my file.onnx", ".hidden.onnx", "nets/j.onnx", "nets/k.txt", "empty"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("capsedge infer --model ", [*TRAINED, "a.onnx", "b.engine", "nets/"]),
        ("capsedge infer ", ["e.png", "f.JPG", "nets/"]),
        ("capsedge quantize ", ["a.onnx", "nets/"]),
        ("capsedge inspect ", ["a.onnx", "b.engine", "c.safetensors", "nets/"]),
        ("capsedge export --checkpoint ", ["c.safetensors", "d.pth", "nets/"]),
        ("capsedge import ", ["c.safetensors", "d.pth", "g.npz", "nets/"]),
        ("capsedge import --map ", ["h.toml", "nets/"]),
        ("capsedge export --module ", ["i.py", "nets/"]),
        ("capsedge verify a.onnx --inputs ", ["g.npz", "nets/"]),
        ("capsedge quantize ne", ["nets/", "nets/j.onnx"]),  # so that no space follows the folder
        ("capsedge quantize nets/", ["nets/j.onnx"]),
        ("capsedge quantize .h", [".hidden.onnx"]),
        ("capsedge quantize missing/", []),
        ("capsedge deploy web ", [*TRAINED, "a.onnx", "nets/"]),
        ("capsedge deploy triton ", [*TRAINED, "a.onnx", "b.engine", "nets/"]),
    ],
)
def test_files(line: str, wanted: list[str], folder: Path) -> None:
    assert offered(line) == wanted


def test_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert offered("capsedge quantize ~/a") == ["~/a.onnx"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_path_and_every_source_is_known(verb: str) -> None:
    """Without a source, a path would be completed by the shell alone, with files of any kind."""
    hints = typing.get_type_hints(VERBS[verb], include_extras=True)
    for name in inspect.signature(VERBS[verb]).parameters:
        kind = str(typing.get_args(hints[name])[:1])
        assert _completion.source_of(verb, name) or "Path" not in kind, name


def test_no_source_is_left_over() -> None:
    known = set()
    for verb, callback in VERBS.items():
        for name in inspect.signature(callback).parameters:
            known |= {name, f"{verb} {name}"}
    assert set(_completion.SOURCES) <= known


def test_words_are_those_that_the_verbs_take() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from capsedge.calibration import observers, quantize, source
    from capsedge.cli import _describing
    from capsedge.exporters import modules, to_onnx
    from capsedge.exporters.tensorrt.engine_file import PLUGIN_MODES
    from capsedge.graph.targets import TARGETS
    from capsedge.pipelines.sweep_candidates import COUPLINGS, PRECISIONS
    from capsedge.runtime import passport
    from capsedge.training import loop
    from capsedge.weights import SUFFIXES

    assert _completion.WEIGHTS == SUFFIXES
    for line, known in {
        "quantize --method": observers.METHODS,
        "quantize --precision": quantize.PRECISIONS,
        "quantize --prefer": quantize.PREFERENCES,
        "quantize --target": source.TARGETS,
        "export --with": modules.EXTRA_OUTPUTS,
        "export --ops": to_onnx.OPS,
        "export --for": TARGETS,
        "build --plugin": PLUGIN_MODES,
        "build --precision": passport.PRECISIONS,
        "build --target": passport.TARGETS,
        "sweep --couplings": COUPLINGS,
        "sweep --precision": PRECISIONS,
        "train --schedule": loop.SCHEDULES,
        "train --pairs": loop.PAIRS,
        "export --range": _describing._RANGES,
        "export --resize": _describing._RESIZE,
        "export --order": _describing._ORDERS,
        "export --per-image": _describing._PER_IMAGE,
        "export --score-kind": _describing._KINDS,
    }.items():
        assert set(offered(f"capsedge {line} ")) == set(known), line
    assert set(offered("capsedge export --task ")) <= set(_describing._TASKS)


def test_sources_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from capsedge.cli import _completion\n"
        "for name, source in _completion.SOURCES.items():\n"
        "    source('') if name not in ('variant', 'verify name') else None\n"
        "assert not {'torch', 'onnx', 'onnxruntime', 'numpy.random'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
