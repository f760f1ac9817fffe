"""Nearest pairs: as by comparing everything with everything."""

from __future__ import annotations

import numpy as np

from stof_cupy.models.similarity import nearest_pairs


def test_nearest_pairs_over_blocks():
    vectors = np.random.default_rng(0).standard_normal((2100, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = np.triu(vectors @ vectors.T, 1) + np.tril(np.full((2100, 2100), -2.0))
    best = [int(row.argmax()) for row in cosines]
    expected = sorted(((cosines[i, j], i, j) for i, j in enumerate(best)), reverse=True)[:40]
    got = nearest_pairs(vectors, 40)
    assert [(i, j) for _, i, j in got] == [(i, j) for _, i, j in expected]
    assert nearest_pairs(vectors[:1], 3) == []
