"""Write the header and the source of a network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

import numpy as np

from capsedge.exporters.c.naming import c_string, in_comment
from capsedge.exporters.c.network_inputs import CInput
from capsedge.exporters.c.plan import Plan
from capsedge.exporters.c.program import Constants, Program, Shape, c_literal
from capsedge.runtime.metadata.metadata import Preprocessing

_VARIANTS = {"f32": "float", "q8": "int8_t"}


@dataclass(frozen=True)
class COutput:
    """An output of the network.

    Attributes:
        name: name in the ONNX file.
        field: field of the C structure.
        shape: shape, including the batch.
        meaning: its meaning in a few words.
    """

    name: str
    field: str
    shape: Shape
    meaning: str

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class Function:
    """A program with its memory; of ``run``, or of ``reconstruct``."""

    program: Program
    plan: Plan


@dataclass(frozen=True)
class CLibrary:
    """Everything needed to write the source.

    Attributes:
        name: prefix of its symbols.
        title: what it is, for comments.
        inputs: inputs of ``run``.
        outputs: outputs of ``run``.
        labels: labels of the classes.
        preprocessing: None if the file does not state how pixels become its only input.
        run: the network.
        decoder: poses to one picture; None for none.
        capsules: classes and elements of a pose, for the decoder.
        picture: shape of a picture.
        constants: constants that both use.
        heading: lines at the start of both files.
        fit: the most bytes of flash and of RAM that decided its form; empty if none were asked for.
    """

    name: str
    title: str
    inputs: tuple[CInput, ...]
    outputs: tuple[COutput, ...]
    labels: tuple[str, ...]
    preprocessing: Preprocessing | None
    run: Function
    decoder: Function | None
    capsules: tuple[int, int]
    picture: Shape
    constants: Constants
    heading: tuple[str, ...]
    fit: Mapping[str, int] = field(default_factory=dict)

    @property
    def upper(self) -> str:
        return self.name.upper()

    @property
    def batch(self) -> int:
        return self.inputs[0].shape[0]

    @property
    def input_bytes(self) -> int:
        """Bytes of all inputs, which are the caller's."""
        return sum(each.bytes for each in self.inputs)

    @property
    def output_bytes(self) -> int:
        """Bytes of all outputs, which are the caller's."""
        return 4 * sum(output.size for output in self.outputs)

    @property
    def arena(self) -> int:
        """Size of an arena that is large enough for every function of the library, in bytes."""
        return max(self.run.plan.bytes, self.decoder.plan.bytes if self.decoder else 0, 16)

    @property
    def run_bytes(self) -> int:
        """Bytes of the constants that ``run`` reads; a linker drops the others if they are unused."""
        names = {name for step in self.run.program.steps for name in step.constants}
        return sum(self.constants.arrays[name].nbytes for name in names)

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width of the only input; None if it is not an image."""
        if self.preprocessing is not None:
            return self.preprocessing.channels, self.preprocessing.height, self.preprocessing.width
        shape = self.inputs[0].shape
        return shape[1:] if len(self.inputs) == 1 and len(shape) == 4 else None


# --- Kernels ---


def c_kernel_source(name: str) -> str:
    """The text of a kernel; ``votes_q8`` is a variant of ``votes``."""
    found = _kernel_file(name)
    if found is not None:
        return found
    stem, _, suffix = name.rpartition("_")
    text = _kernel_file(stem)
    assert text is not None
    return text.replace("SUFFIX", suffix).replace("WEIGHT", _VARIANTS[suffix])


def _kernel_file(name: str) -> str | None:
    file = resources.files("capsedge.exporters.c") / "kernels" / f"{name}.c"
    return file.read_text(encoding="utf-8") if file.is_file() else None


def kernel_sources(names: Sequence[str]) -> list[str]:
    """The kernels and those that they use, each once, used ones first."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = c_kernel_source(name)
        variants = re.search(r"^/\* variants: ([\w ]+) \*/\n", text, re.M)
        uses = re.search(r"^/\* uses: ([\w ]+) \*/\n", text, re.M)
        for used in uses[1].split() if uses else []:
            # A variant uses the same variant of what has variants.
            add(f"{used}_{name.rpartition('_')[2]}" if variants and _kernel_file(used + "_f32") is None
                and _has_variants(used) else used)  # fmt: skip
        done[name] = re.sub(r"^/\* (?:variants|uses): [\w ]+ \*/\n", "", text, flags=re.M)

    for name in sorted(names):
        add(name)
    return list(done.values())


def _has_variants(name: str) -> bool:
    text = _kernel_file(name)
    return text is not None and "/* variants: " in text


# --- The header ---


