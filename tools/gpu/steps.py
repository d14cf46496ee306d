"""The steps, the most informative of each stage first; each is one process with its own limit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.native import cuda_library
from tests.native.cuda_behaviour import BEHAVIOURS
from tests.native.cuda_sanitizer import TOOLS

STAGES = (
    "inventory",
    "conformance",
    "behaviour",
    "provider",
    "torch",
    "sanitizer",
    "latency",
    "counters",
    "models",
)
OUTPUT = "{output}"  # in a command, stands for the file of its result
BATCHES = (1, 128, 8, 32)
MODELS = ("capsnet-mnist:3", "em-smallnorb:3", "attention-cifar10-simple:2")
PEERS: dict[str, tuple[str, ...]] = {  # requirements besides torch, by prefix of the name
    "torch": (),
    "ONNX Runtime": ("onnxruntime",),
    "TensorRT,": ("tensorrt",),
    "TensorRT-RTX,": ("tensorrt-rtx",),
}
COUNTED = (("digit", 1), ("digit", 128), ("16 to 7", 1), ("16 to 7", 32))


@dataclass(frozen=True)
class Step:
    """One process.

    Attributes:
        name: its name, also of its files.
        stage: one of `STAGES`.
        command: its arguments; `OUTPUT` stands for the file of its result.
        seconds: expected duration on a fast machine.
        limit: seconds after which it is stopped.
        needs: what the inventory must have found.
        timed: whether it measures time, so that nothing else may run at the same time.
    """

    name: str
    stage: str
    command: tuple[str, ...]
    seconds: float
    limit: float
    needs: tuple[str, ...] = ()
    timed: bool = False


def _python(module: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *words)


def steps(small: bool = False) -> list[Step]:
    """All steps, in order.

    Args:
        small: few cases and sizes, for a rehearsal on an emulated GPU.
    """
    found = [
        Step("inventory", "inventory", _python("tools.gpu.inventory", OUTPUT), 5, 60),
        *_conformance(small),
        *_behaviour(small),
        *_provider(small),
        *_torch(small),
        *_sanitizer(small),
        *_latency(small),
        *_counters(small),
        *_models(small),
    ]
    return sorted(found, key=lambda step: STAGES.index(step.stage))


def _conformance(small: bool) -> Iterator[Step]:
    few = ("--light", "--filter", "N=2,") if small else ()
    for dtype in ("float32", "float16"):
        for scheme in cuda_library.SCHEMES:
            words = ("test", "--backend", f"cuda-kernels-{scheme}", "--dtype", dtype, *few)
            name = f"conformance-{scheme}-{dtype}"
            command = _python("tests.conformance", *words)
            yield Step(name, "conformance", command, 50, 900, ("gpu", "kernels"))


def _behaviour(small: bool) -> Iterator[Step]:
    for name in BEHAVIOURS:
        if small and name == "large_batch":
            continue  # 70,000 images take an emulated GPU an hour
        command = _python("tests.native.cuda_behaviour", name)
        yield Step(f"behaviour-{name}", "behaviour", command, 10, 300, ("gpu", "kernels"))


def _provider(small: bool) -> Iterator[Step]:
    if small:
        return  # ONNX Runtime's own kernels do not run on an emulated GPU
    needs = ("gpu", "kernels", "onnxruntime")
    command = _python("tests.runtime.gpu_provider", OUTPUT)
    yield Step("provider-sessions", "provider", command, 120, 600, needs)
    command = _python("pytest", "-q", "-m", "gpu", "tests/runtime")
    yield Step("provider-tests", "provider", command, 60, 300, (*needs, "torch"))


def _torch(small: bool) -> Iterator[Step]:
    """``capsedge.ops`` on CUDA tensors; in a rehearsal, on the emulated GPU, which torch does not see."""
    needs = ("gpu", "operators", *(() if small else ("torch",)))
    words = ("--backend", "torch-fused-ptx", "--light", "--filter", "N=2,")
    for dtype in ("float32", "float16"):
        chosen = words if small else ("--backend", "torch-fused")
        command = _python("tests.conformance", "test", *chosen, "--dtype", dtype)
        yield Step(f"torch-conformance-{dtype}", "torch", command, 50, 900, needs)
    if small:
        return
    command = _python("pytest", "-q", "-m", "gpu", "tests/models/ops")
    yield Step("torch-tests", "torch", command, 60, 300, needs)
    for batch in (1, 32):
        sizes = ("--batches", str(batch))
        command = _python(
            "benchmarks.gpu_ops", *sizes, "--compile", "reduce-overhead", "-o", OUTPUT
        )
        yield Step(f"torch-times-{batch}", "torch", command, 200, 600, needs, timed=True)


def _sanitizer(small: bool) -> Iterator[Step]:
    for scheme in ("auto",) if small else cuda_library.SCHEMES:
        for tool in TOOLS:
            words = (tool, scheme, "--seconds", "200")
            command = _python("tests.native.cuda_sanitizer", *words)
            needs = ("gpu", "kernels", "compute-sanitizer")
            yield Step(f"sanitizer-{scheme}-{tool}", "sanitizer", command, 20, 240, needs)


def _latency(small: bool) -> Iterator[Step]:
    needs = ("gpu", "kernels", "torch")
    for batch in (1,) if small else BATCHES:
        command = _python("benchmarks.gpu", "--batches", str(batch), "-o", OUTPUT)
        yield Step(f"latency-{batch}", "latency", command, 40, 300, needs, timed=True)
    for batch in () if small else (1, 32):
        words = ("--batches", str(batch), "--compile", "reduce-overhead", "-o", OUTPUT)
        command = _python("benchmarks.gpu", *words)
        name = f"latency-compiled-{batch}"
        yield Step(name, "latency", command, 180, 600, needs, timed=True)


def _counters(small: bool) -> Iterator[Step]:
    for layer, batch in COUNTED[:1] if small else COUNTED:
        words = ("--layer", layer, "--batch", str(batch), "-o", OUTPUT)
        command = _python("tools.gpu.counters", *words)
        name = f"counters-{layer.replace(' ', '-')}-{batch}"
        yield Step(name, "counters", command, 20, 120, ("gpu", "kernels", "ncu"), timed=True)


def _models(small: bool) -> Iterator[Step]:
    for peer, lacking in PEERS.items():
        for model in MODELS[:1] if small else MODELS:
            words = (
                "--model",
                model,
                "--batches",
                "1" if small else "1,32",
                "--peer",
                peer,
                "-o",
                OUTPUT,
            )
            command = _python("benchmarks.gpu_models", *words)
            name = f"models-{peer.rstrip(',')}-{model.partition(':')[0]}".lower().replace(" ", "-")
            needs = ("gpu", "torch", *lacking)
            yield Step(name, "models", command, 60, 420, needs, timed=True)
