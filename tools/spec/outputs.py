"""List what is made from capsedge/spec: whole files, and parts of files otherwise written by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from capsedge.spec.version import VERSION
from tools.release_checks import PLACES
from tools.spec import cpp, cpp_operators, operator_pages, pages, typescript, typescript_metadata

ROOT = Path(__file__).resolve().parents[2]
_NATIVE = "capsedge/runtime/native"

# Whole files.
FILES: Mapping[str, Callable[[], str]] = {
    f"{_NATIVE}/generated/limits.h": cpp.limits,
    f"{_NATIVE}/generated/makers.h": cpp_operators.makers,
    f"{_NATIVE}/generated/metadata.h": cpp.metadata,
    f"{_NATIVE}/generated/onnx_wire.h": cpp.onnx_wire,
    f"{_NATIVE}/generated/operator_sizes.h": cpp_operators.sizes,
    f"{_NATIVE}/generated/operators.h": cpp_operators.table,
    f"{_NATIVE}/generated/signatures.h": cpp.signatures,
    "capsedge/runtime/web/src/generated/spec.ts": typescript.module,
    "capsedge/runtime/web/src/generated/metadata.ts": typescript_metadata.module,
    "capsedge/runtime/web/page/src/generated/spec.ts": typescript_metadata.page,
}
# Parts between the lines `spec: NAME` and `/spec`, each a comment of the file's language.
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    f"{_NATIVE}/kernels/cuda/capsedge_cuda.h": {"cuda limits": cpp.cuda_limits},
    f"{_NATIVE}/libcapsedge/include/capsedge.h": {
        "exit codes": cpp.exit_codes,
        "limits and types": cpp.c_tensors,
    },
    "capsedge/exporters/c/javascript/module.mjs": {
        "arguments": typescript.module_arguments,
    },
    "docs/how-to/browser.md": {"arguments": pages.web_arguments},
    "docs/reference/cli.md": {"exit codes": pages.exit_codes},
    "docs/reference/metadata.md": {
        "properties": pages.properties,
        **{name: partial(pages.members, name) for name in pages.OBJECTS},
    },
    "docs/reference/operators.md": {
        "operators": operator_pages.index,
        "quantized operators": pages.quantized_operators,
        "backends": operator_pages.backends,
    },
    **{operator_pages.page_of(name): operator_pages.parts(name) for name in operator_pages.PAGES},
    "docs/reference/limits.md": {"limits": pages.limits, "differences": pages.differences},
}


def outputs() -> dict[Path, str]:
    """The up-to-date text of every file that contains the specification.

    Raises:
        ValueError: a file lacks the lines that enclose a part, or the version; an operator lacks words,
            a tolerance or cases.
    """
    found = {name: make() for name, make in FILES.items()}
    new = {
        operator_pages.page_of(name): operator_pages.skeleton(name) for name in operator_pages.PAGES
    }
    for name in {**PARTS, **PLACES}:
        known = (ROOT / name).exists() or name not in new
        text = (ROOT / name).read_text(encoding="utf-8") if known else new[name]
        for part, make in PARTS.get(name, {}).items():
            text = _with_part(text, part, make(), name)
        found[name] = _with_version(text, PLACES[name], name) if name in PLACES else text
    return {ROOT / name: text for name, text in found.items()}


def _with_version(text: str, pattern: str, name: str) -> str:
    made, count = re.subn(
        pattern, lambda found: found[0].replace(found[1], VERSION), text, flags=re.MULTILINE
    )
    if not count:
        raise ValueError(f"{name} does not state the version")
    return made


def _with_part(text: str, part: str, content: str, name: str) -> str:
    block = re.compile(
        rf"(^[^\n]*\bspec: {part}\b[^\n]*\n).*?(?=^[^\n]*/spec\b)", re.DOTALL | re.MULTILINE
    )
    made, count = block.subn(lambda found: found[1] + content, text)
    if count != 1:
        raise ValueError(f"{name} has {count} parts `spec: {part}`")
    return made
