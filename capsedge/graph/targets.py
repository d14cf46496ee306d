"""What a runtime other than ONNX Runtime wants of a file: its form, batch and opset."""

from __future__ import annotations

from dataclasses import dataclass

from capsedge.errors import UsageError

DEFAULT_OPSET = 20


@dataclass(frozen=True)
class Target:
    """A runtime by name.

    Attributes:
        name: of the runtime.
        batch: the batch that its files are fixed to unless told otherwise; None for a free one.
        opset: of its files unless told otherwise, and the newest that its converter was tested with.
        reason: of a fixed batch.
    """

    name: str
    batch: int | None
    opset: int
    reason: str = ""


TARGETS = {
    t.name: t
    for t in (
        Target("openvino", None, 20),
        Target("litert", 1, 20, "LiteRT's converter needs constant shapes."),
        Target("mnn", 1, 20, "MNN plans memory once, for constant shapes."),
    )
}


def resolve(
    target: str | None,
    ops: str | None,
    opset: int | None,
    batch: int | None,
    free_batch: bool = False,
) -> tuple[str, int, int | None]:
    """Form, opset and batch of a file for a runtime; what was asked for explicitly stays.

    Args:
        target: a key of ``TARGETS``; None for ONNX Runtime and the defaults.
        ops, opset, batch: as asked for; None where not.
        free_batch: whether a free batch was asked for.

    Raises:
        UsageError: there is no such runtime, or it cannot take what was asked for.
    """
    if target is None:
        return ops or "auto", DEFAULT_OPSET if opset is None else opset, batch
    wanted = TARGETS.get(target)
    if wanted is None:
        raise UsageError(
            f"There is no runtime '{target}' to export for.", "", f"Known: {', '.join(TARGETS)}."
        )
    if ops not in (None, "portable"):
        raise UsageError(
            f"A file for {target} cannot have the form '{ops}'.",
            f"{target} knows neither the operators of the domain capsedge nor functions.",
            "Leave --ops out: the form is 'portable'.",
        )
    if opset is not None and opset > wanted.opset:
        raise UsageError(
            f"A file for {target} cannot have opset {opset}.",
            f"Its converter was tested up to opset {wanted.opset}.",
            "Leave --opset out.",
        )
    if free_batch and wanted.batch is not None:
        raise UsageError(
            f"A file for {target} cannot leave the batch free.",
            wanted.reason,
            "Leave --dynamic-batch out, or fix another batch with --batch.",
        )
    return (
        "portable",
        wanted.opset if opset is None else opset,
        wanted.batch if batch is None else batch,
    )
