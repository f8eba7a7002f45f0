"""Certified completion of mostly-missing tensors, distributed and out of core."""

__version__ = "0.1.0"
