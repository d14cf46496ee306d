"""The models of a page: files of the user, and models of the zoo, exported with what the page shows."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsedge import zoo
from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.runtime.files.writing import sha256, temporary_folder
from capsedge.runtime.metadata import ModelMetadata
from capsedge.runtime.reading import onnx_file

EXTRA_OUTPUTS = ("reconstruction", "trace")
_NAME = 80  # characters
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class PageModel:
    """A file that the page can run.

    Attributes:
        name: what it is called.
        data: its bytes.
        metadata: what it says of itself.
    """

    name: str
    data: bytes
    metadata: ModelMetadata


def page_models(
    given: Sequence[str], iterations: Sequence[int] | None, note: Callable[[str], None]
) -> list[PageModel]:
    """What files and names of the zoo stand for, in their order.

    Args:
        given: ONNX files, or names of the zoo.
        iterations: the numbers of routing iterations to export a model of the zoo with; by default all up
            to its own.
        note: told what a person should know.

    Raises:
        UsageError: there is no such file or model.
        UnsupportedModelError: the page cannot run a file.
        ArtefactError: a file is damaged.
    """
    found: list[PageModel] = []
    for name in given:
        if zoo.zoo_model(name) is None:
            found.append(_read(Path(name), Path(name).stem))
        else:
            found += _of_zoo(name, iterations, note)
    return found


def check_given(name: str) -> None:
    """Refuse what is neither a model of the zoo nor a file.

    Raises:
        UsageError: it is neither.
        ArtefactError: the file is empty or too large.
    """
    if zoo.zoo_model(name) is not None:
        return
    path = Path(name)
    if not os.path.lexists(path) and not path.suffix:
        raise zoo.unknown_model(name)
    onnx_file.check_file(path)


def _read(path: Path, name: str) -> PageModel:
    data, summary = onnx_file.read_harmless(path)
    metadata = ModelMetadata.from_properties(summary.metadata)
    _check_runnable(str(path), summary, metadata)
    assert metadata is not None
    return PageModel(harmless_name(name), data, metadata)


def harmless_name(name: str) -> str:
    """The name of a file, as part of an address and of a path."""
    return _NOT_IN_NAMES.sub("-", name).strip("-.")[:_NAME] or "model"


def _check_runnable(
    path: str, summary: onnx_file.OnnxSummary, metadata: ModelMetadata | None
) -> None:
    """Refuse what a browser cannot run, or the page cannot feed."""
    if summary.missing_functions:
        raise UnsupportedModelError(
            f"A browser cannot run {path}.",
            f"Its operators {', '.join(summary.missing_functions)} carry no function bodies.",
            "Export it again with `capsedge export --ops auto`.",
        )
    prepared = metadata.preprocessing if metadata is not None else None
    if prepared is None:
        raise UnsupportedModelError(
            f"The page cannot feed {path}.",
            "The file does not say how an image becomes its input.",
            "State it with `capsedge optimize --size 28x28` (or export again with --size).",
        )
    if prepared.channels not in (1, 3):
        raise UnsupportedModelError(
            f"The page cannot feed {path}.",
            f"It takes images of {prepared.channels} channels; a browser has grey and RGB images.",
            "Deploy a model that takes images of 1 or 3 channels.",
        )


def _of_zoo(
    name: str, iterations: Sequence[int] | None, note: Callable[[str], None]
) -> Iterator[PageModel]:
    """A model of the zoo with its decoder and a trace; as it lies in the package where torch is missing."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnxscript") is None:
        if iterations is not None:
            raise UsageError(
                "--iters needs torch.",
                f"{name} is exported again for other iterations.",
                "pip install 'capsedge[export]'",
            )
        note(
            f"{name} is taken as it lies in the package, without a trace of its routing: the export needs "
            "torch (pip install 'capsedge[export]')"
        )
        path = zoo.zoo_model(name)
        assert path is not None
        yield _read(path, name)
        return
    from capsedge.checkpoint import load_checkpoint
    from capsedge.exporters.to_onnx import export

    checkpoint = zoo.zoo_checkpoint(name)
    model, checksum = load_checkpoint(checkpoint), sha256(checkpoint)
    decoder = EXTRA_OUTPUTS if model.decoder is not None else EXTRA_OUTPUTS[1:]
    with temporary_folder() as folder:
        for count in iterations or range(1, model.config.iterations + 1):
            path = folder / f"{name}.onnx"
            export(model, path, iterations=count, extra_outputs=decoder, checkpoint_sha256=checksum)
            yield _read(path, name)
