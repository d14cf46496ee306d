"""What `make demo` and `make test` install, and that CI runs them first, in the checkout as it comes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

CPU = "https://download.pytorch.org/whl/cpu"  # of PyTorch's own installation page


def installs(*arguments: str) -> list[str]:
    """The lines of pip that make would run where nothing is installed yet."""
    if shutil.which("make") is None:
        pytest.skip("make is missing: apt-get install make")
    command = ["make", "-n", "VENV=build/no-such-environment", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if " -m pip install " in line]


def test_the_demo_installs_what_it_runs_and_the_tests_add_the_rest() -> None:
    demo, test = installs("demo"), installs("test")
    assert [line.split()[-1] for line in demo] == ["'.[cpu,export]'"]
    assert test[: len(demo)] == demo
    assert [line.split()[-1] for line in test[len(demo) :]] == ["'capsedge[dev]'"]


def test_torch_comes_from_another_index_on_request_and_nothing_else_does() -> None:
    assert not any("index" in line for line in installs("demo"))
    first, *others = installs("demo", f"TORCH_INDEX={CPU}")
    assert others == installs("demo")
    assert first.endswith(f"-c constraints.txt --no-deps --index-url {CPU} torch")
    assert f"make demo TORCH_INDEX={CPU}" in (ROOT / "README.md").read_text()


def test_ci_runs_the_commands_of_the_readme_and_each_test_once() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    command = r"\s*(?:within \d+ )?make ([\w-]+)"
    targets = [found[1] for line in lines if (found := re.match(command, line))]
    first = ["demo", "runtimes", "web", "test", "docs", "test-wheel"]
    assert targets == [*first, "test-cuda-provider", "test-nvidia", "test-windows-build"]
    after = lines[lines.index("make test") :]
    thorough = '.venv/bin/python -m pytest -n auto --dist worksteal -m "thorough and not slow"'
    left_out = "tests/native/ptx/test_torch.py"
    assert f"{thorough} --ignore {left_out}" in after
    assert left_out in (ROOT / "Makefile").read_text().partition("\ntest-cuda-provider:")[2]
    assert not [line for line in lines[: lines.index("make demo")] if "tools/" in line]


def node(folder: Path, *, new: bool) -> subprocess.CompletedProcess[str]:
    """Run tools/node.sh in a checkout of its own, on a machine whose Node.js is new enough or not."""
    programs = folder / "bin"
    for name in ("tools", "bin"):
        (folder / name).mkdir()
    for name in ("bash", "dirname", "ln", "mkdir"):
        (programs / name).symlink_to(shutil.which(name) or pytest.skip("needs bash"))
    for name in ("node", "npm"):
        (programs / name).write_text(f"#!/bin/sh\nexit {0 if new else 1}\n")
        (programs / name).chmod(0o755)
    script = shutil.copy(ROOT / "tools" / "node.sh", folder / "tools")
    variables = {"PATH": str(programs), "PYTHON": "no-such-python"}
    return subprocess.run([script], env=variables, capture_output=True, text=True, check=False)


def test_a_node_that_is_new_enough_is_used(tmp_path: Path) -> None:
    done = node(tmp_path, new=True)
    assert done.returncode == 0, done.stderr
    links = Path(done.stdout.strip())
    # Nothing else of its folder comes to the front of the path.
    assert {p.name: p.resolve() for p in links.iterdir()} == {
        name: tmp_path / "bin" / name for name in ("node", "npm")
    }


def test_without_node_and_without_pip_the_page_says_what_is_missing(tmp_path: Path) -> None:
    done = node(tmp_path, new=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Install it with npm (https://nodejs.org), and run the command again." in done.stderr


def test_every_target_is_listed_once_as_phony_and_explained() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE)
    assert sorted(phony.split()) == sorted(targets)
