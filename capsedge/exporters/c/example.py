"""The example in a folder: an image through the network, and its scores or its mask."""

from __future__ import annotations

from capsedge.exporters.c.network_inputs import is_plain
from capsedge.exporters.c.source import CLibrary, COutput
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.session.masks import level_of, map_classes
from capsedge.spec.fields import CONFIDENT
from capsedge.spec.vocabularies import SEGMENTATION


def example(lib: CLibrary, metadata: ModelMetadata | None) -> str:
    """The text of ``main.c``."""
    n, u = lib.name, lib.upper
    first = lib.outputs[0] if lib.outputs else None
    mask = _Mask.of(lib, metadata)
    lines = [
        "/* An image of zeros through the network, and its results. A camera would fill the pixels. */"
        if is_plain(lib.inputs)
        else "/* Zeros through the network, and its results. Sensors would fill the inputs. */",
        *(mask.remark if mask is not None else ()),
        "#ifndef ARDUINO /* whose sketches have setup() and loop() */",
        "#include <stdio.h>",
        "",
        f'#include "{n}.h"',
        "",
        "#if defined(__GNUC__)",
        "__attribute__((aligned(16)))",
        "#endif",
        f"static uint8_t arena[{u}_ARENA_BYTES];",
        *(f"static {i.ctype} {i.parameter}[{u}_{i.macro}];" for i in lib.inputs),
    ]
    if lib.preprocessing is not None:
        size = "*".join(str(v) for v in lib.image or ())
        lines.append(f"static uint8_t pixels[{size}];")
    lines += [f"static float out_{o.field}[{u}_{o.field.upper()}_SIZE];" for o in lib.outputs]
    if mask is not None:
        lines += ["", *mask.function()]
    lines += [
        "",
        "int main(void) {",
        f"  {n}_outputs outputs = {{{', '.join(f'out_{o.field}' for o in lib.outputs)}}};",
    ]
    if first is not None:
        lines.append("  int k;")
    if lib.preprocessing is not None:
        lines.append(f"  {n}_prepare(pixels, input);")
    given = ", ".join(each.parameter for each in lib.inputs)
    lines.append(f"  {n}_run(arena, {given}, &outputs);")
    if mask is not None:
        lines += mask.printed()
    elif first is not None and lib.labels and first.size == len(lib.labels):
        lines.append(
            f"  for (k = 0; k < {u}_CLASSES; k++)\n"
            f'    printf("%s %g\\n", {n}_labels[k], (double)out_{first.field}[k]);'
        )
    elif first is not None:
        lines.append(
            f'  for (k = 0; k < {first.size}; k++) printf("%g\\n", (double)out_{first.field}[k]);'
        )
    return "\n".join([*lines, "  return 0;", "}", "#endif", ""])


class _Mask:
    """What turns the maps of a segmentation into a mask, in the size of the maps.

    Args:
        scores: the output of the maps.
        metadata: metadata of the file.
    """

    remark = (
        "/* The mask of the first image is printed as a PGM file of the classes' numbers. */",
    )

    def __init__(self, scores: COutput, metadata: ModelMetadata) -> None:
        p, shape = metadata.preprocessing, scores.shape[1:]
        layout = "NCHW" if p is None else p.layout
        self._last = len(shape) == 3 and layout == "NHWC"
        self._maps = int(map_classes(shape, layout) or 1)
        self._height, self._width = shape[:2] if self._last or len(shape) == 2 else shape[1:]
        self._field = scores.field
        self._level = float(level_of(CONFIDENT, metadata.outputs.kind if metadata.outputs else ""))

    @classmethod
    def of(cls, lib: CLibrary, metadata: ModelMetadata | None) -> _Mask | None:
        """The mask of a segmentation; None of other networks."""
        if metadata is None or metadata.task != SEGMENTATION or metadata.outputs is None:
            return None
        found = [o for o in lib.outputs if o.name == metadata.outputs.scores]
        return cls(found[0], metadata) if found else None

    def function(self) -> list[str]:
        """The function that decides a pixel."""
        if self._maps == 1:
            return [
                "/* Whether a pixel is foreground. */",
                f"static int class_of(int pixel) {{ return out_{self._field}[pixel] >= {self._level!r}f; }}",
            ]
        step, start = (1, f"{self._maps} * pixel") if self._last else (self._pixels, "pixel")
        return [
            "/* The class of a pixel: the first of the largest scores. */",
            "static int class_of(int pixel) {",
            f"  const float* scores = out_{self._field} + {start};",
            "  int k, best = 0;",
            f"  for (k = 1; k < {self._maps}; k++)",
            f"    if (scores[k * {step}] > scores[best * {step}]) best = k;",
            "  return best;",
            "}",
        ]

    def printed(self) -> list[str]:
        """Print the mask."""
        most = max(1, self._maps - 1)
        return [
            f'  printf("P2\\n{self._width} {self._height}\\n{most}\\n");',
            f"  for (k = 0; k < {self._pixels}; k++)",
            f"    printf(\"%d%c\", class_of(k), (k + 1) % {self._width} ? ' ' : '\\n');",
        ]

    @property
    def _pixels(self) -> int:
        return self._height * self._width
