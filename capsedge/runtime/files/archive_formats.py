"""What a zip archive is, by the names of its members: weights, a model, or arrays."""

from __future__ import annotations

from io import BufferedReader

from capsedge.runtime.files import limits
from capsedge.runtime.files.archives import Archive, BadArchive


def key_of(file: BufferedReader) -> str:
    """The key of its `Format`; ``zip`` where it is nothing else, or damaged."""
    try:
        return _by_members(Archive(file))
    except BadArchive:
        return "zip"


def _by_members(archive: Archive) -> str:
    names = archive.names
    leaves = {name.rpartition("/")[2] for name in names}
    if "constants.pkl" in leaves and any("/code/" in f"/{name}" for name in names):
        return "torchscript"
    if {"serialized_exported_program.json", "archive_format"} & leaves:
        return "torch-export"
    pickled = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
    if pickled:
        return "checkpoint" if _states_configuration(archive, pickled[0]) else "pytorch"
    if "model.weights.h5" in leaves or {"config.json", "metadata.json"} <= leaves:
        return "keras"
    if names and all(name.endswith(".npy") for name in names):
        return "npz"
    return "zip"


def _states_configuration(archive: Archive, name: str) -> bool:
    """Whether a PyTorch file looks like ``{"config": ..., "state_dict": ...}``; its pickle is not run."""
    try:
        with archive.member(name) as member:
            content = member.read(limits.PICKLE_BYTES)
    except BadArchive:
        return False
    return b"\x06\0\0\0config" in content and b"\x0a\0\0\0state_dict" in content
