"""Label skew: the distance of each client's label distribution from the population's."""

from torch import Tensor

from fedexp.round import Round


def cohort_emd(done: Round) -> dict[str, float]:
    """Each client's label EMD, in its mean over the round's cohort, weighted by examples."""
    return {"cohort_emd": mean_emd(done.ctx.world.label_counts, done.ids)}


def shares(label_counts: Tensor) -> Tensor:
    """Label distributions [..., C] from counts [..., C]: each client's, or a population's."""
    counts = label_counts.double()
    return counts / counts.sum(-1, keepdim=True)


def emd(label_counts: Tensor) -> Tensor:
    """EMD (Zhao et al. 2018, section 3.1, Remark 3.4): sum over classes of |p_k - p| for each client: [N], in [0, 2].

    label_counts: [N, C]. The population is the union of these clients' examples.
    """
    population = shares(label_counts.sum(0))
    return (shares(label_counts) - population).abs().sum(1)


def mean_emd(label_counts: Tensor, cohort: Tensor | None = None) -> float:
    """Mean EMD weighted by examples, over all clients or over a cohort's ids (same population)."""
    distance, sizes = emd(label_counts), label_counts.sum(1).double()
    if cohort is not None:
        distance, sizes = distance[cohort], sizes[cohort]
    return float((distance * sizes).sum() / sizes.sum())
