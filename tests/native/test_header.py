"""The comments of capsedge.h: complete, their examples compile and run, and the page says the same."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from capsedge.runtime.zoo import default_model
from tests.cli.examples import config, needs_library, run, tool
from tests.conftest import ROOT

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capsedge.h"

static void check(capsedge_status* status) {{
  if (status == NULL) return;
  fprintf(stderr, "%s\n", capsedge_status_message(status));
  exit((int)capsedge_status_code(status));
}}

{functions}

int main(void) {{
  static const unsigned char pixels[28 * 28] = {{0}};
  static float memory[784];
  const capsedge_image image = {{pixels, CAPSEDGE_UINT8, 28, 28, 1, 0}};
  capsedge_session* session = NULL;
  capsedge_prediction* prediction = NULL;
  check(capsedge_open("digits.onnx", NULL, &session));
  check(capsedge_prediction_create(&prediction));
{calls}
  check(capsedge_prediction_close(prediction));
  check(capsedge_close(session));
  puts("done");
  return 0;
}}
"""
FUNCTION = """static void {name}_example(
    capsedge_session* session, capsedge_prediction* prediction, capsedge_image image, void* device_images,
    void* device_lengths, void* stream) {{
  (void)session, (void)prediction, (void)image, (void)device_images, (void)device_lengths, (void)stream;
{body}
}}
"""


def tool_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("c_reference", ROOT / "tools" / "c_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


REFERENCE = tool_module()
HEADER = REFERENCE.HEADER.read_text()
PARTS = list(REFERENCE.parts(HEADER))
FUNCTIONS = [part for part in PARTS if part.is_function]


def test_every_declaration_is_found() -> None:
    declared = set(re.findall(r"\b(capsedge_\w+)\(", re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)))
    assert {part.name for part in FUNCTIONS} == declared
    types = set(re.findall(r"^\}? ?(?:typedef struct \w+ )?(capsedge_\w+);", HEADER, re.M))
    assert types <= {part.name for part in PARTS}
    assert all(part.words for part in PARTS if not part.section)


@pytest.mark.parametrize("part", FUNCTIONS, ids=lambda part: part.name)
def test_each_function_states_ownership_threads_errors_and_an_example(part) -> None:
    for subject in ("ownership", "threads", "errors"):
        assert re.search(rf"\b{subject}\b[^.]*:", part.words, re.I), subject
    assert f"{part.name}(" in part.example


def test_the_page_is_made_of_the_header() -> None:
    assert REFERENCE.page(HEADER) == REFERENCE.PAGE.read_text(), "python tools/c_reference.py"


@needs_library
@pytest.mark.parametrize(
    ("compiler", "standard", "suffix"), [("cc", "c99", "c"), ("c++", "c++17", "cpp")]
)
def test_examples_of_the_comments_compile_and_run(
    compiler: str, standard: str, suffix: str, tmp_path: Path
) -> None:
    functions = "\n".join(
        FUNCTION.format(name=part.name, body=textwrap.indent(part.example, "  "))
        for part in FUNCTIONS
    )
    calls = "\n".join(
        f"  {part.name}_example(session, prediction, image, memory, memory, NULL);"
        for part in FUNCTIONS
    )
    source = tmp_path / f"examples.{suffix}"
    source.write_text(PROGRAM.format(functions=functions, calls=calls))
    shutil.copy(default_model(), tmp_path / "digits.onnx")
    # The header of the tree, where the installed one may be older.
    flags = [f"-I{REFERENCE.HEADER.parent}", *shlex.split(config("libs"))]
    run(tool(compiler, "g++"), f"-std={standard}", "-Wall", "-Wextra", "-Werror", source, "-o",
        tmp_path / "examples", *flags)  # fmt: skip
    found = run(tmp_path / "examples", cwd=tmp_path).splitlines()
    assert found[-1] == "done"
    assert "class 7 is called 7" in found
    assert "this is no ONNX file" in found
    assert "no such file" in found
    assert "The model does not run on a GPU." in found
