"""K-means, its balanced form, and the elbow, on points whose clusters one can see."""

import numpy as np
import pytest

from fedexp.algorithms.k_means import balanced_k_means, compact, elbow, inertias, k_means

BLOBS = np.array([[0, 0], [0, 1], [1, 0], [10, 10], [10, 11], [11, 10], [20, 0], [20, 1]], dtype=float)


def groups(labels):
    return {tuple(np.flatnonzero(labels == label)) for label in np.unique(labels)}


def test_k_means_finds_the_blobs():
    assert groups(k_means(BLOBS, 3, seed=0)) == {(0, 1, 2), (3, 4, 5), (6, 7)}


def test_k_means_hangs_on_its_seed_alone():
    """On points without clusters, where starts decide: not on numpy's global numbers, which scikit-learn falls to."""
    points = np.random.default_rng(0).uniform(size=(60, 2))

    def found(seed, elsewhere):
        np.random.seed(elsewhere)  # noqa: NPY002
        return tuple(k_means(points, 9, seed))

    assert len({found(4, elsewhere) for elsewhere in range(4)}) == 1
    assert len({found(seed, 0) for seed in range(4)}) == 4


def test_equal_points_are_one_cluster_however_many_are_asked_for():
    assert k_means(np.ones((6, 3)), 5, seed=0).tolist() == [0] * 6


def test_compact_leaves_no_gaps():
    assert compact(np.array([7, 2, 7, 9])).tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize(("slack", "largest"), [(1.0, 5), (1.4, 7)])
def test_balanced_clusters_keep_to_the_largest_size(slack, largest):
    """Seven points on the left, three on the right: at most ceil(10 / 2), or int(1.4 * 10 / 2)."""
    points = np.array([[x] for x in (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 10, 10.1, 10.2)])
    plain, labels = k_means(points, 2, 0), balanced_k_means(points, 2, seed=0, slack=slack)
    assert sorted(np.bincount(plain)) == [3, 7]
    assert np.bincount(labels).max() == largest
    if largest == 5:  # 0.9 and 0, farthest from the left mean, have moved, nobody else
        assert groups(labels) == {(1, 2, 3, 4, 5), (0, 6, 7, 8, 9)}


def test_balanced_clusters_of_sparse_points():
    random = np.random.default_rng(3)
    points = random.dirichlet(np.full(20, 0.05), 40)
    labels = balanced_k_means(points, 5, seed=1)
    assert np.bincount(labels).tolist() == [8] * 5
    assert np.bincount(k_means(points, 5, seed=1)).max() > 8


def test_elbow_is_the_point_farthest_below_the_chord():
    assert elbow(np.array([100.0, 40.0, 10.0, 8.0, 6.0, 0.0]), most=10) == 3
    assert elbow(np.array([100.0, 40.0, 10.0, 8.0, 6.0, 0.0]), most=2) == 2
    assert elbow(np.array([5.0, 5.0]), most=10) == 1
    assert elbow(inertias(BLOBS, seed=0), most=10) == 3


def test_inertia_by_hand():
    """Points 0, 1, 4: around 5/3; {0, 1} and {4}; each by itself."""
    curve = inertias(np.array([[0.0], [1.0], [4.0]]), seed=0)
    assert curve == pytest.approx([(25 + 4 + 49) / 9, 0.5, 0.0])
