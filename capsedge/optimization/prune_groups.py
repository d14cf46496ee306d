"""Find the groups of units that can be removed from a network, SegCaps included, and remove units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from capsedge.errors import UnsupportedModelError
from capsedge.models import CapsuleModel, build
from capsedge.models.attention_capsules import AttentionCapsules
from capsedge.models.capsnet import CapsNet
from capsedge.models.configs import ModelConfig, ResNet, SegCapsConfig
from capsedge.models.layers import PaddedConv2d
from capsedge.models.matrix_capsules import MatrixCapsules
from capsedge.models.segcaps import MapCapsules, SegCaps
from capsedge.models.stems import ChannelNorm, ConvolutionalAttention, Residual, SqueezeExcitation
from capsedge.optimization.prune_units import Group, Kept, Shrink, Slice, with_item_replaced

# --- Groups of each family of networks ---

_CHANNELS = 8  # channels of a convolution are removed in multiples of this
# Per-channel tensors, with their dimension, of layers that may come between two convolutions.
_BY_CHANNEL: dict[type[nn.Module], dict[str, int]] = {
    nn.BatchNorm2d: {"weight": 0, "bias": 0, "running_mean": 0, "running_var": 0},
    nn.InstanceNorm2d: {"weight": 0, "bias": 0},
    ChannelNorm: {"weight": 0, "bias": 0},
    SqueezeExcitation: {"squeeze.weight": 1, "excite.weight": 0, "excite.bias": 0},
    ConvolutionalAttention: {"squeeze.weight": 1, "excite.weight": 0},
}


def groups(model: CapsuleModel) -> list[Group]:
    """The units that can be removed from a model, from its input to its output."""
    if isinstance(model, CapsNet):
        return _capsnet(model)
    if isinstance(model, MatrixCapsules):
        return _matrix(model)
    if isinstance(model, AttentionCapsules):
        return _attention(model)
    if isinstance(model, SegCaps):
        return _segcaps(model)
    known = "capsnet, matrix-capsules, attention-capsules, segcaps"
    raise UnsupportedModelError(
        f"Networks of the family '{model.config.architecture}' cannot be pruned.",
        f"Supported families: {known}.",
        "Prune before importing, or use fewer iterations: capsedge export --iters.",
    )


def _types(config: ModelConfig, keep: tuple[int, ...]) -> ModelConfig:
    return config.replace(primary_types=len(keep))


def _capsnet(model: CapsNet) -> list[Group]:
    config = model.config
    groups = _stem(model, ["primary.conv"] if config.primary_groups == 1 else [])
    layers = [f"capsules.{k}." for k in range(len(config.capsule_layers))]
    first = layers[0] if layers else "classes."
    children = model.get_parameter(f"{first}weight").shape[0]
    places = children // config.primary_types
    pixels = config.primary_grouping == "pixels"
    if config.primary_groups == 1:
        read = _routed(model, first, *((1, places) if pixels else (places, 1)))
        written = _rows(model, "primary.conv", config.primary_dim)
        groups.append(Group("primary types", config.primary_types, written, read, _types))
    if not layers and not pixels:
        groups.append(
            Group(
                "primary positions",
                places,
                (),
                _routed(model, first, 1, config.primary_types),
                _positions,
            )
        )
    for k, name in enumerate(layers):
        following = layers[k + 1] if k + 1 < len(layers) else "classes."
        types = config.capsule_layers[k].types
        outer = model.get_parameter(f"{following}weight").shape[0] // types
        written = (Slice(f"{name}weight", 1),)
        groups.append(
            Group(f"{name}types", types, written, _routed(model, following, outer, 1), _layer(k))
        )
    return groups + _decoder(model, config.decoder)


def _positions(config: ModelConfig, keep: tuple[int, ...]) -> ModelConfig:
    before = getattr(config, "primary_positions", ())
    return config.replace(primary_positions=tuple(before[k] for k in keep) if before else keep)


def _routed(model: CapsNet, layer: str, outer: int, inner: int) -> tuple[Slice, ...]:
    """The slices of a routed layer's tensors by children."""
    names = [n for n in (f"{layer}weight", f"{layer}log_prior") if n in model.state_dict()]
    return tuple(Slice(n, 0, outer, inner) for n in names)


