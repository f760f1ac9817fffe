"""Functions and formulas as masks: right elements, asked for once, only where they have to be."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    MaskError,
    ShapeError,
    UnsupportedError,
)
from stof_cupy.masks import formula_boxes
from stof_cupy.masks.expression import Leaf
from stof_cupy.masks.formula import Formula
from stof_cupy.masks.predicates import FormulaPredicate
from stof_cupy.masks.runs import EMPTY, FULL, PART
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
            ArgumentError,
            "arrays: got 1 with a function",
            lambda: masks.predicate((2, 2), max, arrays={"a": 1}),
        ),
        (DTypeError, "arrays: got list", lambda: masks.predicate((2, 2), "i", arrays=[1])),
        (ArgumentError, "formula: got 'and'", lambda: masks.predicate((2, 2), "i and j")),
        (
            ArgumentError,
            "arrays: got nothing, expected w",
            lambda: masks.predicate((2, 2), "i < w"),
        ),
        (DTypeError, "a float operand of '%'", lambda: masks.predicate((2, 2), "i % 2.0")),
        (
            ShapeError,
            r"within: got \(3, 3\)",
            lambda: masks.predicate((2, 2), "i", within=masks.full(3)),
        ),
        (
            ShapeError,
            r"arrays\['a'\]: got \(2, 2\)",
            lambda: masks.predicate((2, 2), "a[i]", arrays={"a": np.eye(2)}),
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
    short = masks.predicate((5, 5), "i >=\n  j", within=masks.causal(5))
    assert repr(short) == "<Pattern (5, 5): predicate('i >= j', within=causal())>"
    long = masks.predicate((5, 5), " || ".join(f"i == {n}" for n in range(20)))
    assert repr(long).endswith("i == 5 ...')>") and len(repr(long)) < 100


FORMULAS = (
    ("i >= j && doc[i] == doc[j]", lambda q, k, a: (q >= k) & (a["doc"][q] == a["doc"][k])),
    ("abs(i - j) <= w", lambda q, k, a: abs(q - k) <= a["w"]),
    ("i / 64 == j / 64 || j < 5", lambda q, k, a: (q // 64 == k // 64) | (k < 5)),
    ("(i >= j) & keep[j]", lambda q, k, a: (q >= k) & a["keep"][k]),
    ("(i - j) % 3 == 0 ^ i < 70", lambda q, k, a: (abs(q - k) % 3 == 0) ^ (q < 70)),
    ("i >= 2 * j ? slope[i] > 0.5 : !keep[j]", lambda q, k, a: np.where(
        q >= 2 * k, a["slope"][q] > 0.5, ~a["keep"][k]
    )),
    ("true", lambda q, k, a: True),
    ("i < 0", lambda q, k, a: False),
)  # fmt: skip


def sample(formula: str, sq: int, sk: int) -> dict[str, Any]:
    rng = np.random.default_rng(sq + sk)
    size = max(sq, sk, 1)
    values = {
        "doc": rng.integers(0, 3, size).astype(np.int32),
        "keep": rng.random(size) < 0.5,
        "slope": rng.random(size).astype(np.float16),
        "w": 70,
    }
    return {name: values[name] for name in Formula.parse(formula).names}


@pytest.mark.parametrize(("text", "meaning"), FORMULAS)
@pytest.mark.parametrize(("sq", "sk"), SHAPES)
def test_any_formula(sq: int, sk: int, text: str, meaning: Callable[..., Any]) -> None:
    arrays = sample(text, sq, sk)
    expected = dense(sq, sk, lambda q, k: meaning(q, k, arrays))
    made = masks.predicate((sq, sk), text, arrays=arrays)
    check(made, expected)
    wide = masks.sliding_window(sq, sk, window=70, align="top-left")
    both = dense(sq, sk, lambda q, k: meaning(q, k, arrays) & (abs(q - k) <= 70))
    check(masks.predicate((sq, sk), text, arrays=arrays, within=wide), both)
    check(made & wide, both)


@pytest.mark.parametrize(("text", "meaning"), FORMULAS)
def test_small_pieces(
    text: str, meaning: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked at together, and in which order, changes nothing."""
    monkeypatch.setattr(formula_boxes, "_CHUNK", 8)
    arrays = sample(text, 1000, 1500)
    expected = dense(1000, 1500, lambda q, k: meaning(q, k, arrays))
    check(masks.predicate((1000, 1500), text, arrays=arrays), expected)


def test_formula_within_a_mask() -> None:
    near = masks.sliding_window(300, window=20)
    made = masks.predicate((300, 300), "(i + j) % 2 == 0", within=near.tobsr())
    assert made.tobsr().equals(masks.predicate((300, 300), "(i + j) % 2 == 0", within=near).tobsr())
    assert made.tobsr().equals(
        masks.predicate((300, 300), lambda q, k: (q + k) % 2 == 0, within=near.toarray()).tobsr()
    )


