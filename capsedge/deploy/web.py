"""Deploy a folder with a page that runs capsule networks in the browser, and their WebAssembly."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from capsedge.deploy import web
from capsedge.deploy.deployment import (
    ON_DEMAND,
    DeployedFile,
    WebDeployment,
    WebModel,
    earlier_files,
    listed,
)
from capsedge.errors import ArtefactError, EnvironmentProblem, UnsupportedModelError, UsageError
from capsedge.exporters.export_options import ExportOptions
from capsedge.runtime import zoo
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.files.writing import (
    MODEL,
    as_path,
    check_replaceable,
    sha256,
    temporary_folder,
    write_folder,
)
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.onnx_file import summary as onnx_file
from capsedge.runtime.onnx_file.training_mode import refuse_training
from capsedge.spec import limits
from capsedge.spec.fields import MANIFEST, MANIFEST_SCHEMA, PAGE_RUNTIME
from capsedge.spec.vocabularies import SEGMENTATION, ExtraOutput

# --- Models of the page: the user's files, and models of the zoo ---

EXTRA_OUTPUTS: tuple[ExtraOutput, ...] = ("reconstruction", "trace")
_NAME = 80  # characters
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class PageModel:
    """A file that the page can run.

    Attributes:
        name: its name on the page.
        data: its bytes.
        metadata: the file's metadata.
    """

    name: str
    data: bytes
    metadata: ModelMetadata


def page_models(
    models: Sequence[str], iterations: Sequence[int] | None, note: Callable[[str], None]
) -> list[PageModel]:
    """The models behind files and names of the zoo, in order.

    Args:
        models: ONNX files, or names of the zoo.
        iterations: the numbers of routing iterations with which to export a model of the zoo; by default 1 up
            to the model's own.
    """
    listed: list[PageModel] = []
    for name in models:
        if name in zoo.MODELS:
            listed += _of_zoo(name, iterations, note)
        else:
            listed.append(_read(zoo.zoo_model(name) or Path(name), Path(name).stem))
    return listed


def check_file_or_zoo_name(name: str) -> None:
    """Refuse a name that is neither a model of the zoo nor a file."""
    if zoo.zoo_model(name) is not None:
        return
    path = Path(name)
    if not os.path.lexists(path) and not path.suffix:
        raise zoo.unknown_model(name)
    onnx_file.check_model_path(path)


def _read(path: Path, name: str) -> PageModel:
    data, summary = onnx_file.read_harmless(path)
    refuse_training(data, summary, str(path))
    metadata = ModelMetadata.from_properties(summary.metadata)
    _check_runnable(str(path), summary, metadata)
    assert metadata is not None
    return PageModel(harmless_name(name), data, metadata)


def harmless_name(name: str) -> str:
    """A file name that is safe as part of an address and of a path."""
    return _NOT_IN_NAMES.sub("-", name).strip("-.")[:_NAME] or "model"


def _check_runnable(
    path: str, summary: onnx_file.OnnxSummary, metadata: ModelMetadata | None
) -> None:
    """Refuse a model that a browser cannot run, or for which the page has no inputs."""
    if summary.missing_functions:
        raise UnsupportedModelError(
            f"A browser cannot run {path}.",
            f"Its operators {', '.join(summary.missing_functions)} have no function bodies.",
            "Export it again with `capsedge export --ops auto`.",
        )
    prepared = metadata.preprocessing if metadata is not None else None
    if prepared is None:
        raise UnsupportedModelError(
            f"The page cannot prepare images for {path}.",
            "The file does not state its preprocessing.",
            "Add it with `capsedge optimize --size 28x28`, or export again with --size.",
        )
    if prepared.channels not in (1, 3):
        raise UnsupportedModelError(
            f"The page cannot prepare images for {path}.",
            f"It takes images of {prepared.channels} channels; a browser has grey and RGB images.",
            "Deploy a model that takes images of 1 or 3 channels.",
        )


def _of_zoo(
    name: str, iterations: Sequence[int] | None, note: Callable[[str], None]
) -> Iterator[PageModel]:
    """A model of the zoo with its decoder and a trace; unchanged from the package if torch is missing.

    The model for photographs is also left unchanged unless ``iterations`` are given: in FP32 and with a
    trace, a visitor would load four times as much. So is a segmentation, of which the page shows
    masks.
    """
    shipped = zoo.zoo_model(name)
    assert shipped is not None
    packaged = _read(shipped, name)
    segments = packaged.metadata.task == SEGMENTATION
    if iterations is None and (segments or _is_of_photographs(packaged)):
        yield packaged
        return
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnxscript") is None:
        if iterations is not None:
            raise UsageError(
                "--iters needs torch.",
                f"{name} is exported again for other numbers of iterations.",
                "pip install 'capsedge[export]'",
            )
        note(
            f"{name} is taken as it lies in the package, without a trace of its routing: the export needs "
            "torch (pip install 'capsedge[export]')"
        )
        yield packaged
        return
    from capsedge.exporters.export import export
    from capsedge.models.checkpoint import load_checkpoint

    checkpoint = zoo.zoo_checkpoint(name)
    model, checksum = load_checkpoint(checkpoint), sha256(checkpoint)
    shown = EXTRA_OUTPUTS if model.decoder is not None else EXTRA_OUTPUTS[1:]
    extra = () if segments else shown
    with temporary_folder() as folder:
        for count in iterations or range(1, model.config.iterations + 1):
            path = folder / f"{name}.onnx"
            export(
                model,
                path,
                ExportOptions(iterations=count, extra_outputs=extra, checkpoint_sha256=checksum),
            )
            yield _read(path, name)


# --- Files that differ only in routing iterations, as one model with a choice ---

Files = list[tuple[str, PageModel]]


def group_by_iterations(models: Sequence[PageModel]) -> list[tuple[str, Files]]:
    """The models, files that differ only in iterations grouped: a name, and each file's path and content."""
    groups: dict[object, dict[int, PageModel]] = {}
    for number, model in enumerate(models):
        key: object = _identity(model) or number
        if model.metadata.iterations in groups.get(key, ()):
            key = number  # a file with the same number of iterations is another choice
        groups.setdefault(key, {})[model.metadata.iterations] = model
    named: list[tuple[str, Files]] = []
    for group in groups.values():
        name = unused(_common_name([m.name for m in group.values()]), [n for n, _ in named])
        several = len(group) > 1
        named.append(
            (
                name,
                [
                    (f"models/{name}{f'-{count}' if several else ''}.onnx", group[count])
                    for count in sorted(group)
                ],
            )
        )
    return named