def _matrix(model: MatrixCapsules) -> list[Group]:
    config = model.config
    convolutions = ["primary_pose.conv", "primary_activation.conv"]
    groups = _stem(model, convolutions)
    layers = [*(f"capsules.{k}." for k in range(len(config.capsule_layers))), "classes."]
    written = (
        *_rows(model, convolutions[0], config.pose_side**2),
        *_rows(model, convolutions[1], 1),
    )
    read = (Slice(f"{layers[0]}weight", 2),)
    groups.append(Group("primary types", config.primary_types, written, read, _types))
    for k, layer in enumerate(config.capsule_layers):
        name = layers[k]
        written = (Slice(f"{name}weight", 3), Slice(f"{name}beta_u"), Slice(f"{name}beta_a"))
        read = (Slice(f"{layers[k + 1]}weight", 2),)
        groups.append(Group(f"{name}types", layer.types, written, read, _layer(k)))
    return groups


def _attention(model: AttentionCapsules) -> list[Group]:
    config = model.config
    groups = _stem(model, ["primary.conv"])
    written = _rows(model, "primary.conv", config.pose_dim)
    read = (Slice("capsules.0.weight", 2),)
    groups.append(Group("primary types", config.primary_types, written, read, _types))
    count = len(config.capsule_layers)
    sizes = (*(layer.types for layer in config.capsule_layers), *config.dense_layers)
    for k, types in enumerate(sizes):
        shrink = _layer(k) if k < count else _dense(k - count)
        written = (Slice(f"capsules.{k}.weight", 3),)
        read = (Slice(f"capsules.{k + 1}.weight", 2),)
        groups.append(Group(f"capsules.{k}.types", types, written, read, shrink))
    return groups


def _segcaps(model: SegCaps) -> list[Group]:
    convolutions = [k for k, m in enumerate(model.stem) if isinstance(m, PaddedConv2d)]
    joined: tuple[Slice, ...] = ()
    if convolutions:
        last = model.stem[convolutions[-1]]
        assert isinstance(last, PaddedConv2d)
        if last.groups == 1:
            joined = _channels(model, convolutions[-1], len(list(model.stem)))
    return [*_stem(model, []), *map_groups(model, joined)]


def _rows(model: nn.Module, conv: str, inner: int) -> tuple[Slice, ...]:
    """The tensors of a convolution by its output: units of ``inner`` channels."""
    bias = (Slice(f"{conv}.bias", 0, 1, inner),) if f"{conv}.bias" in model.state_dict() else ()
    return (Slice(f"{conv}.weight", 0, 1, inner), *bias)


def _layer(index: int) -> Shrink:
    def shrink(config: ModelConfig, keep: tuple[int, ...]) -> ModelConfig:
        layer = replace(config.capsule_layers[index], types=len(keep))
        return config.replace(
            capsule_layers=with_item_replaced(config.capsule_layers, index, layer)
        )

    return shrink


def _dense(index: int) -> Shrink:
    def shrink(config: ModelConfig, keep: tuple[int, ...]) -> ModelConfig:
        layers: tuple[int, ...] = getattr(config, "dense_layers")  # noqa: B009 - of one family
        return config.replace(dense_layers=with_item_replaced(layers, index, len(keep)))

    return shrink


def _decoder(model: CapsNet, sizes: tuple[int, ...]) -> list[Group]:
    def shrink_of(index: int) -> Shrink:
        return lambda config, keep: config.replace(
            decoder=with_item_replaced(getattr(config, "decoder"), index, len(keep))  # noqa: B009
        )

    # Linear layers and ReLUs take turns.
    return [
        Group(
            f"decoder.{k} units",
            size,
            _rows(model, f"decoder.{2 * k}", 1),
            (Slice(f"decoder.{2 * k + 2}.weight", 1),),
            shrink_of(k),
            _CHANNELS,
        )
        for k, size in enumerate(sizes)
    ]


