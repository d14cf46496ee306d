"""Find the units of SegCaps that can be removed: types of capsules, and elements of poses that maps share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from capsedge.models.configs import ModelConfig, ResNet, SegCapsConfig
from capsedge.models.segcaps import MapCapsules, SegCaps
from capsedge.optimization.prune_units import Group, Shrink, Slice, changed

STEM = "stem"
_ELEMENTS = 4  # elements of a pose are removed in multiples of this
_Position = tuple[str, int]  # of a layer: ``down`` or ``up``, and its number


def map_groups(model: SegCaps, stem: tuple[Slice, ...]) -> list[Group]:
    """Types of capsules of every layer, and elements of its poses.

    What reads a map makes the votes of all its types by the same weights, so types go without a change of
    it. Maps that are joined have poses of one size, so their elements go together: those of a layer on the
    way up with those of the layer, or the stem, whose map is joined to it.

    Args:
        stem: the tensors by the channels of the stem's last convolution; none if the images themselves are
            joined, or its channels are tied to one another.
    """
    down, up = len(model.down), len(model.up)
    places = [*(("down", k) for k in range(down)), *(("up", k) for k in range(up))]
    groups = [_types(model, place) for place in places]
    for k in range(down):
        joined = [("up", up - 2 - k)] if k % 2 and k + 1 < down else []
        groups.append(_elements(model, [("down", k), *joined]))
    groups += [_elements(model, [("up", k)]) for k in range(1, up, 2)]
    return [*groups, _elements(model, [("up", up - 1)], stem)] if stem else groups


def _layer(model: SegCaps, place: _Position) -> tuple[str, MapCapsules]:
    """The name of a layer, and the layer; behind the last is the pixels' own."""
    way, k = place
    if way == "down" and k == len(model.down):
        way, k = "up", 0
    last = way == "up" and k == len(model.up)
    name = "pixels" if last else f"{way}.{k}"
    layer = model.get_submodule(name)
    assert isinstance(layer, MapCapsules)
    return name, layer


def _sides(layer: MapCapsules) -> tuple[int, int]:
    """The dimensions of the weight of the votes by output and by input."""
    return (1, 0) if isinstance(layer.votes, nn.ConvTranspose2d) else (0, 1)


def _types(model: SegCaps, place: _Position) -> Group:
    name, layer = _layer(model, place)
    weight = f"{name}.votes.weight"
    written = (Slice(weight, _sides(layer)[0], 1, layer.layer.dim), Slice(f"{name}.bias"))
    # A parent's share of a vote grows as the types get fewer, on average in proportion.
    return Group(
        f"{name}.types",
        layer.layer.types,
        written,
        (),
        _shrink([place], types=True),
        divided=(weight,),
        silent=layer.iterations == 1,  # its parents share every vote equally
    )


def _elements(model: SegCaps, tied: Sequence[_Position], stem: tuple[Slice, ...] = ()) -> Group:
    written, read = list(stem), list[Slice]()
    names = [STEM] if stem else []
    readers = [("down", 0)] if stem else []
    for place in tied:
        name, layer = _layer(model, place)
        names.append(name)
        readers.append((place[0], place[1] + 1))
        weight = f"{name}.votes.weight"
        written += [Slice(weight, _sides(layer)[0], layer.layer.types), Slice(f"{name}.bias", 1)]
        units = layer.layer.dim
    for place in readers:
        name, layer = _layer(model, place)
        read.append(Slice(f"{name}.votes.weight", _sides(layer)[1]))
    return Group(
        f"{' and '.join(names)} elements", units, tuple(written), tuple(read),
        _shrink(tied, stem=bool(stem)), _ELEMENTS, silent=not stem,
    )  # fmt: skip


def _shrink(places: Sequence[_Position], *, types: bool = False, stem: bool = False) -> Shrink:
    """Fewer types or elements of some layers and, with them, channels of the stem's last convolution."""

    def shrink(config: ModelConfig, keep: tuple[int, ...]) -> ModelConfig:
        assert isinstance(config, SegCapsConfig)
        ways = {"down": config.down, "up": config.up}
        for way, k in places:
            layer, count = ways[way][k], len(keep)
            layer = replace(layer, types=count) if types else replace(layer, dim=count)
            ways[way] = changed(ways[way], k, layer)
        convolutions = config.stem
        if stem:
            assert not isinstance(convolutions, ResNet)
            last = replace(convolutions[-1], channels=len(keep))
            convolutions = changed(convolutions, len(convolutions) - 1, last)
        return config.replace(**ways, stem=convolutions)

    return shrink
