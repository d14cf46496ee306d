"""Run the tests of a copy of the repository in forks of a process that has already imported PyTorch."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import pytest

from tests.warm import warm

from .making import Mutant

MEMORY = 6 << 30  # bytes of a fork's private memory
SECONDS = 120  # of one test
OPTIONS = (
    "-x",
    "-q",
    "-n",
    "0",
    "--tb=no",
    "-rfE",
    "-p",
    "no:cacheprovider",
    f"--timeout={SECONDS}",
)
USAGE, NO_TESTS = 4, 5  # exit codes of pytest
FIRST = 30  # tests of the first fork: the cheapest find most mutants

# The editable installation finds the package in the repository; in the copy, the copy hides it.
_SITE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "_editable_skbc_capsedge" not in type(f).__module__]
"""


class Tree:
    """The copy of the repository, and the process that runs its tests."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder, self._root = folder, root
        self._sound: dict[str, bool] = {}
        shutil.rmtree(folder, ignore_errors=True)
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=True
        ).stdout
        for name in filter(None, listed.split("\0")):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (root / name).is_symlink() or (root / name).is_file():  # not deleted
                shutil.copy2(root / name, target, follow_symlinks=False)
        from capsedge.runtime.backends.native_library import installed

        library = installed("libcapsedge_ort.so")
        if library is not None:
            shutil.copytree(library.parent, folder / "capsedge" / "runtime" / "_native")
        site = folder / "build" / "site"
        site.mkdir(parents=True)
        (site / "sitecustomize.py").write_text(_SITE, encoding="utf-8")
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{site}{os.pathsep}{folder}",
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "compileall", "-q", "capsedge", "tests", "tools"]
        subprocess.run(command, cwd=folder, env=self.environment, check=False, capture_output=True)
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a mutant's code must not outlive it

    def __enter__(self) -> Tree:
        self._context = warm(self.environment, self.folder)
        self._warm = self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.__exit__(kind, error, trace)

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """The copy, with the mutant in it."""
        file = self.folder / mutant.file
        original = file.read_text(encoding="utf-8")
        for cached in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            cached.unlink()
        file.write_text(mutant.text, encoding="utf-8")
        try:
            yield
        finally:
            file.write_text(original, encoding="utf-8")

    def finds(self, mutant: Mutant, tests: list[str], seconds: float) -> str:
        """What detects the mutant in the copy: a test, or how the process ended; empty if nothing does."""
        for part in (tests[:FIRST], tests[FIRST:]):
            left = list(part)
            while left:
                code, failed = self._run(left, seconds)
                if code == USAGE:  # the names of cases may depend on the change
                    code, failed = self._run(
                        sorted({name.partition("[")[0] for name in left}), seconds
                    )
                if code in (0, NO_TESTS):
                    break
                if not failed:
                    return f"the run ended with {code}"
                if self._is_sound(failed, mutant):
                    return failed
                left.remove(failed)
        return ""

    def _run(self, tests: list[str], seconds: float) -> tuple[int, str]:
        job = self.folder / "build" / "job.json"
        job.write_text(json.dumps({"tests": tests, "seconds": round(seconds)}), encoding="utf-8")
        code = f"from tools.mutants.running import child; child({str(job)!r})"
        done = self._warm.run(["python", "-c", code], self.folder)
        known = set(tests)
        for kind in ("FAILED", "ERROR"):
            for line in re.findall(rf"^{kind} (.*)", done.stdout, re.MULTILINE):
                names = [name for name in known if line == name or line.startswith(f"{name} - ")]
                if names:
                    return done.returncode, max(names, key=len)
        return done.returncode, ""

    def _is_sound(self, test: str, mutant: Mutant) -> bool:
        """Whether a test that detected a mutant passes without it, run here alone."""
        if test not in self._sound:
            file = self.folder / mutant.file
            file.write_text(
                (self._root / mutant.file).read_text(encoding="utf-8"), encoding="utf-8"
            )
            self._sound[test] = self._run([test], SECONDS)[0] == 0
            file.write_text(mutant.text, encoding="utf-8")
        return self._sound[test]


def child(job: str) -> None:
    """In the fork: run the tests until one fails."""
    said = json.loads(Path(job).read_text(encoding="utf-8"))
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CPU, (said["seconds"], said["seconds"] + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    raise SystemExit(int(pytest.main([*OPTIONS, "-m", "", *said["tests"]])))
