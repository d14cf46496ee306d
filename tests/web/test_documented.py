"""The programs of the README and of docs/how-to/browser.md are run; the package holds what it should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from capsedge.runtime.zoo import default_model
from tests.conftest import ROOT
from tests.test_docs import blocks

from . import browser, package

GUIDE = ROOT / "docs" / "how-to" / "browser.md"
README = package.WEB / "README.md"


@pytest.fixture
def folder(compiled: Path) -> Path:
    """With the package, a model and a picture."""
    shutil.copy(default_model(), compiled / "digits.onnx")
    shutil.copy(ROOT / "capsedge" / "zoo" / "samples" / "digit-7.png", compiled / "digit.png")
    return compiled


def in_node(folder: Path, program: str) -> list[str]:
    """The lines that a program prints."""
    (folder / "program.mjs").write_text(program)
    done = subprocess.run(
        ["node", "program.mjs"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_readme(folder: Path) -> None:
    (program,) = (b.body for b in blocks(README) if b.language == "js")
    assert in_node(folder, program) == [
        "dynamic 0 1 2 3 4 5 6 7 8 9",
        "1 3 [ 10, 16 ]",
        "10 [ 1, 1, 28, 28 ]",
    ]


@pytest.mark.thorough
def test_guide_in_node(folder: Path) -> None:
    (program,) = (b.body for b in blocks(GUIDE) if b.file == "predict.mjs")
    lines = in_node(folder, program)
    assert lines[0] == "dynamic 3 0 1 2 3 4 5 6 7 8 9"
    assert re.fullmatch(r"1 0\.9\d\d", lines[1])
    assert lines[-1] == "11 x 1 x 28 x 28"


@pytest.mark.thorough
def test_the_guide_installs_what_node_runs(folder: Path, tmp_path: Path) -> None:
    """Its commands, from a checkout; only what npm would download is taken from where it is installed."""
    (install,) = (b.body for b in blocks(GUIDE) if "npm pack" in b.body)
    (program,) = (b.body for b in blocks(GUIDE) if b.file == "predict.mjs")
    assert '"./node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs"' in GUIDE.read_text()
    (tmp_path / "capsedge").symlink_to(ROOT / "capsedge")
    (tmp_path / "package.json").write_text("{}")
    shutil.copy(folder / "digits.onnx", tmp_path)
    (tmp_path / "predict.mjs").write_text(program)
    commands = [line.removeprefix("$ ") for line in install.splitlines()]
    assert commands[0] == "npm ci --prefix capsedge/runtime/web"  # done by `make web`
    runtime = package.WEB / "node_modules" / "onnxruntime-web"
    for command in (*commands[1:], "node predict.mjs"):
        words = command.replace(
            " onnxruntime-web", f" {runtime} --offline --ignore-scripts"
        ).split()
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert "dynamic 3 0 1 2 3 4 5 6 7 8 9" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_guide_in_a_browser(folder: Path) -> None:
    (page,) = (b.body for b in blocks(GUIDE) if b.file == "index.html")
    (folder / "guide.html").write_text(page)
    assert browser.text_of(folder, "guide.html", "#answer") == "7 0.9576"
    assert "7 0.9576" in GUIDE.read_text()


def test_every_member_is_documented() -> None:
    """Options of `load` and members of a session and an answer are in the guide."""
    guide = GUIDE.read_text()
    session = (package.WEB / "src" / "session.ts").read_text()
    load = (package.WEB / "src" / "load.ts").read_text()
    answer = re.search(r"interface Prediction \{(.*?)^\}", session, re.DOTALL | re.MULTILINE)
    options = re.search(r"interface LoadOptions \{(.*?)^\}", load, re.DOTALL | re.MULTILINE)
    members = re.findall(r"^  (?:async |get )(\w+)\(", session, re.MULTILINE)
    assert answer
    assert options
    members += re.findall(r"^  (\w+)\??:", answer[1] + options[1], re.MULTILINE)
    assert len(members) > 15
    for name in members:
        assert re.search(rf"`{name}\b", guide), name


@pytest.mark.thorough
def test_a_bundle_holds_one_variant_of_the_runtime(folder: Path) -> None:
    """What Vite builds of a page that loads a model: the size that the guide states."""
    vite = package.WEB / "page" / "node_modules" / "vite" / "bin" / "vite.js"
    if not vite.is_file():
        pytest.skip("needs the npm packages of capsedge/runtime/web: make web")
    (folder / "index.html").write_text('<script type="module" src="main.js"></script>')
    (folder / "main.js").write_text(
        'import { load } from "capsedge"; load("a.onnx").then(console.log);'
    )
    command = ["node", str(vite), "build", "--logLevel", "warn", "--outDir", "bundle"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wasm,) = (folder / "bundle").rglob("*.wasm")
    stated = re.search(r"The page loads the model and (\d+) MB of WebAssembly", GUIDE.read_text())
    assert stated is not None
    assert round(wasm.stat().st_size / 1e6) == int(stated[1])


@pytest.mark.slow
def test_what_is_packed(compiled: Path) -> None:
    """Compiled files with their types, the licence and the README; neither sources nor tests."""
    source = compiled / "packed"
    shutil.copytree(compiled / "capsedge", source)
    for name in ("README.md", "THIRD_PARTY.md"):
        shutil.copy(package.WEB / name, source)
    shutil.copy(ROOT / "LICENSE", source)
    done = subprocess.run(
        ["npm", "pack", "--dry-run", "--json", "--ignore-scripts"],
        cwd=source, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (found,) = json.loads(done.stdout)
    names = {entry["path"] for entry in found["files"]}
    kept = {
        "package.json",
        "README.md",
        "THIRD_PARTY.md",
        "LICENSE",
        "dist/index.js",
        "dist/index.d.ts",
    }
    assert kept <= names
    assert all(name in kept or name.startswith("dist/") for name in names)
    assert (
        found["version"] == re.search(r'version = "(.*)"', (ROOT / "pyproject.toml").read_text())[1]
    )  # type: ignore[index]


def test_the_runtime_is_the_only_package_needed() -> None:
    declared = json.loads((package.WEB / "package.json").read_text())
    assert set(declared["peerDependencies"]) == {"onnxruntime-web"}
    assert "dependencies" not in declared
    locked = (package.WEB / "package-lock.json").read_text()
    assert '"resolved"' not in locked  # no registry is named; npm asks the one that it is set to


CONSUMER = """
import { CapsedgeError, LIMITS, load, type Prediction, type Description, type Session } from "capsedge";
import * as ort from "onnxruntime-web";

