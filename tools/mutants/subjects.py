"""List the sources of mutants: files whose faults matter, and the tests that should find them."""

from __future__ import annotations

from dataclasses import dataclass

CUDA = "capsedge/runtime/native/kernels/cuda/plan.cpp"
CPU = "capsedge/runtime/native/kernels/cpu/support/plan.cpp"

# Whatever decides a candidate, as files of capsedge/graph/fusion.
DECIDING = """
    equivalence votes candidates matcher dynamic em attention self_attention squash formulas layouts grids
    per_image values execution emit_dynamic emit_em standard self_routing proof equal_pieces
"""


@dataclass(frozen=True)
class Subject:
    """Files whose faults matter, and the tests that should find them."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


SUBJECTS = {
    "fusion": Subject(
        tuple(f"capsedge/graph/fusion/{name}.py" for name in DECIDING.split()), ("tests/graph",)
    ),
    "metadata": Subject(
        ("capsedge/runtime/metadata/metadata.py",),
        ("tests/runtime", "tests/spec", "tests/cli/test_describing.py"),
    ),
    "int8": Subject(
        ("capsedge/calibration/int8_cpu.py", "capsedge/calibration/quantizable_layers.py"),
        ("tests/calibration", "tests/cli/test_quantize.py"),
    ),
    "limits": Subject(
        (
            "capsedge/spec/limits.py",
            "capsedge/runtime/files/reading.py",
            "capsedge/runtime/onnx_file/summary.py",
        ),
        ("tests/runtime", "tests/spec/test_generated.py", "tests/fuzz/test_corpus.py"),
    ),
    "tolerance": Subject(("capsedge/tolerance.py",), ("tests/metrics", "tests/verification")),
    "serving": Subject(
        tuple(
            f"capsedge/serving/{name}.py"
            for name in ("request_bodies", "grpc_requests", "request_tensors", "bounded_json")
        ),
        ("tests/serving", "tests/fuzz/test_corpus.py"),
    ),
    "scores": Subject(
        ("capsedge/runtime/metadata/scores.py",),
        ("tests/runtime", "tests/metrics", "tests/exporters/test_scoring.py"),
    ),
    "cuda-plans": Subject(
        (CUDA,),
        tuple(f"tests/native/test_cuda{name}.py" for name in ("", "_plans", "_interface")),
    ),
    "cpu-plans": Subject(
        (CPU,),
        ("tests/native/test_kernels.py", "tests/native/test_quantized.py", "tests/conformance"),
    ),
}
