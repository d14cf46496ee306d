"""Triton's own schema of config.pbtxt, from its client."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, text_format


@cache
def _schema() -> Any:
    """The module of the messages, by its file: its package would also import gRPC."""
    package = importlib.util.find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        return None
    (folder,) = package.submodule_search_locations
    file = Path(folder, "grpc", "model_config_pb2.py")
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config(folder: Path, name: str) -> dict[str, Any]:
    """The configuration of a model of a repository, as protobuf reads it.

    Numbers of 64 bits are strings, and what is zero is left out.
    """
    schema = _schema()
    if schema is None:
        pytest.skip("Triton's schema is not installed: pip install tritonclient")
    parsed = text_format.Parse((folder / name / "config.pbtxt").read_text(), schema.ModelConfig())
    found: dict[str, Any] = json_format.MessageToDict(parsed, preserving_proto_field_name=True)
    return found
