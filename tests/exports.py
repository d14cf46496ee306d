"""Exports of small networks, made once in a run and shared by its processes.

For tests of what happens to a file after its export. A test of the export itself calls `capsedge.export`.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from capsedge.exporters.export_options import ExportOptions
from tests import tiers

if TYPE_CHECKING:
    from capsedge.exporters.export_report import ExportReport
    from capsedge.models import CapsuleModel


class Exported(NamedTuple):
    """A file that tests share: they read it, or change a copy."""

    path: Path
    checkpoint: Path
    report: ExportReport


def arguments(**given: Any) -> dict[str, Any]:
    """The options of an export and what its file says of itself, by name, as the arguments of `export`."""
    import capsedge

    found: dict[str, Any] = {}
    for name, kind in (("options", ExportOptions), ("description", capsedge.Description)):
        own = {k: given.pop(k) for k in [*given] if k in kind.__dataclass_fields__}
        found |= {name: kind(**own)} if own else {}
    return found | given


class Exports:
    """Call it with a network and the options of `capsedge.export`; equal calls get the same file.

    Args:
        folder: where the files are, the same for all processes of a run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, Exported] = {}
        self._sums: dict[Path, str] = {}

    def __call__(self, model: CapsuleModel, **options: Any) -> Exported:
        with tiers.shared:
            key = _key(model, options)
            if key not in self._found:
                self._found[key] = self._exported(self._folder / key, model, options)
            return self._found[key]

    def _exported(self, folder: Path, model: CapsuleModel, options: dict[str, Any]) -> Exported:
        from filelock import FileLock

        import capsedge
        from capsedge.models.checkpoint import save_checkpoint
        from capsedge.runtime.files.writing import sha256

        path = folder / f"{model.config.routing}.onnx"
        checkpoint = path.with_suffix(".safetensors")
        report = folder / "report.pickle"  # the last to be written
        with FileLock(f"{folder}.lock"):
            if not report.exists():
                folder.mkdir(exist_ok=True)
                save_checkpoint(model, checkpoint)
                given = arguments(checkpoint_sha256=sha256(checkpoint), **options)
                made = capsedge.export(model, path, **given)
                path.chmod(0o444)
                checkpoint.chmod(0o444)
                report.write_bytes(pickle.dumps(made))
        self._sums |= {each: sha256(each) for each in (path, checkpoint)}
        return Exported(path, checkpoint, pickle.loads(report.read_bytes()))

    def changed(self) -> list[Path]:
        """The shared files that a test of this process has changed."""
        from capsedge.runtime.files.writing import sha256

        return [each for each, digest in self._sums.items() if sha256(each) != digest]


def _key(model: CapsuleModel, options: dict[str, Any]) -> str:
    """Of the architecture, the weights, their origin and the options."""
    digest = hashlib.sha256(repr((type(model).__name__, model.config, model.origin)).encode())
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    usual = {each.name: each.default for each in fields(ExportOptions)}
    for name, value in sorted(options.items()):
        if name in usual and value == usual[name]:
            continue
        digest.update(repr((name, tuple(value) if isinstance(value, list) else value)).encode())
    return digest.hexdigest()[:16]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exports]:
    """Files of networks: ``exported(network("em"), ops="portable").path``."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exports"
    folder.mkdir(exist_ok=True)
    exports = Exports(folder)
    yield exports
    assert not exports.changed(), "files that tests share have been changed: change a copy"
