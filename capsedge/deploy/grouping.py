"""Files that differ only in their routing iterations, as one model with a choice."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from capsedge.deploy.models import PageModel

Files = list[tuple[str, PageModel]]


def grouped(models: Sequence[PageModel]) -> list[tuple[str, Files]]:
    """The models by what they share but for the iterations: a name, and path and content of each file."""
    groups: dict[object, dict[int, PageModel]] = {}
    for number, model in enumerate(models):
        key: object = _identity(model) or number
        if model.metadata.iterations in groups.get(key, ()):
            key = number  # a file of the same iterations is another choice
        groups.setdefault(key, {})[model.metadata.iterations] = model
    found: list[tuple[str, Files]] = []
    for group in groups.values():
        name = unused(_common_name([m.name for m in group.values()]), [n for n, _ in found])
        several = len(group) > 1
        found.append(
            (
                name,
                [
                    (f"models/{name}{f'-{count}' if several else ''}.onnx", group[count])
                    for count in sorted(group)
                ],
            )
        )
    return found


def _identity(model: PageModel) -> object:
    """What files of one model share; None for a file of unknown weights."""
    m = model.metadata
    if not m.checkpoint_sha256:
        return None
    return m.checkpoint_sha256, m.architecture, m.routing, m.precision, m.class_names, m.task


def _common_name(names: Sequence[str]) -> str:
    """What the names of a group begin with, such as ``digits`` of ``digits-1`` and ``digits-3``."""
    common = os.path.commonprefix(list(names))  # noqa: RUF071 (they are no paths)
    if len(set(names)) > 1:
        common = re.sub(
            r"[-_.]*(it|iter|iters|iterations)?[-_.]*$", "", common, flags=re.IGNORECASE
        )
    return common or names[0]


def unused(name: str, taken: Sequence[str]) -> str:
    """The name, with a number where another model has it already."""
    lower = {other.lower() for other in taken}
    found, number = name, 2
    while found.lower() in lower:
        found, number = f"{name}.{number}", number + 1
    return found
