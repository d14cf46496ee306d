"""The places of the command line, as its own table of parameters gives them, and honest files for each."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import socket
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsedge.cli import _run, app
from capsedge.cli._paths import PathRole, role_of
from tests.conftest import ROOT
from tools.docs.commands import verbs

ZOO = ROOT / "capsedge/zoo"
PARSERS: dict[str, Any] = dict(verbs(app))
IMAGE = ROOT / "capsedge/zoo/samples/digit-7.png"


@dataclass(frozen=True)
class Parameter:
    """A parameter of a verb that is a path, or a text that names one."""

    verb: str
    name: str
    flag: str  # as in the command line; empty for an argument
    role: PathRole | None

    def __str__(self) -> str:
        return f"{self.verb} {self.flag or self.name}"


def callbacks() -> dict[str, Callable[..., None]]:
    """Every verb's function."""
    return {name: inspect.unwrap(verb.callback) for name, verb in PARSERS.items()}


def _is_path(annotation: Any) -> bool:
    if annotation is Path:
        return True
    return any(_is_path(part) for part in typing.get_args(annotation))


def _names_one(role: PathRole | None) -> bool:
    """Whether any text is a path to a parameter, not only one of some form, such as ``file.py:Name``."""
    return role is not None and role.named("/x") is not None


def parameters() -> list[Parameter]:
    """Every parameter of every verb that is a path, or a text that names one."""
    found = []
    for verb, callback in callbacks().items():
        hints = typing.get_type_hints(callback, include_extras=True)
        for parameter in PARSERS[verb].params:
            hint = hints.get(parameter.name)
            if hint is None or not (_is_path(hint) or _names_one(role_of(hint))):
                continue
            flag = parameter.opts[0] if parameter.opts[0].startswith("-") else ""
            found.append(Parameter(verb, parameter.name, flag, role_of(hint)))
    return found


READ = [p for p in parameters() if p.role is not None and p.role.reads]
WRITTEN = [p for p in parameters() if p.role is not None and p.role.written(Path("x"))]


def honest(folder: Path) -> dict[str, dict[str, list[str | Path]]]:
    """What every verb needs, by parameter: files of their own, which a verb may at worst destroy."""
    import torch

    from tests.importers.families.networks import XifengGuo

    folder.mkdir(exist_ok=True)
    model, checkpoint, image = (
        folder / "model.onnx",
        folder / "checkpoint.safetensors",
        folder / "image.png",
    )
    shutil.copy(ZOO / "digits-dynamic.onnx", model)
    shutil.copy(ZOO / "digits-dynamic.safetensors", checkpoint)
    small = Path(shutil.copy(ZOO / "digits-em.onnx", folder / "small.onnx"))
    shutil.copy(IMAGE, image)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        pixels = rng.integers(0, 256, (48, 28, 28), dtype=np.uint8)
        np.savez(data / f"{split}.npz", images=pixels, labels=np.arange(48) % 10)
    images = folder / "images"
    images.mkdir(exist_ok=True)
    shutil.copy(IMAGE, images)
    weights = folder / "weights.pth"
    torch.save(XifengGuo().state_dict(), weights)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    return {
        "train": {
            "model": ["--model", "digits-em"], "iters": ["--iters", "1"], "data": ["--data", data],
            "epochs": ["--epochs", "1"], "batch": ["--batch", "16"], "output": ["-o", out / "run"],
        },
        "import": {
            "file": [weights], "iters": ["--iters", "3"], "output": ["-o", out / "new.safetensors"],
        },
        "export": {"checkpoint": ["--checkpoint", checkpoint], "output": ["-o", out / "new.onnx"]},
        "optimize": {
            "model": [model], "output": ["-o", out / "fused.onnx"], "measure": ["--measure", "0"],
        },
        "verify": {"models": [model], "limit": ["--limit", "4"]},
        "prune": {"checkpoint": [checkpoint], "output": ["-o", out / "pruned.safetensors"]},
        "quantize": {
            "model": [model], "calib_data": ["--calib-data", data], "max_drop": ["--max-drop", "100"],
            "output": ["-o", out / "small.onnx"],
        },
        "cascade": {
            "small": [small], "large": [model], "data": ["--data", data],
            "output": ["-o", out / "pair.onnx"], "gate": ["--min-agreement", "0", "--max-share", "1"],
        },
        "sweep": {
            "data": ["--data", data], "iters": ["--iters", "1"], "precision": ["--precision", "fp32"],
        },
        "build": {"model": [model], "output": ["-o", out / "new.engine"]},
        "deploy web": {"models": [model], "output": ["-o", out / "page"]},
        "deploy triton": {"models": [model], "output": ["-o", out / "repository"]},
        "deploy kserve": {
            "repository": [repository(folder / "repository")], "output": ["-o", out / "service.yaml"],
            "storage": ["--storage", "s3://bucket/models"],
        },
        "serve": {"models": [model], "port": ["--port", "0"]},
        "infer": {"images": [image], "model": ["-m", model]},
        "batch": {
            "model": [model], "source": [images],
            "output": ["-o", out / "answers.parquet"],
        },
        "see": {"model": [model], "images": [image], "output": ["-o", out / "seen.png"]},
        "profile": {"models": [model], "duration": ["--duration", "0.1", "--warmup", "0"]},
        "inspect": {"file": [model]},
    }  # fmt: skip