def _identity(model: PageModel) -> object:
    """The key shared by files of one model; None for a file with unknown weights."""
    m = model.metadata
    if not m.checkpoint_sha256:
        return None
    return m.checkpoint_sha256, m.architecture, m.routing, m.precision, m.class_names, m.task


def _common_name(names: Sequence[str]) -> str:
    """The common prefix of a group's names, such as ``digits`` for ``digits-1`` and ``digits-3``."""
    common = os.path.commonprefix(list(names))  # noqa: RUF071 (they are no paths)
    if len(set(names)) > 1:
        common = re.sub(
            r"[-_.]*(it|iter|iters|iterations)?[-_.]*$", "", common, flags=re.IGNORECASE
        )
    return common or names[0]


def unused(name: str, used: Sequence[str]) -> str:
    """The name, with a number if another model already has it."""
    lower = {other.lower() for other in used}
    free, number = name, 2
    while free.lower() in lower:
        free, number = f"{name}.{number}", number + 1
    return free


# --- ``capsedge.deploy_web`` ---

WORKER = "worker.js"  # the service worker, which keeps the folder's files for use without a network
SITE = Path(__file__).parent / "site"  # also named in pyproject.toml and .gitignore
_VERSION = b"@capsedge-version@"  # placeholder in the service worker


