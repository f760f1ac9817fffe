"""Every pattern against its definition over all pairs of positions, for sizes around the tile."""

from __future__ import annotations

from collections.abc import Callable
from operator import and_, or_, xor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, DTypeError, MaskError, ShapeError
from stof_cupy.masks import Pattern
from tests.masks.dense import SIZES, Predicate, check, dense


@pytest.mark.parametrize("sq", SIZES)
@pytest.mark.parametrize("sk", (0, 1, 63, 64, 65, 130, 300))
def test_causal_and_full(sq: int, sk: int) -> None:
    check(masks.full(sq, sk), np.ones((sq, sk), bool))
    check(masks.causal(sq, sk, align="top-left"), dense(sq, sk, lambda q, k: k <= q))
    check(masks.causal(sq, sk, align="bottom-right"), dense(sq, sk, lambda q, k: k <= q + sk - sq))


def test_causal_alignment_has_to_be_named() -> None:
    """T15: one query and five keys, five queries and two keys."""
    assert masks.causal(1, 5, align="bottom-right").nnz == 5
    assert masks.causal(1, 5, align="top-left").toarray().tolist() == [[True] + [False] * 4]
    assert (
        masks.causal(5, 2, align="bottom-right").toarray().any(1).tolist()
        == [False] * 3 + [True] * 2
    )
    with pytest.raises(ArgumentError, match="1 queries and 5 keys"):
        masks.causal(1, 5)
    with pytest.raises(ArgumentError, match="'middle'"):
        masks.causal(5, align="middle")  # type: ignore[arg-type]


@pytest.mark.parametrize("s", SIZES)
@pytest.mark.parametrize("window", (0, 1, 31, 63, 64, 65, 128, 2000, 2**70))
def test_sliding_window(s: int, window: int) -> None:
    reach = min(window, 10**6)
    check(masks.sliding_window(s, window=window), dense(s, s, lambda q, k: abs(q - k) <= reach))
    check(
        masks.sliding_window(s, window=window, causal=True),
        dense(s, s, lambda q, k: (q >= k) & (q - k <= reach)),
    )


@pytest.mark.parametrize("s", SIZES)
@pytest.mark.parametrize("tokens", (0, 1, 16, 64, 100, 5000))
def test_leading_global_tokens(s: int, tokens: int) -> None:
    check(masks.global_tokens(s, tokens), dense(s, s, lambda q, k: (q < tokens) | (k < tokens)))
    check(
        masks.longformer(s, window=20, global_tokens=tokens),
        dense(s, s, lambda q, k: (abs(q - k) <= 20) | (q < tokens) | (k < tokens)),
    )


@pytest.mark.parametrize("s", [size for size in SIZES if size])
def test_global_positions(s: int) -> None:
    positions = np.random.default_rng(s).choice(s, min(s, 9), replace=False)
    expected = dense(s, s, lambda q, k: np.isin(q, positions) | np.isin(k, positions))
    check(masks.global_tokens(s, positions), expected)
    check(masks.global_tokens(s, [*positions, *positions]), expected)
    check(masks.global_tokens(s, []), np.zeros((s, s), bool))


