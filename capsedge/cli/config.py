"""``capsedge config``: prints what a C or C++ build needs to know, like pkg-config."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli import _options, _output
from capsedge.cli._options import grouped
from capsedge.cli._parameters import Option

if TYPE_CHECKING:
    from capsedge.runtime.backends.native_library import Embedding


def _flag(name: str, text: str) -> Any:
    return Option(f"--{name}", help=text)


@dataclass(frozen=True)
class ConfigOptions:
    """The chosen facts; everything, as a table, if nothing is chosen."""

    cflags: Annotated[bool, _flag("cflags", "Flags for the compiler.")] = False
    libs: Annotated[bool, _flag("libs", "Flags for the linker, --rpath included.")] = False
    rpath: Annotated[
        bool, _flag("rpath", "Linker flag by which programs find the library at run time.")
    ] = False
    includedir: Annotated[bool, _flag("includedir", "Folder of the headers.")] = False
    libdir: Annotated[bool, _flag("libdir", "Folder of libcapsedge.so.")] = False
    cmakedir: Annotated[bool, _flag("cmakedir", "Folder for -Dcapsedge_DIR=.")] = False
    pkgconfigdir: Annotated[bool, _flag("pkgconfigdir", "Folder for PKG_CONFIG_PATH.")] = False
    examples: Annotated[bool, _flag("examples", "Folder of the example programs.")] = False
    models: Annotated[bool, _flag("models", "Folder of the ONNX files of the package.")] = False
    samples: Annotated[bool, _flag("samples", "Folder of the package's sample images.")] = False
    version: Annotated[bool, _flag("version", "Version of headers and library.")] = False


FLAGS = ("cflags", "libs", "rpath")  # printed on one line, quoted for a shell


@grouped
def command(options: ConfigOptions, as_json: _options.Json = False) -> None:
    """Print flags and folders for building C and C++ programs.

    Flags are printed on one line, quoted for a shell: cc app.c $(capsedge config --cflags --libs).
    """
    chosen = [name for name, on in vars(options).items() if on]
    places = _paths()
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
        _output.say(shlex.join(dict.fromkeys(flags)))
    for name in chosen:
        if name not in FLAGS:
            _output.say(facts[name])
