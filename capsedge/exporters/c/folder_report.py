"""What a folder of C says of itself, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from capsedge.exporters.c.fit import memory_rows
from capsedge.exporters.c.measurement import MeasuredC
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.result_summary import Report, Table, shortened_name


@dataclass(frozen=True)
class InputRow:
    """One input of the network; its fields are those of ``NAME.json``.

    Attributes:
        name: name in the ONNX file.
        parameter: name of the parameter in C.
        type: element type: float32, int8 or uint8.
        shape: shape, including the batch.
        size: elements.
    """

    name: str
    parameter: str
    type: str
    shape: list[int]
    size: int


@dataclass(frozen=True)
class LayerRow:
    """One layer of the network; its fields are those of ``NAME.json``.

    Attributes:
        products: multiply-adds per call.
        constant_bytes: size of its weights, in flash.
        scratch_bytes: size of its own working memory.
        live_bytes: bytes of the arena in use while it runs, including values of other layers.
    """

    node: str
    operator: str
    products: int
    constant_bytes: int
    scratch_bytes: int
    live_bytes: int


@dataclass(frozen=True, repr=False)
class FolderReport(Report):
    """The contents of a folder's ``NAME.json``.

    Attributes:
        description: the whole ``NAME.json``.
        memory: bytes, by their names.
        inputs: inputs of the network.
        layers: layers of the network.
        measured: what `build --measure` found, with as many counts as layers or none.
    """

    heading: ClassVar[str] = "Network in C"

    description: dict[str, Any]
    memory: dict[str, int]
    inputs: list[InputRow]
    layers: list[LayerRow]
    measured: list[MeasuredC]

    def _lines(self) -> list[str]:
        sizes = (format_bytes(self.memory[f"{k}_bytes"]) for k in ("constant", "arena"))
        flash, ram = sizes
        return [f"{shortened_name(self._name)}: {flash} of constants, {ram} of RAM"]

    @property
    def _name(self) -> str:
        return str(self.description.get("name", ""))

    def rows(self) -> list[tuple[str, str]]:
        """The network, its memory, and what was measured."""
        rows = [
            ("made from", str(self.description["source"].get("file", ""))),
            ("precision", str(self.description.get("precision") or "not stated")),
            *((each.parameter, _shape_text(each)) for each in self.inputs),
            *memory_rows(self._name, self.memory),
        ]
        for each in self.measured:
            rows.append((f"measured for {each.core}", measured_text(asdict(each))))
            rows += [("", tool) for tool in (each.compiler, each.emulator) if tool]
        return rows

    def tables(self) -> list[Table]:
        """The layers."""
        counted = [each for each in self.measured if each.instructions]
        counts = (each.core for each in counted)
        return [
            Table(
                "Layers",
                ("node", "operator", "multiply-adds", *counts, "constants", "scratch", "live"),
                [
                    (
                        x.node,
                        x.operator,
                        f"{x.products:,}",
                        *(f"{each.instructions[k]:,}" for each in counted),
                        *map(format_bytes, (x.constant_bytes, x.scratch_bytes, x.live_bytes)),
                    )
                    for k, x in enumerate(self.layers)
                ],
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        """The description."""
        return self.description


def _shape_text(given: InputRow) -> str:
    """``1 x 1 x 28 x 28``, and the type if it is not the usual one."""
    shape = " x ".join(map(str, given.shape))
    return shape if given.type == "float32" else f"{shape}, {given.type}"


def measured_text(measured: Mapping[str, Any]) -> str:
    """Instructions and stack of `MeasuredC`, in words."""
    counts, stack = measured["instructions"], measured["stack_bytes"]
    parts = [f"{sum(counts):,} instructions"] if counts else []
    parts += [] if stack is None else [f"{stack:,} bytes of stack"]
    return ", ".join(parts) or "not measured"
