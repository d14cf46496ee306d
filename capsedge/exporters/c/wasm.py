"""Write a network as WebAssembly with a JavaScript module (``capsedge build --target wasm``)."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import onnx

from capsedge.errors import EnvironmentProblem, UnsupportedModelError
from capsedge.exporters.c import folder, naming, toolchain
from capsedge.exporters.c.network_inputs import CInput, input_values, is_plain, listed
from capsedge.exporters.c.program import C_TYPES, Constants
from capsedge.exporters.c.source import CLibrary, header, source
from capsedge.exporters.c.write_c import read_library
from capsedge.runtime.files.protobuf import varint_of
from capsedge.runtime.files.text import format_bytes, printable
from capsedge.runtime.files.writing import (
    check_replaceable,
    temporary_folder,
    write_bytes,
    write_folder,
)
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.onnx_file import summary
from capsedge.runtime.result_summary import Report
from capsedge.spec.fields import COMPILED_SCHEMA, PREFIX, WASM_KIND, WASM_SECTION
from capsedge.spec.onnx_wire import DOMAIN
from capsedge.spec.vocabularies import LENGTHS, LOGITS, VOCABULARIES

GLUE = "caps_host.c"  # reserved: no network may use this name or prefix
EXTRA = "pip install 'capsedge[wasm]'"
# SIMD, and the features of every engine with SIMD. No fused products: results are those of the C source.
FLAGS = (
    "-target", "wasm32-freestanding", "-std=c99", "-O3", "-ffp-contract=off", "-fno-math-errno",
    "-msimd128", "-mbulk-memory", "-mnontrapping-fptoint", "-msign-ext", "-g0", "-s",
    "-nostdlib", "-Wl,--no-entry", "-Wl,-z,stack-size=65536",
)  # fmt: skip
# What the source includes; there is no C library. A freestanding compiler inlines copies only by these names.
_HEADERS = {
    "math.h": '#define INFINITY __builtin_inff()\n#define NAN __builtin_nanf("")\n',
    "string.h": (
        "#include <stddef.h>\n"
        "#define memcpy(to, from, size) __builtin_memcpy(to, from, size)\n"
        "#define memset(to, value, size) __builtin_memset(to, value, size)\n"
    ),
}


@dataclass(frozen=True, repr=False)
class WasmReport(Report):
    """Report on the written folder; ``to_dict`` is the document that ``--json`` prints.

    Attributes:
        path: the folder.
        description: the contents of ``NAME.json`` in it.
        sizes: bytes of its files.
    """

    path: Path
    description: dict[str, Any]
    sizes: Mapping[str, int]

    @property
    def wasm_bytes(self) -> int:
        """Size of ``NAME.wasm`` in bytes."""
        return self.sizes[f"{self.description['name']}.wasm"]

    @property
    def module_bytes(self) -> int:
        """Size of ``NAME.mjs`` in bytes."""
        return self.sizes[f"{self.description['name']}.mjs"]

    def _lines(self) -> list[str]:
        return [f"{self.path.name}: {format_bytes(self.wasm_bytes)} of WebAssembly"]

    def rows(self) -> list[tuple[str, str]]:
        """The folder and the sizes of its files."""
        name = self.description["name"]
        return [
            ("folder", f"{self.path}, with {name}.wasm and {name}.mjs"),
            ("network", format_bytes(self.wasm_bytes)),
            ("module", f"{format_bytes(self.module_bytes)} of JavaScript, with types"),
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "schema": 1,
            "folder": str(self.path),
            "bytes": dict(self.sizes),
            **self.description,
        }


@dataclass(frozen=True)
class CompiledNetwork:
    """A network in WebAssembly.

    Attributes:
        data: the ``.wasm`` file, with the description in it.
        library: what it was compiled from.
        description: the description embedded in the module, without layers.
    """

    data: bytes
    library: CLibrary
    description: dict[str, Any]


def is_available() -> bool:
    """Whether the extra ``wasm`` is installed."""
    return importlib.util.find_spec("ziglang") is not None


def write_wasm(
    source: Path | str, target: Path | str, *, name: str | None = None, batch: int | None = None
) -> WasmReport:
    """Write a network as a folder with a ``.wasm`` file and a JavaScript module.

    Args:
        source: ONNX file of ``capsedge export`` or ``capsedge quantize``.
        target: the folder; replaced if an earlier run wrote it.
        name: name of the files; made from the file's name by default.
        batch: images of a call; the file's, or 1.

    Raises:
        UsageError: an option is wrong, or the folder holds other files.
        UnsupportedModelError: an operator has no translation.
        ArtefactError: the file is damaged.
        EnvironmentProblem: the extra ``wasm`` is missing, or its compiler fails.
    """
    source, target = Path(source), Path(target)
    prefix = naming.prefix_of(source.stem) if name is None else naming.check_prefix(name)
    check_replaceable(target, folder.earlier_files(target, WASM_KIND))
    data, _ = summary.read_harmless(source)
    network = compile_network(data, source, prefix, batch)
    files, description = _files(network)
    write_folder(target, files, folder.earlier_files(target, WASM_KIND))
    return WasmReport(target, description, {path: len(text) for path, text in files.items()})


def compile_network(
    data: bytes,
    file: Path,
    prefix: str,
    batch: int | None = None,
) -> CompiledNetwork:
    """Compile a network; nothing is written.

    Args:
        data: an ONNX file that ``read_harmless`` accepted.
        file: its path, for errors and the description.
        prefix: prefix of its symbols, checked.
        batch: images of a call; the file's, or 1.

    Raises:
        UsageError, UnsupportedModelError, ArtefactError, EnvironmentProblem: as `write_wasm`.
    """
    zig = _compiler()
    library, metadata = read_library(data, file, prefix, batch)
    (given,) = _one_input(library)
    known = folder.describe(library, metadata, file, data)
    for name in ("inputs", "layers", "declared_outputs", "products"):
        del known[name]
    known["input"] = {"shape": list(given.shape), "size": given.size}
    known |= {"kind": WASM_KIND, "scores": _scores(library, metadata), "file": _file(data)}
    code = _compile(zig, library)
    text = json.dumps(known, separators=(",", ":")).encode("ascii")
    return CompiledNetwork(code + custom_section(WASM_SECTION, text), library, known)


def _one_input(library: CLibrary) -> tuple[CInput, ...]:
    """The only input, which is of floats.

    Raises:
        UnsupportedModelError: there are others.
    """
    if not is_plain(library.inputs):
        raise UnsupportedModelError(
            "The file cannot be compiled to WebAssembly.",
            f"Its module takes one float32 input, but the file has {listed(library.inputs)}.",
            "Write it as C with --target c, or run it with libcapsedge (docs/how-to/recommender.md).",
        )
    return library.inputs


def _scores(library: CLibrary, metadata: ModelMetadata | None) -> dict[str, str] | None:
    """The output that decides the class, and what its values are; None for a regression."""
    fields = {output.name: output.field for output in library.outputs}
    declared = metadata.outputs if metadata is not None else None
    if declared is not None:
        found = fields.get(declared.scores)
        return None if found is None else {"field": found, "kind": declared.kind}
    for name, kind in ((LENGTHS, "length"), (LOGITS, "logits")):
        if name in fields:
            return {"field": fields[name], "kind": kind}
    return None


def _file(data: bytes) -> dict[str, Any]:
    """The information that the npm package reads from an ONNX file, in the form of `compiled.ts`."""
    model = onnx.load_model_from_string(data)
    nodes = [*model.graph.node, *(node for each in model.functions for node in each.node)]
    ours = {node.op_type for node in nodes if node.domain == DOMAIN}
    return {
        "producer": model.producer_name,
        "producer_version": model.producer_version,
        "nodes": len(nodes),
        "operators": sorted(ours),
        "input": input_values(model)[0].name,
        "properties": {
            each.key: each.value for each in model.metadata_props if each.key.startswith(PREFIX)
        },
    }


# --- The compiler ---


def _compiler() -> Path:
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        raise EnvironmentProblem(
            "The compiler for WebAssembly is not installed.",
            "--target wasm compiles the network's C source with the package ziglang.",
            EXTRA,
        )
    return Path(found.origin).parent / ("zig.exe" if os.name == "nt" else "zig")


def _compile(zig: Path, library: CLibrary) -> bytes:
    """The bytes of the WebAssembly module, without custom sections of ours."""
    with temporary_folder() as place:
        for path, text in sources(library).items():
            write_bytes(place / path, text.encode("ascii"))
        words = [str(zig), "cc", *FLAGS, "-I.", "-o", "caps_host.wasm", GLUE]
        caches = {f"ZIG_{kind}_CACHE_DIR": str(place / "cache") for kind in ("LOCAL", "GLOBAL")}
        environment = {**os.environ, **caches}  # leave nothing of the network behind
        try:
            done = toolchain.run(words, place, environment=environment)
        except OSError as error:
            raise _failed(f"{zig}: {error.strerror or error}") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            raise _failed(lines[0] if lines else f"It ended with {done.returncode}.")
        return (place / "caps_host.wasm").read_bytes()


def sources(library: CLibrary) -> dict[str, str]:
    """The files to compile, by name."""
    return {
        f"{library.name}.h": header(library),
        f"{library.name}.c": source(library, _definitions(library.constants)),
        GLUE: glue(library),
        **_HEADERS,
    }


_ESCAPED = [f"\\{byte:03o}" for byte in range(256)]
_LINE = 1024  # bytes of a string


def _definitions(constants: Constants) -> Iterator[str]:
    """The constants as strings of little-endian bytes, which compile much faster than lists of numbers."""
    for name, array in constants.arrays.items():
        kind, data = (
            C_TYPES[array.dtype.name],
            array.astype(array.dtype.newbyteorder("<")).tobytes(),
        )
        lines = (data[at : at + _LINE] for at in range(0, len(data), _LINE))
        text = "\n".join('"' + "".join(map(_ESCAPED.__getitem__, line)) + '"' for line in lines)
        yield f"static const char {name}_bytes[{len(data)}] CAPS_ALIGNED =\n{text};"
        yield f"static const {kind} *const {name} = (const {kind} *)(const void *){name}_bytes;"


def _failed(why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        "The network cannot be compiled to WebAssembly.",
        printable(why),
        "Reinstall the compiler: pip install --force-reinstall ziglang",
    )


def glue(library: CLibrary) -> str:
    """C source around the network: its memory, and the functions that a host calls."""
    return "\n".join(_glue(library)) + "\n"


def _glue(lib: CLibrary) -> Iterator[str]:
    n, u, p = lib.name, lib.upper, lib.preprocessing
    buffers = {"input": ("float", f"{u}_INPUT_SIZE")}
    if p is not None:
        buffers["pixels"] = ("uint8_t", str(lib.batch * p.channels * p.height * p.width))
    if lib.decoder is not None:
        buffers |= {
            "poses": ("float", str(lib.capsules[0] * lib.capsules[1])),
            "picture": ("float", f"{u}_PICTURE_SIZE"),
        }
    yield f'#include "{n}.c"'
    yield "#define CAPS_HOST(name) __attribute__((export_name(name))) "
    yield f"static uint8_t caps_host_arena[{u}_ARENA_BYTES] __attribute__((aligned(16)));"
    for name, (kind, size) in buffers.items():
        yield f"static {kind} caps_host_{name}[{size}] __attribute__((aligned(16)));"
        yield f'CAPS_HOST("{name}") {kind} *caps_host_{name}_address(void) {{ return caps_host_{name}; }}'
    for k, output in enumerate(lib.outputs):
        yield f"static float caps_host_output_{k}[{output.size}] __attribute__((aligned(16)));"
    yield 'CAPS_HOST("output") float *caps_host_output(uint32_t k) {'
    yield "  switch (k) {"
    yield from (f"    case {k}: return caps_host_output_{k};" for k in range(len(lib.outputs)))
    yield "    default: return 0;\n  }\n}"
    results = ", ".join(f"caps_host_output_{k}" for k in range(len(lib.outputs)))
    yield 'CAPS_HOST("run") void caps_host_run(void) {'
    yield f"  {n}_outputs outputs = {{{results}}};"
    yield f"  {n}_run(caps_host_arena, caps_host_input, &outputs);\n}}"
    if p is not None:
        image = p.channels * p.height * p.width
        yield 'CAPS_HOST("prepare") void caps_host_prepare(void) {'
        yield f"  for (int k = 0; k < {lib.batch}; k++)"
        yield f"    {n}_prepare(caps_host_pixels + k * {image}, caps_host_input + k * {image});\n}}"
    if lib.decoder is not None:
        yield 'CAPS_HOST("reconstruct") void caps_host_reconstruct(int32_t index) {'
        yield f"  if (index >= 0 && index < {lib.capsules[0]})"
        yield f"    {n}_reconstruct(caps_host_arena, caps_host_poses, index, caps_host_picture);\n}}"


def custom_section(name: str, data: bytes) -> bytes:
    """A section of a WebAssembly file that engines skip and hosts can read."""
    content = varint_of(len(name)) + name.encode("ascii") + data
    return b"\x00" + varint_of(len(content)) + content


# --- The folder ---


def _files(network: CompiledNetwork) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Every file of the folder by its path, and the contents of ``NAME.json``."""
    name = network.library.name
    results = "\n".join(
        f"  /** {list(o.shape)}: {naming.in_comment(o.meaning)} */\n  readonly {o.field}: Float32Array;"
        for o in network.library.outputs
    )
    files = {
        f"{name}.wasm": network.data,
        f"{name}.mjs": _template("module.mjs", name, ""),
        f"{name}.d.mts": _template("module.d.mts", name, results),
    }
    description = {**network.description, "files": folder.checksums(files)}
    files[f"{name}.json"] = naming.ascii_json(description).encode("ascii")
    return files, description


def _template(file: str, name: str, outputs: str) -> bytes:
    place = resources.files("capsedge.exporters.c") / "javascript" / file
    text = place.read_text(encoding="utf-8")
    values = {
        "NAME": name,
        "OUTPUTS": outputs,
        "KIND": WASM_KIND,
        "SCHEMA": str(COMPILED_SCHEMA),
        "SECTION": WASM_SECTION,
        **{kind: " | ".join(map(json.dumps, words)) for kind, words in VOCABULARIES.items()},
    }
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text.encode("ascii")
