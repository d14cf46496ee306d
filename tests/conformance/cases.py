"""The registry: every case that every backend is checked against.

A case is an operator, its dimensions, its ONNX attributes and the kind of its inputs. Its printed
form (``str(case)``) names it, filters it (``--filter`` is a regular expression over it) and seeds it.

>>> from tests.conformance.cases import CASES, make
>>> example = make(CASES[0], "float16")      # inputs, what the oracle wants, tolerances
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.spec.operators import OPERATORS
from tools.spec.cpp_operators import snake

from . import inputs, oracle
from .gaps import gap
from .tolerance import Tolerance, tolerance

DTYPES = ("float64", "float32", "float16", "uint8")
# What an ONNX node has, by the specification's names: a pose is a pose on both sides of a node.
OUTPUTS = {
    name: tuple(output.removesuffix("_out") for output in spec.output_names)
    for name, spec in OPERATORS.items()
}
# What only the PyTorch operators have beside it.
EXTRA_OUTPUTS = {
    name: ("couplings",) if spec.torch and spec.couplings else ()
    for name, spec in OPERATORS.items()
}


_VARIANTS = ("over_children", "replace", "normalize", "elementwise")  # of dynamic routing


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "x".join(_text(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Case:
    """One case; ``dims`` are the letters of docs/reference/operators.md, ``attributes`` those of the node."""

    operator: str
    dims: Mapping[str, Any]
    attributes: Mapping[str, Any]
    kind: str = "normal"
    options: Mapping[str, Any] = field(default_factory=dict)
    heavy: bool = False  # a layer of a published model: for `performance`, marked slow in pytest

    def __str__(self) -> str:
        parts = {**self.dims, **self.attributes, **self.options, "kind": self.kind}
        return f"{self.operator}({','.join(f'{k}={_text(v)}' for k, v in parts.items())})"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, the ONNX node's first."""
        return OUTPUTS[self.operator] + EXTRA_OUTPUTS[self.operator]

    @property
    def paper(self) -> bool:
        """Whether it is dynamic routing as in the paper, or leaky: without what other networks make of it."""
        if self.operator.removeprefix("Quantized") != "DynamicRouting":
            return False
        others = {k: v for k, v in _PLAIN.items() if k not in ("leaky", "epsilon")}
        plain = others.items() <= dict(self.attributes).items()
        return plain and self.options["one"] == 0 and self.options["vote_bias"] == "none"

    @property
    def features(self) -> frozenset[str]:
        """What the node has of `gaps.FEATURES`."""
        given = {**self.attributes, **self.options}
        batch = self.dims["N"] if "N" in self.dims else self.dims["shape"][0]
        has = {
            "per image": bool(given.get("history")),
            "shared votes": bool(given.get("of_all")) and self.dims["J"] > 1,
            "vote bias": given.get("vote_bias", "none") != "none" or "history" in given,
            "variant": any(given.get(k) for k in _VARIANTS),
            "several iterations": given.get("iterations", 1) > 1,
            "empty batch": batch == 0,
        }
        return frozenset(name for name, present in has.items() if present)

    def gap(self, backend: str, dtype: str) -> str:
        """Why a backend of `gaps.TITLES` does not compute it in this storage type; empty if it does."""
        found = gap(backend, self.operator, dtype, self.features)
        return found.why if found else ""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Storage types that the operator has."""
        return ("uint8",) if self.operator == "QuantizedConv" else DTYPES[:3]


@dataclass(frozen=True)
class Example:
    """A case in one storage type: inputs as stored, the oracle's float64 outputs, tolerances."""

    inputs: Mapping[str, NDArray[Any]]
    wanted: Mapping[str, NDArray[np.float64]]
    tolerances: Mapping[str, Tolerance]


