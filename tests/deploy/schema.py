"""Triton's own schema of config.pbtxt, from its client, in an interpreter of its own.

The client asks for older versions of protobuf and ml_dtypes than the rest of the tests.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

PYTHON = ROOT / "build/triton-client/bin/python"
_PARSE = """
import json, sys
from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
texts = json.load(sys.stdin)
parsed = [text_format.Parse(text, ModelConfig()) for text in texts]
print(json.dumps([json_format.MessageToDict(m, preserving_proto_field_name=True) for m in parsed]))
"""


def parsed(*files: Path) -> list[dict[str, Any]]:
    """The configurations, as protobuf reads them; the test is skipped where the client is missing."""
    if not PYTHON.is_file():
        pytest.skip("Triton's client is not in build/triton-client: make triton-client")
    done = subprocess.run(
        [PYTHON, "-c", _PARSE],
        input=json.dumps([file.read_text() for file in files]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
