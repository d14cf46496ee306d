"""HR-SEMobileCapsNet of Aakash67: convolutions with squeeze and excitation, routing as in the paper.

Letters: A input channels; Cn, Hn channels and hidden units of the stem's layer n; N, P channels and kernel of
the primary convolution; I children, J classes, O, D elements of a class capsule and of a child.
"""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.families import capsnets
from capsedge.families.family import (
    Answers,
    DataSet,
    Family,
    Sizes,
    Tensors,
    classes_of,
    preprocessing_of,
    size_of,
    sums_of,
    with_fields,
)
from capsedge.families.shapes import Patterns
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, Conv, ModelConfig

_STRIDES = (1, 2, 2)  # of the stem
_PRIMARY = {"primary_stride": 2, "primary_padding": 1}
_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


def _keys() -> Patterns:
    found: dict[str, str] = {}
    for k in range(len(_STRIDES)):
        name, before = f"feature_extractor.layer{k + 1}", f"C{k - 1}" if k else "A"
        found |= {f"{name}.0.weight": f"C{k} {before} 3 3"}
        found |= {f"{name}.1.{part}": f"C{k}" for part in _BATCH_NORM}
        found |= {f"{name}.4.fc1.weight": f"H{k} C{k}", f"{name}.4.fc1.bias": f"H{k}"}
        found |= {f"{name}.4.fc2.weight": f"C{k} H{k}", f"{name}.4.fc2.bias": f"C{k}"}
    return found | {
        "primary_capsules.capsules.weight": "N C2 P P",
        "primary_capsules.capsules.bias": "N",
        "digit_capsules.W": "1 I J O D",
    }


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration.

    Raises:
        UsageError: an answer is missing or does not fit the file.
    """
    channels = sizes["A"]
    size = size_of(family, sizes["J"], channels, answers, notes)
    config = CapsNetConfig(
        class_names=classes_of(family, sizes["J"], size, channels, answers, notes),
        preprocessing=preprocessing_of(family, size, channels, answers, notes),
        stem=tuple(
            Conv(sizes[f"C{k}"], 3, s, 1, bias=False, batch_norm=True, squeeze=sizes[f"H{k}"])
            for k, s in enumerate(_STRIDES)
        ),
        primary_types=max(sizes["N"] // sizes["D"], 1),
        primary_dim=sizes["D"],
        primary_kernel=sizes["P"],
        capsule_dim=sizes["O"],
        iterations=sums_of(family, answers, notes),
        class_bias=False,
        task=answers.task or "single-label",
        epsilon=capsnets.NO_EPSILON,
    )
    return with_fields(config, {**_PRIMARY, **answers.fields})


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; children have their types first there."""
    assert isinstance(config, CapsNetConfig)
    made: Tensors = {}
    for k in range(len(_STRIDES)):
        name, place = f"feature_extractor.layer{k + 1}", 4 * k  # each layer has four modules here
        made[f"stem.{place}.weight"] = found[f"{name}.0.weight"]
        made |= capsnets.renamed(found, f"{name}.1.", f"stem.{place + 1}.")
        made |= capsnets.layer(found, f"{name}.4.fc1", f"stem.{place + 3}.squeeze")
        made |= capsnets.layer(found, f"{name}.4.fc2", f"stem.{place + 3}.excite")
    return {
        **made,
        **capsnets.layer(found, "primary_capsules.capsules", "primary.conv"),
        "classes.weight": capsnets.by_position(found["digit_capsules.W"][0], config.primary_types),
    }


FAMILY = Family(
    name="hr-semobilecapsnet",
    source="github.com/Aakash67/Lung-Cancer-Detection-with-HR-SEMobileCapsNet, cv_model/network.py",
    licence="",
    dialect="dynamic routing as in the paper; convolutions with squeeze and excitation before it",
    differences=("class capsules without bias", "1e-8 is added to the norm in the squash"),
    keys=_keys(),
    configure=configure,
    convert=convert,
    iterations=3,
    iterations_at="routing_iters of DigitCapsules",
    data_sets=(DataSet("lung scans", 1, 128, ("benign", "malignant", "normal"), (0.5,), (0.5,)),),
)