def _stem(model: CapsuleModel, following: list[str]) -> list[Group]:
    """The channels of the stem; no ``following`` convolutions if all of its last channels are needed."""
    if isinstance(model.config.stem, ResNet):
        return _residual(model, following)
    modules = list(model.stem)
    convolutions = [k for k, m in enumerate(modules) if isinstance(m, PaddedConv2d)]
    groups = []
    for number, k in enumerate(convolutions):
        last = number + 1 == len(convolutions)
        end = len(modules) if last else convolutions[number + 1]
        names = following if last else [f"stem.{end}"]
        conv = modules[k]
        assert isinstance(conv, PaddedConv2d)
        grouped = not last and getattr(modules[end], "groups", 1) != 1
        if conv.groups != 1 or grouped or not names:
            continue  # a grouped convolution ties channels to one another
        written = _channels(model, k, end)
        read = tuple(Slice(f"{name}.weight", 1) for name in names)
        groups.append(
            Group(
                f"stem.{number} channels",
                conv.out_channels,
                written,
                read,
                _conv(number),
                _CHANNELS,
            )
        )
    return groups


def _conv(number: int) -> Shrink:
    def shrink(config: ModelConfig, keep: tuple[int, ...]) -> ModelConfig:
        assert not isinstance(config.stem, ResNet)
        conv = replace(config.stem[number], channels=len(keep))
        return config.replace(stem=with_item_replaced(config.stem, number, conv))

    return shrink


def _channels(model: CapsuleModel, conv: int, end: int) -> tuple[Slice, ...]:
    """The tensors by the channels of a convolution of the stem, up to the module ``end``."""
    return (*_rows(model, f"stem.{conv}", 1), *_between(model, range(conv + 1, end)))


def _between(model: CapsuleModel, modules: range) -> list[Slice]:
    """The tensors by channel of the modules after a convolution."""
    state = model.state_dict()
    slices = []
    for k in modules:
        dims = next((d for t, d in _BY_CHANNEL.items() if type(model.stem[k]) is t), {})
        slices += [Slice(f"stem.{k}.{n}", d) for n, d in dims.items() if f"stem.{k}.{n}" in state]
    return slices


def _residual(model: CapsuleModel, following: list[str]) -> list[Group]:
    """The channels of each stage of a residual stem: one choice per stage, since outputs are added."""
    stem = model.config.stem
    assert isinstance(stem, ResNet)
    state = model.state_dict()
    stages: list[list[Slice]] = [[Slice("stem.0.weight")]]
    stages[0] += _normalized(state, "stem.1")
    reads: list[list[Slice]] = [[] for _ in stem.stages]
    blocks = [k for k, m in enumerate(model.stem) if isinstance(m, Residual)]
    for number, (_, count, _) in enumerate(stem.stages):
        if number:
            stages.append([])
        own = stages[number]
        for index in range(count):
            name = f"stem.{blocks.pop(0)}"
            before = own if index or not number else reads[number - 1]
            before.append(Slice(f"{name}.body.0.weight", 1))
            own += [Slice(f"{name}.body.0.weight"), *_normalized(state, f"{name}.body.1")]
            own += [Slice(f"{name}.body.3.weight"), Slice(f"{name}.body.3.weight", 1)]
            own += _normalized(state, f"{name}.body.4")
            if f"{name}.shortcut.0.weight" in state:
                before.append(Slice(f"{name}.shortcut.0.weight", 1))
                own += [
                    Slice(f"{name}.shortcut.0.weight"),
                    *_normalized(state, f"{name}.shortcut.1"),
                ]
    reads[-1] += [Slice(f"{name}.weight", 1) for name in following]
    return [
        Group(f"stem stage {k}", width, tuple(stages[k]), tuple(reads[k]), _stage(k), _CHANNELS)
        for k, (width, _, _) in enumerate(stem.stages)
        if reads[k]
    ]


