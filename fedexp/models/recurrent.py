"""Recurrent layers step by step, in operations that can be vectorized over clients. The initial state is zero."""

import torch
import torch.nn.functional as F
from torch import Tensor


def lstm(x: Tensor, inputs: Tensor, own: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [n, length, h] of an LSTM layer for x [n, length, d], the last output and the last cell state [n, h].

    inputs [4 h, d], own [4 h, h], biases: two of [4 h], or none: PyTorch's weight_ih, weight_hh, bias_ih and bias_hh.
    """
    gates = F.linear(x, inputs, biases[0] + biases[1] if biases else None)
    output = cell = gates.new_zeros(len(x), own.shape[1])
    outputs = []
    for step in gates.unbind(1):
        enter, forget, new, leave = (step + F.linear(output, own)).chunk(4, -1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        output = leave.sigmoid() * cell.tanh()
        outputs.append(output)
    return torch.stack(outputs, 1), output, cell


def gru(x: Tensor, inputs: Tensor, own: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [n, length, h] of a GRU layer for x [n, length, d], and the last output [n, h].

    inputs [3 h, d], own [3 h, h], biases: two of [3 h], or none, as of `lstm`.
    """
    given, bias = F.linear(x, inputs, biases[0] if biases else None), biases[1] if biases else None
    output = given.new_zeros(len(x), own.shape[1])
    outputs = []
    for step in given.unbind(1):
        (reset, update, new), (own_reset, own_update, own_new) = (
            gates.chunk(3, -1) for gates in (step, F.linear(output, own, bias))
        )
        share = (update + own_update).sigmoid()
        new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
        output = new + share * (output - new)
        outputs.append(output)
    return torch.stack(outputs, 1), output
