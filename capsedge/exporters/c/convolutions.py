"""Convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capsedge.exporters.c.fast_conv import FastForm, fast_form, pack_transformed
from capsedge.exporters.c.program import (
    MOST_BYTES,
    Array,
    CNode,
    Program,
    ProgramValue,
    Translator,
    Untranslatable,
    constant,
)

BLOCK = 16  # output channels whose weights caps_conv_f32 reads together
PIXELS = 4  # positions that it computes together
CHUNK = 512  # most elements of a window that caps_conv_q8 sums at once
HWC = (0, 2, 3, 1)
_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


class Geometry:
    """Sizes of a convolution or pooling of one image, as the kernels' structures hold them.

    Args:
        x: ``[N, C, H, W]``.
        kernel: rows and columns.
    """

    def __init__(self, node: CNode, x: ProgramValue, kernel: Sequence[int]) -> None:
        if len(x.shape) != 4:
            raise Untranslatable(f"an input of {len(x.shape)} dimensions")
        given = node.attributes
        self.n, self.channels, self.height, self.width = x.shape
        self.kernel = _pair(kernel, "kernel_shape")
        self.strides = _pair(given.get("strides") or (1, 1), "strides")
        self.dilations = _pair(given.get("dilations") or (1, 1), "dilations")
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        self.pads = _pads_of(given, (self.height, self.width), reach, self.strides)
        up = bool(given.get("ceil_mode"))
        ends = [self.pads[k] + size for k, size in enumerate((self.height, self.width))]
        if max(*ends, *self.pads, *reach, math.prod(self.kernel), *self.strides) > MOST_BYTES // 2:
            raise Untranslatable(f"windows of {reach} in images padded to {ends}")
        self.out = (
            _windows(ends[0] + self.pads[2], reach[0], self.strides[0], ends[0], up),
            _windows(ends[1] + self.pads[3], reach[1], self.strides[1], ends[1], up),
        )
        if min(self.out) < 1:
            raise Untranslatable("a window larger than the image")

    @property
    def padded(self) -> bool:
        """Whether a window can leave the image, or is not dense in it."""
        return any(self.pads) or self.dilations[1] != 1

    def numbers(self, outputs: int) -> list[int]:
        """The numbers of a convolution to so many channels, as its structures begin."""
        sizes = (self.height, self.width, self.channels, outputs, *self.kernel)
        return [*sizes, *self.strides, *self.pads[:2], *self.dilations, *self.out]

    def slide(self, outputs: int, size: int, together: int) -> int:
        """How many bytes before the input the output may start without overwriting values still to be read.

        Args:
            outputs: channels of the output.
            size: bytes of an element.
            together: positions of a step, which may be read until its last one is written.
        """
        positions = self.out[0] * self.out[1]
        cell = self.channels * size
        column = np.maximum(0, np.arange(self.out[1]) * self.strides[1] - self.pads[1])
        needed, later = 0.0, math.inf  # the first byte that the rows below read
        for row in reversed(range(self.out[0])):
            y = max(0, row * self.strides[0] - self.pads[0])
            first = row * self.out[1]
            reads = np.full(self.out[1], math.inf)
            if y < self.height:
                inside = column < self.width
                reads[inside] = (y * self.width + column[inside]) * cell
            least = np.minimum.accumulate(np.minimum(reads, later)[::-1])[::-1]
            at = np.arange(-first % together, self.out[1], together)
            if at.size:
                ends = np.minimum(first + at + together, positions) * outputs * size
                needed = max(needed, float((ends - least[at]).max()))
            later = float(least[0])
        return int(needed)


def slide_of(
    g: Geometry, image: ProgramValue, outputs: int, size: int, together: int
) -> int | None:
    """`Geometry.slide` for an image that fills its buffer."""
    whole = image.buffer is not None and image.buffer.bytes == image.size * size
    return g.slide(outputs, size, together) if whole else None


def _pair(values: Sequence[int], name: str) -> tuple[int, int]:
    """Two positive numbers, for rows and columns."""
    if len(values) != 2 or min(values) < 1:
        raise Untranslatable(f"{name} of {list(values)}")
    return int(values[0]), int(values[1])


def _pads_of(
    given: Mapping[str, Any], sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> list[int]:
    """Padding at the top, on the left, at the bottom and on the right."""
    auto = given.get("auto_pad", "NOTSET")
    pads = [int(p) for p in given.get("pads") or (0, 0, 0, 0)]
    if len(pads) != 4 or min(pads) < 0 or auto not in _AUTO_PADS:
        raise Untranslatable(f"pads of {pads}, {auto}")
    if auto == "NOTSET":
        return pads
    pads = [0, 0, 0, 0]
    if auto != "VALID":
        for k, size in enumerate(sizes):
            total = max((-(-size // strides[k]) - 1) * strides[k] + reach[k] - size, 0)
            pads[k] = total // 2 if auto == "SAME_UPPER" else -(-total // 2)
            pads[k + 2] = total - pads[k]
    return pads


def _windows(size: int, reach: int, stride: int, end: int, up: bool) -> int:
    """Positions of a window; the last one, of a size rounded up, must start before the padding at the end."""
    count = (size - reach) // stride + 1
    if up and (size - reach) % stride and count * stride < end:
        count += 1
    return count


def _struct(kind: str, numbers: Sequence[int]) -> str:
    return f"static const {kind} c = {{{', '.join(map(str, numbers))}}};"


def _images(
    program: Program, x: ProgramValue, shape: Sequence[int], dtype: str
) -> tuple[ProgramValue, list[tuple[ProgramValue, ProgramValue]]]:
    """The result ``[N, C, H, W]`` and, for each image, input and result, channels innermost."""
    x = program.ordered(x, HWC)
    result = program.new(shape, dtype, HWC)
    pairs = [(x.sliced(0, n, n + 1), result.sliced(0, n, n + 1)) for n in range(shape[0])]
    return result, pairs


# --- Convolution ---


def _convolution(program: Program, node: CNode) -> list[ProgramValue]:
    x, weight = node.floats(0), node.array(1, "a weight").astype(np.float32)
    if len(x.shape) == 3 and weight.ndim == 3:
        return _one_dimension(program, node)
    return [convolve(program, node, x, weight, _bias(node, weight.shape[0]))]


def _bias(node: CNode, size: int) -> Array:
    """The bias of a convolution; zeros if it has none."""
    if node.optional(2) is None:
        return np.zeros(size, np.float32)
    bias = node.array(2, "a bias")
    if bias.shape != (size,):
        raise Untranslatable(f"a bias of shape {list(bias.shape)} for {size} channels")
    return bias.astype(np.float32)


def _one_dimension(program: Program, node: CNode) -> list[ProgramValue]:
    """A one-dimensional convolution, treated as one over images with a single row."""
    n, c, length = node.value(0).shape
    given = dict(node.attributes)
    for name in ("strides", "dilations", "kernel_shape"):
        if name in given:
            given[name] = [1, *given[name]]
    if pads := given.get("pads"):
        given["pads"] = [0, *pads[:1], 0, *pads[1:]]
    weight = node.array(1, "a weight")
    inputs = [program.reshaped(node.value(0), (n, c, 1, length)), constant(weight[:, :, None])]
    (y,) = _convolution(
        program, CNode(node.name, "Conv", [*inputs, *node.inputs[2:]], given, 1, node.relu)
    )
    return [program.reshaped(y, (*y.shape[:2], y.shape[3]))]


def _checked(node: CNode, x: ProgramValue, weight: Array) -> Geometry:
    """The geometry of a convolution whose weight ``[M, C/groups, Kh, Kw]`` goes with the input."""
    groups = int(node.attributes.get("group", 1))
    if (
        weight.ndim != 4
        or len(x.shape) != 4
        or groups < 1
        or weight.shape[0] % groups
        or weight.shape[1] * groups != x.shape[1]
        or list(node.attributes.get("kernel_shape") or weight.shape[2:]) != list(weight.shape[2:])
    ):
        raise Untranslatable(
            f"a weight of shape {list(weight.shape)} in {groups} groups for {list(x.shape)}"
        )
    return Geometry(node, x, weight.shape[2:])


def convolve(
    program: Program, node: CNode, x: ProgramValue, weight: Array, bias: Array
) -> ProgramValue:
    """Write a convolution; ``weight`` is ``[M, C/groups, Kh, Kw]``."""
    g = _checked(node, x, weight)
    m, inside, kh, kw = weight.shape
    groups = int(node.attributes.get("group", 1))
    if groups == 1 and g.dilations == (1, 1) and program.fast(node.name):
        form = fast_form(inside, m, g.kernel, g.strides, g.out)
        if form is not None:
            return _convolve_fast(program, node, g, form, x, weight, bias)
    struct = _struct("caps_conv", [*g.numbers(m), int(node.relu)])
    result, images = _images(program, x, (g.n, m, *g.out), "float32")
    products = g.out[0] * g.out[1] * weight.size
    for image, out in images:
        if groups > 1:
            names = [
                program.constants.add(weight.transpose(0, 2, 3, 1)),
                program.constants.add(bias),
            ]
            call = f"caps_conv_grouped_f32(&c, {groups}, {program.pointer(image)}, {names[0]}, {names[1]}"
            scratch, kernel = 0, "conv_grouped_f32"
            call += f", {program.pointer(out)});"
        else:
            packed = pack_float(weight)
            padded = np.zeros(-(-m // BLOCK) * BLOCK, np.float32)
            padded[:m] = bias
            names = [program.constants.add(packed), program.constants.add(padded)]
            scratch = PIXELS * kh * kw * inside * 4 if g.padded else 0
            kernel = "conv_f32"
            call = f"caps_conv_f32(&c, {program.pointer(image)}, {names[0]}, {names[1]}, "
            call += f"{program.pointer(out)}, {'(float *)SCRATCH' if scratch else '0'});"
        slide = slide_of(g, image, m, 4, PIXELS if groups == 1 else 1)
        program.step(
            f"{{ {struct} {call} }}", [image], [out], kernels=[kernel], scratch=scratch, slide=slide,
            products=products, constants=names,
        )  # fmt: skip
    return result


def _convolve_fast(
    program: Program,
    node: CNode,
    g: Geometry,
    form: FastForm,
    x: ProgramValue,
    weight: Array,
    bias: Array,
) -> ProgramValue:
    """Write a convolution of a large window in tiles."""
    program.begin(node.name, "FastConv")
    m, inside = weight.shape[:2]
    direct = g.out[0] * g.out[1] * weight.size
    program.saved[node.name] = program.saved.get(node.name, 0) + g.n * (direct - form.cost)
    sizes = (g.height, g.width, inside, m, *g.strides, *g.pads[:2], *g.out)
    struct = _struct("caps_fast_conv", [*sizes, int(node.relu), len(form.passes)])
    passes = ", ".join(f"{{{p.points[0]}, {p.points[1]}, {len(p.pieces)}}}" for p in form.passes)
    pieces = [piece for each in form.passes for piece in each.pieces]
    starts = ", ".join(f"{row.start}, {column.start}" for row, column in pieces)
    tables = f"static const caps_fast_pass p[] = {{{passes}}}; static const int s[] = {{{starts}}};"
    packed = pack_transformed(weight, g.strides, form)
    names = [program.constants.add(v) for v in (packed, bias)]
    result, images = _images(program, x, (g.n, m, *g.out), "float32")
    for image, out in images:
        call = f"caps_fast_conv_f32(&c, p, s, {program.pointer(image)}, {', '.join(names)}, "
        call += f"{program.pointer(out)}, (float *)SCRATCH);"
        program.step(
            f"{{ {struct} {tables} {call} }}", [image], [out], kernels=["fast_conv_f32"],
            scratch=4 * form.values(inside), products=form.cost, constants=names,
        )  # fmt: skip
    return result


def pack_float(weight: Array) -> Array:
    """``[M, C, Kh, Kw]`` as ``[M/16][Kh][Kw][C][16]``, flat; up to 8 outputs at the end in 8 columns."""
    parts = []
    for first in range(0, weight.shape[0], BLOCK):
        part = weight[first : first + BLOCK].transpose(2, 3, 1, 0)
        wide = np.zeros((*part.shape[:3], BLOCK if part.shape[3] > 8 else 8), np.float32)
        wide[..., : part.shape[3]] = part
        parts.append(wide.reshape(-1))
    return np.concatenate(parts)


def _quantized_convolution(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.value(0)
    weight = node.array(3, "a weight")
    x_scale, x_zero, y_scale, y_zero = (
        node.filled(k, "a parameter of the quantization", (1,)) for k in (1, 2, 6, 7)
    )
    w_scale, w_zero = (
        node.filled(k, "a parameter of the quantization", weight.shape[:1]) for k in (4, 5)
    )
    if np.any(w_zero) or x.dtype != "uint8" or weight.dtype != np.int8 or y_zero.dtype != np.uint8:
        raise Untranslatable(
            "quantized to other integers than uint8 images and int8 weights around 0"
        )
    if int(node.attributes.get("group", 1)) != 1:
        raise Untranslatable("groups of channels in INT8")
    g = _checked(node, x, weight)
    m, inside, kh, kw = weight.shape
    whole = weight.astype(np.int64)
    offset = np.zeros(m, np.int64)
    if node.optional(8) is not None:
        offset = node.filled(8, "a bias", (m,)).astype(np.int64)
    offset = offset - int(x_zero[0]) * whole.sum((1, 2, 3))
    if (np.abs(offset) + 255 * np.abs(whole).sum((1, 2, 3))).max() >= 1 << 31:
        raise Untranslatable("sums beyond 32 bits")
    bias = np.zeros(-(-m // 2) * 2, np.int32)
    bias[:m] = offset
    with np.errstate(all="ignore"):  # scales may be anything
        factor = (
            x_scale.astype(np.float32) * w_scale.astype(np.float32) / y_scale.astype(np.float32)
        )
    rows, chunk = chunks_of(kh, kw * inside)
    packed = pack_int8(weight, rows, chunk)
    numbers = [*g.numbers(m), rows, chunk, int(x_zero[0]), int(y_zero[0])]
    struct = _struct("caps_conv_q8_t", numbers)
    names = [program.constants.add(v) for v in (packed, bias, factor)]
    scratch = 4 * chunk + (chunk if inside % 4 else 0) + (2 * bias.size * 4 if rows < kh else 0)
    result, images = _images(program, x, (g.n, m, *g.out), "uint8")
    for image, out in images:
        pointers = [program.pointer(image), *names, program.pointer(out), "SCRATCH"]
        program.step(
            f"{{ {struct} caps_conv_q8(&c, {', '.join(pointers)}); }}", [image], [out], kernels=["conv_q8"],
            scratch=scratch, slide=slide_of(g, image, m, 1, 2),
            products=g.out[0] * g.out[1] * weight.size, constants=names,
        )  # fmt: skip
    return [result]


def chunks_of(kernel_rows: int, row: int) -> tuple[int, int]:
    """Rows of the kernel in a chunk, and its elements: padded to 16, with as little padding as possible."""

    def chunk(rows: int) -> int:
        return -(-rows * row // 16) * 16

    def total(rows: int) -> int:
        return -(-kernel_rows // rows) * chunk(rows)

    fitting = [n for n in range(1, kernel_rows + 1) if n == 1 or n * row <= CHUNK]
    rows = min(fitting, key=lambda n: (total(n), -n))
    return rows, chunk(rows)


def pack_int8(weight: Array, rows: int, chunk: int) -> Array:
    """``[M, C, Kh, Kw]`` as ``[M/2][chunks][chunk/16][2][16]``: chunks of some rows of the kernel, padded."""
    m, inside, kh, kw = weight.shape
    chunks = -(-kh // rows)
    padded = np.zeros((-(-m // 2) * 2, chunks, chunk), np.int8)
    lines = weight.transpose(0, 2, 3, 1).reshape(m, kh, kw * inside)
    for k in range(chunks):
        part = lines[:, k * rows : (k + 1) * rows].reshape(m, -1)
        padded[:m, k, : part.shape[1]] = part
    pairs = padded.reshape(-1, 2, chunks, chunk // 16, 16)
    return np.ascontiguousarray(pairs.transpose(0, 2, 3, 1, 4))


def _transposed_convolution(program: Program, node: CNode) -> list[ProgramValue]:
    """A convolution of the image with zeros between its pixels."""
    x, weight = node.floats(0), node.array(1, "a weight").astype(np.float32)
    given = node.attributes
    groups = int(given.get("group", 1))
    if (
        (len(x.shape), weight.ndim) != (4, 4)
        or given.get("auto_pad", "NOTSET") != "NOTSET"
        or given.get("output_shape")
        or weight.shape[0] != x.shape[1]
        or groups < 1
        or x.shape[1] % groups
        or list(given.get("kernel_shape") or weight.shape[2:]) != list(weight.shape[2:])
    ):
        raise Untranslatable("this form of transposed convolution")
    strides = _pair(given.get("strides") or (1, 1), "strides")
    dilations = _pair(given.get("dilations") or (1, 1), "dilations")
    pads = _pads_of(given, (), (), ())
    more = [int(p) for p in given.get("output_padding") or (0, 0)]
    if len(more) != 2 or min(more) < 0:
        raise Untranslatable(f"output_padding of {more}")
    n, c, *sizes = x.shape
    kernel = weight.shape[2:]
    before = [(k - 1) * d - pads[a] for a, (k, d) in enumerate(zip(kernel, dilations, strict=True))]
    after = [
        (k - 1) * d - pads[a + 2] + more[a]
        for a, (k, d) in enumerate(zip(kernel, dilations, strict=True))
    ]
    if min(*before, *after) < 0:
        raise Untranslatable("padding beyond the kernel of a transposed convolution")
    spread = [(s - 1) * step + 1 for s, step in zip(sizes, strides, strict=True)]
    wide = program.new(
        (n, c, before[0] + spread[0] + after[0], before[1] + spread[1] + after[1]), order=HWC
    )
    program.loops(wide, [constant(np.zeros((), np.float32))], "{0}")
    inner = wide
    for a in (0, 1):
        inner = inner.sliced(a + 2, before[a], before[a] + spread[a], strides[a])
    program.loops(inner, [x], "{0}")
    each = c // groups  # [C, M/groups, Kh, Kw] -> [M, C/groups, Kh, Kw], turned by 180 degrees
    parts = [weight[k * each : (k + 1) * each].transpose(1, 0, 2, 3) for k in range(groups)]
    turned = np.ascontiguousarray(np.concatenate(parts)[:, :, ::-1, ::-1])
    plain = CNode(node.name, "Conv", [], {"group": groups, "dilations": dilations}, 1, node.relu)
    return [convolve(program, plain, wide, turned, _bias(node, turned.shape[0]))]


def _pool(program: Program, node: CNode) -> list[ProgramValue]:
    x = node.floats(0)
    whole = node.operator.startswith("Global")
    kernel = x.shape[2:] if whole else node.attributes.get("kernel_shape") or ()
    if node.outputs > 1:
        raise Untranslatable("pooling with indices")
    g = Geometry(node, x, kernel)
    if g.dilations != (1, 1):
        raise Untranslatable("pooling with dilation")
    if any(pad >= g.kernel[k % 2] for k, pad in enumerate(g.pads)):
        raise Untranslatable("windows in the padding alone")
    mean = "Average" in node.operator
    pads_count = bool(node.attributes.get("count_include_pad")) and mean
    if pads_count and node.attributes.get("ceil_mode"):
        raise Untranslatable("pooling with ceil_mode that counts padding")
    numbers = [
        g.height,
        g.width,
        g.channels,
        *g.kernel,
        *g.strides,
        *g.pads[:2],
        *g.out,
        int(mean),
        int(pads_count),
    ]
    result, images = _images(program, x, (g.n, g.channels, *g.out), "float32")
    for image, out in images:
        call = f"caps_pool(&c, {program.pointer(image)}, {program.pointer(out)});"
        program.step(
            f"{{ {_struct('caps_pool_t', numbers)} {call} }}", [image], [out], kernels=["pool"],
            slide=slide_of(g, image, g.channels, 4, 1),
        )  # fmt: skip
    return [result]


TRANSLATORS: dict[str, Translator] = {
    "Conv": _convolution,
    "QLinearConv": _quantized_convolution,
    "QuantizedConv": _quantized_convolution,
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), _pool),
}
