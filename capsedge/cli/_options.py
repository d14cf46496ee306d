"""Options that several verbs share, and what their texts become."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capsedge.cli._places import READS
from capsedge.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Name of a model, such as digits-em; an unknown one is answered with all of them.",
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", help="Checkpoint, .safetensors or .pt; the zoo's digit model by default."
    ),
    READS,
]
Iterations = Annotated[
    int | None, typer.Option("--iters", help="Routing iterations; the model's own by default.")
]
Ops = Annotated[
    str, typer.Option("--ops", help="auto, fused (operator library) or portable (function bodies).")
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, help="Threads of one inference; one per physical core by default."
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", help="cpu, cuda or cuda:1; by default the CPU, for an engine the GPU."
    ),
]
BatchSizes = Annotated[str, typer.Option("--batch", help="Batch sizes, as in 1,8.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Only N evaluation images, drawn.")
]


def batch_sizes(text: str) -> list[int]:
    """Batch sizes as an option gives them, ``1,8``; once each, the smallest first.

    Raises:
        UsageError: they are no whole numbers.
    """
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(
            f"Batch sizes '{text}'.", "Wanted whole numbers.", "Use --batch 1,8."
        ) from None


def words(text: str) -> list[str]:
    """The words of an option that takes several, with commas between."""
    return [word.strip() for word in text.split(",") if word.strip()]


def exclude(**options: object) -> None:
    """Refuse options that exclude each other.

    Raises:
        UsageError: two of them are given.
    """
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in options.items()
        if value not in (None, False)
    ]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other.", "", "Give one of them.")
