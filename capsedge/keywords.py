"""The options of every function as keyword arguments, for type checkers (PEP 692).

Generated from the dataclasses of options by ``python -m tools.keywords``; not imported when the package runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from capsedge.spec.vocabularies import ExtraOutput, Ops, StandardRuntime


class BatchKeywords(TypedDict, total=False):
    """The fields of `BatchOptions` and `RuntimeOptions`."""

    column: str
    outputs: Sequence[Literal["scores", "poses"]]
    invert: bool
    resume: bool
    force: bool
    cluster: str | None
    device: str | None
    threads: int | None
    ops: str
    provider: str
    graphs: bool | None
    contexts: int | None


class BuildKeywords(TypedDict, total=False):
    """The fields of `BuildOptions`."""

    precision: str | None
    target: str
    compute_capabilities: Sequence[str]
    plugin: str
    batch: int | tuple[int, int, int] | None
    length: int | tuple[int, int, int] | None
    workspace: int | None
    timing_cache: str | os.PathLike[str] | None
    optimization_level: int
    device: int
    name: str | None
    fit: Mapping[str, int] | None
    measure: bool


class CascadeKeywords(TypedDict, total=False):
    """The fields of `CascadeOptions`."""

    min_agreement: float
    max_share: float
    limit: int
    seed: int


class ExportKeywords(TypedDict, total=False):
    """The fields of `ExportOptions`."""

    iterations: int | None
    ops: Ops
    opset: int
    batch: int | None
    target: StandardRuntime | None
    extra_outputs: Sequence[ExtraOutput]
    no_rewrite: Sequence[Literal["first-pass", "light-cone", "dead-update", "logit-free"]]
    output_names: Sequence[str]
    tolerance: tuple[float, float]
    checkpoint_sha256: str


class ImportKeywords(TypedDict, total=False):
    """The fields of `ImportOptions`."""

    family: str | None
    iterations: int | None
    variant: str | None
    inverse_temperature: float | None
    key_map: str | os.PathLike[str] | None
    reference_code: str | None
    data: str | os.PathLike[str] | None
    limit: int


class KServeKeywords(TypedDict, total=False):
    """The fields of `KServeOptions`."""

    name: str | None
    models: Sequence[str]
    cpus: int | None
    memory: str
    replicas: tuple[int, int] | None
    release: str


class OptimizeKeywords(TypedDict, total=False):
    """The fields of `OptimizeOptions`."""

    measure: float
    batch: int | Literal["free", "keep"]


class ProfileKeywords(TypedDict, total=False):
    """The fields of `ProfileOptions`."""

    batch: Sequence[int]
    warmup: float
    duration: float
    iterations: int
    operators: bool
    startup: bool


class PruneKeywords(TypedDict, total=False):
    """The fields of `PruneOptions`."""

    limit: int | None
    target_speedup: float | None
    max_drop: float | None
    criterion: str
    epochs: int
    learning_rate: float | None
    fast: bool
    seed: int
    resume: bool


class QuantizeKeywords(TypedDict, total=False):
    """The fields of `QuantizeOptions`."""

    precision: str
    calib_images: int
    limit: int | None
    method: str
    target: str
    ops: str
    max_drop: float | None
    max_error: float
    min_cosine: float
    overlap: str
    scores: str | None
    table: str | os.PathLike[str] | None
    prefer: str
    seed: int


class RuntimeKeywords(TypedDict, total=False):
    """The fields of `RuntimeOptions`."""

    device: str | None
    threads: int | None
    ops: str
    provider: str
    graphs: bool | None
    contexts: int | None


class ServeKeywords(TypedDict, total=False):
    """The fields of `ServeOptions`."""

    port: int
    grpc_port: int | None
    metrics_port: int | None
    host: str
    threads: int
    batch: int | Literal["auto"]
    wait: float
    stop_timeout: float
    log_level: Literal["error", "warning", "info"]
    ops: str
    device: str | None
    graphs: bool | None


class SweepKeywords(TypedDict, total=False):
    """The fields of `SweepOptions`."""

    iterations: Sequence[int]
    couplings: Sequence[Literal["routed", "frozen"]]
    precision: Sequence[str]
    limit: int | None
    threads: int
    keep: str | os.PathLike[str] | None


class TrainKeywords(TypedDict, total=False):
    """The fields of `TrainOptions`."""

    model: str | None
    size: int | None
    iterations: int | None
    epochs: int
    batch: int
    learning_rate: float | None
    schedule: str
    shift: int
    rotate: float
    zoom: float
    flip: bool
    pairs: str
    average: float
    seed: int
    fast: bool
    init: str | None
    limit: int | None
    threads: int | None
    patience: int | None
    device: str
    resume: bool


class TritonKeywords(TypedDict, total=False):
    """The fields of `TritonOptions`."""

    device: str | None
    ops: str
    max_batch: int
    preferred_batches: Sequence[int]
    queue_delay: int
    instances: int
    threads: int | None
    mount: str


class VerifyKeywords(TypedDict, total=False):
    """The fields of `VerifyOptions`."""

    limit: int | None
    tolerance: (
        Sequence[tuple[str, float, float]] | tuple[float, float] | Mapping[str, tuple[float, float]]
    )
    min_agreement: float | None
    ops: str
    device: str | None
    made_from: str | os.PathLike[str] | None
