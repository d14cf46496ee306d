"""Loaders for the runtimes that only the benchmarks use, for the worker of ``capsedge profile``.

    PYTHON -I benchmarks/runtimes.py SPECIFICATION

Runs under any interpreter that has numpy and the runtime; the worker is loaded from its file, not imported
from this package. Some models are not in ONNX: ``torch`` and ``torch.compile`` take a checkpoint,
``executorch`` a program saved by ``torch.export``.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from capsedge.runtime.profiling import worker as worker
    from capsedge.runtime.profiling.worker import Loader, Run, Specification
else:
    _place = Path(__file__).parents[1] / "capsedge" / "runtime" / "profiling" / "worker.py"
    _found = importlib.util.spec_from_file_location("capsedge_worker", _place)
    worker = sys.modules["capsedge_worker"] = importlib.util.module_from_spec(_found)
    _found.loader.exec_module(worker)


def load_tract(s: Specification) -> tuple[Run, str]:
    """tract, which computes on one thread."""
    import tract

    found = tract.onnx().load(s.model)
    names = [found.output_name(k) for k in range(found.output_count())]
    runnable = found.into_model().into_runnable()
    return (
        lambda feeds: {
            name: value.to_numpy()
            for name, value in zip(names, runnable.run(list(feeds.values())), strict=True)
        },
        f"tract {version('tract')}",
    )


def load_reference(s: Specification) -> tuple[Run, str]:
    """ONNX's own reference evaluator, in numpy."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    session = ReferenceEvaluator(s.model)
    names = [str(name) for name in session.output_names]
    return (
        lambda feeds: dict(zip(names, session.run(None, dict(feeds)), strict=True)),
        f"onnx {onnx.__version__}",
    )


def load_ncnn(s: Specification) -> tuple[Run, str]:
    """ncnn, with a file converted by pnnx."""
    import ncnn

    folder = worker.temporary_folder()
    _convert_by_pnnx(Path(s.model), folder)
    net = ncnn.Net()
    net.opt.num_threads = s.threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    text, weights = (str(folder / f"model.ncnn.{kind}") for kind in ("param", "bin"))
    if net.load_param(text) or net.load_model(weights):
        raise ValueError("ncnn cannot load what pnnx wrote")

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        with net.create_extractor() as extractor:
            for name, value in zip(net.input_names(), feeds.values(), strict=True):
                extractor.input(name, ncnn.Mat(np.ascontiguousarray(value[0])))
            found = {}
            for name in net.output_names():
                code, value = extractor.extract(name)
                if code:
                    raise ValueError(f"ncnn cannot compute {name}")
                found[name] = np.array(value)[None]
        return found

    return run, f"ncnn {version('ncnn')}, pnnx {version('pnnx')}"


def _convert_by_pnnx(model: Path, folder: Path) -> None:
    package = importlib.util.find_spec("pnnx")  # importing its module would import torch
    if package is None or package.origin is None:
        raise ImportError("No module named 'pnnx'")
    place = folder / "model.onnx"
    place.write_bytes(model.read_bytes())
    done = subprocess.run(
        [str(Path(package.origin).with_name("pnnx")), str(place), "fp16=0"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    said = (done.stdout + done.stderr).strip().splitlines()
    problems = [line for line in said if "not supported" in line]
    if not (folder / "model.ncnn.param").exists():
        problems = said[-1:]
    if problems:
        raise ValueError("pnnx: " + problems[0].strip())


def load_executorch(s: Specification) -> tuple[Run, str]:
    """ExecuTorch with its portable kernels, from a program saved by torch.export."""
    import torch
    from executorch.exir import to_edge
    from executorch.runtime import Runtime

    program = to_edge(torch.export.load(s.model)).to_executorch()
    loaded = Runtime.get().load_program(program.buffer)
    method = loaded.load_method("forward")
    assert method is not None

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        assert loaded  # keeps the program alive, which the method needs
        found = method.execute([torch.from_numpy(v) for v in feeds.values()])
        return {str(k): value.numpy() for k, value in enumerate(found)}

    return run, f"executorch {version('executorch')}"


def load_torch(s: Specification) -> tuple[Run, str]:
    """A checkpoint in PyTorch, eager or through ``torch.compile``.

    It uses the operators' definitions in plain PyTorch, which a compiler can fuse, instead of the registered
    operators, which it cannot look into.
    """
    import torch

    from capsedge.models.checkpoint import load_checkpoint

    torch.set_num_threads(s.threads)
    for name in ("attention", "dynamic", "em", "self_attention", "squash"):
        # By name: the package has a function squash, which hides its module.
        module: Any = importlib.import_module(f"capsedge.models.ops.{name}")
        module._op = module._define
        if name == "dynamic":
            module._op_votes = module._define_votes
    model: Any = load_checkpoint(Path(s.model))
    score = model.score_name
    if s.peer == "torch.compile":
        model = torch.compile(model, fullgraph=True, dynamic=False)

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        with torch.inference_mode():
            out = model(torch.from_numpy(next(iter(feeds.values()))))
        return {score: out.scores.numpy(), "poses": out.poses.numpy()}

    return run, f"torch {torch.__version__}"


LOADERS: dict[str, Loader] = {
    **worker.LOADERS,
    "onnxruntime": worker.load_ort,
    "tensorrt": worker.load_capsedge,  # it runs engines with TensorRT
    "tract": load_tract,
    "onnx.reference": load_reference,
    "ncnn": load_ncnn,
    "executorch": load_executorch,
    "torch": load_torch,
    "torch.compile": load_torch,
}


if __name__ == "__main__":
    worker.main(LOADERS)
