"""T5's buckets against the definition, one distance at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stof_cupy import RelativeBias
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError


def plain_bucket(distance: int, buckets: int, bidirectional: bool, max_distance: int) -> int:
    """Return the bucket of the key `distance` places after its query, in float32 as T5 has it."""
    bucket = 0
    if bidirectional:
        buckets //= 2
        if distance > 0:
            bucket += buckets
        away = abs(distance)
    else:
        away = max(-distance, 0)
    exact = buckets // 2
    if away < exact:
        return bucket + away
    ratio = np.log(np.float32(away) / np.float32(exact)) / np.float32(
        math.log(max_distance / exact)
    )
    return bucket + min(exact + int(ratio * np.float32(buckets - exact)), buckets - 1)


CASES = [(32, 128), (32, 20), (64, 256), (8, 20), (4, 3), (16, 1000)]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), CASES)
def test_every_distance(buckets: int, max_distance: int, bidirectional: bool) -> None:
    numbers = np.arange(buckets, dtype=np.float32)[:, None] * [1, 100]
    bias = RelativeBias(
        numbers.astype(np.float32), bidirectional=bidirectional, max_distance=max_distance
    )
    sq, sk = max_distance + 7, 2 * max_distance
    got = bias.toarray(sq, sk)
    assert got.shape == (bias.heads, sq, sk) == (2, sq, sk)
    cache = {
        d: plain_bucket(d, buckets, bidirectional, max_distance) for d in range(-sk - 1, sq + sk)
    }
    expected = np.array([[cache[j - (i + sk - sq)] for j in range(sk)] for i in range(sq)])
    np.testing.assert_array_equal(got[0], expected)
    np.testing.assert_array_equal(got[1], 100 * expected)


@pytest.mark.parametrize("reach", [None, 0, 5, 10**9])
def test_by_distance_ends_where_all_distances_are_alike(reach: int | None) -> None:
    table = np.arange(64, dtype=np.float32).reshape(32, 2)
    bias = RelativeBias(table, bidirectional=True)
    values = bias.by_distance(reach)
    middle = min(128 if reach is None else reach, 128)
    assert values.shape == (2, 2 * middle + 1)
    dense = bias.toarray(300, 300)
    for distance in range(-middle, middle + 1):
        np.testing.assert_array_equal(values[:, middle + distance], dense[:, 150, 150 + distance])
    if middle == 128:
        assert (dense[:, 299, :171] == values[:, :1]).all()


@pytest.mark.parametrize(
    ("table", "how", "error", "text"),
    [
        (np.ones((32, 2), int), {}, DTypeError, "table: got int64"),
        ([[1.0]], {}, DTypeError, "table: got list"),
        (np.ones(32), {}, ShapeError, r"table: got \(32,\), expected \(buckets, heads\)"),
        (np.ones((7, 2)), {}, ShapeError, "even number"),
        (np.ones((2, 2)), {}, ShapeError, "from 4 on"),
        (np.ones((1, 2)), {"bidirectional": False}, ShapeError, "2 or more"),
        (np.ones((32, 2)), {"max_distance": 8}, ArgumentError, "expected more than 8"),
        (np.ones((32, 2)), {"max_distance": 16, "bidirectional": False}, ArgumentError, "16"),
        (np.ones((32, 2)), {"max_distance": 1.5}, ArgumentError, "max_distance"),
        (np.ones((32, 2)), {"bidirectional": "no"}, ArgumentError, "bidirectional"),
    ],
)
def test_what_is_no_table(table, how, error, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=text):
        RelativeBias(table, **{"bidirectional": True, **how})
