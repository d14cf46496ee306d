"""Public networks in their authors' sizes, in plain PyTorch, which `imported` runs without fetched files.

The implementations are those of the tests (`tests.importers.families`); weights are random.
"""

from __future__ import annotations

from torch import nn

from tests.importers.families.fsanet import FsaNet
from tests.importers.families.matrix_and_attention import Yl1993


def yl_1993_small() -> nn.Module:
    """yl-1993's code with ``--A 64 --B 8 --C 16 --D 16``, five classes."""
    return Yl1993(sizes=(64, 8, 16, 16, 5)).eval()


def yl_1993() -> nn.Module:
    """yl-1993's code unchanged (32 everywhere), ten classes."""
    return Yl1993(sizes=(32, 32, 32, 32, 10)).eval()


def yl_1993_signs() -> nn.Module:
    """The small network, for the 43 classes of German traffic signs."""
    return Yl1993(sizes=(64, 8, 16, 16, 43)).eval()


def fsanet() -> nn.Module:
    """FSA-Net with learned scores for its maps."""
    return FsaNet("convolution", 99.0).eval()
