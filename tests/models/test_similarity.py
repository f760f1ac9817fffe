"""Nearest pairs: as by comparing everything with everything."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from stof_cupy.models.similarity import nearest_pairs


def test_nearest_pairs_over_blocks():
    vectors = np.random.default_rng(0).standard_normal((2100, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[[5, 1500, 2099]] = vectors[7]  # six pairs of like rows, over the blocks
    cosines = np.triu(vectors @ vectors.T, 1) + np.tril(np.full((2100, 2100), -2.0))
    expected = np.argsort(-cosines, axis=None)[:40]
    got = nearest_pairs(vectors, 40)
    assert np.allclose([cosine for cosine, _, _ in got], cosines.ravel()[expected])
    assert {(i, j) for _, i, j in got[:6]} == set(combinations([5, 7, 1500, 2099], 2))
    assert {(i, j) for _, i, j in got[6:]} == {divmod(int(at), 2100) for at in expected[6:]}
    assert nearest_pairs(vectors[:1], 3) == []


def test_pairs_of_one_row_and_rows_that_are_not_finite():
    vectors = np.array([[1, 0], [0.8, 0.6], [0.96, 0.28], [np.nan, 0]])
    assert [(i, j) for _, i, j in nearest_pairs(vectors, 9)] == [(0, 2), (1, 2), (0, 1)]