def _normalized(state: dict[str, Any], name: str) -> list[Slice]:
    return [Slice(f"{name}.{n}") for n in _BY_CHANNEL[nn.BatchNorm2d] if f"{name}.{n}" in state]


def _stage(index: int) -> Shrink:
    def shrink(config: ModelConfig, keep: tuple[int, ...]) -> ModelConfig:
        assert isinstance(config.stem, ResNet)
        _, blocks, stride = config.stem.stages[index]
        stages = with_item_replaced(config.stem.stages, index, (len(keep), blocks, stride))
        return config.replace(stem=ResNet(stages))

    return shrink


# --- Removal: a smaller configuration, and the weights that remain ---


def keep_units(model: CapsuleModel, kept: Kept) -> CapsuleModel:
    """A new model with only these units, in evaluation mode.

    Args:
        kept: what is kept, by the names in `families.groups`; groups not named are kept whole.
    """
    names = {group.name for group in groups(model)}
    for name, keep in kept.items():
        if name not in names:
            raise KeyError(name)
        # A group's places depend on the groups before it, so each is located anew.
        group = next(g for g in groups(model) if g.name == name)
        if len(keep) < group.units:
            model = _kept(model, group, keep)
    return model


def _kept(model: CapsuleModel, group: Group, keep: tuple[int, ...]) -> CapsuleModel:
    state = dict(model.state_dict())
    for each in group.tensors:
        state[each.tensor] = each.kept(state[each.tensor], group.units, keep)
    for name in group.divided:
        state[name] = state[name] * (len(keep) / group.units)
    smaller = build(group.shrink(model.config, keep)).to(next(model.parameters()).dtype)
    smaller.load_state_dict(state)
    smaller.typical_input = model.typical_input
    smaller.training_split = model.training_split
    return smaller.eval()


STEM = "stem"
_ELEMENTS = 4  # elements of a pose are removed in multiples of this
_Position = tuple[str, int]  # of a layer: ``down`` or ``up``, and its number


def map_groups(model: SegCaps, stem: tuple[Slice, ...]) -> list[Group]:
    """The groups of SegCaps: the capsule types of every layer, and the elements of its poses.

    What reads a map makes the votes of all its types by the same weights, so types go without a change of
    it. Maps that are joined have poses of one size, so their elements go together: those of a layer on the
    way up with those of the layer, or the stem, whose map is joined to it.

    Args:
        stem: the tensors by the channels of the stem's last convolution; none if the images themselves are
            joined, or its channels are tied to one another.
    """
    down, up = len(model.down), len(model.up)
    places = [*(("down", k) for k in range(down)), *(("up", k) for k in range(up))]
    groups = [_map_types(model, place) for place in places]
    for k in range(down):
        joined = [("up", up - 2 - k)] if k % 2 and k + 1 < down else []
        groups.append(_elements(model, [("down", k), *joined]))
    groups += [_elements(model, [("up", k)]) for k in range(1, up, 2)]
    return [*groups, _elements(model, [("up", up - 1)], stem)] if stem else groups


def _map_layer(model: SegCaps, place: _Position) -> tuple[str, MapCapsules]:
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


def _map_types(model: SegCaps, place: _Position) -> Group:
    name, layer = _map_layer(model, place)
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
        name, layer = _map_layer(model, place)
        names.append(name)
        readers.append((place[0], place[1] + 1))
        weight = f"{name}.votes.weight"
        written += [Slice(weight, _sides(layer)[0], layer.layer.types), Slice(f"{name}.bias", 1)]
        units = layer.layer.dim
    for place in readers:
        name, layer = _map_layer(model, place)
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
            ways[way] = with_item_replaced(ways[way], k, layer)
        convolutions = config.stem
        if stem:
            assert not isinstance(convolutions, ResNet)
            last = replace(convolutions[-1], channels=len(keep))
            convolutions = with_item_replaced(convolutions, len(convolutions) - 1, last)
        return config.replace(**ways, stem=convolutions)

    return shrink
