"""What a shell offers for an option: the names that a verb knows, and files by their suffixes.

Each parameter has a source, which runs at every press of the key and so imports nothing heavy.
"""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Callable, Iterable, Mapping

import click

Source = Callable[..., list[str]]
ONNX, ENGINE, CHECKPOINT = ".onnx", ".engine", ".safetensors"
# Those of `capsedge.weights`, which imports torch.
WEIGHTS = (".pt", ".pth", ".tar", ".chkpt", ".ckpt", ".bin", CHECKPOINT)


def names(known: Callable[[], Iterable[str]]) -> Source:
    """Offers names; `known` is called when they are wanted."""

    def offer(incomplete: str) -> list[str]:
        return [name for name in known() if name.startswith(incomplete)]

    return offer


def words(*known: str) -> Source:
    """Offers fixed words."""
    return names(lambda: known)


def lists(known: Callable[[], Iterable[str]]) -> Source:
    """Offers the next of several names that commas separate, without those that are there already."""

    def offer(incomplete: str) -> list[str]:
        before, comma, start = incomplete.rpartition(",")
        left = [name for name in known() if name not in before.split(",")]
        return [before + comma + name for name in left if name.startswith(start)]

    return offer


def files(*suffixes: str) -> Source:
    """Offers folders, and files with one of the suffixes (all files without any)."""

    def offer(incomplete: str) -> list[str]:
        folder, slash, start = incomplete.rpartition("/")
        found = _entries(folder + slash, start, suffixes)
        if len(found) == 1 and found[0].endswith("/"):
            # With the folder alone, bash would put a space after it.
            found += _entries(found[0], "", suffixes)
        return found

    return offer


def _entries(folder: str, start: str, suffixes: tuple[str, ...]) -> list[str]:
    """Entries of a folder; those that a shell would have to quote are left to the shell's own completion."""
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = [(e.name, e.is_dir()) for e in entries if e.name.startswith(start)]
    except OSError:
        return []
    shown = [(n, d) for n, d in found if not n.startswith(".") or start.startswith(".")]
    wanted = [(n, d) for n, d in shown if d or not suffixes or n.lower().endswith(suffixes)]
    return sorted(folder + n + ("/" if d else "") for n, d in wanted if shlex.quote(n) == n)


def _models() -> Iterable[str]:
    from capsedge.models.registry import MODELS

    return MODELS


def _trained() -> Iterable[str]:
    from capsedge.zoo import zoo_checkpoints

    return [path.stem for path in zoo_checkpoints()]


def _routings() -> Iterable[str]:
    from capsedge.zoo import ROUTINGS

    return ROUTINGS


def _families() -> Iterable[str]:
    from capsedge.families import FAMILIES

    return [family.name for family in FAMILIES]


def _variants(ctx: click.Context, incomplete: str) -> list[str]:
    """The variants of the family that ``--as`` names, of all families without it."""
    from capsedge.families import FAMILIES

    chosen = ctx.params.get("family")
    known = [v.name for f in FAMILIES if chosen in (None, f.name) for v in f.variants]
    return [name for name in dict.fromkeys(known) if name.startswith(incomplete)]


def _devices() -> Iterable[str]:
    gpus = sorted(n for n in os.listdir("/dev") if n.startswith("nvidia") and n[6:].isdigit())
    return ["cpu", "cuda", *(f"cuda:{name[6:]}" for name in gpus[1:])]


def _boards() -> Iterable[str]:
    from capsedge.runtime.reading.forecast import DEVICES

    return DEVICES


def _peers() -> Iterable[str]:
    from capsedge.runtime.profiling.compare import PACKAGES

    return PACKAGES


def _providers() -> Iterable[str]:
    from capsedge.runtime.backends.providers import PROVIDERS

    return PROVIDERS


def _rewrites() -> Iterable[str]:
    from capsedge.cli.export import REWRITES

    return REWRITES


def _images(incomplete: str) -> list[str]:
    from capsedge.runtime.vision.image_headers import SUFFIXES

    return files(*SUFFIXES)(incomplete)


def _loadable(incomplete: str) -> list[str]:
    from capsedge.zoo import MODELS

    return names(lambda: MODELS)(incomplete) + files(ONNX, ENGINE)(incomplete)


def _deployable(incomplete: str) -> list[str]:
    from capsedge.zoo import MODELS

    return names(lambda: MODELS)(incomplete) + files(ONNX)(incomplete)


def _trainable(incomplete: str) -> list[str]:
    return names(_models)(incomplete) + files(*WEIGHTS)(incomplete)


def _prunable(incomplete: str) -> list[str]:
    return names(_trained)(incomplete) + files(*WEIGHTS)(incomplete)


def _verifiable(ctx: click.Context, incomplete: str) -> list[str]:
    """The files to verify, or beside one the models that it may come from."""
    return (
        names(_trained)(incomplete)
        if ctx.params.get("model") or ctx.args
        else _loadable(incomplete)
    )


