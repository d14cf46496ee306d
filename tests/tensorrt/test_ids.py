"""Engines whose inputs are ids, over the stand-in: their metadata file says what is checked before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capsedge
from capsedge.errors import ArtefactError, UsageError
from capsedge.exporters.build_options import BuildOptions
from capsedge.exporters.tensorrt.write_engine import write_engine
from capsedge.runtime.metadata.engine_metadata import metadata_path
from capsedge.spec.fields import INPUTS_KEY
from tests.runtime.test_table_indices import given, table_file
from tests.tensorrt.fixtures import cudart, gpu  # noqa: F401


@pytest.fixture
def engine(gpu: Any, tmp_path: Path) -> Path:  # noqa: F811
    model = table_file(tmp_path / "ids.onnx", length=5)
    options = BuildOptions(plugin="native", batch=(1, 4, 4))
    return write_engine(model, tmp_path / "ids.engine", options, lambda *row: None).path


def test_ids_are_checked_as_in_the_file(engine: Path, tmp_path: Path) -> None:
    """A GPU looks up what is beyond a table too, and gives any values."""
    beyond = given(hist=[[1, 2, 3, 4, 5], [1, 2, -1, 4, 5]])
    with capsedge.load(engine) as session:
        assert [(p.name, p.entries, p.longest) for p in session.inputs] == [
            ("hist", 9, (0, 6)),
            ("user", 4, ()),
        ]
        wanted = capsedge.load(tmp_path / "ids.onnx").run(given())["interests"]
        np.testing.assert_array_equal(session.run(given())["interests"], wanted)
        with pytest.raises(UsageError, match="'hist' has an index that its table does not have"):
            session.run(beyond)


def test_a_damaged_statement_is_refused(engine: Path) -> None:
    path = metadata_path(engine)
    document = json.loads(path.read_text())
    document["metadata"][INPUTS_KEY] = '{"hist": {"longest": [6]}}'
    path.write_text(json.dumps(document))
    with pytest.raises(ArtefactError, match="lengths of 1 axes of 'hist', which has 2"):
        capsedge.load(engine)