def test_positions_settle_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what positions leave open is computed; of causal documents, a triangle."""
    asked = 0
    original = Formula.evaluate

    def counting(self: Formula, i: Any, j: Any, values: Any) -> Any:
        nonlocal asked
        asked += len(i)
        return original(self, i, j, values)

    monkeypatch.setattr(Formula, "evaluate", counting)
    s, tiles = 4096, 64
    doc = np.arange(s) // 1000
    for text, arrays, most in (
        ("i >= j", None, tiles),
        ("i >= j && doc[i] == doc[j]", {"doc": doc}, tiles * (tiles + 1) // 2),
        ("doc[j] == doc[i] && i >= j && i - j < 128", {"doc": doc}, 3 * tiles),
        ("i >= j && i - j <= w", {"w": 1024}, 2 * tiles),
        ("i / 256 == j / 256", None, 0),
        ("!(i < j) && (keep[j] || j < 64)", {"keep": doc > 2}, tiles * (tiles + 1) // 2),
        ("(i / 64 + j / 64) % 2 == 0", None, 0),
    ):
        asked = 0
        masks.predicate((s, s), text, arrays=arrays).tobsr()
        assert asked <= most, text


def test_a_million_tokens() -> None:
    """No list of all tiles: runs are as many as rows of tiles, times changes in a row."""
    s = 1_000_000
    doc = np.arange(s, dtype=np.int32) // 5000
    rows = -(-s // 64)
    causal = masks.predicate((s, s), "i >= j && doc[i] == doc[j]", arrays={"doc": doc})
    assert len(causal.runs.starts) <= 2 * rows
    assert causal.runs.count() == rows * (rows + 1) // 2
    window = masks.predicate((s, s), "i >= j && i - j <= 64")
    assert window.tobsr().equals(masks.sliding_window(s, window=64, causal=True).tobsr())
    near = masks.sliding_window(s, window=64, causal=True)
    even = masks.predicate((s, s), "(i - j) % 2 == 0", within=near)
    assert even.tobsr().equals(masks.dilated(s, window=32, dilation=2, causal=True).tobsr())


def test_no_end_of_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formula_boxes, "_MOST", 10_000)
    unsettled = masks.predicate((10_000, 10_000), "i * j % 7 == 0")
    with pytest.raises(UnsupportedError, match=r"over 2\*\*28 tiles.*give `within`"):
        unsettled.tobsr()
    assert masks.predicate((10_000, 10_000), "i >= j").runs.count() == 157 * 158 // 2


def test_contents_are_read_when_it_is_built() -> None:
    keep = np.zeros(100, bool)
    made = masks.predicate((100, 100), "keep[j]", arrays={"keep": keep})
    keep[3] = True
    assert made.nnz == 100
    assert pickle.loads(pickle.dumps(made)).nnz == 100


def test_attributes() -> None:
    near, keep = masks.causal(100), np.zeros(100, bool)
    pattern = masks.predicate((100, 100), "keep[j] && i < w", arrays={"w": 2, "keep": keep})
    assert isinstance(pattern, FormulaPredicate)
    assert pattern.formula.text == "keep[j] && i < w" and pattern.within is None
    assert pattern.values["keep"] is keep and pattern.values["w"] == 2
    assert pattern.kinds == {"keep": np.dtype(bool), "w": "int"}
    bounded = FormulaPredicate((100, 100), Formula.parse("i < 50"), {}, near)
    assert bounded.within is near
    assert {EMPTY, PART, FULL} > set(bounded.runs.states.tolist())


class OnDevice:
    """What looks like a CuPy array to code that may not import CuPy."""

    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype


def test_cupy_arrays_have_no_form_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=OnDevice))
    doc = OnDevice(np.zeros(100, np.int32))
    made = masks.predicate((100, 100), "i >= j && doc[i] == doc[j]", arrays={"doc": doc})
    assert isinstance(made, FormulaPredicate) and made.values["doc"] is doc
    assert made.kinds == {"doc": np.dtype("int32")}
    for ask in (
        lambda: made.runs,
        lambda: made.nnz,
        made.tobsr,
        made.toarray,
        (made & masks.causal(100)).tobsr,
        lambda: made.row_words(np.zeros(1, np.int64)),
    ):
        with pytest.raises(DeviceError, match=r"predicate.*got CuPy arrays"):
            ask()
    with pytest.raises(
        DeviceError, match=r"`\.to\('cuda'\)` builds.*`\.to\('cuda'\)\.to\('cpu'\)`"
    ):
        made.tobsr()
    with pytest.raises(ShapeError, match=r"got \(2, 2\)"):
        masks.predicate((2, 2), "a[i]", arrays={"a": OnDevice(np.eye(2))})