def header(lib: CLibrary) -> str:
    """``NAME.h``."""
    return "\n".join(_header(lib)) + "\n"


def _header(lib: CLibrary) -> Iterator[str]:
    n, u = lib.name, lib.upper
    yield from (f"/* {lib.heading[0]}", *(f"   {line}" for line in lib.heading[1:]))
    yield "   A call needs an arena of its own, aligned to 16 bytes; nothing else is written. Calls with"
    yield "   arenas may run at once, and networks that run after each other may share one. */"
    yield from (f"#ifndef {u}_H", f"#define {u}_H", "", "#include <stdint.h>", "")
    yield from ("#ifdef __cplusplus", 'extern "C" {', "#endif", "")
    yield f"#define {u}_ARENA_BYTES {lib.arena}"
    yield f"#define {u}_BATCH {lib.batch}"
    if lib.image is not None:
        for word, number in zip(("CHANNELS", "HEIGHT", "WIDTH"), lib.image, strict=True):
            yield f"#define {u}_INPUT_{word} {number}"
    yield from (f"#define {u}_{each.macro} {each.size}" for each in lib.inputs)
    yield f"#define {u}_CLASSES {len(lib.labels)}"
    for output in lib.outputs:
        yield f"#define {u}_{output.field.upper()}_SIZE {output.size}"
    if lib.decoder is not None:
        yield f"#define {u}_PICTURE_SIZE {int(np.prod(lib.picture))}"
    if lib.labels:
        yield from (
            "",
            "/* Names of the classes, in UTF-8. */",
            f"extern const char *const {n}_labels[{len(lib.labels)}];",
        )
    if lib.preprocessing is not None:
        yield from ("", "/* The input is (pixel * scale - mean) / std of every channel. */")
        c = lib.preprocessing.channels
        yield f"extern const float {n}_scale, {n}_mean[{c}], {n}_std[{c}];"
        channels = {1: "grey", 3: "RGB"}.get(lib.preprocessing.channels, "of all channels")
        yield from (
            "",
            f"/* Turns pixels of the network's size, {channels} and interleaved, into its input. */",
        )
        yield f"void {n}_prepare(const uint8_t *pixels, float *input);"
    yield from (
        "",
        "/* Where results go, in memory of the caller; NULL for what is not wanted. */",
        "typedef struct {",
    )
    for output in lib.outputs:
        yield f"  float *{output.field}; /* {list(output.shape)}: {in_comment(output.meaning)} */"
    yield f"}} {n}_outputs;"
    yield from ("", *_run_declaration(lib))
    if lib.decoder is not None:
        j, p = lib.capsules
        yield from (
            "",
            f"/* Draws what a class capsule stands for. Poses [{j}, {p}] of run, index 0 to {j - 1}; picture",
        )
        yield f"   {list(lib.picture)}, values 0 to 1; zeros for any other index. */"
        yield f"void {n}_reconstruct(void *arena, const float *poses, int index, float *picture);"
    yield from ("", "#ifdef __cplusplus", "}", "#endif", "", "#endif")


def _run_declaration(lib: CLibrary) -> Iterator[str]:
    n = lib.name
    if len(lib.inputs) == 1:
        (given,) = lib.inputs
        order = "" if lib.preprocessing is None else f", {lib.preprocessing.layout}"
        yield f"/* Runs the network. The input has the shape {list(given.shape)}{order}. */"
        yield f"void {n}_run(void *arena, {given.declaration}, {n}_outputs *outputs);"
        return
    yield "/* Runs the network. Behind each input are its shape and its name in the ONNX file. */"
    yield f"void {n}_run(void *arena,"
    for each in lib.inputs:
        yield f"  {each.declaration}, /* {list(each.shape)}: {in_comment(each.name)} */"
    yield f"  {n}_outputs *outputs);"


# --- The source ---


