"""Declare the options of ``build``, for Python and the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from capsedge.errors import UsageError
from capsedge.options import LARGEST_COUNT, Options, declared, option, parse_whole
from capsedge.runtime.files.text import printable
from capsedge.spec import limits
from capsedge.spec.vocabularies import PLUGIN_CHOICES, PRECISIONS, TARGETS, TENSORRT, TENSORRT_RTX

C, WASM = "c", "wasm"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LEAST_WORKSPACE = 1 << 20


_Size = int | tuple[int, int, int]


def _size(name: str, text: str) -> _Size:
    """A size, or a smallest, best and largest one."""
    try:
        parts = [parse_whole(part) for part in text.split(":")]
    except ValueError:
        parts = []
    if len(parts) not in (1, 3):
        raise UsageError(
            f"Invalid --{name} {printable(text):.40}.",
            f"It takes one {name}, or the smallest, the best and the largest: MIN:BEST:MAX.",
            f"For example: `--{name} 8` or `--{name} 1:8:32`.",
        )
    low, best, high = parts * (3 // len(parts))
    return low if len(parts) == 1 else (low, best, high)


def _range(size: _Size | None) -> tuple[int, int, int] | None:
    """The smallest, best and largest."""
    return (size, size, size) if isinstance(size, int) else size


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})([KMG]?)", text.upper())
    if found is None:
        raise UsageError(
            f"Invalid --workspace {printable(text):.40}.",
            "It takes a size with a unit.",
            "For example: 512M or 2G.",
        )
    return int(found[1]) * _UNITS[found[2]]


def parse_fit(text: str) -> dict[str, int]:
    """The memory of a device in bytes, from the text of ``--fit`` such as ``flash=256K,ram=64K``.

    Raises:
        UsageError: it has another form.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(flash|ram)=([0-9]{1,9})([KM]?)B?\s*", part, re.I)
        if match is None or match[1].lower() in found:
            raise UsageError(
                f"Invalid --fit {printable(text):.40}.",
                "It takes the sizes of flash, of ram, or both, with a unit.",
                "For example: `--fit flash=256K,ram=64K`.",
            )
        found[match[1].lower()] = int(match[2]) * _UNITS[match[3].upper()]
    return found


