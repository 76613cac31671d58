"""Where examples come from: one file a source, each ending in a Dataset."""

from fedexp.data.dataset import Dataset, Transform

__all__ = ["Dataset", "Transform"]
