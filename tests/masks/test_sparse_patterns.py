"""Sparse Transformer, vertical-slash and Hugging Face's BigBird against their definitions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError
from tests.masks.dense import ALIGN, SHAPES, SIZES, aligned, check, dense


@pytest.mark.parametrize("s", SIZES)
@pytest.mark.parametrize("stride", (1, 2, 11, 64, 128, 150, 2**70))
def test_strided(s: int, stride: int) -> None:
    step = min(stride, 10**6)

    def seen(q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return (abs(q - k) <= step) | ((q - k) % step == 0)

    check(masks.strided(s, stride=stride), dense(s, s, lambda q, k: (k <= q) & seen(q, k)))
    check(masks.strided(s, stride=stride, causal=False), dense(s, s, seen))


@pytest.mark.parametrize("s", SIZES)
@pytest.mark.parametrize(
    ("stride", "summary"),
    [(1, 0), (1, 1), (11, 4), (64, 1), (150, 70), (150, 150), (2**70, 1), (2**70, 2**70 - 9)],
)
def test_fixed(s: int, stride: int, summary: int) -> None:
    step, first = min(stride, 10**6), min(stride - summary, 10**6)

    def seen(q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return (q // step == k // step) | (k % step >= first)

    made = masks.fixed(s, stride=stride, summary=summary)
    check(made, dense(s, s, lambda q, k: (k <= q) & seen(q, k)))
    check(masks.fixed(s, stride=stride, summary=summary, causal=False), dense(s, s, seen))


@pytest.mark.parametrize("align", ALIGN)
@pytest.mark.parametrize(("sq", "sk"), SHAPES)
@pytest.mark.parametrize("count", (0, 1, 9))
def test_vertical_slash(sq: int, sk: int, count: int, align: str) -> None:
    rng = np.random.default_rng(sq + sk)
    vertical = rng.integers(0, max(sk, 1), count if sk else 0)
    slash = np.concatenate([rng.integers(0, sq + sk + 1, count), [0, 0]])
    expected = dense(
        sq, sk, lambda q, k: (k <= q) & (np.isin(k, vertical) | np.isin(q - k, slash)), align
    )
    more = aligned(sq, sk, align)
    check(masks.vertical_slash(sq, **more, vertical=vertical, slash=slash), expected)


@pytest.mark.parametrize("block", (1, 16, 64, 100, 2**70))
@pytest.mark.parametrize("s", (0, 1, 63, 64, 65, 129, 400))
def test_hugging_face_bigbird_without_random_blocks(s: int, block: int) -> None:
    size = min(block, 10**6)
    last = max(s - 1, 0) // size
    expected = dense(
        s,
        s,
        lambda q, k: (
            (abs(q // size - k // size) <= 1)
            | np.isin(q // size, (0, last))
            | np.isin(k // size, (0, last))
        ),
    )
    check(masks.bigbird_hf(s, random_blocks=0, block=block), expected)


@pytest.mark.parametrize("block", (7, 32, 64, 100))
@pytest.mark.parametrize("s", (64, 300, 333, 900))
def test_hugging_face_bigbird_draws_blocks_that_it_does_not_see_yet(s: int, block: int) -> None:
    count = -(-s // block)
    without = masks.bigbird_hf(s, random_blocks=0, block=block).toarray()[::block, ::block]
    kept = masks.bigbird_hf(s, random_blocks=3, block=block, seed=1)
    corners = kept.toarray()[::block, ::block]
    free = count - without[1:-1].sum(1)
    assert (corners & without == without).all()
    assert ((corners & ~without)[1:-1].sum(1) == np.minimum(3, free)).all()
    check(kept, np.kron(corners, np.ones((block, block), bool))[:s, :s])


def test_hugging_face_bigbird_draws_evenly() -> None:
    """Row 8 of 16 may draw any of 11 blocks; 3 of them, 400 seeds."""
    drawn = sum(
        masks.bigbird_hf(16, random_blocks=3, block=1, seed=seed).toarray()[8].astype(int)
        for seed in range(400)
    )
    assert (drawn[[0, 7, 8, 9, 15]] == 400).all()
    others = np.delete(drawn, [0, 7, 8, 9, 15])
    # Mean 109, standard deviation 9 of a binomial; five of them.
    assert others.sum() == 1200 and abs(others - 1200 / 11).max() < 45


def test_a_layout_of_blocks() -> None:
    """T18: a random layout for each head, block 16: as many blocks as it lists, every time."""
    layouts = np.random.default_rng(0).integers(0, 2, (8, 64, 64)).astype(bool)
    for layout in layouts:
        made = masks.blocks((1024, 1024), *layout.nonzero(), block=16)
        assert made.nnz == layout.sum() * 256
        np.testing.assert_array_equal(made.toarray()[::16, ::16], layout)


@pytest.mark.parametrize("shape", ((1, 1), (64, 129), (130, 63), (200, 500)))
@pytest.mark.parametrize("block", ((1, 7), (128, 64), (16, 100), (65, 1), (2**70, 3)))
def test_blocks_that_are_not_square(shape: tuple[int, int], block: tuple[int, int]) -> None:
    height, width = (min(size, 10**3) for size in block)
    rng = np.random.default_rng(height)
    layout = rng.random((-(-shape[0] // height), -(-shape[1] // width))) < 0.4
    expected = np.kron(layout, np.ones((height, width), bool))[: shape[0], : shape[1]]
    check(masks.blocks(shape, *layout.nonzero(), block=block), expected)


@pytest.mark.parametrize(
    ("error", "match", "make"),
    [
        (ArgumentError, "stride: got 0", lambda: masks.strided(8, stride=0)),
        (ArgumentError, "stride: got -3", lambda: masks.fixed(8, stride=-3, summary=1)),
        (ArgumentError, "summary: got 4", lambda: masks.fixed(8, stride=3, summary=4)),
        (ArgumentError, "summary: got -1", lambda: masks.fixed(8, stride=3, summary=-1)),
        (
            ArgumentError,
            "vertical: .*from 0 to 7",
            lambda: masks.vertical_slash(8, vertical=[8], slash=[]),
        ),
        (
            ArgumentError,
            "slash: .*0 or more",
            lambda: masks.vertical_slash(8, vertical=[], slash=[-1]),
        ),
        (
            DTypeError,
            "slash: got dtype float",
            lambda: masks.vertical_slash(8, vertical=[], slash=[0.5]),
        ),
        (ArgumentError, "causal: got 'no'", lambda: masks.strided(8, stride=3, causal="no")),
        (ArgumentError, "causal: got 2", lambda: masks.fixed(8, stride=3, summary=1, causal=2)),
        (
            ShapeError,
            r"vertical: got \(1, 1\)",
            lambda: masks.vertical_slash(8, vertical=[[1]], slash=[]),
        ),
        (ShapeError, r"slash: got \(\)", lambda: masks.vertical_slash(8, vertical=[], slash=1)),
        (ShapeError, r"tokens: got \(\)", lambda: masks.global_tokens(8, np.array(5))),
        (ShapeError, r"rows: got \(1, 2\)", lambda: masks.blocks((8, 8), [[0, 1]], [0, 1])),
        (ArgumentError, "random_blocks: got -1", lambda: masks.bigbird_hf(8, random_blocks=-1)),
        (ArgumentError, "block: got 0", lambda: masks.bigbird_hf(8, block=0)),
        (ArgumentError, "block: got 0", lambda: masks.blocks((8, 8), [0], [0], block=(2, 0))),
        (
            ArgumentError,
            "block: got .1, 2, 3.",
            lambda: masks.blocks((8, 8), [], [], block=(1, 2, 3)),
        ),
    ],
)
def test_errors(error: type[Exception], match: str, make: Callable[[], object]) -> None:
    with pytest.raises(error, match=match):
        make()