export async function run(file: File, canvas: HTMLCanvasElement): Promise<string> {
  const session: Session = await load(file, {
    runtime: ort, providers: ["webgpu", "wasm"], threads: 2, limits: { fileBytes: LIMITS.fileBytes / 2 },
  });
  const description: Description = session.description;
  const answer: Prediction = await session.predict(canvas, { top: 3, trace: description.trace !== null });
  const coupled: number | undefined = answer.trace?.[0]?.couplings.data[0];
  const pictures = await session.decode(answer.poses);
  const prepared: Float32Array = await session.prepare(new ImageData(2, 2), { invert: true });
  // @ts-expect-error a model is no image
  await session.predict(session);
  // @ts-expect-error there is no such provider
  await load(file, { providers: ["cuda"] });
  await session.close();
  return [answer.label ?? "none", coupled, pictures.dims.length, prepared.length].join(" ");
}

export function code(error: unknown): "file" | "metadata" | "limit" | "input" | "runtime" | null {
  return error instanceof CapsedgeError ? error.code : null;
}
"""


@pytest.mark.parametrize("modules", ["nodenext", "bundler"])
def test_types(compiled: Path, modules: str) -> None:
    """A program in TypeScript is checked against the declared types."""
    (compiled / "consumer.mts").write_text(CONSUMER)
    options = {
        "target": "es2022", "lib": "es2022,dom", "types": "", "moduleResolution": modules,
        "module": {"nodenext": "nodenext", "bundler": "esnext"}[modules],
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    compiler = ["node", "node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck"]
    done = subprocess.run(
        [*compiler, *words, "consumer.mts"], cwd=compiled, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
