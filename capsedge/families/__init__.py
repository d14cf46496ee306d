"""Families of public capsule networks, whose trained weights ``capsedge import`` makes checkpoints of."""

from __future__ import annotations

from capsedge.families import (
    adambielski,
    cedrickchee,
    danielhavir,
    fsanet,
    fsanet_keras,
    gram_ai,
    jindongwang,
    keras_capsule,
    laubonghaudoi,
    textbook,
    timomernick,
    xifengguo,
    xifengguo_keras,
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
    fsanet.FAMILY,
    fsanet_keras.FAMILY,
    fsanet_keras.WITHOUT_MAPPING,
    xifengguo_keras.FAMILY,
    keras_capsule.FAMILY,
    textbook.FAMILY,
)
