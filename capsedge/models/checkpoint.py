"""Checkpoints: safetensors with the model's configuration as JSON in the metadata. Needs torch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load, load_file, save
from torch import Tensor, nn

from capsedge.errors import ArtefactError, CapsedgeError, UsageError
from capsedge.models import CapsuleModel, build
from capsedge.models.base import check_model_cost
from capsedge.models.configs import ModelConfig, config_from_dict
from capsedge.models.torch_file import BadPickle, read_torch, unreadable_torch_file
from capsedge.models.training.recipe import MODEL
from capsedge.runtime.files import formats
from capsedge.runtime.files.archives import BadArchive
from capsedge.runtime.files.documents import MalformedJson, parse
from capsedge.runtime.files.reading import file_size, open_regular_file, path_kind
from capsedge.runtime.files.safetensors import read_header
from capsedge.runtime.files.writing import WEIGHTS, as_path, write_bytes
from capsedge.runtime.inspection import CONFIG_KEY
from capsedge.runtime.metadata.origin import origin_of, training_split_of
from capsedge.runtime.metadata.typical_input import typical_input_of
from capsedge.runtime.onnx_file.stored_values import (
    DIVERGED,
    NotFinite,
    first_few_lines,
    not_finite,
)
from capsedge.spec import limits


def save_checkpoint(
    model: CapsuleModel, path: Path | str, extra: Mapping[str, str] | None = None
) -> None:
    """Write a model's parameters, buffers and configuration, completely or not at all.

    Args:
        model: the model.
        path: the ``.safetensors`` file.
        extra: further metadata (strings), such as how the model was trained.

    Raises:
        UsageError: the path cannot be written.
        EnvironmentProblem: the disk is full.
    """
    tensors = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    metadata = {CONFIG_KEY: json.dumps(model.config.to_dict()), **(extra or {})}
    write_bytes(path, _ordered(save(tensors, metadata)))


def _ordered(data: bytes) -> bytes:
    """The file with sorted metadata, since safetensors shuffles it; equal models then give equal files."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + data[end:]


def load_checkpoint(path: Path | str) -> CapsuleModel:
    """Build the model that a checkpoint describes and load its weights, in evaluation mode.

    ``.pt`` and ``.pth`` files hold ``{"config": ..., "state_dict": ...}``; no code in them is run
    (`capsedge.models.torch_file`). The tensors' names and shapes are checked against the configuration before
    a model is built.

    Args:
        path: ``.safetensors``, ``.pt`` or ``.pth``.

    Returns:
        The model, on the CPU.

    Raises:
        UsageError: there is no such file.
        ArtefactError: the file has another format, is damaged, holds code (a pickle), or does not fit its
            configuration.

    Example:
        >>> model = capsedge.load_checkpoint("digits.safetensors")
        >>> model.config.routing
    """
    path = as_path(path, WEIGHTS)
    read = _reader(path)
    with open_regular_file(path, "Check the path of the checkpoint.") as file:
        if file_size(file) > limits.ARRAY_BYTES:
            raise ArtefactError(
                f"{path} is larger than {limits.ARRAY_BYTES // limits.GIB} GiB.",
                "Larger files are not read.",
            )
        config, shapes, tensors = read(path, file)
        try:
            described = config_from_dict(config)
            wanted = _shapes(described)
        except CapsedgeError as error:
            why = (error.what, error.why, *error.details)
            raise ArtefactError(
                f"{path} does not describe a model.", " ".join(filter(None, why))
            ) from error
        _compare(path, shapes, wanted)
        model = build(described)
        values = tensors()
        check_finite_weights(model, values, path)
        model.load_state_dict(values)
    model.origin = origin_of(path)
    model.typical_input = typical_input_of(path)
    model.training_split = training_split_of(path)
    return model.eval()


def _reader(path: Path) -> Reader:
    """The reader of a file, chosen by its first bytes or, if they are inconclusive, by its name.

    Raises:
        ArtefactError: it has another format.
    """
    found = formats.identify_path(path) if path_kind(path) is not None else None
    key = "" if found is None else found.key
    if key in ("pytorch", "torchscript", "zip"):
        return _read_torch
    if key in ("checkpoint", "safetensors"):
        with open_regular_file(path) as file:
            return _read_torch if file.read(2) == b"PK" else _read_safetensors
    read = _READERS.get(path.suffix)
    if found is not None and (
        read is None or key not in ("empty", "text", "json", "pytorch-legacy")
    ):
        fix, command = found.advice(path)
        raise ArtefactError(
            f"{path} is not a checkpoint: it is {found.name}.",
            "Checkpoints are .safetensors, or .pt with a configuration and a state dict.",
            fix,
            command=command,
        )
    return read or _read_safetensors


Shapes = Mapping[str, tuple[int, ...]]
Content = tuple[object, Shapes, Callable[[], dict[str, Tensor]]]
"""The configuration in the file, the shapes of the tensors, and a function that reads the tensors."""
Reader = Callable[[Path, BufferedReader], Content]