def evaluate(case: Case, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """The oracle's outputs by name for any input values."""
    operator, given = case.operator, dict(arrays)
    if "weight_scale" in given and operator != "QuantizedConv":
        operator = operator.removeprefix("Quantized")
        given["weight"] = oracle.dequantized(given["weight"], given.pop("weight_scale"))
    found = getattr(oracle, snake(operator))(*given.values(), **case.attributes)
    found = found[: len(case.outputs)] if isinstance(found, tuple) else found
    results = found if isinstance(found, tuple) else (found,)
    return dict(zip(case.outputs, results, strict=True))


def _make(case: Case, dtype: str) -> Example:
    name = str(case)
    arrays = inputs.build(
        case.operator, case.dims, {**case.attributes, **case.options}, case.kind, name, dtype
    )
    wanted = evaluate(case, arrays)
    size = inputs.votes_size(case.kind, dtype)
    limits = {
        output: tolerance(case.operator, output, case.kind, dtype, size, paper=case.paper)
        for output in case.outputs
    }
    return Example(arrays, wanted, limits)


# Of light ones, all of an operator; a heavy one takes tens of megabytes.
_light = lru_cache(maxsize=128)(lambda name, dtype: _make(BY_NAME[name], dtype))
_heavy = lru_cache(maxsize=4)(lambda name, dtype: _make(BY_NAME[name], dtype))


def make(case: Case, dtype: str) -> Example:
    """Inputs rounded to ``dtype``, the oracle's answer for the rounded values, tolerances."""
    return (_heavy if case.heavy else _light)(str(case), dtype)


def _squash_cases() -> Iterator[Case]:
    def case(
        shape: tuple[int, ...], axis: int = -1, epsilon: float = 1e-8, kind: str = "normal"
    ) -> Case:
        return Case("Squash", {"shape": shape}, {"axis": axis, "epsilon": epsilon}, kind)

    for kind in inputs.KINDS["Squash"]:
        for shape in ((5, 16), (3, 7, 11), (2, 13, 1)):
            yield case(shape, kind=kind)
    for axis in (-3, -2, -1, 0, 1, 2):
        yield case((3, 5, 7), axis=axis)
    for size in (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64):
        yield case((3, size))
    for epsilon in (1e-12, 1e-5, 1e-3):
        for kind in ("normal", "tiny"):
            yield case((4, 9), epsilon=epsilon, kind=kind)
    yield case((6,))
    yield case((0, 10, 8))
    yield case((2, 3, 2, 5, 4), axis=3)
    yield Case("Squash", {"shape": (16, 1152, 8)}, {"axis": -1, "epsilon": 1e-8}, heavy=True)


_PLAIN = {
    "leaky": 0, "over_children": 0, "replace": 0, "normalize": 0, "elementwise": 0,
    "agreement_scale": 1.0, "epsilon": 1e-8,
}  # fmt: skip


def _dynamic(
    n: int, i: int, j: int, pin: int, pout: int, iterations: int = 3, kind: str = "normal",
    one: int = 0, vote_bias: str = "none", prior: int = 1, bias: int = 1, heavy: bool = False,
    history: str = "", **settings: Any,
) -> Case:  # fmt: skip
    """``one``: a weight for all children; ``vote_bias``: none, zeros, one for all, or one for each."""
    more = {"history": history} if history else {}
    return Case(
        "DynamicRouting",
        {"N": n, "I": i, "J": j, "Pin": pin, "Pout": pout},
        {"iterations": iterations, **_PLAIN, **settings},
        kind,
        {"one": one, "vote_bias": vote_bias, "prior": prior, "bias": bias, **more},
        heavy,
    )


# 32 MB of weights, which kernels for the CPU read once per run, for up to four images at once.
UNCACHED = _dynamic(5, 512, 32, 16, 32, prior=0, heavy=True)


def _dynamic_cases() -> Iterator[Case]:
    case = _dynamic
    for leaky, prior, bias, t in itertools.product((0, 1), (0, 1), (0, 1), (1, 2, 3, 4, 5)):
        yield case(2, 7, 3, 5, 4, t, leaky=leaky, prior=prior, bias=bias)
    for kind in inputs.KINDS["DynamicRouting"]:
        for leaky in (0, 1):
            yield case(2, 9, 5, 8, 16, 3, kind, leaky=leaky)
            yield case(1, 3, 7, 3, 5, 2, kind, leaky=leaky)
    odd = (
        (1, 1, 1, 1, 1), (1, 13, 2, 3, 17), (7, 3, 11, 4, 8), (3, 31, 10, 8, 16), (2, 1, 5, 8, 16),
        (2, 9, 1, 4, 6), (1, 65, 4, 7, 3), (1, 5, 67, 2, 9), (2, 17, 33, 16, 31),
        (1, 40, 10, 8, 16),
    )  # fmt: skip
    for dims in odd:
        for t, leaky in ((1, 0), (3, 0), (2, 1)):
            yield case(*dims, iterations=t, leaky=leaky)
    yield case(0, 5, 4, 3, 6)
    yield case(0, 5, 4, 3, 6, 1, leaky=1)
    yield case(2, 7, 3, 5, 4, epsilon=1e-3)
    yield case(7, 128, 10, 8, 16, prior=0, bias=0)
    # CapsNet on MNIST, and a layer of 100 classes.
    yield case(1, 1152, 10, 8, 16, prior=0, heavy=True)
    yield case(16, 1152, 10, 8, 16, prior=0, heavy=True)
    yield case(1, 1152, 10, 8, 16, leaky=1, prior=1, heavy=True)
    yield case(2, 200, 100, 16, 16, 2, prior=0, bias=0, heavy=True)
    yield UNCACHED


# What published networks combine (docs/reference/operators.md), and each setting alone.
_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"leaky": 1},
    {"over_children": 1},
    {"replace": 1},
    {"normalize": 1},
    {"elementwise": 1},
    {"agreement_scale": 0.5},
    {"over_children": 1, "elementwise": 1},
    {"over_children": 1, "replace": 1, "agreement_scale": -0.75},
    {"replace": 1, "normalize": 1},
    {"over_children": 1, "normalize": 1},
    {"leaky": 1, "replace": 1, "elementwise": 1},
    {"leaky": 1, "normalize": 1, "agreement_scale": 0.25, "epsilon": 2.0**-10},
)
_ODD = (
    (1, 1, 1, 1, 1), (1, 13, 2, 3, 17), (7, 3, 11, 4, 8), (3, 31, 10, 8, 16), (2, 1, 5, 8, 16),
    (2, 9, 1, 4, 6), (1, 65, 4, 7, 3), (1, 5, 67, 2, 9), (2, 17, 33, 16, 31), (1, 140, 5, 8, 16),
)  # fmt: skip


