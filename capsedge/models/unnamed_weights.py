"""Match an average of the weights that was saved as a list, as torch-ema and diffusers do, with a module.

The list has the parameters in the order of ``module.parameters()``, without names and buffers. Needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from capsedge.errors import UsageError
from capsedge.models.weight_names import may_lack

_KEY = "shadow_params"
_DEPTH = 3  # maximum depth of nested dictionaries
_LISTED = 5


@dataclass(frozen=True)
class Unnamed:
    """A list of parameters in the file.

    Attributes:
        location: the keys that lead to it.
        tensors: the parameters.
    """

    location: tuple[str, ...]
    tensors: Sequence[Tensor]

    @property
    def in_words(self) -> str:
        """The keys as they are written in Python."""
        return "".join(f"['{key}']" for key in self.location)


def unnamed_in(
    value: Any, location: tuple[str, ...] = (), visited: set[int] | None = None
) -> Iterator[Unnamed]:
    """Every such list in what a file holds, the outer ones first."""
    visited = set() if visited is None else visited
    if type(value) is not dict or len(location) > _DEPTH or id(value) in visited:
        return
    visited.add(id(value))  # a file may refer to the same dictionary many times
    found = value.get(_KEY)
    if isinstance(found, (list, tuple)) and found and all(isinstance(t, Tensor) for t in found):
        yield Unnamed((*location, _KEY), found)
    for key, inner in value.items():
        if type(key) is str:
            yield from unnamed_in(inner, (*location, key), visited)


def named(found: Unnamed, module: nn.Module) -> dict[str, Tensor]:
    """The tensors by the module's names; empty unless their number and all shapes fit."""
    parameters = list(module.parameters())
    if [p.shape for p in parameters] != [t.shape for t in found.tensors]:
        return {}
    by_id = {id(p): t for p, t in zip(parameters, found.tensors, strict=True)}
    return {name: by_id[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}


def complete(tensors: dict[str, Tensor], module: nn.Module) -> bool:
    """Whether nothing of the module is missing, such as running statistics."""
    return bool(tensors) and not _missing(tensors, module)


def does_not_fit(path: Path, found: Unnamed, module: nn.Module) -> UsageError:
    """The error for a file with nothing but such a list, which is not `complete`."""
    missing = _missing(named(found, module), module)
    parameters = list(module.named_parameters())
    differing = [
        f"number {k} is {list(t.shape)}, the module's {name} {list(p.shape)}"
        for k, (t, (name, p)) in enumerate(zip(found.tensors, parameters, strict=False))
        if t.shape != p.shape
    ]
    if len(found.tensors) != len(parameters):
        why = f"It has {len(found.tensors)} tensors, the module {len(parameters)} parameters."
    elif differing:
        why = f"It does not fit the module's parameters in their order: {differing[0]}."
    else:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        why = f"It fits the module's parameters, but lacks {', '.join(missing[:_LISTED])}{more}."
    return unnamed_only(path, found, why)


def unnamed_only(
    path: Path, found: Unnamed, why: str = "Names and shapes tell which network it is."
) -> UsageError:
    """The error for a file whose only weights are such a list, where that is not enough."""
    return UsageError(
        f"The only weights of {path} are {found.in_words}, a list without names.",
        why,
        "Where it was trained, put the average into the network and save that: "
        "ema.copy_to(model.parameters()); torch.save(model.state_dict(), path).",
    )


def _missing(tensors: dict[str, Tensor], module: nn.Module) -> list[str]:
    return [k for k in module.state_dict() if k not in tensors and not may_lack(k)]
