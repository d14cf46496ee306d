"""The command; the package's docstring describes it."""

from __future__ import annotations

import sys
from pathlib import Path

from capsedge.runtime.files.writing import sha256, write_text
from capsedge.runtime.zoo import MODELS, zoo_checkpoint
from capsedge.spec.vocabularies import ZOO_ROUTINGS
from tools.zoo import clutter, overlap, photos, routed, small
from tools.zoo.runs import in_half, write_checkpoint

WRITERS = {
    **{f"digits-{routing}": routed for routing in ZOO_ROUTINGS},
    "digits-overlap": overlap,
    "digits-small": small,
    "digits-clutter": clutter,
    "photos": photos,
}
SOURCES = {"photos": "cifar10", "digits-clutter": "clutter"}  # of the others: mnist


def recalibrate(name: str, data: Path) -> None:
    """Measure the criterion again and put the new checksum into the card."""
    path = zoo_checkpoint(name)
    before = sha256(path)
    write_checkpoint(path, name, data, half=in_half(path))
    card = path.with_suffix(".md")
    write_text(card, card.read_text().replace(before, sha256(path)))


def main() -> None:
    """Write checkpoints, cards and ONNX files."""
    if len(sys.argv) not in (2, 3):
        raise SystemExit(sys.modules["tools.zoo"].__doc__)
    folder = Path(sys.argv[1])
    for name in MODELS:
        data = folder / SOURCES.get(name, "mnist")
        writer = WRITERS[name]
        if len(sys.argv) == 3 and writer.is_in(Path(sys.argv[2]), name):
            writer.write(name, Path(sys.argv[2]), data)
        else:
            recalibrate(name, data)
        writer.export(name, data)


if __name__ == "__main__":
    main()
