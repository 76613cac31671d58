"""Sources of examples: one file for each, whose function returns a Dataset."""

from fedexp.data.dataset import Dataset
from fedexp.data.transform import Transform

__all__ = ["Dataset", "Transform"]