def _dynamic_variant_cases() -> Iterator[Case]:
    """What published networks make of it, and constants in the votes."""
    case = partial(_dynamic, vote_bias="each")
    for number, settings in enumerate(_SETTINGS):
        yield case(2, 7, 3, 5, 4, 1, one=number % 2, **settings)
        yield case(2, 7, 3, 5, 4, 2 + number % 4, one=1 - number % 2, **settings)
        yield case(7, 20, 10, 8, 16, **settings)
        for kind in ("tiny", "huge", "saturated"):
            yield case(
                2,
                9,
                5,
                8,
                16,
                kind=kind,
                vote_bias="none" if kind == "huge" else "each",
                **settings,
            )
    for kind in ("zeros", "ties"):
        for over_children in (0, 1):
            yield case(2, 9, 5, 8, 16, kind=kind, over_children=over_children)
    constants = ("none", "zeros", "one", "each")
    for one, vote_bias, prior in itertools.product((0, 1), constants, (0, 1)):
        settings = {"over_children": (one + constants.index(vote_bias) + prior) % 2}
        yield case(2, 11, 4, 4, 6, one=one, vote_bias=vote_bias, prior=prior, bias=0, **settings)
    for dims in _ODD:
        yield case(*dims, one=1, vote_bias="one")
        yield case(*dims, over_children=1)
    yield case(0, 5, 4, 3, 6, 1, over_children=1)
    yield case(0, 5, 4, 3, 6, one=1)
    # The layers of networks of the table: FixCaps and gram-ai, COVID-CAPS, PSCapsNet.
    paper = {"prior": 0, "bias": 0, "vote_bias": "none", "heavy": True}
    for n in (1, 16):
        yield case(n, 1152, 10, 8, 16, over_children=1, **paper)
        yield case(n, 64, 16, 128, 16, one=1, replace=1, **paper)
        yield case(n, 128, 10, 8, 16, 4, one=1, replace=1, normalize=1, **paper)


_HISTORIES = ("masked", "full", "priors", "weights", "where", "every", "nan")


def _dynamic_history_cases() -> Iterator[Case]:
    """Priors and masks of each image: ragged lengths, nothing left, one child, padding that holds NaN."""
    case = _dynamic
    for number, (history, over) in enumerate(itertools.product(_HISTORIES, (0, 1))):
        if over and history == "nan":
            continue  # what is masked takes part in a softmax over the children
        settings = {"over_children": over, "one": number % 2, "history": history}
        for t in (1, 3):
            yield case(5, 9, 4, 5, 8, t, **settings)
        yield case(7, 70, 4, 8, 16, 2, vote_bias="one", **settings)
        yield case(3, 1, 3, 4, 5, 3, **settings)
    for number, settings in enumerate(_SETTINGS):
        yield case(6, 13, 5, 4, 6, history=("masked", "weights")[number % 2], **settings)
    yield case(0, 5, 4, 3, 6, history="masked")
    # A recommender: 50 items, 4 interests.
    yield case(16, 50, 4, 64, 64, history="masked", over_children=1, heavy=True)


def _votes_cases() -> Iterator[Case]:
    def case(
        n: int, i: int, j: int, p: int, iterations: int = 3, kind: str = "normal", prior: int = 1,
        bias: int = 1, heavy: bool = False, history: str = "", of_all: bool = False,
        **settings: Any,
    ) -> Case:  # fmt: skip
        """``of_all``: all parents have the same votes, and differ by their priors."""
        more = {"of_all": 1} if of_all else {}
        return Case(
            "VoteRouting",
            {"N": n, "I": i, "J": j, "P": p},
            {"iterations": iterations, **_PLAIN, **settings},
            kind,
            {"prior": prior, "bias": bias, **({"history": history} if history else {}), **more},
            heavy,
        )

    for number, settings in enumerate(_SETTINGS):
        yield case(3, 9, 4, 8, 1 + number % 3, of_all=True, history="priors", **settings)
    yield case(5, 70, 5, 16, of_all=True, history="masked")
    yield case(2, 1, 3, 5, of_all=True, history="nan")
    # Every remainder of the parents, children and elements that fill vectors; several parts of the children.
    small = ((1, 2, 3), (16, 3, 16), (17, 6, 20), (33, 7, 1))
    large = ((50, 4, 16), (64, 9, 40), (130, 5, 33), (200, 4, 48))
    for (number, (i, j, p)), over in itertools.product(enumerate((*small, *large)), (0, 1)):
        n, history = 1 + 4 * (number % 2), ("", "masked", "where", "weights")[(number + over) % 4]
        yield case(n, i, j, p, of_all=True, history=history, over_children=over)
    for over, kind in itertools.product((0, 1), ("zeros", "tiny", "ties", "huge", "saturated")):
        yield case(2, 50, 4, 16, kind=kind, of_all=True, over_children=over)
    yield case(3, 70, 5, 16, 2, of_all=True, history="nan", leaky=1)
    yield case(2, 20, 3, 16, 1, of_all=True, prior=0, over_children=1)
    yield case(0, 50, 4, 16, of_all=True, history="where", over_children=1)
    yield case(64, 50, 4, 16, of_all=True, history="where", over_children=1, heavy=True)
    for history, over in itertools.product(_HISTORIES, (0, 1)):
        if not over or history != "nan":
            yield case(5, 9, 4, 8, history=history, over_children=over)
            yield case(3, 70, 5, 16, 2, history=history, over_children=over)
    for number, settings in enumerate(_SETTINGS):
        yield case(2, 7, 3, 4, 1 + number % 3, **settings)
        yield case(7, 20, 10, 16, **settings)
        yield case(2, 9, 5, 16, kind=("huge", "saturated")[number % 2], **settings)
    for kind in ("zeros", "tiny", "ties"):
        for over_children in (0, 1):
            yield case(2, 9, 5, 16, kind=kind, over_children=over_children)
    for n, i, j, _, p in _ODD:
        yield case(n, i, j, p, over_children=n % 2)
    for prior, bias in itertools.product((0, 1), (0, 1)):
        yield case(2, 11, 4, 6, prior=prior, bias=bias)
    yield case(0, 5, 4, 6)
    yield case(0, 5, 4, 6, 1, leaky=1)
    yield case(1, 1152, 10, 16, prior=0, bias=0, heavy=True)
    yield case(1, 1152, 10, 16, prior=0, bias=0, over_children=1, heavy=True)
    yield case(64, 32, 10, 16, prior=0, heavy=True)


