"""The files of a folder: source, header, description, and what build systems expect of a library."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsedge.errors import ArtefactError, CapsedgeError, UsageError
from capsedge.exporters.c import naming
from capsedge.exporters.c.example import example
from capsedge.exporters.c.fit import code_bound, layer_table
from capsedge.exporters.c.folder_report import FolderReport, InputRow, LayerRow
from capsedge.exporters.c.measurement import MeasuredC
from capsedge.exporters.c.source import CLibrary, header, source
from capsedge.runtime.files import reading
from capsedge.runtime.files.documents import decode, parse
from capsedge.runtime.files.text import format_bytes, printable
from capsedge.runtime.files.writing import unchanged_files
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.spec import limits
from capsedge.spec.fields import C_KIND, COMPILED_SCHEMA, WASM_KIND
from capsedge.spec.version import VERSION

_OTHER_FILES = (
    "main.c",
    "CMakeLists.txt",
    "README.md",
    "library.properties",
    "library.json",
    "idf_component.yml",
    "zephyr/module.yml",
    "zephyr/CMakeLists.txt",
    "zephyr/Kconfig",
)


def contents(
    lib: CLibrary, metadata: ModelMetadata | None, file: Path, data: bytes
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Every file by its path, and the description that is ``NAME.json``.

    Args:
        lib: the network.
        metadata: metadata of the ONNX file.
        file: its path, of which only the name is used.
        data: its bytes.
    """
    description = {**describe(lib, metadata, file, data), "fit": dict(lib.fit)}
    others = (
        example(lib, metadata), _cmake(lib), _readme(lib, description), _arduino(lib), _platformio(lib),
        _component(lib), _zephyr_module(lib), _zephyr_cmake(lib), _zephyr_options(lib),
    )  # fmt: skip
    texts = {
        f"{lib.name}.h": header(lib),
        f"{lib.name}.c": source(lib),
        **dict(zip(_OTHER_FILES, others, strict=True)),
    }
    files = {name: text.encode("ascii") for name, text in texts.items()}
    description["files"] = checksums(files)
    files[f"{lib.name}.json"] = naming.ascii_json(description).encode("ascii")
    return files, description