def source(lib: CLibrary, definitions: Iterable[str] | None = None) -> str:
    """``NAME.c``; ``definitions`` are those of its constants, if they are not to be lists of numbers."""
    kernels = set(lib.run.program.kernels)
    if lib.decoder is not None:
        kernels |= lib.decoder.program.kernels
    n = lib.name
    parts = [
        "/* " + "\n   ".join(lib.heading) + " */\n",
        f'#include "{n}.h"\n\n' + c_kernel_source("common"),
        "/* A profiler can define this: it stands before every layer, with its number. */\n"
        "#ifndef CAPSEDGE_STEP\n#define CAPSEDGE_STEP(layer)\n#endif\n",
        *kernel_sources(sorted(kernels)),
        "\n".join(definitions or lib.constants.definitions()) + "\n",
    ]
    if lib.labels:
        names = ",\n".join(f"  {c_string(label)}" for label in lib.labels)
        parts.append(f"const char *const {n}_labels[{len(lib.labels)}] = {{\n{names}}};\n")
    if lib.preprocessing is not None:
        parts.append(_prepare(lib, lib.preprocessing))
    given = ", ".join(each.declaration for each in lib.inputs)
    signature = f"void {n}_run(void *arena, {given}, {n}_outputs *outputs)"
    read = {b.name for step in lib.run.program.steps for b in step.reads}
    unread = [f"  (void){each.parameter};" for each in lib.inputs if each.parameter not in read]
    parts.append("\n".join(_function(signature, lib.run, "\n".join(unread))) + "\n")
    if lib.decoder is not None:
        signature = (
            f"void {n}_reconstruct(void *arena, const float *poses, int index, float *picture)"
        )
        outside = (
            f"  if (index < 0 || index >= {lib.capsules[0]}) {{ "
            f"memset(picture, 0, {int(np.prod(lib.picture))} * sizeof(float)); return; }}"
        )
        parts.append("\n".join(_function(signature, lib.decoder, outside)) + "\n")
    return "\n".join(parts)


def steps_by_layer(function: Function) -> list[tuple[str, str, list[int]]]:
    """Node, operator and the numbers of its steps, in the order of the program."""
    found: list[tuple[str, str, list[int]]] = []
    for t, step in enumerate(function.program.steps):
        if found and found[-1][:2] == (step.node, step.operator):
            found[-1][2].append(t)
        else:
            found.append((step.node, step.operator, [t]))
    return found


def _function(signature: str, function: Function, first: str) -> Iterator[str]:
    plan = function.plan
    buffers = {
        b.name: b
        for step in function.program.steps
        for b in (*step.reads, *step.writes)
        if not b.external
    }
    yield f"{signature} {{"
    yield "  uint8_t *const memory = (uint8_t *)arena;"
    for name, buffer in buffers.items():
        kind = buffer.ctype
        yield f"  {kind} *const {name} = ({kind} *)(void *)(memory + {plan.offsets[name]});"
    yield from ([first] if first else [])
    yield "  (void)memory;"
    for number, (node, operator, steps) in enumerate(steps_by_layer(function)):
        yield f"  CAPSEDGE_STEP({number}) /* {in_comment(node)}: {in_comment(operator)} */"
        for t in steps:
            code = function.program.steps[t].code
            code = code.replace("SCRATCH", f"(void *)(memory + {plan.scratch[t]})")
            yield f"  {code}"
    yield f"  CAPSEDGE_STEP({len(steps_by_layer(function))})"
    yield "}"


def _prepare(lib: CLibrary, p: Preprocessing) -> str:
    """The constants and the function from pixels to the input, with the arithmetic of `runtime.images`."""
    n, c = lib.name, p.channels

    def numbers(values: tuple[float, ...]) -> str:
        every = np.broadcast_to(np.asarray(values, np.float32), (c,))
        return ", ".join(c_literal(v) for v in every)

    size = p.height * p.width
    at = f"k * {size} + i" if p.layout == "NCHW" else f"i * {c} + k"
    channel = f"{c - 1} - k" if p.order == "BGR" else "k"
    lines = [
        f"const float {n}_scale = {c_literal(np.float32(p.scale))};",
        f"const float {n}_mean[{c}] = {{{numbers(p.mean)}}};",
        f"const float {n}_std[{c}] = {{{numbers(p.std)}}};",
        "",
    ]
    if p.per_image == "standardize":
        lines += [c_kernel_source("sqrt64")]
    lines += [f"void {n}_prepare(const uint8_t *pixels, float *input) {{", "  int i, k;"]
    value = f"(float)pixels[i * {c} + {channel}]"
    if p.per_image == "min-max":
        lines += [
            "  uint8_t low = 255, high = 0;",
            "  float span;",
            f"  for (i = 0; i < {size * c}; i++) {{",
            "    if (pixels[i] < low) low = pixels[i];",
            "    if (pixels[i] > high) high = pixels[i];",
            "  }",
            "  span = high > low ? (float)high - (float)low : 1.0f;",
        ]
        value = f"({value} - (float)low) / span * 255.0f"
    lines += [
        f"  for (k = 0; k < {c}; k++) for (i = 0; i < {size}; i++)",
        f"    input[{at}] = ({value} * {n}_scale - {n}_mean[k]) / {n}_std[k];",
    ]
    if p.per_image == "standardize":
        plane, step = (size, 1) if p.layout == "NCHW" else (1, c)
        lines += [f"  caps_standardize(input, {c}, {plane}, {size}, {step});"]
    return "\n".join([*lines, "}", ""])