def gentle(iterations: int) -> tuple[float, ...]:
    """The customary schedule of the inverse temperature, ``0.01 (1 - 0.95^t)``."""
    return tuple(round(0.01 * (1 - 0.95**t), 9) for t in range(1, iterations + 1))


def _em_case(
    dims: tuple[int, ...], lambdas: tuple[float, ...], strides: tuple[int, int], kind: str,
    coordinates: str, heavy: bool, **settings: Any,
) -> Case:  # fmt: skip
    """``coordinates``: left out, or what `inputs` makes of the word."""
    return Case(
        "EMRouting",
        dict(zip(("N", "H", "W", "C", "Kh", "Kw", "M", "P"), dims, strict=True)),
        {
            "iterations": len(lambdas),
            "strides": strides,
            "inverse_temperatures": lambdas,
            **settings,
        },
        kind,
        {"coordinates": coordinates},
        heavy,
    )


def _em_cases() -> Iterator[Case]:
    def case(
        n: int, h: int, w: int, c: int, kh: int, kw: int, m: int, p: int,
        lambdas: tuple[float, ...] = gentle(3), strides: tuple[int, int] = (1, 1),
        coordinates: int = 0, shared: int = 0, epsilon: float = 1e-6, kind: str = "normal",
        heavy: bool = False,
    ) -> Case:  # fmt: skip
        return _em_case(
            (n, h, w, c, kh, kw, m, p), lambdas, strides, kind, "none", heavy,
            coordinate_addition=coordinates, shared=shared, normalize_activations=0, ones_first=0,
            epsilon=epsilon,
        )  # fmt: skip

    for coordinates, t in itertools.product((0, 1), (1, 2, 3, 4, 5)):
        yield case(2, 3, 4, 2, 2, 3, 3, 4, gentle(t), coordinates=coordinates)
        yield case(2, 3, 2, 2, 1, 1, 5, 16, gentle(t), coordinates=coordinates, shared=1)
    for strides in ((1, 1), (2, 2), (3, 3), (1, 2), (3, 1), (2, 3)):
        for coordinates in (0, 1):
            yield case(1, 7, 5, 2, 3, 2, 3, 4, gentle(2), strides, coordinates)
    for kind in inputs.KINDS["EMRouting"]:
        yield case(2, 3, 3, 3, 3, 3, 5, 16, kind=kind)
        yield case(1, 4, 3, 2, 2, 2, 3, 9, kind=kind, strides=(2, 1), coordinates=1)
        yield case(1, 3, 2, 4, 1, 1, 7, 16, kind=kind, coordinates=1, shared=1)
    for lambdas in ((0.0,), (0.5, 1.0), (1.0, 2.0, 3.0), (0.01, 0.01, 0.01)):
        yield case(2, 3, 3, 2, 2, 2, 5, 16, lambdas)
    for epsilon in (1e-8, 1e-4, 1e-2):
        yield case(1, 3, 3, 2, 2, 2, 5, 16, epsilon=epsilon)
    odd = (
        (1, 1, 1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1, 3, 4), (2, 1, 1, 13, 1, 1, 1, 16),
        (1, 3, 3, 1, 3, 3, 17, 1), (7, 2, 2, 3, 2, 2, 2, 16), (1, 5, 3, 3, 5, 1, 11, 9),
        (1, 2, 2, 7, 1, 1, 33, 16), (1, 1, 7, 2, 1, 3, 4, 25), (2, 3, 3, 8, 3, 3, 8, 16),
    )  # fmt: skip
    for dims in odd:
        yield case(*dims)
        yield case(*dims, gentle(2), coordinates=1) if dims[-1] >= 4 else case(*dims, gentle(1))
    yield case(0, 4, 4, 2, 3, 3, 3, 16)
    yield case(0, 4, 4, 2, 1, 1, 3, 16, shared=1, coordinates=1)
    yield case(1, 4, 4, 16, 3, 3, 16, 16)
    # Few parents and many children, which kernels may lay out the other way round.
    for kind in ("normal", "agreeing", "huge", "saturated", "a-zero"):
        yield case(1, 3, 3, 9, 3, 3, 5, 16, kind=kind)
        yield case(2, 2, 3, 16, 1, 1, 10, 16, coordinates=1, shared=1, kind=kind)
    # Logits far below -88, where a power of e leaves FP32: all parents improbable, and still compared.
    yield case(1, 3, 3, 9, 3, 3, 5, 16, (0.1, 0.1), kind="huge")
    yield case(2, 2, 3, 16, 1, 1, 4, 16, (0.1, 0.1), shared=1, kind="huge")
    yield case(2, 4, 5, 17, 3, 3, 3, 36, coordinates=1)
    yield case(1, 5, 5, 8, 3, 3, 12, 9, strides=(2, 1))
    yield case(1, 2, 2, 32, 1, 1, 2, 4, coordinates=1, shared=1)
    yield case(1, 1, 1, 67, 1, 1, 1, 16)
    # So many children that bodies sum them in blocks; 149 have no equal ones.
    for n in (0, 1):
        yield case(n, 6, 5, 10, 1, 1, 3, 16, coordinates=1, shared=1)
        yield case(n, 4, 4, 19, 3, 3, 3, 4)
    yield case(1, 1, 1, 149, 1, 1, 2, 4)
    # Matrix capsules on smallNORB, A=B=C=D=32, on small grids: both convolutions and the classes.
    yield case(1, 5, 5, 32, 3, 3, 32, 16, strides=(2, 2), heavy=True)
    yield case(2, 4, 4, 32, 3, 3, 32, 16, heavy=True)
    yield case(1, 5, 5, 32, 1, 1, 5, 16, coordinates=1, shared=1, heavy=True)


