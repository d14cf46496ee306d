"""Data sets: readers of untrusted files, and the type of a set of images. Does not import torch.

Every reader checks sizes against `capsedge.spec.limits` before it allocates, and raises a UsageError for
whatever it cannot read.
"""

from capsedge.datasets.class_folders import class_names, colour_of, side_of
from capsedge.datasets.image_set import ImageSet, from_iterable
from capsedge.datasets.read import read_images, read_split
from capsedge.datasets.regression_targets import read_targets, typical_input_from

__all__ = [
    "ImageSet",
    "class_names",
    "colour_of",
    "from_iterable",
    "read_images",
    "read_split",
    "read_targets",
    "side_of",
    "typical_input_from",
]
