"""Families of public capsule networks, whose trained weights ``capsedge import`` makes checkpoints of."""

from __future__ import annotations

from capsedge.families import (
    adambielski,
    cedrickchee,
    danielhavir,
    gram_ai,
    jindongwang,
    laubonghaudoi,
    textbook,
    timomernick,
    xifengguo,
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
    textbook.FAMILY,
)
