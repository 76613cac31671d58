"""fedexp: an experiment runner for federated learning on non-IID data."""

__version__ = "0.1.0"