def deploy_web(
    models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    iterations: Sequence[int] | None = None,
    note: Callable[[str], None] | None = None,
) -> WebDeployment:
    """Write a folder with a page that runs capsule networks in the browser.

    Any static file server can host it; ``capsedge deploy web --open`` serves it on this machine. Files of one
    checkpoint with different numbers of iterations become one model on the page.

    Args:
        models: ONNX files of ``capsedge export``, or names of the zoo, which are exported with a trace of
            their routing.
        output: the folder; a folder written by an earlier call is replaced as a whole.
        iterations: numbers of routing iterations for models of the zoo; by default 1 up to the model's own.
        note: called with each of the report's notes as it arises.

    Returns:
        The folder's models and files.

    Raises:
        UsageError: a model does not exist, or the output is a folder with other files.
        UnsupportedModelError: a file is not made for images, or a browser cannot run it.
        ArtefactError: a file is damaged.
        EnvironmentProblem: the page was not built in this checkout, or the disk is full.

    Example:
        >>> deployment = capsedge.deploy_web("digits-dynamic", "digits/")
        >>> [model.name for model in deployment.models]
        ['digits-dynamic']
    """
    names = [models] if isinstance(models, (str, os.PathLike)) else list(models)
    paths = [str(as_path(path, MODEL)) for path in names]
    target = as_path(output, "the path of a folder to write")
    _check(paths, iterations)
    for path in paths:
        check_file_or_zoo_name(path)
    earlier = earlier_files(target)
    earlier += [WORKER] if earlier else []
    check_replaceable(target, earlier)
    site = built_page()
    notes: list[str] = []

    def noted(text: str) -> None:
        notes.append(text)
        if note is not None:
            note(text)

    page = _compiled(site, group_by_iterations(page_models(paths, iterations, noted)), noted)
    contents: dict[str, bytes | Path] = {**site, **page.models, **dict(page.compiled.values())}
    late = (ON_DEMAND, *page.late())
    files = [listed(path, contents[path]) for path in sorted(contents) if path != WORKER]
    manifest = _manifest(page.offered(), files, late)
    version = hashlib.sha256(manifest).hexdigest()[:16]
    worker = site[WORKER].read_bytes().replace(_VERSION, version.encode())
    write_folder(target, {**contents, MANIFEST: manifest, WORKER: worker}, earlier)
    files += [listed(MANIFEST, manifest), listed(WORKER, worker)]
    return WebDeployment(target, page.offered(), tuple(files), tuple(notes), late)


@dataclass(frozen=True)
class _PageFiles:
    """The models of a page: as ONNX files, and compiled where that is possible.

    Attributes:
        groups: name of each model, with the paths and contents of its files.
        compiled: path and content of the compiled form of a file, by the file's path.
    """

    groups: Sequence[tuple[str, Files]]
    compiled: Mapping[str, tuple[str, bytes]]

    @property
    def models(self) -> dict[str, bytes]:
        return {path: model.data for _, files in self.groups for path, model in files}

    def late(self) -> list[str]:
        """The files that are loaded only when they are needed, each once."""
        photographs = [
            path
            for _, files in self.groups[1:]
            for path, model in files
            if _is_of_photographs(model)
        ]
        compiled = [self.compiled[path][0] for path in photographs if path in self.compiled]
        first = web.late_files(self.compiled, list(self.models))
        return list(dict.fromkeys([*first, *photographs, *compiled]))

    def offered(self) -> tuple[WebModel, ...]:
        return tuple(
            WebModel(
                name,
                files[0][1].metadata.routing,
                files[0][1].metadata.precision,
                {m.metadata.iterations: path for path, m in files},
                {
                    m.metadata.iterations: self.compiled[path][0]
                    for path, m in files
                    if path in self.compiled
                },
            )
            for name, files in self.groups
        )


def _compiled(
    site: Mapping[str, Path], groups: Sequence[tuple[str, Files]], note: Callable[[str], None]
) -> _PageFiles:
    if web.can_compile():
        files = _PageFiles(groups, {}).models
        return _PageFiles(groups, web.compile_models(files, note))
    runtime = [path for name, path in site.items() if name.startswith(PAGE_RUNTIME)]
    web.note_without_extra(sum(p.stat().st_size for p in runtime), note)
    return _PageFiles(groups, {})


