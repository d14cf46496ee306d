"""What Python's reader finds in an ONNX file, as facts to compare with those of other readers."""

from __future__ import annotations

from capsedge.errors import CapsedgeError
from capsedge.runtime.onnx_file import summary

Facts = set[tuple[str, str, str]]


def in_python(data: bytes) -> Facts | None:
    """What is in the file; None where it is refused."""
    try:
        found = summary.summarize(data)
    except CapsedgeError:
        return None
    facts: Facts = {("external", name, "") for name in found.external}
    facts |= {("operator", domain, kind) for domain, kind in found.operators}
    facts |= {("function", domain, name) for domain, name in found.functions}
    facts |= {("metadata", key, value) for key, value in found.metadata.items()}
    try:
        summary.check_harmless(found, "the model")
    except CapsedgeError as error:
        facts.add(("harmful", str(error.exit_code), ""))
    return facts
