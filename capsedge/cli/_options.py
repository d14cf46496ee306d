"""Options that several verbs share, and the parsing of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from capsedge.cli._parameters import Option
from capsedge.cli._places import READS, Role
from capsedge.errors import UsageError
from capsedge.runtime.files import limits

Json = Annotated[bool, Option("--json", help="Print one JSON document instead of text.")]
Model = Annotated[
    str | None,
    Option(
        "--model",
        help="Name of a model, such as digits-em; an unknown name lists all models.",
    ),
]
Checkpoint = Annotated[
    Path | None,
    Option(
        "--checkpoint", help="Checkpoint, .safetensors or .pt; the zoo's digit model by default."
    ),
    READS,
]
Iterations = Annotated[
    int | None, Option("--iters", help="Routing iterations; by default the model's own.")
]
Ops = Annotated[
    str, Option("--ops", help="auto, fused (operator library) or portable (function bodies).")
]
Threads = Annotated[
    int | None,
    Option("--threads", min=1, help="Threads of one inference; one per physical core by default."),
]
Device = Annotated[
    str | None,
    Option("--device", help="cpu, cuda or cuda:1; by default the CPU, or the GPU for an engine."),
]
BatchSizes = Annotated[str, Option("--batch", help="Batch sizes, for example 1,8.")]
DeployedFolder = Annotated[
    Path,
    Option("-o", "--output", help="The folder; one of an earlier run is replaced."),
    Role(written=lambda folder: [folder / "capsedge.json"], creates=True),
]
Limit = Annotated[
    int | None,
    Option("--limit", min=1, help="Use only N evaluation images, chosen at random."),
]


def batch_sizes(text: str, option: str = "--batch") -> list[int]:
    """The batch sizes of an option such as ``1,8``, without duplicates and in ascending order.

    Raises:
        UsageError: they are not whole numbers.
    """
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(
            f"Bad batch sizes '{text}'.",
            "They must be whole numbers.",
            f"Use for example {option} 1,8.",
        ) from None


def iteration_counts(text: str) -> list[int]:
    """The numbers of routing iterations of an option such as ``1..5`` or ``1,3,5``.

    Raises:
        UsageError: it has another form, or a number is not from 1 to `limits.ITERATIONS`.
    """
    possible = range(1, limits.ITERATIONS + 1)
    try:
        if ".." in text:
            first, last = (int(v) for v in text.split(".."))
            found = list(range(first, last + 1)) if {first, last} <= {*possible} else []
        else:
            found = list(dict.fromkeys(int(v) for v in text.split(",")))
    except ValueError:
        found = []
    if not found or not {*found} <= {*possible}:
        raise UsageError(
            f"Bad --iters {text}.",
            f"It takes whole numbers from 1 to {limits.ITERATIONS}.",
            "Use for example 1..5 or 1,3.",
        )
    return found


def words(text: str) -> list[str]:
    """The words of an option that takes several, separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def exclude(**options: object) -> None:
    """Refuse options that exclude each other.

    Raises:
        UsageError: more than one of them is given.
    """
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in options.items()
        if value not in (None, False)
    ]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other.", "", "Give one of them.")