def _is_of_photographs(model: PageModel) -> bool:
    """Whether it takes colour images; next to models for drawings, it is loaded only when chosen."""
    prepared = model.metadata.preprocessing
    return prepared is not None and prepared.channels == 3


def _check(models: Sequence[str], iterations: Sequence[int] | None) -> None:
    if not models:
        raise UsageError("No model was given.", "", f"Pass ONNX files, or {', '.join(zoo.FILES)}.")
    if iterations is None:
        return
    if not iterations or not all(1 <= count <= limits.ITERATIONS for count in iterations):
        raise UsageError(
            f"Routing cannot run {list(iterations)} iterations.",
            f"Expected: whole numbers from 1 to {limits.ITERATIONS}.",
            "For example: --iters 1,2,3.",
        )
    if not any(name in zoo.MODELS for name in models):
        raise UsageError(
            "--iters applies only to zoo models.",
            "The iterations of a file are part of its graph.",
            "Leave it out, or export files with `capsedge export --iters` and pass them all.",
        )


def built_page() -> dict[str, Path]:
    """The files of the page that ``make web`` builds, by name."""
    files = {
        path.relative_to(SITE).as_posix(): path
        for path in sorted(SITE.rglob("*"))
        if path.is_file()
    }
    if "index.html" not in files or WORKER not in files:
        raise EnvironmentProblem(
            "The page is not in this installation.",
            f"{SITE} is built from capsedge/runtime/web/page, which needs Node.js 20.19 or later.",
            "Run `make web` in the checkout, or install a wheel that `make wheels` built.",
        )
    return files


def _manifest(
    models: Sequence[WebModel], files: Sequence[DeployedFile], late: Sequence[str]
) -> bytes:
    document = {
        "schema": MANIFEST_SCHEMA,
        "models": [model.to_dict() for model in models],
        "late": list(late),
        "files": {f.path: {"bytes": f.bytes, "sha256": f.sha256} for f in files},
    }
    return json.dumps(document, indent=1).encode()


_PACKAGES = ("ziglang", "onnx", "onnxscript")
_PREFIX = "network"  # prefix of internal symbols


def can_compile() -> bool:
    """Whether models can be compiled: whether the extra ``wasm`` is installed."""
    return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)


def compile_models(
    models: Mapping[str, bytes], note: Callable[[str], None]
) -> dict[str, tuple[str, bytes]]:
    """Compile the models that can be written as C.

    Args:
        models: bytes of ONNX files that were checked, by their paths in the folder.
        note: called for each model that cannot be compiled, with the reason.

    Returns:
        The path and bytes of each model's WebAssembly, by the model's path.
    """
    from capsedge.exporters.c.wasm import compile_network

    compiled = {}
    for path, data in models.items():
        place = PurePosixPath(path)
        try:
            network = compile_network(data, Path(place.name), _PREFIX)
        except (UnsupportedModelError, ArtefactError, UsageError) as error:
            note(f"{place.stem} runs in ONNX Runtime, as it cannot be compiled: {error.why}")
            continue
        compiled[path] = (str(place.with_suffix(".wasm")), network.data)
    return compiled


def note_without_extra(runtime_bytes: int, note: Callable[[str], None]) -> None:
    """Tell the user how much less a visitor would load with the extra."""
    note(
        f"a first visit loads {format_bytes(runtime_bytes)} of ONNX Runtime; with pip install "
        "'capsedge[wasm]', models are compiled, and only files of the visitor's own need it"
    )


def late_files(compiled: Mapping[str, object], models: Sequence[str]) -> list[str]:
    """Prefixes of the paths that a visitor loads on first use, besides WebGPU's.

    Args:
        compiled: the paths of the models that were compiled.
        models: the paths of all models.
    """
    whole = [PAGE_RUNTIME] if models and all(path in compiled for path in models) else []
    return [*whole, *compiled]