def _em_variant_cases() -> Iterator[Case]:
    """What public implementations do otherwise."""

    def case(
        n: int, h: int, w: int, c: int, kh: int, kw: int, m: int, p: int,
        coordinates: str = "first", normalize: int = 1, ones: int = 0,
        lambdas: tuple[float, ...] = (1e-3, 1e-3), strides: tuple[int, int] = (1, 1),
        shared: int = 0, epsilon: float = 1e-6, kind: str = "normal", heavy: bool = False,
    ) -> Case:  # fmt: skip
        return _em_case(
            (n, h, w, c, kh, kw, m, p), lambdas, strides, kind,
            "none" if coordinates == "paper" else coordinates, heavy,
            coordinate_addition=int(coordinates == "paper"), shared=shared,
            normalize_activations=normalize, ones_first=ones, epsilon=epsilon,
        )  # fmt: skip

    constants = ("none", "paper", "zeros", "first", "all")
    for coordinates, normalize, ones in itertools.product(constants, (0, 1), (0, 1)):
        yield case(2, 3, 4, 2, 2, 3, 3, 4, coordinates, normalize, ones, gentle(3))
        yield case(2, 3, 2, 2, 1, 1, 5, 16, coordinates, normalize, ones, shared=1)
    for t in (1, 2, 3, 5):
        yield case(1, 4, 4, 2, 3, 2, 5, 9, "all", 1, 1, gentle(t))
    for strides in ((1, 1), (2, 2), (3, 3), (1, 2), (3, 1), (2, 3)):
        yield case(1, 7, 5, 2, 3, 2, 3, 4, strides=strides)
    for kind in inputs.KINDS["EMRouting"]:
        # At 1e-8, an activation of 1e-9 is divided by more than itself.
        yield case(2, 3, 3, 3, 3, 3, 5, 16, kind=kind, epsilon=1e-8)
        yield case(1, 4, 3, 2, 2, 2, 3, 9, "all", 0, 1, gentle(3), (2, 1), kind=kind)
        yield case(1, 3, 2, 4, 1, 1, 7, 16, kind=kind, shared=1, epsilon=1e-8)
    for lambdas in ((0.0,), (0.5, 1.0), (1.0, 2.0, 3.0)):
        yield case(2, 3, 3, 2, 2, 2, 5, 16, lambdas=lambdas)
    for epsilon in (1e-8, 1e-4, 1e-2):
        yield case(1, 3, 3, 2, 2, 2, 5, 16, epsilon=epsilon)
    # Poses of one element have room for no coordinates by position, but for a constant.
    odd = (
        (1, 1, 1, 1, 1, 1, 1, 4), (2, 1, 1, 13, 1, 1, 1, 16), (7, 2, 2, 3, 2, 2, 2, 16),
        (1, 5, 3, 3, 5, 1, 11, 9), (1, 2, 2, 7, 1, 1, 33, 16), (1, 1, 7, 2, 1, 3, 4, 25),
        (2, 3, 3, 8, 3, 3, 8, 16), (2, 4, 5, 17, 3, 3, 3, 36),
    )  # fmt: skip
    for dims in odd:
        yield case(*dims)
        yield case(*dims, "all", 0, 1)
    yield case(1, 3, 3, 1, 3, 3, 17, 1, "all")
    yield case(0, 4, 4, 2, 3, 3, 3, 16)
    yield case(0, 4, 4, 2, 1, 1, 3, 16, shared=1)
    # Few parents and many children, which kernels may lay out the other way round.
    for coordinates in ("none", "first", "all"):
        yield case(1, 3, 3, 9, 3, 3, 5, 16, coordinates, ones=1)
        yield case(2, 2, 3, 16, 1, 1, 10, 16, coordinates, shared=1)
    yield from _em_epsilon_cases()
    # yl-1993's network on smallNORB, A=B=C=D=8 and 16, on small grids: convolution and classes.
    yield case(2, 5, 5, 8, 3, 3, 16, 16, "none", epsilon=1e-8, strides=(2, 2), heavy=True)
    yield case(1, 4, 4, 16, 1, 1, 5, 16, epsilon=1e-8, shared=1, heavy=True)