def _pictures() -> Iterable[str]:
    from capsedge.viz.kinds import KINDS

    return KINDS


_deployed = files()  # of an option that the verbs of `deploy` share
# By the name of a parameter; where verbs differ, by verb and parameter.
SOURCES: Mapping[str, Source] = {
    "against": files(".py"),
    "calib_data": files(".npz"),
    "checkpoint": files(*WEIGHTS),
    "classes": files(".txt"),
    "compare": lists(_peers),
    "criterion": words("taylor", "look-ahead"),
    "data": files(".npz"),
    "device": names(_devices),
    "extra": lists(lambda: ("reconstruction", "couplings", "trace")),
    "family": names(_families),
    "file": files(ONNX, CHECKPOINT, ENGINE),
    "files": files(*WEIGHTS, ".npz", ".h5", ".hdf5", ".keras"),
    "html": files(".html"),
    "images": _images,
    "init": files(*WEIGHTS),
    "inputs": files(".npz", ".npy"),
    "key_map": files(".toml"),
    "markdown": files(".md"),
    "method": words("minmax", "percentile", "entropy", "mse"),
    "model": files(ONNX, ENGINE),
    "models": files(ONNX, ENGINE),
    "module": files(".py"),
    "name": names(_trained),
    "no_rewrite": names(_rewrites),
    "ops": words("auto", "fused", "portable"),
    "order": words("RGB", "BGR"),
    "output": files(ONNX),
    "pairs": words("none", "overlap", "diverse"),
    "peer_model": files(ONNX, ".tflite", ".mnn"),
    "picture": files(".png", ".svg"),
    "per_image": words("standardize", "min-max"),
    "pixel_range": words("0-1", "0-255", "-1-1"),
    "plot": files(".png"),
    "plugin": words("auto", "fused", "native"),
    "png": files(".png"),
    "precision": words("int8", "fp16", "mixed"),
    "prefer": words("size", "speed"),
    "provider": names(_providers),
    "reconstruct": files(".png"),
    "resize": words("stretch", "pad", "crop", "center"),
    "routing": names(_routings),
    "runtime": words("openvino", "litert", "mnn"),
    "schedule": words("one-cycle", "exponential", "multistep"),
    "score_kind": words("length", "logits", "probability"),
    "table": files(".json"),
    "target": words("ort-cpu", "tensorrt", "openvino", "litert"),
    "task": words("classification", "multi-label", "regression"),
    "timing_cache": files(),
    "trace": files(".json"),
    "typical_data": files(".npz"),
    "variant": _variants,
    "weights": files(*WEIGHTS),
    "what": lists(_pictures),
    "batch column": words(),
    "batch model": _loadable,
    "batch output": files(".parquet"),
    "batch outputs": lists(lambda: ("scores", "poses")),
    "batch source": files(".parquet", ".tar", ".tgz", ".gz", ".npz", ".npy", "-ubyte"),
    "batch cluster": words("auto"),
    "build precision": words("fp32", "fp16", "int8", "mixed"),
    "build target": words("tensorrt", "tensorrt-rtx"),
    "build model": files(ONNX),
    "build output": files(ENGINE),
    "cascade large": files(ONNX),
    "cascade small": files(ONNX),
    "deploy kserve name": words(),
    "deploy kserve output": files(".yaml", ".yml"),
    "deploy kserve repository": files(),
    "deploy triton models": _loadable,
    "deploy triton output": _deployed,
    "deploy web iters": words(),
    "deploy web models": _deployable,
    "deploy web output": _deployed,
    "export model": names(_models),
    "import output": files(CHECKPOINT),
    "infer model": _loadable,
    "inspect device": names(_boards),
    "optimize batch": words("free", "keep"),
    "optimize model": files(ONNX),
    "prune checkpoint": _prunable,
    "prune output": files(CHECKPOINT),
    "quantize model": files(ONNX),
    "quantize ops": words("auto", "fused"),
    "see model": _loadable,
    "see output": files(".png", ".svg", ".html"),
    "serve batch": words("auto"),
    "serve models": _loadable,
    "sweep model": names(_trained),
    "sweep keep": files(),
    "sweep couplings": lists(lambda: ("routed", "frozen")),
    "sweep output": files(".json"),
    "sweep precision": lists(lambda: ("fp32", "fp16", "int8")),
    "train model": _trainable,
    "train output": files(),
    "verify name": _verifiable,
    "verify output": files(".json"),
}


def source_of(verb: str, parameter: str) -> Source | None:
    """The source of a parameter's completions; None where nothing can be offered."""
    return SOURCES.get(f"{verb} {parameter}", SOURCES.get(parameter))


def offered(verb: str, parameter: str, ctx: click.Context, incomplete: str) -> list[str]:
    """What a shell offers for a parameter that has been typed so far."""
    source = source_of(verb, parameter)
    if source is None:
        return []
    if len(inspect.signature(source).parameters) == 1:
        return source(incomplete)
    return source(ctx, incomplete)
