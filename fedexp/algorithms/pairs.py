"""Values that a server keeps about pairs of clients: one row for each known pair, and none for all others.

A store is a dict of tensors, so that a checkpoint can hold it: pair, int64 [P] ascending, with the smaller id in the
upper 32 bits of each number and the larger in the lower; and values [P] of any names.
"""

import math

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

Store = dict[str, Tensor]

_SHIFT = 32
_AT_ONCE = 2**20  # pairs that are processed at once


def new(**values: torch.dtype) -> Store:
    """A store without pairs. values: the dtype of each value by name."""
    return {name: torch.empty(0, dtype=kind) for name, kind in {"pair": torch.int64, **values}.items()}


def pair(first: Tensor, second: Tensor) -> Tensor:
    """The pairs [n] of clients `first` and `second`: ids [n], of which the first is the smaller."""
    return (first << _SHIFT) + second


def ids(pair: Tensor) -> tuple[Tensor, Tensor]:
    """The two clients of each pair, the smaller id first: [n] and [n]."""
    return pair >> _SHIFT, pair & ((1 << _SHIFT) - 1)


def including(store: Store, pair: Tensor) -> Store:
    """The store with a row for each of these pairs, of zeros where there was none; may share tensors with `store`."""
    lacking = pair[~held(store, pair)]
    if len(lacking) == 0:
        return store
    every = torch.cat([store["pair"], lacking]).unique()
    place = torch.searchsorted(every, store["pair"])
    values = {name: leaf.new_zeros(len(every)).index_copy(0, place, leaf) for name, leaf in store.items()}
    return {**values, "pair": every}


def held(store: Store, pair: Tensor) -> Tensor:
    """Which of these pairs have a row: bool [n]."""
    known = store["pair"]
    place = torch.searchsorted(known, pair)
    inside = place < len(known)
    return inside & (known[place.clamp_max(len(known) - 1)] == pair) if len(known) else inside


def matrix(pair: Tensor, values: Tensor, clients: int) -> csr_matrix:
    """The pairs' values as a symmetric sparse matrix [N, N]: values of 0 are stored, the diagonal is empty."""
    first, second = ids(pair)
    rows, columns = torch.cat([first, second]), torch.cat([second, first])
    return csr_matrix((values.repeat(2).numpy(), (rows.numpy(), columns.numpy())), shape=(clients, clients))


def through_third_clients(known: Store, asked: Tensor, clients: int, sharp: float, least: float) -> Store:
    """Estimates for pairs i, j without a row, through third clients p with known similarities to both: s_ip s_jp with a
    deviation of sqrt((1 - s_ip^2)(1 - s_jp^2)) / 3, used where the deviation is below `sharp` and the estimate above
    `least`.

    known: a store with the value similarity. asked: the third clients, ascending. Returns a store of the pairs with an
    estimate; its values are total, the sum of s_ip s_jp; variance, the sum of squared deviations; and voices, the
    number of third clients.
    """
    similarity = matrix(known["pair"], known["similarity"], clients)
    said = new(total=torch.float64, variance=torch.float64, voices=torch.int64)
    degrees = np.diff(similarity.indptr)
    if len(known["pair"]) == math.comb(int((degrees > 0).sum()), 2):  # all pairs of clients with a row are known
        return said
    for p in asked[torch.from_numpy(degrees)[asked] > 1].tolist():
        its = slice(similarity.indptr[p], similarity.indptr[p + 1])
        met, s = torch.from_numpy(similarity.indices[its]).long(), torch.from_numpy(similarity.data[its])
        blur, later = (1 - s.square()).clamp_min(0).sqrt(), torch.arange(len(met))
        for rows in later.split(max(1, _AT_ONCE // len(met))):
            deviation, says = blur[rows, None] * blur / 3, s[rows, None] * s
            i, j = ((deviation < sharp) & (says > least) & (rows[:, None] < later)).nonzero(as_tuple=True)
            between = pair(met[rows[i]], met[j])
            heard = ~held(known, between)
            said = including(said, between[heard])
            place = torch.searchsorted(said["pair"], between[heard])
            said["total"][place] += says[i, j][heard]
            said["variance"][place] += deviation[i, j][heard].square()
            said["voices"][place] += 1
    return said
