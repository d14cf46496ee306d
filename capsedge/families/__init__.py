"""Families of public capsule networks, whose trained weights ``capsedge import`` makes checkpoints of."""

from __future__ import annotations

from capsedge.families import (
    adambielski,
    attention,
    cedrickchee,
    danielhavir,
    efficient,
    gram_ai,
    jindongwang,
    laubonghaudoi,
    textbook,
    timomernick,
    xifengguo,
    yl1993,
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
    yl1993.FAMILY,
    attention.APPLE,
    attention.YAOHUNGT,
    efficient.PYTORCH,
    efficient.KERAS,
    efficient.KERAS_SMALLNORB,
    textbook.FAMILY,
)
