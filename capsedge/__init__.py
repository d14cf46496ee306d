"""capsedge: export, prove and run trained capsule networks at the edge."""

__version__ = "0.1.0"
