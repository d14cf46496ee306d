"""What a shell offers for an option: the names that a verb knows; files are the shell's own.

It is asked at every press of the key, so nothing heavy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

import click
from click.shell_completion import CompletionItem

Known = tuple[str, ...] | Callable[[click.Context], Iterable[str]]


def _models(_: click.Context) -> Iterable[str]:
    from capsedge.models.registry import MODELS

    return MODELS


def _trained(_: click.Context) -> Iterable[str]:
    from capsedge.zoo import MODELS

    return MODELS


def _routings(_: click.Context) -> Iterable[str]:
    from capsedge.zoo import ROUTINGS

    return ROUTINGS


def _families(_: click.Context) -> Iterable[str]:
    from capsedge.families import FAMILIES

    return [family.name for family in FAMILIES]


def _variants(ctx: click.Context) -> Iterable[str]:
    """Those of the family that ``--as`` names; of all families without it."""
    from capsedge.families import FAMILIES

    chosen = ctx.params.get("family")
    known = [v.name for f in FAMILIES if chosen in (None, f.name) for v in f.variants]
    return dict.fromkeys(known)


def _devices(_: click.Context) -> Iterable[str]:
    gpus = sorted(n for n in os.listdir("/dev") if n.startswith("nvidia") and n[6:].isdigit())
    return ["cpu", "cuda", *(f"cuda:{name[6:]}" for name in gpus[1:])]


def _boards(_: click.Context) -> Iterable[str]:
    from capsedge.runtime.reading.forecast import DEVICES

    return DEVICES


def _peers(_: click.Context) -> Iterable[str]:
    from capsedge.runtime.profiling.compare import PACKAGES

    return PACKAGES


def _providers(_: click.Context) -> Iterable[str]:
    from capsedge.runtime.backends.providers import PROVIDERS

    return PROVIDERS


def _rewrites(_: click.Context) -> Iterable[str]:
    from capsedge.cli.export import REWRITES

    return REWRITES


def _pictures(_: click.Context) -> Iterable[str]:
    from capsedge.viz.kinds import KINDS

    return KINDS


# By the name of a parameter; where verbs differ, by verb and parameter.
NAMES: Mapping[str, Known] = {
    "criterion": ("taylor", "look-ahead"),
    "device": _devices,
    "family": _families,
    "method": ("minmax", "percentile", "entropy", "mse"),
    "name": _trained,
    "no_rewrite": _rewrites,
    "ops": ("auto", "fused", "portable"),
    "order": ("RGB", "BGR"),
    "pairs": ("none", "overlap", "diverse"),
    "per_image": ("standardize", "min-max"),
    "pixel_range": ("0-1", "0-255", "-1-1"),
    "plugin": ("auto", "fused", "native"),
    "precision": ("int8", "fp16", "mixed"),
    "prefer": ("size", "speed"),
    "provider": _providers,
    "resize": ("stretch", "pad", "crop", "center"),
    "routing": _routings,
    "runtime": ("openvino", "litert", "mnn"),
    "schedule": ("one-cycle", "exponential", "multistep"),
    "score_kind": ("length", "logits", "probability"),
    "target": ("ort-cpu", "tensorrt", "openvino", "litert"),
    "task": ("classification", "multi-label", "regression"),
    "variant": _variants,
    "batch cluster": ("auto",),
    "batch model": _trained,
    "build device": (),
    "build precision": ("fp32", "fp16", "int8", "mixed"),
    "build target": ("tensorrt", "tensorrt-rtx"),
    "deploy kserve name": (),
    "deploy triton models": _trained,
    "deploy web models": _trained,
    "export model": _models,
    "infer model": _trained,
    "inspect device": _boards,
    "optimize batch": ("free", "keep"),
    "prune checkpoint": _trained,
    "quantize ops": ("auto", "fused"),
    "see model": _trained,
    "serve batch": ("auto",),
    "serve models": _trained,
    "sweep model": _trained,
    "train model": _models,
}
# Several names that commas separate.
LISTS: Mapping[str, Known] = {
    "compare": _peers,
    "extra": ("reconstruction", "couplings", "trace"),
    "what": _pictures,
    "batch outputs": ("scores", "poses"),
    "sweep couplings": ("routed", "frozen"),
    "sweep precision": ("fp32", "fp16", "int8"),
}
# What takes a file besides all that is a path: a name or a file, a file and a class in it, an address.
FILES = frozenset(
    (
        *("against", "module", "batch model", "batch output", "batch source", "infer model"),
        *("prune checkpoint", "see model", "train model", "verify name"),
    )
)


def offered(
    verb: str, parameter: str, is_path: bool, ctx: click.Context, incomplete: str
) -> list[CompletionItem]:
    """What a shell offers for a parameter that has been typed so far."""
    keys = (f"{verb} {parameter}", parameter)
    lists, names = (next((t[k] for k in keys if k in t), ()) for t in (LISTS, NAMES))
    before, comma, start = incomplete.rpartition(",") if lists else ("", "", incomplete)
    known = lists or names
    found = [
        CompletionItem(before + comma + name)
        for name in (known if isinstance(known, tuple) else known(ctx))
        if name.startswith(start) and name not in before.split(",")
    ]
    # First, since bash forgets the names before it; it completes files where no name is left.
    files = [CompletionItem(incomplete, type="file")] if is_path or FILES & {*keys} else []
    return files + found
