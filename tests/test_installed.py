"""The package installed as a user installs it, not in editable mode, used in the root of a checkout.

There Python finds the folder ``capsedge/`` of the sources first. With CAPSEDGE_WHEELS, a folder, it is the
wheel for this processor in there that is installed; otherwise the checkout.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch", reason="pip install 'capsedge[export]'")

from tests.conftest import ROOT  # noqa: E402
from tests.importers.families.networks import XifengGuo  # noqa: E402
from tests.paths.table import callbacks, repository  # noqa: E402
from tests.release.conftest import GIVEN, find  # noqa: E402

pytestmark = pytest.mark.slow
SAMPLE = "capsedge/zoo/samples/digit-7.png"
MODEL = "capsedge/zoo/digits-dynamic.onnx"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the package and, from this one, all that it needs."""
    wheels = os.environ.get(GIVEN)
    if wheels is None and (find_spec("scikit_build_core") is None or not shutil.which("cmake")):
        pytest.skip("builds the package: pip install scikit-build-core cmake")
    package = find(Path(wheels), platform.machine()) if wheels else ROOT
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    site = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()
    )  # fmt: skip
    paths = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    others = [p for p in sys.path if p.endswith("-packages")]
    (site / "others.pth").write_text("\n".join(dict.fromkeys([*paths, *others])) + "\n")
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", python, "install", "--quiet",
            "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation",
            "--ignore-installed", package,
        ],
        check=True,
    )  # fmt: skip
    assert (site / "capsedge" / "runtime" / "session" / "session.py").is_file()
    return folder / "bin"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits to calibrate, evaluate and train on, and weights to import."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    pictures = [
        Image.open(path).convert("L") for path in sorted((ROOT / SAMPLE).parent.glob("digit-?.png"))
    ]
    for split in ("train", "test"):
        labels = np.arange(64) % len(pictures)
        images = np.stack([np.asarray(pictures[k].resize((28, 28))) for k in labels])
        noise = rng.integers(0, 20, images.shape, dtype=np.uint8)
        np.savez(folder / f"{split}.npz", images=np.maximum(images, noise), labels=labels)
    torch.save(XifengGuo().state_dict(), folder / "weights.pth")
    repository(folder / "repository")
    return folder


BUILT = (ROOT / "capsedge/deploy/site/index.html").is_file()
VERBS: dict[str, tuple[list[str], int]] = {
    "infer": (["infer", SAMPLE, "--json"], 0),
    "batch": (["batch", MODEL, "capsedge/zoo/samples", "-o", "{out}/answers.parquet", "--json"], 0),
    "inspect": (["inspect", MODEL, "--forecast"], 0),
    "see": (["see", MODEL, SAMPLE, "-o", "{out}/seen.png"], 0),
    "doctor": (["doctor"], 0),
    "config": (["config", "cflags", "libs"], 0),
    "profile": (["profile", MODEL, "--iterations", "5", "--duration", "0.1"], 0),
    "import": (
        ["import", "{data}/weights.pth", "--iters", "3", "-o", "{out}/new.safetensors"], 0
    ),
    "export": (["export", "--routing", "em", "--iters", "1", "-o", "{out}/em.onnx"], 0),
    "verify": (["verify", MODEL], 0),
    "optimize": (["optimize", MODEL, "-o", "{out}/fused.onnx", "--measure", "0"], 0),
    "prune": (["prune", "digits-em", "-o", "{out}/pruned.safetensors"], 0),
    "quantize": (
        ["quantize", MODEL, "--precision", "fp16", "--calib-data", "{data}", "--max-drop", "100",
         "-o", "{out}/fp16.onnx"],
        0,
    ),
    "cascade": (
        ["cascade", "capsedge/zoo/digits-em.onnx", MODEL, "--data", "{data}", "--min-agreement", "0",
         "--max-share", "1", "-o", "{out}/pair.onnx"],
        0,
    ),
    "sweep": (
        ["sweep", "--checkpoint", "digits-em", "--data", "{data}", "--iters", "1", "--precision", "fp32"], 0
    ),
    "train": (
        ["train", "--model", "digits-em", "--iters", "1", "--batch", "16", "--epochs", "1", "--limit", "32",
         "--data", "{data}", "-o", "{out}/run"],
        0,
    ),
    # A checkout has no page before `make web`.
    "deploy web": (["deploy", "web", MODEL, "-o", "{out}/page"], 0 if BUILT else 3),
    "deploy triton": (["deploy", "triton", MODEL, "-o", "{out}/repository"], 0),
    "deploy kserve": (
        ["deploy", "kserve", "{data}/repository", "-o", "{out}/service.yaml", "--storage", "s3://bucket/models"],
        0,
    ),
    "serve": (["serve", MODEL, "--host", "nowhere.invalid"], 3),
    "build": (["build", MODEL, "-o", "{out}/model.engine"], 3),  # no TensorRT, or no GPU
}  # fmt: skip


def test_there_is_a_line_for_every_verb() -> None:
    assert {*VERBS} == {*callbacks()}


def run(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed / "capsedge", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb(verb: str, installed: Path, data: Path, tmp_path: Path) -> None:
    words, code = VERBS[verb]
    done = run(installed, *(w.format(data=data, out=tmp_path) for w in words))
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_python_in_the_root_of_the_checkout(installed: Path) -> None:
    """The sources there are the whole package, and find the library that was installed."""
    code = (
        "import capsedge, json\n"
        f"session = capsedge.load({MODEL!r})\n"
        f"print(json.dumps([capsedge.__file__, session.backend.ops, session.predict({SAMPLE!r})[0].label]))"
    )
    done = subprocess.run(
        [installed / "python", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    file, ops, label = json.loads(done.stdout)
    assert (Path(file).parent, ops, label) == (ROOT / "capsedge", "fused", "7")


def test_nothing_is_installed_twice(installed: Path) -> None:
    site = next(installed.parent.glob("lib/python*/site-packages"))
    lines = (next(site.glob("capsedge-*.dist-info")) / "RECORD").read_text().splitlines()
    files = [line.rsplit(",", 2)[0] for line in lines]
    assert max(Counter(files).values()) == 1
    sources = {p.name for p in (ROOT / "capsedge" / "runtime").iterdir() if p.is_file()}
    assert {Path(f).name for f in files if Path(f).parent == Path("capsedge/runtime")} == sources
    assert "capsedge/serving/open_inference.binpb" in files
    assert not [f for f in files if "native/" in f and "_native/" not in f]