@dataclass(frozen=True)
class BuildOptions(Options):
    """The output of `capsedge.build`, and how to build it."""

    precision: str | None = option(
        None,
        "Precision that the engine must have: fp32, fp16, int8 or mixed; by default the file's.",
        choices=PRECISIONS,
    )
    target: str = option(
        TENSORRT,
        "tensorrt: for the GPU of this machine; tensorrt-rtx: for several kinds of RTX GPU, built on any "
        "machine; c: C99 source for microcontrollers and anything else; wasm: that source, compiled for "
        "browsers, Node.js and WASI.",
        choices=(*TARGETS, C, WASM),
    )
    compute_capabilities: tuple[str, ...] = option(
        (),
        "With --target tensorrt-rtx: compute capabilities to build for; 8.6,8.9,12.0 by default.",
        "--compute-capability",
    )
    plugin: str = option(
        "auto",
        "fused: routing in the plugin library; native: no plugin; auto: fused if the library is installed, "
        "native for tensorrt-rtx.",
        choices=PLUGIN_CHOICES,
        panel="Build",
    )
    batch: _Size | None = option(
        None,
        "Fixed batch size; by default the file's, or 1. For an engine also a range of sizes, the smallest, "
        "best and largest: 1:8:32.",
        metavar="N|MIN:BEST:MAX",
        parse=partial(_size, "batch"),
    )
    length: _Size | None = option(
        None,
        "For an engine of a file with a free length, such as that of histories: the smallest, best and "
        "largest, 1:50:200, or a fixed one. By default 1 to the longest that the file states.",
        metavar="N|MIN:BEST:MAX",
        parse=partial(_size, "length"),
    )
    workspace: int | None = option(
        None,
        "Scratch memory that TensorRT may use, for example 512M or 2G; all by default.",
        metavar="SIZE",
        parse=_bytes,
        panel="Build",
    )
    timing_cache: Path | None = option(
        None,
        "File with timings that make later builds faster.",
        path="updates",
        panel="Build",
    )
    optimization_level: int = option(
        3,
        "TensorRT's effort, 0 to 5.",
        min=0,
        max=5,
        panel="Build",
    )
    device: int = option(
        0,
        "Number of the GPU.",
        min=0,
        max=1023,
        panel="Build",
    )
    name: str | None = option(
        None,
        "With --target c: prefix of all symbols; with wasm: name of the files; from the file's name by "
        "default.",
    )
    fit: Mapping[str, int] | None = option(
        None,
        "With --target c: refuse a network that needs more, for example flash=256K,ram=64K.",
        metavar="SIZES",
        parse=parse_fit,
    )
    measure: bool = option(
        False,
        "With --target c: compile for Cortex-M7 and M55, report a bound of the stack, and count the "
        "instructions of every layer in QEMU.",
    )

    def __post_init__(self) -> None:
        """Check the values, and that every option applies to the target.

        Raises:
            UsageError: a value is wrong, or an option belongs to another target.
        """
        super().__post_init__()
        for each in declared(BuildOptions):
            if getattr(self, each.name) != each.default and each.name not in _TAKES[self.target]:
                why, fix = _WHY.get((self.target, each.name), ("", "Leave it out."))
                raise UsageError(
                    f"{each.option.names[-1]} does not apply to --target {self.target}.", why, fix
                )
        for name, sizes in (("length", self.lengths), ("batch", self.batches)):
            low, best, high = sizes or (1, 1, 1)
            if self.target in (C, WASM):
                self._check_one_batch(low, best, high)
            elif not 1 <= low <= best <= high <= LARGEST_COUNT:
                raise UsageError(
                    f"Invalid {name} {low}:{best}:{high}.",
                    f"It takes the smallest, the best and the largest {name}, in ascending order, from 1 to "
                    f"{LARGEST_COUNT}.",
                    f"For example: `--{name} 1:8:32`.",
                )
        for capability in self.compute_capabilities:
            if not re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability):
                raise UsageError(
                    f"Invalid --compute-capability {printable(capability)}.",
                    "It takes numbers such as 8.9, separated by commas.",
                    "For example: 8.6,8.9,12.0.",
                )
        if self.workspace is not None and self.workspace < _LEAST_WORKSPACE:
            raise UsageError(
                f"A workspace of {self.workspace} bytes is too small.",
                "TensorRT needs at least 1 MiB.",
                "For example: `--workspace 1G`, or leave it out.",
            )

    def _check_one_batch(self, low: int, best: int, high: int) -> None:
        """Refuse a batch that cannot be written as C."""
        most = limits.C_BATCH
        if low != high:
            raise UsageError(
                f"A range of batch sizes does not apply to --target {self.target}.",
                "The network is written for one batch size.",
                f"For example: `--batch {min(max(best, 1), most)}`.",
            )
        if not 1 <= best <= most:
            raise UsageError(
                f"Invalid batch {best:,}.",
                f"With --target {self.target} it is 1 to {most:,}: the source grows with every image.",
                f"For example: `--batch {min(max(best, 1), most)}`.",
            )

    @property
    def batches(self) -> tuple[int, int, int] | None:
        """The smallest, best and largest batch, all equal for a fixed batch. None: the file's batch, or 1."""
        return _range(self.batch)

    @property
    def lengths(self) -> tuple[int, int, int] | None:
        """The smallest, best and largest length. None: 1 to the longest that the file states."""
        return _range(self.length)


# The options that apply to each target.
_ENGINE = ("target", "precision", "plugin", "batch", "length", "workspace", "optimization_level")
_TAKES: Mapping[str, tuple[str, ...]] = {
    TENSORRT: (*_ENGINE, "timing_cache", "device"),
    TENSORRT_RTX: (*_ENGINE, "compute_capabilities"),
    C: ("target", "name", "batch", "fit", "measure"),
    WASM: ("target", "name", "batch"),
}
_AHEAD = (
    "TensorRT-RTX builds ahead of time: no kernel is timed and no GPU is used.",
    "Leave it out.",
)
_WHY: Mapping[tuple[str, str], tuple[str, str]] = {
    (TENSORRT_RTX, "timing_cache"): _AHEAD,
    (TENSORRT_RTX, "device"): _AHEAD,
    (TENSORRT, "compute_capabilities"): (
        "A TensorRT engine runs only on the kind of GPU that it was built on.",
        f"Add `--target {TENSORRT_RTX}` to build an engine for several kinds of RTX GPUs.",
    ),
}