@pytest.mark.parametrize("block", (1, 5, 32, 64, 96, 128, 10**30))
@pytest.mark.parametrize("s", (0, 1, 63, 64, 65, 129, 400))
def test_bigbird_without_random_blocks(s: int, block: int) -> None:
    size = min(block, 10**6)
    expected = dense(
        s,
        s,
        lambda q, k: (abs(q // size - k // size) <= 1) | (q < 2 * size) | (k < 2 * size),
    )
    check(masks.bigbird(s, random_blocks=0, block=block), expected)


@pytest.mark.parametrize("block", (7, 32, 64, 100))
@pytest.mark.parametrize("s", (1, 64, 65, 500))
def test_bigbird_draws_distinct_whole_blocks(s: int, block: int) -> None:
    count = -(-s // block)
    kept = masks.bigbird(s, window_blocks=0, global_blocks=0, random_blocks=3, block=block, seed=1)
    corners = kept.toarray()[::block, ::block]
    assert (corners.sum(1) == min(3, count)).all()
    check(kept, np.kron(corners, np.ones((block, block), bool))[:s, :s])


def test_bigbird_seed() -> None:
    first, again, other = (masks.bigbird(4096, seed=seed).tobsr() for seed in (0, 0, 1))
    assert first.equals(again) and not first.equals(other)


def test_bigbird_draws_evenly() -> None:
    """Every column is drawn about as often as every other: 4 of 16 blocks in 16 rows, 400 seeds."""
    drawn = sum(
        masks.bigbird(16, window_blocks=0, global_blocks=0, random_blocks=4, block=1, seed=seed)
        .toarray()
        .sum(0)
        for seed in range(400)
    )
    assert drawn.sum() == 400 * 16 * 4
    # Mean 1600, standard deviation about 35 of a binomial; five of them.
    assert abs(drawn - 1600).max() < 175


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(
    "lengths",
    ([], [0], [1], [64, 64], [63, 65], [1] * 130, [200, 0, 3, 0, 0, 129, 1], [1000]),
)
def test_document(lengths: list[int], causal: bool) -> None:
    owner = np.repeat(np.arange(len(lengths)), lengths)
    expected = owner[:, None] == owner[None, :]
    if causal:
        expected &= np.tri(len(owner), dtype=bool)
    check(masks.document(lengths, causal=causal), expected)


@pytest.mark.parametrize("shape", ((1, 1), (64, 129), (130, 63), (200, 500)))
@pytest.mark.parametrize("block", (1, 3, 16, 48, 64, 65, 192))
def test_blocks(shape: tuple[int, int], block: int) -> None:
    rng = np.random.default_rng(block)
    layout = rng.random((-(-shape[0] // block), -(-shape[1] // block))) < 0.4
    expected = np.kron(layout, np.ones((block, block), bool))[: shape[0], : shape[1]]
    rows, cols = layout.nonzero()
    order = rng.permutation(len(rows))
    check(masks.blocks(shape, rows[order], cols[order], block=block), expected)


def leaf(draw: st.DrawFn, s: int) -> tuple[Pattern, np.ndarray]:
    n = draw(st.integers(0, 90))
    step = n % 7 + 1
    rng = np.random.default_rng(n)
    flags = rng.random(s) < 0.9
    cuts = np.sort(rng.integers(0, s + 1, n % 5))
    owner = np.repeat(np.arange(len(cuts) + 1), np.diff([0, *cuts, s]))
    size = (8, 64, 70)[n % 3]
    layout = rng.random((-(-s // size),) * 2) < 0.5

    def common(q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return (q ^ k) & n == 0

    every: dict[str, Callable[[], tuple[Pattern, Predicate]]] = {
        "full": lambda: (masks.full(s), lambda q, k: q >= 0),
        "sliding": lambda: (masks.sliding_window(s, window=n), lambda q, k: abs(q - k) <= n),
        "causal": lambda: (masks.causal(s), lambda q, k: k <= q),
        "global": lambda: (masks.global_tokens(s, n), lambda q, k: (q < n) | (k < n)),
        "document": lambda: (masks.document_ids(owner), lambda q, k: owner[q] == owner[k]),
        "blocks": lambda: (
            masks.blocks((s, s), *layout.nonzero(), block=size),
            lambda q, k: layout[q // size, k // size],
        ),
        "dilated": lambda: (
            masks.dilated(s, window=n, dilation=step),
            lambda q, k: ((q - k) % step == 0) & (abs(q - k) <= n * step),
        ),
        "padding": lambda: (masks.key_padding(flags), lambda q, k: flags[k]),
        "line": lambda: (
            masks.neighborhood(s, window=1, dilation=min(step, s)),
            lambda q, k: q == k,
        ),
        "function": lambda: (masks.predicate((s, s), common), common),
    }
    pattern, definition = every[draw(st.sampled_from(sorted(every)))]()
    return pattern, dense(s, s, definition)


@st.composite
def expressions(draw: st.DrawFn) -> tuple[Pattern, np.ndarray]:
    s = draw(st.sampled_from((1, 64, 65, 150, 193)))
    pattern, expected = leaf(draw, s)
    for _ in range(draw(st.integers(0, 4))):
        operation = draw(st.sampled_from("&|^~>"))
        if operation == "~":
            pattern, expected = ~pattern, ~expected
        elif operation == ">":
            down, across = (draw(st.integers(0, s)) for _ in range(2))
            pattern = pattern.shift(down, across)
            moved = np.pad(expected, ((down, 0), (across, 0)))
            expected = moved[:s, :s]
        else:
            other, values = leaf(draw, s)
            apply = {"&": and_, "|": or_, "^": xor}[operation]
            pattern, expected = apply(pattern, other), apply(expected, values)
    return pattern, expected


@settings(max_examples=150, deadline=None)
@given(expressions())
def test_any_expression_is_its_elementwise_meaning(case: tuple[Pattern, np.ndarray]) -> None:
    check(*case)


def test_a_pattern_is_lowered_once() -> None:
    pattern = masks.causal(100)
    assert pattern.tobsr() is pattern.tobsr() is masks.as_mask(pattern)


def test_repr_names_what_the_user_wrote() -> None:
    pattern = masks.longformer(200, window=3, global_tokens=2) & ~masks.causal(200)
    assert repr(pattern) == (
        "<Pattern (200, 200): ((sliding_window(window=3) | global_tokens(2)) & ~causal())>"
    )
    assert "bigbird(window_blocks=3, global_blocks=2, random_blocks=3" in repr(masks.bigbird(64))


@pytest.mark.parametrize(
    ("error", "match", "make"),
    [
        (ArgumentError, "window: got -1", lambda: masks.sliding_window(8, window=-1)),
        (ArgumentError, "window: got 1.5", lambda: masks.sliding_window(8, window=1.5)),
        (ArgumentError, "tokens: got -2", lambda: masks.global_tokens(8, -2)),
        (ArgumentError, "from 0 to 7", lambda: masks.global_tokens(8, [3, 8])),
        (DTypeError, "tokens: got dtype bool", lambda: masks.global_tokens(2, [True, False])),
        (ArgumentError, "lengths", lambda: masks.document([3, -1])),
        (DTypeError, "lengths: got dtype float64", lambda: masks.document([3.5])),
        (ArgumentError, "window_blocks: got 2", lambda: masks.bigbird(8, window_blocks=2)),
        (ArgumentError, "block: got 0", lambda: masks.bigbird(8, block=0)),
        (ArgumentError, "random_blocks: got -1", lambda: masks.bigbird(8, random_blocks=-1)),
        (ArgumentError, "rows", lambda: masks.blocks((128, 64), [2], [0])),
        (ArgumentError, "cols", lambda: masks.blocks((128, 64), [1], [-1])),
        (MaskError, "1, one for each of rows", lambda: masks.blocks((128, 64), [1], [0, 0])),
        (ShapeError, r"\(-1, -1\)", lambda: masks.causal(-1)),
        (ShapeError, r"2\*\*31", lambda: masks.full(2**31)),
        (ShapeError, r"\(2.5, 2.5\)", lambda: masks.causal(2.5)),
        (ShapeError, r"\(8, 8\), expected \(9, 9\)", lambda: masks.full(9) & masks.full(8)),
        (TypeError, "operand: got int, expected a BsrMask, a pattern", lambda: masks.full(9) | 3),
        (TypeError, r"got str.*from_spec\('causal', seq\)", lambda: masks.full(9) | "causal"),
    ],
)
def test_errors_name_both_sides(
    error: type[Exception], match: str, make: Callable[[], object]
) -> None:
    with pytest.raises(error, match=match):
        make()