def repository(folder: Path) -> Path:
    """A model repository, as far as `deploy kserve` reads one."""
    folder.mkdir(exist_ok=True)
    model = {"name": "model", "device": "cpu", "ops": "portable", "twin_of": ""}
    document = {
        "schema": 1,
        "kind": "triton",
        "mount": "/models",
        "architecture": "",
        "models": [model],
    }
    (folder / "capsedge.json").write_text(json.dumps(document))
    return folder


def command(
    given: Mapping[str, list[str | Path]], changes: Mapping[Parameter, Path], verb: str
) -> list[str]:
    """A command line, with other paths for some parameters."""
    words = dict(given)
    for parameter, path in changes.items():
        assert parameter.verb == verb
        key = "data" if (verb, parameter.name) == ("sweep", "calib_data") else parameter.name
        words[key] = [*([parameter.flag] if parameter.flag else []), path]
    positional = [
        k for k in words if k in ("model", "models", "source", "images", "file", "small", "large")
    ]
    order = [k for k in words if k not in positional] + positional
    return [*verb.split(), *(str(w) for k in order for w in words[k])]


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["capsedge", *arguments])
    return _run()


def bad_places(folder: Path) -> dict[str, Path]:
    """Where nothing is read or written, but for what is not there yet."""
    folder.mkdir(exist_ok=True)
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        here = os.getcwd()
        os.chdir(folder)  # names of sockets are short
        try:
            unix.bind("socket")
        finally:
            os.chdir(here)
    (folder / "device").symlink_to("/dev/full")
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    (folder / "to-pipe").symlink_to("pipe")
    (folder / "file").write_text("")
    return {
        "pipe": folder / "pipe",
        "socket": folder / "socket",
        "device": Path("/dev/null"),
        "link to a device": folder / "device",
        "link to a pipe": folder / "to-pipe",
        "loop of links": folder / "one",
        "long name": folder / ("n" * 300),
        "long path": folder.joinpath(*["n" * 200] * 30),
        "surrogate": folder / "a\ud800b",
        "null byte": folder / "a\0b",
    }


SAME_FILE = ("itself", "link", "hard link", "other spelling", "link to it")


def same_file(kind: str, place: Path) -> Path:
    """A file in a place, in a new folder; returns another name of it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    folder = place.parent
    if kind == "link":
        (folder / "real").write_text("precious")
        place.symlink_to("real")
        return folder / "real"
    place.write_text("precious")
    if kind == "hard link":
        os.link(place, folder / "hard")
        return folder / "hard"
    if kind == "link to it":
        (folder / "link").symlink_to(place)
        return folder / "link"
    return place if kind == "itself" else folder / ".." / folder.name / place.name


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Fails if the block changes a file below the folder, makes or removes one."""
    before = snapshot(folder)
    yield
    assert snapshot(folder) == before


def snapshot(folder: Path) -> dict[str, Any]:
    """Everything below a folder: kind, mode, and content or target."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content: Any = os.readlink(path) if path.is_symlink() else None
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
        found[str(path)] = (status.st_mode, status.st_rdev, status.st_nlink, content)
    return found
