"""What each backend does not compute itself: one table, which the tests read and the documentation prints.

A backend that lacks something leaves the node to its function body, or refuses the file: `Gap.instead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from capsedge.spec.limits import DIFFERENCES, runtime_limit
from capsedge.spec.operators import OPERATORS, Operator

# Backends by the word of the table, with their names on the pages.
TITLES = {
    "torch": "PyTorch",
    "body": "function body in ONNX Runtime",
    "cpu": "CPU kernels",
    "cuda": "CUDA kernels",
    "tensorrt": "TensorRT plugins",
    "c": "C and WebAssembly",
    "web": "browser (ONNX Runtime Web)",
}
# What a node may have, with its name on the pages.
FEATURES = {
    "per image": "priors or masks of images (`image_prior`, `mask`)",
    "shared prior": "one row of start logits for several children (`log_prior` with `I` of 1)",
    "shared votes": "the same votes for several parents (`votes` with `J` of 1)",
    "vote bias": "`vote_bias`",
    "variant": "`over_children`, `replace`, `normalize` or `elementwise`",
    "couplings": "couplings as an output",
    "many iterations": f"more than {runtime_limit('cuda', 'ITERATIONS')} iterations",
    "several iterations": "several iterations",
    "empty batch": "a batch of zero images",
    "unstated": "inputs whose shapes the file does not state, or a node inside another node",
}


@dataclass(frozen=True)
class Gap:
    """Nodes that some backends do not compute themselves.

    Attributes:
        backends: keys of `TITLES`.
        operators: their types.
        why: a clause for people.
        instead: what happens to such a node.
        features: keys of `FEATURES`, all of which a node has; none if it is any node.
        types: storage types, if it is only nodes of these.
    """

    backends: tuple[str, ...]
    operators: tuple[str, ...]
    why: str
    instead: str
    features: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


def _where(holds: Callable[[Operator], bool]) -> tuple[str, ...]:
    return tuple(o.name for o in OPERATORS.values() if holds(o))


def _with_int8(*names: str) -> tuple[str, ...]:
    """Operators and their forms with INT8 weights."""
    return _where(lambda o: o.procedure in names)


_MOST = next(d for d in DIFFERENCES if (d.runtime, d.limit) == ("cuda", "ITERATIONS"))
_BODY = "the function body runs"
_WRITTEN = "the function body is written"

# Those of whole operators first.
GAPS = (
    Gap(
        ("torch",),
        _where(lambda o: o.in_8_bits),
        "operators with INT8 weights have no PyTorch definition",
        "`capsedge quantize` makes them",
    ),
    Gap(
        ("cuda",),
        _where(lambda o: not o.has_cuda_kernel),
        "the GPU's standard operators suffice",
        _BODY,
    ),
    Gap(
        ("tensorrt",),
        _where(lambda o: not o.plugin and not o.in_8_bits),
        "TensorRT's own operators suffice",
        _BODY,
    ),
    Gap(
        ("tensorrt",),
        _where(lambda o: o.in_8_bits),
        "TensorRT has its own form of INT8",
        "refused: `capsedge quantize --target tensorrt`",
    ),
    Gap(("c",), _with_int8("VoteRouting", "SelfAttentionRouting"), "there is no kernel", _WRITTEN),
    Gap(
        ("c",),
        ("FastConv",),
        "C decides for every convolution whether tiles gain and fit",
        _WRITTEN,
    ),
    Gap(
        ("web",),
        tuple(OPERATORS),
        "ONNX Runtime Web loads no operator library",
        f"{_BODY}; a file of `--ops fused` has none and is refused",
    ),
    Gap(
        ("cpu", "cuda", "tensorrt"),
        _where(lambda o: o.name != "QuantizedConv"),
        "the kernels store float32 and float16",
        "backends need no other types",
        types=("float64",),
    ),
    Gap(
        ("body",),
        ("FastConv",),
        "ONNX Runtime has no convolution of float64",
        "backends need no other types",
        types=("float64",),
    ),
    Gap(
        ("body",),
        _with_int8("AttentionRouting", "UniformRouting", "PoseNormalization"),
        "ONNX Runtime's LayerNormalization keeps its statistics in FP32",
        "results have the precision of FP32",
        types=("float64",),
    ),
    Gap(
        ("body",),
        _with_int8("DynamicRouting"),
        "ONNX Runtime's MatMul does not broadcast a dimension of 1 against one of 0",
        "ONNX Runtime raises an error",
        ("empty batch", "several iterations"),
    ),
    Gap(
        ("body",),
        _with_int8("VoteRouting"),
        "ONNX Runtime's MatMul does not broadcast a dimension of 1 against one of 0",
        "ONNX Runtime raises an error",
        ("empty batch",),
    ),
    Gap(
        ("cpu", "cuda", "tensorrt", "c"),
        _where(lambda o: o.couplings),
        "a fused kernel never holds couplings in memory",
        "the exporter writes standard operators",
        ("couplings",),
    ),
    Gap(
        ("cuda", "tensorrt"),
        _with_int8("DynamicRouting", "VoteRouting"),
        "all images share their start logits there",
        _BODY,
        ("per image",),
    ),
    Gap(
        ("cuda", "tensorrt"),
        ("VoteRouting",),
        "the kernels read the votes of every parent",
        _BODY,
        ("shared votes",),
    ),
    Gap(
        ("cuda",),
        _with_int8("DynamicRouting", "VoteRouting"),
        "the kernels read a row for every child; for TensorRT, `capsedge build` writes them out",
        _BODY,
        ("shared prior",),
    ),
    Gap(("cuda",), _where(lambda o: o.iterates), _MOST.reason, _BODY, ("many iterations",)),
    Gap(
        ("tensorrt",),
        _where(lambda o: o.iterates),
        _MOST.reason,
        "refused: `--plugin native`",
        ("many iterations",),
    ),
    Gap(
        ("cuda",),
        _where(lambda o: o.has_cuda_kernel),
        "whether a kernel fits is decided before the file is loaded",
        _BODY,
        ("unstated",),
    ),
    *(
        Gap(
            ("c",),
            _with_int8("DynamicRouting"),
            "the kernel has the paper's procedure and `leaky`",
            _WRITTEN,
            (feature,),
        )
        for feature in ("per image", "vote bias", "variant")
    ),
)


def gaps_of(operator: str) -> list[tuple[str, Gap]]:
    """What each backend lacks of an operator: nothing more where it lacks the whole operator."""
    found = []
    for backend in TITLES:
        own = [g for g in GAPS if backend in g.backends and operator in g.operators]
        whole = [g for g in own if not g.features and not g.types]
        found += [(backend, g) for g in whole or own]
    return found


def gap(backend: str, operator: str, dtype: str, features: Iterable[str] = ()) -> Gap | None:
    """The first reason why a backend does not compute a node itself; None if it does.

    Args:
        backend: a key of `TITLES`.
        operator: the node's type.
        dtype: storage type.
        features: what the node has, of `FEATURES`.
    """
    given = {*features}
    for name, each in gaps_of(operator):
        fits = given.issuperset(each.features) and (not each.types or dtype in each.types)
        if name == backend and fits:
            return each
    return None