def checksums(files: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of every file, by its path."""
    return {path: hashlib.sha256(files[path]).hexdigest() for path in sorted(files)}


def earlier_files(folder: Path, kind: str = C_KIND) -> list[str]:
    """The files in a folder that an earlier run wrote and nobody changed; none without its description.

    A description may have come with the folder. So a file counts only if it has a name that such a run gives,
    and the recorded checksum.
    """
    with suppress(CapsedgeError, ValueError):
        path, found = _found(folder, kind)
        name = decode(str, found.get("name"), "name")
        recorded = decode(dict[str, str], found.get("files"), "files")
        ours = {k: v for k, v in recorded.items() if k in _paths_of(name, kind)}
        return [*unchanged_files(folder, ours), path.name] if path.name == f"{name}.json" else []
    return []


def _paths_of(name: str, kind: str) -> set[str]:
    """Every file of a folder besides its description."""
    if kind == WASM_KIND:
        return {f"{name}.wasm", f"{name}.mjs", f"{name}.d.mts"}
    return {f"{name}.h", f"{name}.c", *_OTHER_FILES}


@dataclass(frozen=True)
class FolderOrigin:
    """How a folder was made, as recorded in its ``NAME.json``.

    Attributes:
        name: prefix of all symbols.
        file: name of the ONNX file.
        sha256: its checksum.
        batch: images per call.
        fit: bytes of ``flash`` and of ``ram`` that it had to fit; empty if none were asked for.
    """

    name: str
    file: str
    sha256: str
    batch: int
    fit: dict[str, int]


def origin_of(folder: Path) -> FolderOrigin:
    """How a folder was made, according to its ``NAME.json``.

    Raises:
        UsageError: it is not a folder of `write_c`.
        ArtefactError: the description is damaged.
    """
    found = _description(folder)
    with _readable(folder):
        source = decode(dict[str, Any], found.get("source"), "source")
        batch = decode(list[InputRow], found.get("inputs"), "inputs")[0].shape[0]
        if not 0 < batch <= limits.C_BATCH:
            raise ValueError(f"the batch is {batch}, not 1 to {limits.C_BATCH:,}")
        fit = decode(dict[str, int], found.get("fit", {}), "fit")
        if not set(fit) <= {"flash", "ram"}:
            raise ValueError(f"fit has {sorted(fit)}, not flash and ram")
        return FolderOrigin(
            decode(str, found.get("name"), "name"),
            decode(str, source.get("file"), "file"),
            decode(str, source.get("sha256"), "sha256"),
            batch,
            fit,
        )


# What a description says of memory, as bytes.
_MEMORY = (
    "arena_bytes", "constant_bytes", "decoder_bytes", "code_bound", "input_bytes", "output_bytes",
)  # fmt: skip


def read_report(folder: Path) -> FolderReport:
    """Read the ``NAME.json`` of a folder.

    Raises:
        UsageError: it is not a folder of `write_c`.
        ArtefactError: the description is damaged.
    """
    found = _description(folder)
    with _readable(folder):
        inputs = decode(list[InputRow], found.get("inputs"), "inputs")
        decode(dict[str, Any], found.get("source"), "source")
        memory = decode(dict[str, int], found.get("memory"), "memory")
        for name in _MEMORY:
            decode(int, memory.get(name), name)
        layers = decode(list[LayerRow], found.get("layers"), "layers")
        measured = decode(list[MeasuredC], found.get("measured", []), "measured")
        if any(len(m.instructions) not in (0, len(layers)) for m in measured):
            raise ValueError("measured has other layers")
        return FolderReport(found, memory, inputs, layers, measured)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Report failures to read a description as errors of the package."""
    try:
        yield
    except (ValueError, IndexError) as error:
        raise ArtefactError(
            f"The description in {folder} is damaged.",
            f"{error}.",
            "Write the folder again with `capsedge build --target c`.",
        ) from error


def _description(folder: Path, kind: str = C_KIND) -> dict[str, Any]:
    """The description of a kind in a folder.

    Raises:
        UsageError: there is none.
    """
    return _found(folder, kind)[1]


def _found(folder: Path, kind: str) -> tuple[Path, dict[str, Any]]:
    """The description of a kind in a folder, and its file.

    Raises:
        UsageError: there is none.
    """
    files = sorted(folder.glob("*.json")) if reading.path_kind(folder) == reading.FOLDER else []
    kinds = []
    for path in files:
        with suppress(CapsedgeError, ValueError, OSError):
            with reading.open_regular_file(path) as stream:
                document = parse(stream.read(limits.JSON_BYTES + 1).decode(errors="replace"))
            found = decode(dict[str, Any], document)
            if found.get("kind") == kind:
                return path, found
            kinds.append(found.get("kind"))
    if WASM_KIND in kinds:
        raise UsageError(
            f"{folder} is not a folder of C.",
            "It holds WebAssembly, not the C source of the network, which gives the same results.",
            "Write the C source: capsedge build --target c MODEL.onnx -o FOLDER",
        )
    raise UsageError(
        f"{folder} is not a folder of C.",
        "It lacks the description that `capsedge build --target c` writes.",
        "Write one: capsedge build --target c MODEL.onnx -o FOLDER",
    )


def describe(
    lib: CLibrary, metadata: ModelMetadata | None, file: Path, data: bytes
) -> dict[str, Any]:
    """The description: what verify, the page and the reports need."""
    table = layer_table(lib)
    return {
        "schema": COMPILED_SCHEMA,
        "kind": C_KIND,
        "name": lib.name,
        "version": VERSION,
        "source": {
            "file": printable(file.name),
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
        },
        "task": metadata.task if metadata is not None else "",
        "precision": metadata.precision if metadata is not None else "",
        "labels": list(lib.labels),
        "inputs": [
            asdict(InputRow(i.name, i.parameter, i.dtype, list(i.shape), i.size))
            for i in lib.inputs
        ],
        "preprocessing": asdict(lib.preprocessing) if lib.preprocessing is not None else None,
        "outputs": [
            {"name": o.name, "field": o.field, "shape": list(o.shape), "meaning": o.meaning}
            for o in lib.outputs
        ],
        "declared_outputs": asdict(metadata.outputs)
        if metadata is not None and metadata.outputs is not None
        else None,
        "reconstruction": {"capsules": list(lib.capsules), "picture": list(lib.picture)}
        if lib.decoder is not None
        else None,
        "memory": {
            "arena_bytes": lib.arena,
            "arena_bound": max(lib.run.plan.bound, lib.decoder.plan.bound if lib.decoder else 0),
            "constant_bytes": lib.run_bytes,
            "decoder_bytes": lib.constants.bytes - lib.run_bytes,
            "code_bound": code_bound(lib),
            "input_bytes": lib.input_bytes,
            "output_bytes": lib.output_bytes,
        },
        "products": sum(row["products"] for row in table),
        "layers": table,
    }


# --- Build systems ---


def _cmake(lib: CLibrary) -> str:
    n = lib.name
    return f"""# {lib.title}, as C
if(ESP_PLATFORM)
  idf_component_register(SRCS "{n}.c" INCLUDE_DIRS ".")
  target_compile_options(${{COMPONENT_LIB}} PRIVATE -O2 -ffp-contract=off)
  return()
endif()

cmake_minimum_required(VERSION 3.13)
project({n} C)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
add_library({n} STATIC {n}.c)
target_include_directories({n} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
set_target_properties({n} PROPERTIES C_STANDARD 99)
if(NOT MSVC)
  # Each function and constant in a section of its own, so that the linker leaves out what is not called.
  target_compile_options({n} PRIVATE -ffp-contract=off -ffunction-sections -fdata-sections)
  target_compile_options({n} PRIVATE $<$<CONFIG:Release>:-O2>) # after CMake's -O3: half the code
  if(APPLE)
    target_link_options({n} INTERFACE -Wl,-dead_strip)
  else()
    target_link_options({n} INTERFACE -Wl,--gc-sections)
  endif()
endif()
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  add_executable({n}_example main.c)
  target_link_libraries({n}_example PRIVATE {n})
endif()
"""


def _arduino(lib: CLibrary) -> str:
    values = {
        "name": lib.name,
        "version": "1.0.0",
        "author": "capsedge",
        "maintainer": "capsedge",
        "sentence": "A capsule network as plain C.",
        "paragraph": naming.property_value(f"Written from {lib.title}."),
        "category": "Data Processing",
        "url": "https://github.com/",
        "architectures": "*",
        "includes": f"{lib.name}.h",
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _platformio(lib: CLibrary) -> str:
    return naming.ascii_json(
        {
            "name": lib.name,
            "version": "1.0.0",
            "description": f"A capsule network as plain C, written from {lib.title}",
            "frameworks": "*",
            "platforms": "*",
            "headers": f"{lib.name}.h",
            "build": {
                "srcDir": ".",
                "includeDir": ".",
                "srcFilter": f"-<*> +<{lib.name}.c>",
                "flags": [
                    "-O2",
                    "-ffp-contract=off",
                    "-ffunction-sections",
                    "-fdata-sections",
                    "-Wl,--gc-sections",
                ],
            },
        }
    )


def _component(lib: CLibrary) -> str:
    return (
        f'version: "1.0.0"\ndescription: "A capsule network as plain C, written from {lib.title}"\n'
    )


def _zephyr_module(lib: CLibrary) -> str:
    return f"name: {lib.name}\nbuild:\n  cmake: zephyr\n  kconfig: zephyr/Kconfig\n"


def _zephyr_cmake(lib: CLibrary) -> str:
    return f"""if(CONFIG_CAPSEDGE_{lib.upper})
  zephyr_library_named({lib.name})
  zephyr_library_sources(${{CMAKE_CURRENT_LIST_DIR}}/../{lib.name}.c)
  zephyr_library_compile_options(-O2 -ffp-contract=off -ffunction-sections -fdata-sections)
  zephyr_include_directories(${{CMAKE_CURRENT_LIST_DIR}}/..)
endif()
"""


def _zephyr_options(lib: CLibrary) -> str:
    return f'config CAPSEDGE_{lib.upper}\n\tbool "The capsule network {lib.name}"\n\tdefault y\n'


# --- The README ---


def _readme(lib: CLibrary, description: Mapping[str, Any]) -> str:
    memory = description["memory"]
    n = lib.name
    rows = [
        f"| {naming.in_comment(row['node'])} | {row['operator']} | {row['products']:,} | "
        f"{row['constant_bytes']:,} | {row['scratch_bytes']:,} | {row['live_bytes']:,} |"
        for row in description["layers"]
    ]
    words = {"float32": "floats"}
    given = [
        f"| {i.parameter}, {i.size:,} {words.get(i.dtype, i.dtype)} of the caller's (RAM) | {i.bytes:,} |"
        for i in lib.inputs
    ]
    decoder = ""
    if lib.decoder is not None:
        decoder = f"""
`{n}_reconstruct` draws what a class capsule stands for, from the poses of `{n}_run`. It adds
{memory["decoder_bytes"]:,} bytes of constants. `-ffunction-sections -fdata-sections` and the linker's
`--gc-sections`, which the build files set, leave them out where it is not called.
"""
    return f"""# {n}

The network of `{lib.title}` as C99, written by `capsedge build --target c`. `{n}.c` and `{n}.h` are all
that a project needs: no library, no memory allocation, no files. `main.c` is an example.

    cc -O2 -ffp-contract=off -ffunction-sections -fdata-sections -Wl,--gc-sections -o example main.c {n}.c

| | bytes |
|---|---|
| constants (flash) | {memory["constant_bytes"]:,} |
| code (flash) | at most {format_bytes(memory["code_bound"])}, with `-O2` |
| arena (RAM) | {memory["arena_bytes"]:,} |
{chr(10).join(given)}
| outputs of the caller's, if all are wanted (RAM) | {memory["output_bytes"]:,} |
{decoder}
If the compiler does not fuse products and sums (`-ffp-contract=off`), results do not depend on the machine,
nor on whether it has vectors; `-DCAPS_PORTABLE` leaves vectors and special instructions out. The exponential
and the logarithm are part of the source, with errors below 2 units in the last place.

The folder is a library for CMake, Arduino, PlatformIO, ESP-IDF and Zephyr.

## Layers

{description["products"]:,} multiply-adds. "live" is what a layer occupies of the arena.

| node | operator | multiply-adds | constants | scratch | live |
|---|---|---|---|---|---|
{chr(10).join(rows)}
"""
