"""Sources of examples: one file for each, whose function returns a Dataset."""

from fedexp.data.dataset import Dataset, Transform

__all__ = ["Dataset", "Transform"]
