"""A stack's convolutions in Triton: the same as PyTorch's, in Triton's interpreter and on a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="PyTorch comes without Triton here")

# Stacks of 1 to 3 models with channels, sides and paddings that fill no tile.
COMPARE = """
import sys, torch, torch.nn.functional as F
from torch.func import grad, vmap
from fedexp.models.stacked import convolve

device, bound = sys.argv[1], float(sys.argv[2])
torch.backends.cudnn.allow_tf32 = False
torch.manual_seed(0)
worst = 0.0
for count, images, channels, outputs, side, kernel, padding in [
    (2, 5, 3, 6, 12, 5, 0), (3, 2, 6, 16, 9, 5, 2), (2, 3, 1, 32, 8, 3, 1), (1, 4, 2, 70, 6, 3, 1),
    (2, 3, 5, 4, 6, 1, 0),
]:
    x = torch.randn(count, images, channels, side, side + 1, device=device)
    weight = torch.randn(count, outputs, channels, kernel, kernel, device=device)
    bias = torch.randn(count, outputs, device=device)

    def both(convolution, *stacks):
        def loss(weight, bias, x):
            y = convolution(x, weight, bias, padding=padding)
            return y.sin().sum(), y
        gradients, y = vmap(grad(loss, argnums=(0, 1, 2), has_aux=True))(*stacks)
        return [y, *gradients]

    expected = both(F.conv2d, weight.double(), bias.double(), x.double())
    for left, right in zip(both(convolve, weight, bias, x), expected):
        assert left.shape == right.shape
        worst = max(worst, float((left - right).abs().max() / right.abs().max()))

x = torch.randn(3, 4, 2, 9, 9, device=device)
weight, weights = torch.randn(5, 2, 3, 3, device=device), torch.randn(3, 5, 2, 3, 3, device=device)
for mapped in (lambda f: vmap(lambda x: f(x, weight, None, padding=1))(x),  # one weight for all
               lambda f: vmap(lambda weight: f(x[0], weight, None, padding=1))(weights)):  # the same images for all
    worst = max(worst, float((mapped(convolve) - mapped(F.conv2d)).abs().max()))
assert worst < bound, worst
"""


def compare(device, bound, **environment):
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, device, str(bound)], env={**os.environ, **environment}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_interpreted_it_equals_an_ordinary_convolution():
    compare("cpu", 1e-5, TRITON_INTERPRET="1", OMP_NUM_THREADS="1")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_it_equals_an_ordinary_convolution():
    compare("cuda", 1e-5)