def _shapes(config: ModelConfig) -> Shapes:
    """Names and shapes of a model's parameters and buffers, without allocating them.

    Raises:
        UsageError: such a model is impossible, or needs more work than the limits allow.
    """
    try:
        with torch.device("meta"):
            model = build(config)
    except RuntimeError as error:  # raised by torch for sizes beyond 64 bits
        raise UsageError("No model can be this large.", str(error).split("\n")[0]) from error
    check_model_cost(model)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _compare(path: Path, actual: Shapes, expected: Shapes) -> None:
    for name, shape in expected.items():
        if actual.get(name) != shape:
            has = f"it is {list(actual[name])}" if name in actual else "the file lacks it"
            why = f"'{name}' should be {list(shape)}; {has}."
            raise ArtefactError(f"{path} does not fit its own configuration.", why)
    unknown = next((name for name in actual if name not in expected), None)
    if unknown is not None:
        why = f"The model has no tensor '{unknown}'."
        raise ArtefactError(f"{path} does not fit its own configuration.", why)


def _read_safetensors(path: Path, file: BufferedReader) -> Content:
    try:
        header = read_header(file)
        if CONFIG_KEY not in header.metadata:
            raise _not_a_checkpoint(path, f"Its metadata lacks '{CONFIG_KEY}'.")
        config = parse(header.metadata[CONFIG_KEY])
    except MalformedJson as error:
        raise _damaged(path, error) from error

    def tensors() -> dict[str, Tensor]:
        try:
            return load_safetensors(path)
        except (safetensors.SafetensorError, OSError) as error:
            raise _damaged(path, error) from error

    return config, {name: tensor.shape for name, tensor in header.tensors.items()}, tensors


def load_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file under any name; safetensors opens only names in UTF-8 itself.

    Raises:
        OSError, safetensors.SafetensorError: it cannot be read.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return load(path.read_bytes())
    return load_file(path)


def _not_a_checkpoint(path: Path, why: str) -> ArtefactError:
    """The error for weights without a description of their network."""
    found = formats.identify_path(path)
    fix, command = found.advice(path) if found is not None else ("", "")
    return ArtefactError(f"{path} has no configuration.", why, fix, command=command)


def _damaged(path: Path, error: Exception) -> ArtefactError:
    return ArtefactError(
        f"{path} is not a complete safetensors file.", f"{error}.", "Copy it again, or train again."
    )


def _read_torch(path: Path, file: BufferedReader) -> Content:
    try:
        value = read_torch(file)
    except (BadArchive, BadPickle) as error:
        raise unreadable_torch_file(path, error) from error
    if type(value) is dict and {"identity", "history"} <= value.keys():
        raise ArtefactError(
            f"{path} is not a checkpoint: it is the state of a training run.",
            "`capsedge train --resume` continues from it.",
            f"Use the run's checkpoint, {path.with_name(MODEL)}.",
        )
    if type(value) is not dict or not {"config", "state_dict"} <= value.keys():
        raise _not_a_checkpoint(
            path, "A .pt checkpoint of capsedge is {'config': ..., 'state_dict': ...}."
        )
    stored = value["state_dict"]
    if (
        type(stored) is not dict
        or not set(map(type, stored)) <= {str}
        or not set(map(type, stored.values())) <= {Tensor}
    ):
        raise ArtefactError(
            f"{path} has no state dict.",
            "It holds values other than named tensors.",
            "Save {'config': ..., 'state_dict': model.state_dict()}.",
        )
    return value["config"], {name: tuple(t.shape) for name, t in stored.items()}, lambda: stored


_READERS = {".safetensors": _read_safetensors, ".pt": _read_torch, ".pth": _read_torch}


# --- Weights that are NaN or infinite, refused by name before anything runs ---

_STATISTICS = re.compile(r"(^|\.)running_(mean|var)$")


def check_finite_weights(
    module: nn.Module, tensors: Mapping[str, Tensor] | None = None, path: Path | str = ""
) -> None:
    """Refuse values that training leaves behind when it diverges.

    Infinity is legitimate in buffers, and in parameters that are masks: frozen, and 0 elsewhere. NaN is not.

    Args:
        module: tells parameters from buffers.
        tensors: the values of a file, by the module's names; None for the module's own.
        path: the file, for the message.

    Raises:
        ArtefactError: values of the file are not finite; the error has the tensors' names, how many values,
            and the first one's position.
        UsageError: the same of the module's own.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if tensors is None:
        tensors = parameters | dict(module.named_buffers(remove_duplicate=False))
    wrong = list(_wrong(tensors, parameters))
    if not wrong:
        return
    why = f"NaN or infinite: {len(wrong)} of {len(tensors)} tensors."
    if path:
        what = f"The weights of {path} are not finite."
        raise ArtefactError(what, why, DIVERGED, details=first_few_lines(wrong))
    raise UsageError(
        "The module's weights are not finite.", why, DIVERGED, details=first_few_lines(wrong)
    )


def _wrong(
    tensors: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]
) -> Iterator[NotFinite]:
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu" or not tensor.dtype.is_floating_point:
            continue
        if not torch.isfinite(tensor).all():
            values = tensor.detach().double().numpy()
            found = not_finite(name, values, _may_be_infinite(name, tensor, parameters))
            yield from [found] if found else []


def _may_be_infinite(name: str, tensor: Tensor, parameters: Mapping[str, nn.Parameter]) -> bool:
    if name not in parameters:
        return not _STATISTICS.search(name)
    masks = (tensor == 0) | (tensor == -torch.inf)
    return not parameters[name].requires_grad and bool(masks.all())
