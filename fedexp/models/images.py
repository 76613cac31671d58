"""What a model of images is given."""

from fedexp.errors import require


def image_shape(shape: tuple[int, ...], model: str, smallest: int) -> tuple[int, int, int]:
    """Channels, height and width of the images that the model named `model` takes. Raises ConfigError for examples that
    are not images, and for images with a side of fewer than `smallest` pixels."""
    require(len(shape) == 3, "model", model, f"needs images, not examples of shape {shape}; model=lstm takes tokens")
    channels, height, width = shape
    right = f"needs images of at least {smallest}x{smallest}, got {shape}; some data sets have a key for it: "
    right += f"dataset.size={smallest}"
    require(min(height, width) >= smallest, "model", model, right)
    return channels, height, width
