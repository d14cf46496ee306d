"""``capsedge.deploy_web``: a folder with a page that runs capsule networks in the browser."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from capsedge import zoo
from capsedge.deploy.grouping import grouped
from capsedge.deploy.manifest import MANIFEST, earlier_files, listed
from capsedge.deploy.models import check_given, page_models
from capsedge.deploy.report import DeployedFile, WebDeployment, WebModel
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.files import limits
from capsedge.runtime.files.folders import check_replaceable, write_folder
from capsedge.runtime.files.given import MODEL, as_path

WORKER = "worker.js"  # the service worker, which keeps the folder's files for use without a network
_SITE = Path(__file__).parent / "site"
_VERSION = b"@capsedge-version@"  # in the service worker


def deploy_web(
    models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    iterations: Sequence[int] | None = None,
    note: Callable[[str], None] | None = None,
) -> WebDeployment:
    """Write a folder with a page that runs capsule networks in the browser.

    Any server of static files can host it; ``capsedge deploy web --open`` serves it on this machine. Files
    of one checkpoint with different iterations become one model of the page.

    Args:
        models: ONNX files of ``capsedge export``, or names of the zoo, which are exported with a trace of
            their routing.
        output: the folder; one that an earlier call wrote is replaced as a whole.
        iterations: numbers of routing iterations for models of the zoo; by default 1 up to the model's own.
        note: told at once what else stands in the report's notes.

    Returns:
        The folder's models and files.

    Raises:
        UsageError: a model does not exist, or the output is a folder with other files.
        UnsupportedModelError: a file is not made for images, or a browser cannot run it.
        ArtefactError: a file is damaged.
        EnvironmentProblem: the page was not built in this checkout, or the disk is full.

    Example:
        >>> made = capsedge.deploy_web("digits-dynamic", "digits/")
        >>> [model.name for model in made.models]
        ['digits-dynamic']
    """
    given = [models] if isinstance(models, (str, os.PathLike)) else list(models)
    paths = [str(as_path(path, MODEL)) for path in given]
    target = as_path(output, "the path of a folder to write")
    _check(paths, iterations)
    for path in paths:
        check_given(path)
    earlier = earlier_files(target)
    earlier += [WORKER] if earlier else []
    check_replaceable(target, earlier)
    site = _site()
    notes: list[str] = []

    def noted(text: str) -> None:
        notes.append(text)
        if note is not None:
            note(text)

    chosen = grouped(page_models(paths, iterations, noted))
    contents: dict[str, bytes | Path] = {
        **site,
        **{path: model.data for _, files in chosen for path, model in files},
    }
    offered = tuple(
        WebModel(
            name,
            files[0][1].metadata.routing,
            files[0][1].metadata.precision,
            {model.metadata.iterations: path for path, model in files},
        )
        for name, files in chosen
    )
    named = [listed(path, contents[path]) for path in sorted(contents) if path != WORKER]
    manifest = _manifest(offered, named)
    version = hashlib.sha256(manifest).hexdigest()[:16]
    worker = site[WORKER].read_bytes().replace(_VERSION, version.encode())
    written = {**contents, MANIFEST: manifest, WORKER: worker}
    write_folder(target, written, earlier)
    named += [listed(MANIFEST, manifest), listed(WORKER, worker)]
    return WebDeployment(target, offered, tuple(named), tuple(notes))


def _check(given: Sequence[str], iterations: Sequence[int] | None) -> None:
    if not given:
        raise UsageError("There is no model.", "", f"Name ONNX files, or {', '.join(zoo.MODELS)}.")
    if iterations is None:
        return
    if not iterations or not all(1 <= count <= limits.ITERATIONS for count in iterations):
        raise UsageError(
            f"Routing cannot run {list(iterations)} iterations.",
            f"Wanted: whole numbers from 1 to {limits.ITERATIONS}.",
            "For example --iters 1,2,3.",
        )
    if not any(zoo.zoo_model(name) for name in given):
        raise UsageError(
            "--iters is for models of the zoo.",
            "The iterations of a file are part of its graph.",
            "Leave it out, or export files with `capsedge export --iters` and name them all.",
        )


def _site() -> dict[str, Path]:
    """The files of the built page."""
    found = {
        path.relative_to(_SITE).as_posix(): path
        for path in sorted(_SITE.rglob("*"))
        if path.is_file()
    }
    if "index.html" not in found or WORKER not in found:
        raise EnvironmentProblem(
            "The page is not in this installation.",
            f"{_SITE} is built from runtime/web/page, which needs Node.js 20.19 or later.",
            "Run `make web` in the checkout, or install a wheel of capsedge.",
        )
    return found


def _manifest(models: Sequence[WebModel], files: Sequence[DeployedFile]) -> bytes:
    document = {
        "schema": 1,
        "models": [model.to_dict() for model in models],
        "files": {f.path: {"bytes": f.bytes, "sha256": f.sha256} for f in files},
    }
    return json.dumps(document, indent=1).encode()
