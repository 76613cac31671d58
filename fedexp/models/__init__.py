"""Models: an encoder and a head (the last linear layer), one file for each family."""

from fedexp.models.classifier import Classifier, Model

__all__ = ["Classifier", "Model"]
