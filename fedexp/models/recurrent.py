"""An LSTM layer step by step, in operations that can be vectorized over clients."""

import torch
import torch.nn.functional as F
from torch import Tensor


def unrolled(x: Tensor, inputs: Tensor, own: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [n, length, h] for x [n, length, d], the last output [n, h] and the last cell state [n, h]. The initial
    state is zero.

    inputs [4 h, d], own [4 h, h], bias [4 h]: PyTorch's weight_ih, weight_hh and the sum of both biases.
    """
    gates = F.linear(x, inputs, bias)
    output = cell = gates.new_zeros(len(x), own.shape[1])
    outputs = []
    for step in gates.unbind(1):
        enter, forget, new, leave = (step + F.linear(output, own)).chunk(4, -1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        output = leave.sigmoid() * cell.tanh()
        outputs.append(output)
    return torch.stack(outputs, 1), output, cell
