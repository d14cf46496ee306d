"""``capsedge config``: the compiler and linker flags for libcapsedge."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from capsedge.cli import _common, _options


def command(
    cflags: Annotated[bool, typer.Option("--cflags", help="Flags for the compiler.")] = False,
    libs: Annotated[bool, typer.Option("--libs", help="Flags for the linker.")] = False,
    cmakedir: Annotated[
        bool, typer.Option("--cmakedir", help="Folder for CMake: -Dcapsedge_DIR=...")
    ] = False,
    examples: Annotated[
        bool, typer.Option("--examples", help="Folder of the example programs.")
    ] = False,
    as_json: _options.Json = False,
) -> None:
    """Print where the C and C++ library is, for compilers and CMake.

    Flags are printed on one line, quoted for a shell: cc app.c $(capsedge config --cflags --libs).
    """
    from capsedge.runtime.machine.libcapsedge import find_embedding

    found = find_embedding()
    if as_json:
        _common.print_json(
            {
                "include": str(found.include),
                "library": str(found.library),
                "cmakedir": str(found.cmake),
                "pkgconfigdir": str(found.pkgconfig),
                "examples": str(found.examples),
                "cflags": found.cflags,
                "libs": found.libs,
            }
        )
        return
    if not (cflags or libs or cmakedir or examples):
        from capsedge.cli._tables import print_table

        rows = [
            ["headers", str(found.include)],
            ["library", str(found.library)],
            ["CMake", str(found.cmake)],
            ["pkg-config", str(found.pkgconfig)],
            ["examples", str(found.examples)],
        ]
        print_table("libcapsedge", ["", ""], rows)
        return
    flags = (found.cflags if cflags else []) + (found.libs if libs else [])
    if flags:
        _common.say(shlex.join(flags))
    if cmakedir:
        _common.say(found.cmake)
    if examples:
        _common.say(found.examples)
