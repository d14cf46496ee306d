"""Families of public capsule networks, whose trained weights ``capsedge import`` makes checkpoints of."""

from __future__ import annotations

from capsedge.families import (
    adambielski,
    attention,
    cedrickchee,
    danielhavir,
    efficient,
    fixcaps,
    fsanet,
    fsanet_ensemble,
    fsanet_keras,
    gram_ai,
    jindongwang,
    keras_capsule,
    laubonghaudoi,
    textbook,
    timomernick,
    xifengguo,
    xifengguo_keras,
    yl1993,
    yuxianmeng,
)
from capsedge.families.family import Family

FAMILIES: tuple[Family, ...] = (
    xifengguo.FAMILY,
    danielhavir.FAMILY,
    adambielski.FAMILY,
    gram_ai.FAMILY,
    laubonghaudoi.FAMILY,
    laubonghaudoi.FIRST,
    cedrickchee.FAMILY,
    jindongwang.FAMILY,
    timomernick.FAMILY,
    fixcaps.FAMILY,
    yl1993.FAMILY,
    yuxianmeng.FAMILY,
    attention.APPLE,
    attention.YAOHUNGT,
    efficient.PYTORCH,
    efficient.KERAS,
    efficient.KERAS_SMALLNORB,
    fsanet.FAMILY,
    fsanet_keras.FAMILY,
    fsanet_keras.WITHOUT_MAPPING,
    fsanet_ensemble.PYTORCH,
    fsanet_ensemble.KERAS,
    xifengguo_keras.FAMILY,
    keras_capsule.FAMILY,
    textbook.FAMILY,
)
