"""Functions as masks: right elements, asked for once, and only where they have to be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import DTypeError, MaskError, ShapeError
from stof_cupy.masks.expression import Leaf
from tests.masks.dense import SHAPES, check, dense


class Counted:
    """A function that remembers how many elements it was asked for."""

    def __init__(self, function: Callable[..., np.ndarray]) -> None:
        self.function, self.elements, self.most = function, 0, 0

    def __call__(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        asked = np.broadcast(q, k).size
        self.elements += asked
        self.most = max(self.most, asked)
        return self.function(q, k)


@pytest.mark.parametrize(("sq", "sk"), SHAPES)
def test_any_function(sq: int, sk: int) -> None:
    rng = np.random.default_rng(sq + sk)
    rows, cols = rng.integers(0, 3, sq), rng.integers(0, 3, sk)

    def same(q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return rows[q] == cols[k]  # raises where a position is out of bounds

    check(masks.predicate((sq, sk), same), dense(sq, sk, same))
    wide = masks.sliding_window(sq, sk, window=70, align="top-left")
    expected = dense(sq, sk, lambda q, k: same(q, k) & (abs(q - k) <= 70))
    check(masks.predicate((sq, sk), same, within=wide), expected)
    check(masks.predicate((sq, sk), same) & wide, expected)


def test_within_may_be_a_mask() -> None:
    near = masks.sliding_window(300, window=20)
    even = Counted(lambda q, k: (q + k) % 2 == 0)
    made = masks.predicate((300, 300), even, within=near.tobsr())
    assert made.tobsr().equals(masks.predicate((300, 300), even.function, within=near))
    assert even.elements == near.tobsr().ntiles * 64 * 64
    dense_too = masks.predicate((300, 300), even.function, within=near.toarray())
    assert dense_too.tobsr().equals(made)


@pytest.mark.parametrize("result", (lambda q, k: True, lambda q, k: q > 70, lambda q, k: k > 70))
def test_results_are_broadcast(result: Callable[..., np.ndarray]) -> None:
    check(masks.predicate((100, 130), result), dense(100, 130, result))


def test_each_tile_is_asked_for_once() -> None:
    even = Counted(lambda q, k: (q + k) % 2 == 0)
    mask = masks.predicate((1000, 700), even)
    assert even.elements == 0
    assert mask.nnz == 350_000
    mask.tobsr(), mask.toarray()
    assert even.elements == 16 * 11 * 64 * 64


def test_within_bounds_what_is_asked() -> None:
    """At a million tokens only the tiles of the window are visited, a few at a time."""
    s = 1_000_000
    near = masks.sliding_window(s, window=64, causal=True)
    for bounded in (
        lambda even: masks.predicate((s, s), even, within=near),
        lambda even: masks.predicate((s, s), even) & near,
    ):
        even = Counted(lambda q, k: (q - k) % 2 == 0)
        mask = bounded(even).tobsr()
        assert even.elements == near.tobsr().ntiles * 64 * 64
        assert even.most <= 64 * 64 * 64
        assert mask.equals(masks.dilated(s, window=32, dilation=2, causal=True))


def test_no_pattern_visits_tiles_that_it_does_not_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles whose elements are built: those that are listed, once for each leaf."""
    built = 0
    original = Leaf.row_words

    def counting(self: Leaf, keys: np.ndarray) -> np.ndarray:
        nonlocal built
        built += len(keys)
        return original(self, keys)

    monkeypatch.setattr(Leaf, "row_words", counting)
    s = 4096
    patterns = {
        "causal": masks.causal(s),
        "window": masks.sliding_window(s, window=100),
        "dilated": masks.dilated(s, window=8, dilation=128),
        "slash": masks.vertical_slash(s, vertical=[5], slash=[0, 1000]),
        "strided": masks.strided(s, stride=512),
        "chunked": masks.chunked(s, chunk=100),
        "sink": masks.sink_window(s, sinks=4, window=100),
        "prefix": masks.prefix_lm(s, prefix=100),
        "documents": masks.document([100] * 40 + [96], causal=True),
        "longformer": masks.longformer(s, window=100, global_tokens=8),
        "bigbird": masks.bigbird_hf(s, block=32),
        "image": masks.neighborhood((64, 64), window=7),
        "wide image": masks.neighborhood((16, 256), window=(3, 9), dilation=(2, 8)),
        "cropped": masks.sliding_window(2 * s, window=100).crop((100, s + 100), (70, s + 70)),
        "shifted": masks.sliding_window(s, window=100).shift(10, 20),
    }
    for name, pattern in patterns.items():
        built = 0
        listed, visited = pattern.tobsr().ntiles, pattern.runs.count()
        view = name in ("cropped", "shifted")  # of four tiles each, one may be enough to visit it
        assert visited <= (1.5 if view else 1.1) * listed < 0.7 * (s // 64) ** 2, name
        # Four leaves at most; a view asks its only one for up to four tiles, and its frame.
        assert built <= (5 if view else 4) * visited, name


@pytest.mark.parametrize(
    ("error", "match", "make"),
    [
        (DTypeError, "function: got ndarray", lambda: masks.predicate((2, 2), np.eye(2))),
        (MaskError, "within: got dtype", lambda: masks.predicate((2, 2), max, within=np.eye(2))),
        (
            ShapeError,
            r"within: got \(3, 3\)",
            lambda: masks.predicate((2, 2), max, within=masks.full(3)),
        ),
        (
            MaskError,
            "result: got dtype int64",
            lambda: masks.predicate((2, 2), lambda q, k: q + k).nnz,
        ),
        (
            ShapeError,
            r"result: got \(7,\)",
            lambda: masks.predicate((2, 2), lambda q, k: np.ones(7, bool)).nnz,
        ),
    ],
)
def test_errors(error: type[Exception], match: str, make: Callable[[], object]) -> None:
    with pytest.raises(error, match=match):
        make()


def test_repr() -> None:
    made = masks.predicate((5, 5), Counted(np.equal), within=masks.causal(5))
    assert repr(made) == "<Pattern (5, 5): predicate(Counted, within=causal())>"