def _em_epsilon_cases() -> Iterator[Case]:
    """Epsilons of their own for the variance, the activation under its logarithm and the mass in the cost."""
    small = {"variance_epsilon": 1e-4, "activation_epsilon": 1e-3, "cost_epsilon": 1e-2}
    each = [{name: value} for name, value in small.items()]
    dims = (2, 3, 3, 3, 3, 3, 5, 16), (1, 4, 3, 2, 2, 2, 3, 9), (2, 2, 3, 16, 1, 1, 10, 16)
    flags = dict.fromkeys(("coordinate_addition", "normalize_activations", "ones_first"), 0)
    for size, own in itertools.product(dims, (*each, small, dict.fromkeys(small, 1e-9))):
        shared = int(size[4:6] == (1, 1))
        settings = {**flags, "shared": shared, "epsilon": 1e-6, **own}
        yield _em_case(size, (0.5, 1.0, 2.0), (1, 1), "normal", "none", False, **settings)
    for kind in inputs.KINDS["EMRouting"]:
        settings = {**flags, "shared": 0, "epsilon": 1e-6, **small}
        yield _em_case(dims[0], gentle(3), (1, 1), kind, "none", False, **settings)


def _attention_cases() -> Iterator[Case]:
    def case(
        n: int, h: int, w: int, c: int, kh: int, kw: int, m: int, pin: int, p: int,
        matrix: int = 1, strides: tuple[int, int] = (1, 1), agreement: float | None = None,
        epsilon: float = 1e-5, kind: str = "normal", parent: int = 1, heavy: bool = False,
    ) -> Case:  # fmt: skip
        return Case(
            "AttentionRouting",
            {"N": n, "H": h, "W": w, "C": c, "Kh": kh, "Kw": kw, "M": m, "Pin": pin, "P": p},
            {
                "strides": strides,
                "matrix_pose": matrix,
                "agreement_scale": float(p**-0.5) if agreement is None else agreement,
                "epsilon": epsilon,
            },
            kind,
            {"parent": parent, "grid": ((h - kh) // strides[0] + 1, (w - kw) // strides[1] + 1)},
            heavy,
        )

    poses = ((1, 16, 16), (0, 8, 12))
    for strides in ((1, 1), (2, 2), (3, 3), (1, 2), (3, 1), (2, 3)):
        for matrix, pin, p in poses:
            for parent in (0, 1):
                yield case(2, 6, 5, 2, 3, 2, 3, pin, p, matrix, strides, parent=parent)
    for kind in inputs.KINDS["AttentionRouting"]:
        for matrix, pin, p in poses:
            yield case(2, 3, 3, 3, 3, 3, 5, pin, p, matrix, kind=kind)
            yield case(1, 1, 1, 7, 1, 1, 3, pin, p, matrix, kind=kind)
            yield case(1, 3, 2, 2, 2, 1, 4, pin, p, matrix, kind=kind, parent=0)
    for agreement in (0.0, 0.1, 1.0, 3.0):
        for matrix, pin, p in poses:
            yield case(1, 3, 3, 2, 2, 2, 5, pin, p, matrix, agreement=agreement)
    for epsilon in (1e-8, 1e-3, 0.1):
        yield case(1, 3, 3, 2, 2, 2, 5, 16, 16, epsilon=epsilon)
    odd = (
        (1, 1, 1, 1, 1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1, 1, 3, 1, 0),
        (1, 1, 1, 13, 1, 1, 1, 16, 16, 1), (2, 1, 1, 5, 1, 1, 17, 7, 31, 0),
        (7, 2, 2, 3, 2, 2, 2, 4, 4, 1), (1, 5, 3, 3, 5, 1, 11, 9, 9, 1),
        (1, 1, 7, 2, 1, 3, 4, 25, 25, 1), (1, 2, 2, 7, 2, 2, 33, 16, 16, 1),
        (2, 3, 3, 8, 3, 3, 8, 36, 36, 1), (1, 3, 3, 4, 3, 3, 8, 36, 64, 0),
        (1, 2, 2, 5, 1, 1, 10, 64, 16, 0),
    )  # fmt: skip
    for dims in odd:
        for parent in (0, 1):
            yield case(*dims, parent=parent)
    yield case(0, 4, 4, 2, 3, 3, 3, 16, 16)
    yield case(0, 4, 4, 2, 3, 3, 3, 5, 7, 0)
    yield case(1, 4, 4, 16, 3, 3, 16, 16, 16)
    # Tsai et al.'s Table 8 model on small grids: both convolutional layers and the two dense ones.
    yield case(1, 5, 5, 32, 3, 3, 32, 16, 16, strides=(2, 2), heavy=True)
    yield case(2, 4, 4, 32, 3, 3, 32, 16, 16, heavy=True)
    yield case(1, 1, 1, 800, 1, 1, 10, 16, 16, heavy=True)
    yield case(1, 4, 4, 32, 3, 3, 32, 36, 64, 0, heavy=True)


def _self_attention_cases() -> Iterator[Case]:
    def case(
        n: int, i: int, j: int, pin: int, pout: int, epsilon: float = 1e-20, kind: str = "normal",
        bias: int = 1, heavy: bool = False,
    ) -> Case:  # fmt: skip
        return Case(
            "SelfAttentionRouting",
            {"N": n, "I": i, "J": j, "Pin": pin, "Pout": pout},
            {"epsilon": epsilon},
            kind,
            {"bias": bias},
            heavy,
        )

    for bias, epsilon in itertools.product((0, 1), (1e-20, 1e-7, 1e-3)):
        yield case(2, 7, 3, 5, 4, epsilon, bias=bias)
    for kind in inputs.KINDS["SelfAttentionRouting"]:
        yield case(2, 9, 5, 8, 16, kind=kind)
        yield case(1, 3, 7, 3, 5, kind=kind)
    odd = (
        (1, 1, 1, 1, 1), (1, 13, 2, 3, 17), (7, 3, 11, 4, 8), (3, 31, 10, 8, 16), (2, 1, 5, 8, 16),
        (2, 9, 1, 4, 6), (1, 65, 4, 7, 3), (1, 5, 67, 2, 9), (2, 17, 33, 16, 31), (5, 130, 10, 8, 16),
    )  # fmt: skip
    for dims in odd:
        yield case(*dims)
    yield case(0, 5, 4, 3, 6)
    # Efficient-CapsNet on MNIST and smallNORB.
    yield case(1, 16, 10, 8, 16, heavy=True)
    yield case(16, 16, 10, 8, 16, heavy=True)
    yield case(1, 32, 5, 8, 16, heavy=True)
    yield case(2, 1152, 10, 8, 16, bias=0, heavy=True)


def _uniform_cases() -> Iterator[Case]:
    def case(
        n: int, h: int, w: int, c: int, kh: int, kw: int, m: int, pin: int, p: int,
        matrix: int = 1, strides: tuple[int, int] = (1, 1), epsilon: float = 1e-5,
        kind: str = "normal", heavy: bool = False,
    ) -> Case:  # fmt: skip
        return Case(
            "UniformRouting",
            {"N": n, "H": h, "W": w, "C": c, "Kh": kh, "Kw": kw, "M": m, "Pin": pin, "P": p},
            {"strides": strides, "matrix_pose": matrix, "epsilon": epsilon},
            kind,
            heavy=heavy,
        )

    poses = ((1, 16, 16), (0, 8, 12))
    for strides in ((1, 1), (2, 2), (1, 2), (3, 1)):
        for matrix, pin, p in poses:
            yield case(2, 6, 5, 2, 3, 2, 3, pin, p, matrix, strides)
    for kind in inputs.KINDS["UniformRouting"]:
        for matrix, pin, p in poses:
            yield case(2, 3, 3, 3, 3, 3, 5, pin, p, matrix, kind=kind)
            yield case(1, 3, 2, 2, 2, 1, 4, pin, p, matrix, kind=kind)
    for epsilon in (1e-8, 0.1):
        yield case(1, 3, 3, 2, 2, 2, 5, 16, 16, epsilon=epsilon)
    odd = (
        (1, 1, 1, 1, 1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1, 1, 3, 1, 0),
        (1, 1, 1, 13, 1, 1, 1, 16, 16, 1), (2, 1, 1, 5, 1, 1, 17, 7, 31, 0),
        (7, 2, 2, 3, 2, 2, 2, 4, 4, 1), (1, 5, 3, 3, 5, 1, 11, 9, 9, 1),
        (1, 1, 7, 2, 1, 3, 4, 25, 25, 1), (13, 2, 2, 7, 2, 2, 33, 16, 16, 1),
        (2, 3, 3, 8, 3, 3, 8, 36, 36, 1), (1, 3, 3, 4, 3, 3, 8, 36, 64, 0),
        (3, 5, 5, 5, 1, 1, 10, 64, 16, 0), (1, 4, 4, 2, 3, 3, 2, 225, 225, 1),
    )  # fmt: skip
    for dims in odd:
        yield case(*dims)
    yield case(0, 4, 4, 2, 3, 3, 3, 16, 16)
    yield case(0, 4, 4, 2, 3, 3, 3, 5, 7, 0)
    # Tsai et al.'s Table 8 model, a small grid.
    yield case(1, 5, 5, 32, 3, 3, 32, 16, 16, strides=(2, 2), heavy=True)
    yield case(2, 4, 4, 32, 3, 3, 32, 16, 16, heavy=True)


def _normalization_cases() -> Iterator[Case]:
    def case(shape: tuple[int, ...], epsilon: float = 1e-5, kind: str = "normal") -> Case:
        return Case("PoseNormalization", {"shape": shape}, {"epsilon": epsilon}, kind)

    for kind in inputs.KINDS["PoseNormalization"]:
        for shape in ((5, 16), (3, 7, 11), (2, 13, 1)):
            yield case(shape, kind=kind)
    for size in (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64):
        yield case((3, size))
    for epsilon in (1e-12, 1e-3):
        yield case((4, 9), epsilon=epsilon)
    yield case((6,))
    yield case((0, 10, 8))
    yield case((3000, 7))


def _fast_conv_cases() -> Iterator[Case]:
    def case(
        n: int, c: int, h: int, w: int, m: int, kh: int, kw: int,
        strides: tuple[int, int] = (1, 1), pads: tuple[int, int, int, int] = (0, 0, 0, 0),
        kind: str = "normal", bias: bool = True, heavy: bool = False,
    ) -> Case:  # fmt: skip
        return Case(
            "FastConv",
            {"N": n, "C": c, "H": h, "W": w, "M": m, "Kh": kh, "Kw": kw},
            {"strides": strides, "pads": pads},
            kind,
            {"bias": bias},
            heavy,
        )

    for kind in inputs.KINDS["FastConv"]:
        yield case(2, 16, 13, 14, 17, 5, 5, kind=kind)
        yield case(1, 9, 15, 15, 33, 9, 9, (2, 2), (2, 2, 2, 2), kind=kind, bias=False)
    # Every number of taps and each of their divisions.
    for taps in range(1, 12):
        for stride in (1, 2):
            yield case(1, 3, 14, 13, 5, taps, 12 - taps, (stride, 1))
            yield case(
                1, 2, 12, 15, 4, 6, taps, (2, stride), (1, 0, 2, min(1, taps - 1)), bias=False
            )
    odd = (
        (1, 1, 5, 5, 1, 5, 5), (7, 5, 6, 7, 3, 5, 5), (3, 13, 9, 5, 65, 7, 5), (1, 70, 8, 8, 40, 5, 7),
        (2, 4, 5, 60, 3, 5, 5), (1, 3, 5, 170, 2, 5, 5),
    )  # fmt: skip
    for dims in odd:
        yield case(*dims)
        yield case(*dims, strides=(2, 2), pads=(4, 1, 0, 3), bias=False)
    yield case(0, 3, 9, 9, 4, 5, 5)
    # The second convolutions of CapsNet on MNIST and CIFAR-10.
    yield case(1, 256, 20, 20, 256, 9, 9, (2, 2), heavy=True)
    yield case(2, 256, 24, 24, 256, 9, 9, (2, 2), heavy=True)


def _quantized_routing_cases() -> Iterator[Case]:
    """A part of the cases of the float operators: every fourth, batches of 0 and 7, layers of models."""
    routing = (
        _dynamic_cases(), _dynamic_variant_cases(), _dynamic_history_cases(), _em_cases(),
        _em_variant_cases(),
        _attention_cases(), _self_attention_cases(), _uniform_cases(),
    )  # fmt: skip
    for cases in routing:
        for index, case in enumerate(cases):
            if index % 4 == 0 or case.dims["N"] in (0, 7) or case.heavy:
                yield replace(case, operator=f"Quantized{case.operator}")


def _conv_cases() -> Iterator[Case]:
    def case(
        n: int, c: int, h: int, w: int, m: int, kh: int, kw: int,
        strides: tuple[int, int] = (1, 1), pads: tuple[int, int, int, int] = (0, 0, 0, 0),
        dilations: tuple[int, int] = (1, 1), kind: str = "normal", zeros: tuple[int, int] = (0, 0),
        heavy: bool = False,
    ) -> Case:  # fmt: skip
        return Case(
            "QuantizedConv",
            {"N": n, "C": c, "H": h, "W": w, "M": m, "Kh": kh, "Kw": kw},
            {"strides": strides, "pads": pads, "dilations": dilations},
            kind,
            {"x_zero": zeros[0], "y_zero": zeros[1]},
            heavy,
        )

    for zeros in ((0, 0), (128, 0), (0, 128), (255, 7)):
        yield case(2, 3, 7, 6, 5, 3, 2, zeros=zeros)
        yield case(1, 5, 6, 7, 70, 3, 3, pads=(1, 1, 1, 1), zeros=zeros)
    for kind in inputs.KINDS["QuantizedConv"]:
        yield case(2, 16, 9, 9, 17, 3, 3, pads=(1, 0, 2, 1), kind=kind, zeros=(3, 100))
        yield case(1, 1, 12, 11, 33, 5, 5, kind=kind)
    for channels in (2, 3, 64, 257):
        sides = {"strides": (2, 1), "pads": (1, 0, 0, 2), "dilations": (1, 2)}
        yield case(2, channels, 7, 8, 70, 3, 2, **sides, kind="saturated", zeros=(0, 128))
    for strides in ((1, 2), (2, 1), (3, 3)):
        for dilations in ((1, 1), (2, 1), (1, 3), (2, 2)):
            yield case(1, 3, 11, 12, 9, 3, 3, strides, (0, 1, 2, 0), dilations, zeros=(9, 1))
    odd = (
        (1, 1, 1, 1, 1, 1, 1), (1, 2, 1, 9, 3, 1, 4), (7, 3, 5, 5, 4, 5, 5), (3, 13, 4, 3, 65, 2, 3),
        (1, 33, 3, 3, 129, 3, 3), (2, 4, 17, 19, 16, 1, 1), (1, 130, 4, 4, 20, 2, 2),
        (1, 17, 21, 18, 31, 3, 1),
    )  # fmt: skip
    for dims in odd:
        yield case(*dims)
        yield case(*dims, pads=(2, 1, 0, 3), zeros=(77, 200))
    yield case(0, 3, 5, 5, 4, 3, 3)
    yield case(0, 3, 5, 5, 4, 3, 3, pads=(1, 1, 1, 1))
    # CapsNet on MNIST: both convolutions.
    yield case(1, 1, 28, 28, 256, 9, 9, heavy=True)
    yield case(1, 256, 20, 20, 256, 9, 9, (2, 2), zeros=(0, 128), heavy=True)


# Some lists share a case.
BY_NAME = {
    str(case): case
    for case in (
        *_squash_cases(),
        *_dynamic_cases(),
        *_dynamic_variant_cases(),
        *_dynamic_history_cases(),
        *_votes_cases(),
        *_em_cases(),
        *_em_variant_cases(),
        *_attention_cases(),
        *_self_attention_cases(),
        *_uniform_cases(),
        *_normalization_cases(),
        *_fast_conv_cases(),
        *_quantized_routing_cases(),
        *_conv_cases(),
    )
}
CASES = tuple(BY_NAME.values())
ON_GPU = tuple(
    case for case in CASES if not case.gap("cuda", "float32")
)  # what the CUDA kernels compute
