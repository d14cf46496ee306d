"""The description of a TensorRT engine, and whether it runs here: from its passport, without loading it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from capsedge.errors import ArtefactError, EnvironmentProblem
from capsedge.runtime import passport as passports
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.backends.engine_layers import Layer
from capsedge.runtime.backends.tensorrt_library import check_machine, this_machine
from capsedge.runtime.backends.tensorrt_rtx import import_for
from capsedge.runtime.machine.environment import power_mode
from capsedge.runtime.passport import Passport
from capsedge.runtime.reading.node_names import merged, places_in
from capsedge.runtime.summary import Row, Summarized, Summary, short


@dataclass(frozen=True, repr=False)
class EngineInspection(Summarized):
    """An engine as its passport describes it.

    Attributes:
        path: of the engine.
        passport: the passport beside it.
        runs_here: whether it was built for this machine, or for its kind of GPU; None if that is unknown.
        because: why it does not run, or why that is unknown; empty if it runs.
        timed_for: power mode and multiprocessors that its kernels were chosen for, if they differ here.
    """

    path: str
    passport: Passport
    runs_here: bool | None
    because: str
    timed_for: str = ""

    def _summary(self) -> Summary:
        runs = {True: "runs here", False: "does not run here", None: "may run here"}[self.runs_here]
        built = f"{self.passport.target}, {self.passport.precision}"
        rows = [Row("engine", self.path), Row("built", built), Row("here", runs)]
        rows += [Row("because", self.because)] if self.because else []
        return Summary(
            "EngineInspection", [f"{short(Path(self.path).name)}: {built}, {runs}"], rows
        )

    def to_dict(self) -> dict[str, Any]:
        """As ``capsedge inspect --json`` prints it."""
        return {"schema": 1, "kind": "engine", **asdict(self)}


def engine_layers(path: Path, device: int = 0) -> list[Layer]:
    """The layers of an engine at its best batch, with the model's layers that they belong to.

    Needs TensorRT and the GPU that the engine was built for: only they know the layers.

    Raises:
        UsageError: there is no such engine.
        EnvironmentProblem: TensorRT, CUDA or the GPU is missing.
        ArtefactError: the engine does not fit this machine.
    """
    from capsedge.runtime.backends.tensorrt_engine import LoadedEngine

    engine = LoadedEngine(path, device)
    with engine.cuda.on(device):
        return engine.layers(engine.passport.batch[1])


def labelled_layers(path: Path, device: int = 0) -> list[dict[str, str]]:
    """An engine's layers in the order in which they run, with the labels of ``capsedge profile``.

    Raises:
        as `engine_layers`.
    """
    return [
        {
            "belongs_to": merged(places_in(f"{layer.name} {layer.metadata}")).label,
            "name": layer.name,
            "kind": layer.kind,
            "types": ", ".join(sorted(layer.types)),
            "kernel": layer.kernel,
        }
        for layer in engine_layers(path, device)
    ]


def inspect_engine(path: Path, device: int = 0) -> EngineInspection:
    """Read an engine's passport and compare it with this machine.

    Args:
        path: the engine; its passport lies beside it.
        device: number of the GPU that it would run on.

    Raises:
        UsageError: there is no such engine.
        ArtefactError: there is no passport, it is damaged, or it belongs to other bytes.
    """
    passport = passports.read(path)
    runs, because, timed_for = None, "", ""
    try:
        trt, cuda = import_for(passport.target), load_cuda()
        check_machine(path, passport, trt, cuda, device)
        runs = True
        here = replace(this_machine(trt, cuda, device), power_mode=power_mode())
        timed_for = passport.machine.differs_in_speed(here)
    except EnvironmentProblem as error:
        because = error.what
    except ArtefactError as error:
        runs, because = False, error.why
    return EngineInspection(str(path), passport, runs, because, timed_for)
