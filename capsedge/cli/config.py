"""``capsedge config``: prints what a C or C++ build needs to know, like pkg-config."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli import _options, _output
from capsedge.cli._options import Argument
from capsedge.errors import EnvironmentProblem

if TYPE_CHECKING:
    from capsedge.runtime.backends.native_library import Embedding


WORDS = (
    *("cflags", "libs", "rpath", "includedir", "libdir", "cmakedir", "pkgconfigdir", "examples"),
    *("models", "samples", "kernels", "version"),
)
FLAGS = ("cflags", "libs", "rpath")  # printed on one line, quoted for a shell
Words = Annotated[
    list[str] | None,
    Argument(
        metavar="WORD...",
        help="cflags: flags for the compiler; libs: for the linker, with rpath, by which programs find the "
        "library at run time; the folders includedir (headers), libdir (the library), cmakedir (for "
        "-Dcapsedge_DIR=), pkgconfigdir (for PKG_CONFIG_PATH), examples (programs), models (ONNX files) and "
        "samples (images); kernels: the file of the CUDA kernels, if it is installed; version: of headers "
        "and library. Without a word, all as a table.",
        choices=WORDS,
    ),
]


def command(words: Words = None, as_json: _options.Json = False) -> None:
    """Print flags and folders for building C and C++ programs.

    Flags are printed on one line, quoted for a shell: cc app.c $(capsedge config cflags libs).
    """
    chosen = [word for word in WORDS if word in (words or ())]
    places = _paths() | _kernels("kernels" in chosen)
    if chosen and not set(chosen) - set(places) and not as_json:
        for name in chosen:
            _output.say(places[name])
        return
    from capsedge.runtime.backends.native_library import find_embedding

    facts = _facts(find_embedding()) | places
    if as_json:
        _output.print_json(facts)
    elif chosen:
        _say(facts, chosen)
    else:
        from capsedge.cli._output import print_table

        rows = [(name, value) for name, value in facts.items() if isinstance(value, str)]
        print_table("libcapsedge", ("", ""), rows)


def _paths() -> dict[str, str]:
    """The facts that are available without a compiled library."""
    from capsedge.runtime.zoo import default_model, samples_folder

    return {"models": str(default_model().parent), "samples": str(samples_folder())}


def _kernels(asked: bool) -> dict[str, str]:
    """The file of the CUDA kernels; nothing where it is missing.

    Raises:
        EnvironmentProblem: it is asked for, and missing.
    """
    from capsedge.runtime.backends.native_library import HOW_TO_GET_KERNELS, find_cuda_kernels

    try:
        kernels = find_cuda_kernels()
    except EnvironmentProblem:
        if asked:
            raise
        return {}
    if kernels is None and asked:
        raise EnvironmentProblem(
            "The file of the CUDA kernels is not installed.",
            "It is kernels.fatbin of the package capsedge-cuda.",
            HOW_TO_GET_KERNELS,
        )
    return {} if kernels is None else {"kernels": str(kernels)}


def _facts(found: Embedding) -> dict[str, Any]:
    return {
        "version": found.version,
        "library": str(found.library),
        "includedir": str(found.include),
        "libdir": str(found.library.parent),
        "cmakedir": str(found.cmake),
        "pkgconfigdir": str(found.pkgconfig),
        "examples": str(found.examples),
        "cflags": found.cflags,
        "libs": found.libs,
        "rpath": found.rpath,
    }


def _say(facts: dict[str, Any], chosen: list[str]) -> None:
    flags = [flag for name in FLAGS if name in chosen for flag in facts[name]]
    if flags:
        # Windows' own programs do not read single quotes.
        quoted = subprocess.list2cmdline if sys.platform == "win32" else shlex.join
        _output.say(quoted(list(dict.fromkeys(flags))))
    for name in chosen:
        if name not in FLAGS:
            _output.say(facts[name])
