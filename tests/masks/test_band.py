"""The leaf made of numbers against its definition, and what it costs to make one."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.masks import Pattern
from stof_cupy.masks.band import Band
from stof_cupy.masks.runs import EMPTY, FULL, PART
from tests.masks.dense import check

FAR = 10**6  # beyond every position here; what is further means the same

sides = st.one_of(st.integers(0, 260), st.sampled_from((1, 63, 64, 65, 128)))
huge = st.sampled_from((-(2**70), 2**70))
counts = st.none() | st.integers(-3, 5) | st.integers(-150, 150) | huge
ends = st.integers(-20, 280) | huge

BANDS = st.fixed_dictionaries(
    {"shape": st.tuples(sides, sides)},
    optional={
        "offset": st.integers(-300, 300),
        "size": st.integers(1, 9) | st.integers(1, 200) | st.just(2**70),
        "before": counts,
        "after": counts,
        "causal": st.booleans(),
        "key_start": ends,
        "key_stop": st.none() | ends,
        "query_start": ends,
        "query_stop": st.none() | ends,
    },
)


def near(value: int | None, default: int = FAR) -> int:
    return default if value is None else max(-FAR, min(value, FAR))


def definition(shape: tuple[int, int], given: dict[str, Any]) -> np.ndarray:
    """What every query sees, from the arguments; only numbers that cannot matter are cut."""
    q, k = np.arange(shape[0])[:, None], np.arange(shape[1])
    p, size = q + given.get("offset", 0), near(given.get("size", 1))
    chunk = p // size
    seen = k >= (chunk - near(given.get("before"))) * size
    seen &= k < (chunk + 1 + near(given.get("after"))) * size
    seen &= (k >= near(given.get("key_start", 0))) & (k < near(given.get("key_stop")))
    seen &= (q >= near(given.get("query_start", 0))) & (q < near(given.get("query_stop")))
    return seen & (k <= p) if given.get("causal") else seen


def states(expected: np.ndarray) -> list[int]:
    """The state of every tile, from its elements."""
    tiles = [
        expected[i : i + 64, j : j + 64]
        for i in range(0, expected.shape[0], 64)
        for j in range(0, expected.shape[1], 64)
    ]
    return [FULL if tile.all() else PART if tile.any() else EMPTY for tile in tiles]


@settings(max_examples=600, deadline=None)
@given(BANDS)
@example({"shape": (200, 200), "before": 0, "after": -1})
@example({"shape": (100, 100), "query_start": 70, "query_stop": 70})
@example({"shape": (130, 200), "size": 100, "before": -1, "after": 1})
@example({"shape": (130, 200), "offset": -65, "size": 64, "before": 1, "after": 0, "causal": True})
def test_a_band_is_its_definition(case: dict[str, Any]) -> None:
    shape, given = case["shape"], {name: case[name] for name in case if name != "shape"}
    band, expected = Band(shape, "band", **given), definition(shape, given)
    check(band, expected)
    # Nothing is left for the elements to settle, and the range of queries is the least one.
    tiles = band.runs.grid[0] * band.runs.grid[1]
    assert band.runs.at(np.arange(tiles)).tolist() == states(expected)
    seeing = np.flatnonzero(expected.any(axis=1)).tolist()
    assert list(range(band.query_start, band.query_stop)) == seeing
    assert (band.query_start, band.query_stop) == (0, 0) or seeing


def numbers(band: Band) -> dict[str, int]:
    names = "offset size before after causal key_start key_stop query_start query_stop"
    return {name: getattr(band, name) for name in names.split()}


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from((1, 100, 2**25, 2**26)),
    st.sampled_from((1, 100, 2**26)),
    st.sampled_from((0, 1, -1, 2**26, -(2**26))),
    st.integers(1, 100) | st.integers(1, 2**28) | st.just(2**70),
    *(st.none() | st.integers(-3, 5) | st.integers(-(2**28), 2**28) | huge for _ in range(2)),
    st.booleans(),
)
def test_no_intermediate_leaves_an_int32(
    queries: int,
    keys: int,
    offset: int,
    size: int,
    before: int | None,
    after: int | None,
    causal: bool,
) -> None:
    band = Band(
        (queries, keys), "", offset=offset, size=size, before=before, after=after, causal=causal
    )
    assert all(type(n) is int for name, n in numbers(band).items() if name != "causal")
    for query in (0, queries - 1):
        p = query + band.offset
        chunk = p // band.size
        low, high = chunk - band.before, chunk + 1 + band.after
        for number in (p + 1, chunk + 1, low, high, low * band.size, high * band.size):
            assert -(2**31) <= number < 2**31
        # Clipping changed nothing: by exact integers, from the numbers that were given.
        chunk = p // size
        far = 2**80
        start = 0 if before is None else min(max((chunk - before) * size, 0), far)
        stop = far if after is None else (chunk + 1 + after) * size
        stop = min(stop, keys, p + 1 if causal else far)
        assert (band.query_start <= query < band.query_stop) == (start < stop)
        if start < stop:
            assert max(low * band.size, band.key_start) == start
            most = p + 1 if band.causal else far
            assert min(high * band.size, band.key_stop, most) == stop


def test_elements_are_found_at_the_last_position() -> None:
    """Bits are built in int32, as on the device."""
    side = 2**26
    last = Band((side, side), "", offset=0, size=2**70, after=0, causal=True, query_start=side - 3)
    assert last.nnz == 3 * side - 3
    beyond = Band((3, side), "", offset=side - 3, before=1, after=0)
    assert beyond.nnz == 6
    far = Band((side, 3), "", offset=-side, before=-(2**70), after=2**70)
    assert far.nnz == 0


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda band: pickle.loads(pickle.dumps(band))]
)
def test_a_band_can_be_copied_and_pickled(clone: Callable[[Band], Band]) -> None:
    band = Band((100, 90), "named", offset=-3, size=7, before=1, after=0, causal=True)
    fresh = clone(band)
    assert numbers(fresh) == numbers(band) and repr(fresh) == repr(band)
    assert fresh.tobsr().equals(band.tobsr())
    assert numbers(clone(band)) == numbers(band)


@pytest.mark.parametrize(
    "make",
    [
        lambda s: masks.full(s),
        lambda s: masks.causal(s, s - 1, align="bottom-right"),
        lambda s: masks.sliding_window(s, window=(512, 3)),
        lambda s: masks.chunked(s, chunk=8192, before=1, causal=True),
        lambda s: masks.prefix_lm(s, prefix=100),
        lambda s: masks.sink_window(s, sinks=4, window=512),
        lambda s: masks.longformer(s, window=512, global_tokens=64),
        lambda s: masks.bigbird(s, random_blocks=0),
        lambda s: masks.bigbird_hf(s, random_blocks=0),
    ],
    ids=[
        *("full", "causal", "sliding_window", "chunked", "prefix_lm", "sink_window"),
        *("longformer", "bigbird", "bigbird_hf"),
    ],
)
def test_patterns_of_numbers_hold_no_arrays(make: Callable[[int], Pattern]) -> None:
    """A flag for each position would take 64 MiB here."""
    make(100)  # what is imported or compiled on the first call
    tracemalloc.start()
    try:
        pattern = make(2**26)
        assert tracemalloc.get_traced_memory()[1] < 2**15
    finally:
        tracemalloc.stop()
    assert pattern.shape[0] == 2**26
