"""Families of public capsule networks whose weights ``capsedge import`` converts to checkpoints."""

from __future__ import annotations

from capsedge.importers.families import (
    attention_ports,
    capsnet_keras,
    capsnet_ports,
    deepcaps_ports,
    efficient_ports,
    fixcaps,
    fsanet_keras,
    fsanet_ports,
    matrix_capsules_ports,
    pscapsnet_port,
)
from capsedge.importers.family import Family

FAMILIES: tuple[Family, ...] = (
    capsnet_ports.XIFENGGUO,
    capsnet_ports.DANIELHAVIR,
    capsnet_ports.ADAMBIELSKI,
    capsnet_ports.GRAM_AI,
    capsnet_ports.LAUBONGHAUDOI,
    capsnet_ports.LAUBONGHAUDOI_2017,
    capsnet_ports.CEDRICKCHEE,
    capsnet_ports.JINDONGWANG,
    capsnet_ports.TIMOMERNICK,
    fixcaps.FIXCAPS,
    fixcaps.HR_SEMOBILECAPSNET,
    capsnet_ports.Q_CAPSNETS,
    pscapsnet_port.FAMILY,
    matrix_capsules_ports.YL_1993,
    matrix_capsules_ports.YUXIANMENG,
    attention_ports.APPLE,
    attention_ports.YAOHUNGT,
    efficient_ports.PYTORCH,
    efficient_ports.KERAS,
    efficient_ports.KERAS_SMALLNORB,
    fsanet_ports.PYTORCH,
    fsanet_keras.KERAS,
    fsanet_keras.KERAS_WITHOUT_MAPPING,
    fsanet_keras.KERAS_METRIC,
    fsanet_keras.KERAS_NETVLAD,
    fsanet_ports.PYTORCH_ENSEMBLE,
    fsanet_keras.KERAS_ENSEMBLE,
    capsnet_keras.XIFENGGUO,
    capsnet_keras.CAPSULE,
    deepcaps_ports.HOPEFULRATIONAL,
    deepcaps_ports.UGENTERAAN,
    deepcaps_ports.KERAS,
    capsnet_ports.TEXTBOOK,
)
