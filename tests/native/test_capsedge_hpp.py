"""capsedge.hpp: a program that would read freed memory does not compile."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .builds import NATIVE

INCLUDE = NATIVE / "libcapsedge" / "include"
PROGRAM = """
#include "capsedge.hpp"
capsedge::Session& session();
void f(const capsedge_image& image) { %s }
"""
DANGLING = (
    "for (auto& label : (*session().predict(image))[0].labels) (void)label;",
    "auto result = (*session().predict(image))[0]; (void)result;",
    "auto result = session().predict(image).value()[0]; (void)result;",
    'auto facts = capsedge::Session::open("m.onnx").value().describe(); (void)facts;',
    "const float* first = session().prepare(image)->data(); (void)first;",
    "capsedge::View<float> pixels = *session().prepare(image); (void)pixels;",
)
SAFE = (
    "auto made = session().predict(image); for (auto& label : (*made)[0].labels) (void)label;",
    "for (float value : *session().prepare(image)) (void)value;",
    "const auto& error = session().predict(image).error(); (void)error.message.size();",
)


def compiled(source: Path, *options: str) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    return subprocess.run(
        [
            compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *options,
            "-I", INCLUDE, source,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("option", ["-fexceptions", "-fno-exceptions"])
def test_accessors_of_temporaries(option: str) -> None:
    """Each accessor, by its type."""
    found = compiled(Path(__file__).with_name("dangling.cpp"), option)
    assert found.returncode == 0, found.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("line", DANGLING)
def test_lines_that_would_dangle_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.cpp").write_text(PROGRAM % line)
    found = compiled(tmp_path / "a.cpp")
    assert found.returncode != 0
    assert "deleted" in found.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("line", SAFE)
def test_lines_with_a_name_compile(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.cpp").write_text(PROGRAM % line)
    found = compiled(tmp_path / "a.cpp")
    assert found.returncode == 0, found.stderr
