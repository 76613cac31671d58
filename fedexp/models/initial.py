"""Initial weights: PyTorch's, or those of a model's TensorFlow tutorial."""

from torch import nn

from fedexp.errors import require


def initialise(net: nn.Module, initialisation: str, deviations: list[float], biases: list[float]) -> None:
    """tensorflow: weights of the i-th convolution or linear layer from a normal distribution with deviation
    deviations[i], truncated at two deviations (tf.truncated_normal), all its biases biases[i]. pytorch: unchanged.

    Raises ConfigError for another `initialisation`.
    """
    require(
        initialisation in ("pytorch", "tensorflow"), "model.initialisation", initialisation,
        "must be pytorch (each layer's default) or tensorflow (the tutorial's)",
    )  # fmt: skip
    if initialisation == "pytorch":
        return
    layers = [module for module in net.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer, deviation, bias in zip(layers, deviations, biases, strict=True):
        nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        nn.init.constant_(layer.bias, bias)
