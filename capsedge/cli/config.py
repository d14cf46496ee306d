"""``capsedge config``: what a build of a C or C++ program needs to know, in the manner of pkg-config."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsedge.cli import _common, _options
from capsedge.cli._groups import grouped

if TYPE_CHECKING:
    from capsedge.runtime.machine.libcapsedge import Embedding


@dataclass(frozen=True)
class Wanted:
    """What is printed; everything, as a table, if nothing is chosen."""

    cflags: Annotated[bool, typer.Option("--cflags", help="Flags for the compiler.")] = False
    libs: Annotated[
        bool, typer.Option("--libs", help="Flags for the linker, --rpath included.")
    ] = False
    rpath: Annotated[
        bool,
        typer.Option("--rpath", help="The flag by which programs find the library where it is."),
    ] = False
    includedir: Annotated[
        bool, typer.Option("--includedir", help="Folder of capsedge.h and capsedge.hpp.")
    ] = False
    libdir: Annotated[bool, typer.Option("--libdir", help="Folder of libcapsedge.so.")] = False
    cmakedir: Annotated[
        bool, typer.Option("--cmakedir", help="Folder for CMake: -Dcapsedge_DIR=...")
    ] = False
    pkgconfigdir: Annotated[
        bool, typer.Option("--pkgconfigdir", help="Folder for pkg-config: PKG_CONFIG_PATH=...")
    ] = False
    examples: Annotated[
        bool, typer.Option("--examples", help="Folder of the example programs.")
    ] = False
    models: Annotated[
        bool, typer.Option("--models", help="Folder of the ONNX files that come with capsedge.")
    ] = False
    samples: Annotated[
        bool, typer.Option("--samples", help="Folder of the sample images that come with capsedge.")
    ] = False
    version: Annotated[
        bool, typer.Option("--version", help="Version of the headers and the library.")
    ] = False


FLAGS = ("cflags", "libs", "rpath")  # printed on one line, quoted for a shell


@grouped
def command(wanted: Wanted, as_json: _options.Json = False) -> None:
    """Print what a build of a C or C++ program needs: flags, folders, models.

    Flags are printed on one line, quoted for a shell: cc app.c $(capsedge config --cflags --libs).
    """
    chosen = [name for name, on in vars(wanted).items() if on]
    places = _places()
    if chosen and not set(chosen) - set(places) and not as_json:
        for name in chosen:
            _common.say(places[name])
        return
    from capsedge.runtime.machine.libcapsedge import find_embedding

    facts = _facts(find_embedding()) | places
    if as_json:
        _common.print_json(facts)
    elif chosen:
        _say(facts, chosen)
    else:
        from capsedge.cli._tables import print_table

        rows = [(name, value) for name, value in facts.items() if isinstance(value, str)]
        print_table("libcapsedge", ("", ""), rows)


def _places() -> dict[str, str]:
    """What is there without a compiled library."""
    from capsedge.zoo import default_model

    models = default_model().parent
    return {"models": str(models), "samples": str(models.parent / "samples")}


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
        _common.say(shlex.join(dict.fromkeys(flags)))
    for name in chosen:
        if name not in FLAGS:
            _common.say(facts[name])
