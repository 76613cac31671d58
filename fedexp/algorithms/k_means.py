"""Clusters of points: K-means, K-means with a largest cluster size, and the number of clusters (the elbow)."""

from typing import Any

import numpy as np

from fedexp.randomness import key

Points = np.ndarray  # [N, C]
Labels = np.ndarray  # int64 [N]


def k_means(points: Points, clusters: int, seed: int) -> Labels:
    """scikit-learn's K-means, with k-means++ and 10 starts; fewer clusters if there are fewer distinct points."""
    return compact(_fit(points, clusters, seed).labels_)


def balanced_k_means(points: Points, clusters: int, seed: int, slack: float = 1.0, rounds: int = 100) -> Labels:
    """K-means in which no cluster has more than its share N / K (FedConcat, appendix D.8).

    From K-means' centres, repeatedly: assign each point to the nearest centre; move an empty cluster's centre to a
    random point; move the farthest members of a cluster that is too large to the nearest one with room; new means.
    slack: the largest size is ceil(N / K), or int(slack N / K) where that is more (1.2 in the published code).
    """
    fitted = _fit(points, clusters, seed)
    centres, random = fitted.cluster_centers_, np.random.default_rng(key(seed, "balanced clusters"))
    largest = max(-(-len(points) // len(centres)), int(slack * len(points) / len(centres)))
    labels = fitted.labels_
    for _ in range(rounds):
        distance = _distances(points, centres)
        for empty in np.setdiff1d(np.arange(len(centres)), distance.argmin(1)):
            centres[empty] = points[random.integers(len(points))]
            distance = _distances(points, centres)
        before, labels = labels, _with_room(distance, largest)
        if (labels == before).all():
            break
        held = np.unique(labels)
        centres[held] = [points[labels == cluster].mean(0) for cluster in held]
    return compact(labels)


def _with_room(distance: np.ndarray, largest: int) -> Labels:
    """The nearest cluster of each point, with at most `largest` points in one cluster."""
    labels = distance.argmin(1)
    sizes = np.bincount(labels, minlength=distance.shape[1])
    leaving: list[int] = []
    for cluster in np.flatnonzero(sizes > largest):
        members = np.flatnonzero(labels == cluster)
        farthest = members[np.argsort(-distance[members, cluster], kind="stable")]
        leaving.extend(farthest[: len(members) - largest])
        sizes[cluster] = largest
    for point in leaving:
        labels[point] = np.where(sizes < largest, distance[point], np.inf).argmin()
        sizes[labels[point]] += 1
    return labels


def inertias(points: Points, seed: int, most: int = 10) -> np.ndarray:
    """Sum of squared distances to the nearest centre for k = 1, ..., min(most, N) clusters."""
    distinct = len(np.unique(points, axis=0))
    curve = [_fit(points, clusters, seed).inertia_ for clusters in range(1, min(most, distinct) + 1)]
    return np.array(curve + [0.0] * (min(most, len(points)) - len(curve)))  # a centre on every distinct point


def elbow(curve: np.ndarray, most: int) -> int:
    """The k (from 1) at which inertias `curve` lie farthest below the chord from first to last; at most `most`."""
    if curve[0] == curve[-1]:
        return 1
    across = np.linspace(0, 1, len(curve))
    down = (curve - curve[-1]) / (curve[0] - curve[-1])
    return min(int((1 - across - down).argmax()) + 1, most)


def compact(labels: Labels) -> Labels:
    """The same clusters numbered 0, 1, ... without gaps."""
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _fit(points: Points, clusters: int, seed: int) -> Any:
    """scikit-learn's KMeans, fitted."""
    from sklearn.cluster import KMeans

    clusters = min(clusters, len(np.unique(points, axis=0)))
    return KMeans(clusters, n_init=10, random_state=key(seed, "clusters") % 2**32).fit(points)


def _distances(points: Points, centres: np.ndarray) -> np.ndarray:
    return ((points[:, None] - centres) ** 2).sum(-1)
