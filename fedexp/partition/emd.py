"""Clients at a chosen distance from the population: EMD = sum over classes of |p_k - p| (Zhao et al. 2018, 3.2)."""

import numpy as np
from torch import Tensor

from fedexp.data import Dataset
from fedexp.errors import require
from fedexp.partition.sizes import dealt, fewer
from fedexp.randomness import numpy_generator


def emd(
    dataset: Dataset, clients: int, seed: int, target: float, distribution: int = 0, shape: str = "random",
    per_client: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """Every client has EMD `target` to a uniform population; each example is used at most once.

    One distribution P over the C classes is made; client k uses P shifted by k places, so that C clients
    together hold every class equally often. All clients have M = `per_client` examples; null: the largest
    multiple of 50 C (of C, where examples are too few) for which the smallest class suffices, which reaches all
    of the paper's eight values exactly for C = 10. Other targets are rounded to the nearest multiple of 2 / M.

    shape=random draws how many classes lie above uniform, which, and by how much; shape=peak raises one
    class and lowers the others equally. `distribution` is the number of the draw for one seed.
    """
    classes = dataset.classes
    require(
        classes > 1, "partition", "emd", f"needs several classes, and {dataset.name} has one; use another partition"
    )
    largest = 2 * (1 - 1 / classes)
    require(
        0 <= target <= largest + 1e-9, "partition.target", target,
        f"with {classes} classes the EMD can be from 0 to {largest:g}",
    )  # fmt: skip
    require(shape in ("random", "peak"), "partition.shape", shape, "must be random or peak")
    require(distribution >= 0, "partition.distribution", distribution, "must be at least 0")
    require(
        clients % classes == 0, "clients", clients,
        f"a distribution and its shifts need a multiple of the {classes} classes",
    )  # fmt: skip
    size = _size(np.bincount(dataset.train_y.numpy(), minlength=classes), clients, per_client)
    excess = round(target * size / 2)  # examples above uniform, and as many below
    if not np.isclose(2 * excess / size, target, rtol=0, atol=1e-9):
        print(f"fedexp: clients of {size} examples reach EMD {2 * excess / size:.6g}, not {target:g}; using that")
    random = numpy_generator(seed, "partition", distribution)
    counts = _counts(classes, size, excess, shape, random)
    return dealt(dataset, [dict(enumerate(np.roll(counts, client))) for client in range(clients)], random)


def _size(available: np.ndarray, clients: int, wanted: int | None) -> int:
    """Examples M of each client: clients / C times M are taken from each class."""
    classes = len(available)
    most = int(available.min()) * classes // clients
    if wanted is None:
        unit = 50 * classes if most >= 50 * classes else classes
        few = int(available.min())
        advice = fewer(few, clients, classes)
        require(most >= classes, "clients", clients, f"a class has only {few} examples; {advice}")
        return most // unit * unit
    require(
        wanted >= classes and wanted % classes == 0, "partition.per_client", wanted,
        f"must be a multiple of the {classes} classes",
    )  # fmt: skip
    require(
        wanted <= most, "partition.per_client", wanted,
        f"the smallest class has {available.min()} examples, enough for {most} per client",
    )  # fmt: skip
    return wanted


def _counts(classes: int, size: int, excess: int, shape: str, random: np.random.Generator) -> np.ndarray:
    """Examples of each class [C] that client 0 holds: `size` in all, `excess` of them above uniform."""
    uniform = size // classes
    # With s classes above uniform, (C - s) uniform shares remain to take from, and each of the s takes at least one.
    most = 1 if shape == "peak" else min(classes - -(-excess // uniform), max(1, excess))
    above = int(random.integers(1, most + 1))
    order = random.permutation(classes)
    counts = np.full(classes, uniform)
    if excess == 0:
        return counts
    counts[order[:above]] += 1 + _share(excess - above, above, excess, random)
    if shape == "peak":
        below = classes - 1
        counts[order[1:]] -= excess // below + (np.arange(below) < excess % below)
    else:
        counts[order[above:]] -= _share(excess, classes - above, uniform, random)
    return counts


def _share(total: int, places: int, cap: int, random: np.random.Generator) -> np.ndarray:
    """`total` split at random into `places` whole parts of at most `cap`. Each part is uniform over the values with
    which the remaining parts can still reach the total."""
    parts = np.zeros(places, dtype=int)
    for place in range(places):
        left, later = total - parts.sum(), places - place - 1
        parts[place] = random.integers(max(0, left - cap * later), min(cap, left) + 1)
    return random.permutation(parts)
