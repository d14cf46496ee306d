"""Declare how a model runs, for `capsedge.load` and every verb that runs one."""

from __future__ import annotations

from dataclasses import dataclass

from capsedge.options import Options, option
from capsedge.spec import limits
from capsedge.spec.vocabularies import OPS, PROVIDERS


@dataclass(frozen=True)
class RuntimeOptions(Options):
    """How a model runs: an option of `capsedge.load`, and of the verbs that load one."""

    device: str | None = option(
        None,
        "cpu, cuda or cuda:1; by default the CPU, or the GPU for an engine. It is used or refused, never "
        "replaced.",
        panel="Execution",
        complete="devices",
    )
    threads: int | None = option(
        None,
        "Threads of one inference; one per physical core by default. The members of an ensemble share them.",
        min=1,
        max=limits.RUN_THREADS,
        panel="Execution",
    )
    ops: str = option(
        "auto",
        "auto, fused (operator library) or portable (function bodies). On a GPU, auto fuses operators that "
        "have CUDA kernels, and fused refuses a file with others.",
        choices=OPS,
        panel="Execution",
    )
    provider: str = option(
        "auto",
        "ONNX Runtime's provider on a GPU: auto (cuda), cuda or tensorrt.",
        choices=PROVIDERS,
        panel="Execution",
    )
    graphs: bool | None = option(
        None,
        "CUDA graphs on a GPU: by default where the file can; --graphs refuses a file that cannot.",
        "--graphs/--no-graphs",
        panel="Execution",
    )
    contexts: int | None = option(
        None,
        "Concurrent calls of an engine, each with its own GPU memory; further calls wait. None for 4.",
        python_only=True,
        min=1,
        max=limits.ENGINE_CALLS,
    )
