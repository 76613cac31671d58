"""The stacked LSTM that predicts the next character (McMahan et al. 2017, section 3), as in LEAF."""

import torch
from torch import Tensor, nn

from fedexp.errors import require
from fedexp.models.classifier import Classifier


def lstm(
    shape: tuple[int, ...], classes: int, embedding: int = 8, hidden: int = 256, layers: int = 2,
    vocabulary: int | None = None, forget_bias: float = 1.0,
) -> Classifier:  # fmt: skip
    """Embedding of 8, two LSTM layers of 256, the last step's output to fc C. shape: (length,) of tokens.

    vocabulary: the number of different tokens; null: as many as classes. PyTorch's layers have two bias vectors; those
    of TensorFlow, which LEAF uses, have one and add 1 to the forget gate. Here the gate's first bias starts at that 1
    (forget_bias). 80 characters and classes: 819,920 parameters; LEAF's model has 817,872.
    """
    require(len(shape) == 1, "model", "lstm", f"needs examples of one dimension, tokens, not of shape {shape}")
    sizes = {"embedding": embedding, "hidden": hidden, "layers": layers, "vocabulary": vocabulary or classes}
    for key, value in sizes.items():
        require(value >= 1, f"model.{key}", value, "must be at least 1")
    return Classifier(
        _LastStep(sizes["vocabulary"], embedding, hidden, layers, forget_bias), nn.Linear(hidden, classes)
    )


class _LastStep(nn.Module):
    """Maps tokens [n, length] to the uppermost LSTM layer's output at the last token [n, hidden]."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, forget_bias: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        with torch.no_grad():
            for layer in range(layers):
                getattr(self.lstm, f"bias_ih_l{layer}")[hidden : 2 * hidden] = forget_bias
                getattr(self.lstm, f"bias_hh_l{layer}")[hidden : 2 * hidden] = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.embedding(x))[0][:, -1]
