"""KServe's own schema of an InferenceService: its CustomResourceDefinition of 2 MB.

The file is config/crd/full/serving.kserve.io_inferenceservices.yaml of github.com/kserve/kserve; no package
has it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

FILE = "CAPSEDGE_KSERVE_CRD"
_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


def faults(document: Mapping[str, Any]) -> list[str]:
    """Where a document differs from the schema, sorted; the test is skipped where there is none."""
    if FILE not in os.environ:
        pytest.skip(f"{FILE} names no CustomResourceDefinition of KServe")
    yaml = pytest.importorskip("yaml")
    with open(os.environ[FILE]) as file:
        definition = yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (schema,) = [
        version["schema"]["openAPIV3Schema"]
        for version in definition["spec"]["versions"]
        if document["apiVersion"] == f"{definition['spec']['group']}/{version['name']}"
    ]
    assert document["kind"] == definition["spec"]["names"]["kind"]
    return sorted(_faults(document, schema, ""))


def _faults(value: Any, schema: Mapping[str, Any], place: str) -> Iterator[str]:
    """The server refuses other types and texts of another form; strictly validated, also unknown fields."""
    if schema.get("x-kubernetes-int-or-string"):
        kinds: tuple[type, ...] = (int, str)
    else:
        kinds = (_TYPES[schema["type"]],)
    if not isinstance(value, kinds):
        yield f"{place}: {type(value).__name__} is no {schema.get('type', 'number or text')}"
    elif not re.search(schema.get("pattern", ""), str(value)) or value not in schema.get(
        "enum", [value]
    ):
        yield f"{place}: '{value}' is of another form"
    elif isinstance(value, dict):
        yield from _fields(value, schema, place)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _faults(each, schema["items"], f"{place}[{number}]")


def _fields(value: Mapping[str, Any], schema: Mapping[str, Any], place: str) -> Iterator[str]:
    known, others = schema.get("properties"), schema.get("additionalProperties")
    if known is None and others is None:  # such as metadata, whose schema is Kubernetes' own
        return
    yield from (
        f"{place}.{name}: missing" for name in schema.get("required", ()) if name not in value
    )
    for name, each in value.items():
        of_field = (known or {}).get(name, others)
        if of_field is None:
            yield f"{place}.{name}: unknown"
        else:
            yield from _faults(each, of_field, f"{place}.{name}")
