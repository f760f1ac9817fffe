"""Masks of arrays on the GPU: built from what those hold now, and again when that has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import DeviceError, MaskError, StofError
from stof_cupy.masks import Pattern
from tests.masks.dense import SIZES
from tests.masks.on_device import captured, check_array, counts, download, occupy, room

pytestmark = pytest.mark.gpu

S, KEYS = 300, 200


def documents(ids: np.ndarray, causal: bool = False) -> np.ndarray:
    """A token sees those of its own run of equal numbers; negative ones are padding."""
    run = np.cumsum(np.diff(ids, prepend=ids[:1]) != 0)
    seen = (run[:, None] == run) & (ids >= 0)
    return seen & np.tri(len(ids), dtype=bool) if causal else seen


def kept_blocks(scores: np.ndarray, top: int, shape: tuple[int, int]) -> np.ndarray:
    """The `top` highest of distinct scores, spread over blocks of 64."""
    highest = np.sort(scores, axis=-1)[..., -top, None]
    return np.repeat(np.repeat(scores >= highest, 64, -2), 64, -1)[..., : shape[0], : shape[1]]


@dataclass(frozen=True)
class Case:
    """A mask of one array: random contents, the pattern of a CuPy array, and what it means."""

    draw: Callable[[np.random.Generator], np.ndarray]
    pattern: Callable[[Any], Pattern]
    meaning: Callable[[np.ndarray], np.ndarray]

    def contents(self, seed: int) -> np.ndarray:
        return self.draw(np.random.default_rng(seed))


def _ids(g: np.random.Generator) -> np.ndarray:
    return np.repeat(g.integers(-1, 4, 12), g.multinomial(S, [1 / 12] * 12)).astype(np.int32)


def _same(ids: Any, within: Any = None) -> Pattern:
    return masks.predicate((S, S), "i >= j && doc[i] == doc[j]", arrays={"doc": ids}, within=within)


def _seen(ids: np.ndarray) -> np.ndarray:
    return (ids[:, None] == ids) & np.tri(S, dtype=bool)


def _near(window: int) -> np.ndarray:
    return abs(np.subtract.outer(np.arange(S), np.arange(S))) <= window


def _flags(n: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda g: g.random(n) < g.choice([0.02, 0.5, 0.98])


def _dense(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda g: g.random(shape) < g.choice([0.0002, 0.02, 0.98], (*shape[:-2], 1, 1))


CASES = {
    "documents": Case(_ids, masks.document_ids, documents),
    "causal documents": Case(
        _ids,
        lambda ids: masks.document_ids(ids, causal=True),
        lambda ids: documents(ids, causal=True),
    ),
    "padding": Case(
        _flags(KEYS),
        lambda keep: masks.key_padding(keep, S),
        lambda keep: np.broadcast_to(keep, (S, KEYS)),
    ),
    "padding in a compound": Case(
        _flags(S),
        lambda keep: masks.longformer(S, window=40, global_tokens=3) & ~masks.key_padding(keep),
        lambda keep: (_near(40) | np.logical_or.outer(np.arange(S) < 3, np.arange(S) < 3)) & ~keep,
    ),
    "dense": Case(_dense(S, KEYS), masks.dense, lambda x: x),
    "dense per head": Case(_dense(2, 3, S, KEYS), masks.dense, lambda x: x),
    "dense in a compound": Case(
        _dense(3, S, S),
        lambda x: ~(masks.dense(x) ^ masks.causal(S))[70:, 3:],
        lambda x: ~(x ^ np.tri(S, dtype=bool))[:, 70:, 3:],
    ),
    "scores": Case(
        lambda g: g.standard_normal((5, 4), np.float32),
        lambda scores: masks.score_blocks(scores, shape=(S, KEYS), top=2),
        lambda scores: kept_blocks(scores, 2, (S, KEYS)),
    ),
    "scores per head and causal": Case(
        lambda g: g.standard_normal((2, 3, 5, 5), np.float32),
        lambda scores: masks.score_blocks(scores, shape=(S, S), top=2) & masks.causal(S),
        lambda scores: kept_blocks(scores, 2, (S, S)) & np.tri(S, dtype=bool),
    ),
    "scores above a threshold": Case(
        lambda g: g.standard_normal((3, 5, 4), np.float32),
        lambda scores: masks.score_blocks(scores, shape=(S, KEYS), threshold=0.5),
        lambda scores: np.kron(scores >= 0.5, np.ones((64, 64), bool))[:, :S, :KEYS],
    ),
    "formula": Case(_ids, _same, _seen),
    "formula within": Case(
        _ids,
        lambda ids: _same(ids, masks.sliding_window(S, window=40)),
        lambda ids: _seen(ids) & _near(40),
    ),
    "formula moved": Case(
        _ids,
        lambda ids: _same(ids).shift(10, 70) | masks.sliding_window(S, window=3),
        lambda ids: np.pad(_seen(ids), ((10, 0), (70, 0)))[:S, :S] | _near(3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_built_from_the_current_contents(name: str) -> None:
    import cupy

    case = CASES[name]
    for seed in range(6):
        x = case.contents(seed)
        check_array(case.pattern(cupy.asarray(x)).to("cuda"), case.meaning(x))


@pytest.mark.parametrize("name", CASES)
def test_rebuilt_after_a_change_in_place(name: str) -> None:
    import cupy

    case = CASES[name]
    x = cupy.asarray(case.contents(0))
    mask = case.pattern(x).to("cuda", **room(case.meaning(x.get()).shape))
    for seed in range(6):
        x[...] = cupy.asarray(case.contents(seed))
        mask.rebuild()
        check_array(mask, case.meaning(case.contents(seed)))


@pytest.mark.parametrize("name", CASES)
def test_rebuilt_in_a_captured_graph(name: str) -> None:
    import cupy

    case = CASES[name]
    x = cupy.asarray(case.contents(0))
    mask = case.pattern(x).to("cuda", **room(case.meaning(x.get()).shape))
    replay = captured(mask.rebuild)
    for seed in (1, 2, 3, 0, 1):
        x[...] = cupy.asarray(case.contents(seed))
        replay()
        check_array(mask, case.meaning(case.contents(seed)))


@pytest.mark.parametrize("name", CASES)
def test_a_mask_stays_as_built_until_it_is_rebuilt(name: str) -> None:
    import cupy

    case = CASES[name]
    x = cupy.asarray(case.contents(0))
    mask = case.pattern(x).to("cuda")
    x[...] = cupy.asarray(case.contents(1))
    check_array(mask, case.meaning(case.contents(0)))


@pytest.mark.parametrize("name", CASES)
def test_no_form_on_the_cpu(name: str) -> None:
    import cupy

    pattern = CASES[name].pattern(cupy.asarray(CASES[name].contents(0)))
    for look in (pattern.tobsr, pattern.toarray, lambda: pattern.nnz):
        with pytest.raises(DeviceError, match=r"\.to\(.cuda.\)\.to\(.cpu.\)"):
            look()


def test_a_measured_capacity_is_that_of_the_first_contents() -> None:
    import cupy

    few, many = (np.arange(KEYS) < n for n in (3, 150))
    keep = cupy.asarray(few)
    mask = masks.key_padding(keep, S).to("cuda")
    keep[...] = False
    mask.rebuild()
    check_array(mask, np.zeros((S, KEYS), bool))
    keep[...] = cupy.asarray(many)
    mask.rebuild()
    with pytest.raises(MaskError):
        mask.check()


def test_work_is_queued_on_the_current_stream() -> None:
    """Contents that the stream has yet to write are those that the mask is built from."""
    import cupy

    case = CASES["documents"]
    x = cupy.asarray(case.contents(0))
    late = cupy.asarray(case.contents(1))
    mask = case.pattern(x).to("cuda", **room((S, S)))
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        occupy(50)
        x[...] = late
        mask.rebuild()
        check_array(mask, case.meaning(case.contents(1)))
        occupy(50)
        x[...] = cupy.asarray(case.contents(2))
        check_array(case.pattern(x).to("cuda"), case.meaning(case.contents(2)))


def test_one_mask_on_each_of_two_streams() -> None:
    import cupy

    case = CASES["dense per head"]
    shape = (2, 3, S, KEYS)
    arrays = [cupy.asarray(case.contents(0)) for _ in range(2)]
    built = [case.pattern(x).to("cuda", **room(shape)) for x in arrays]
    news = [cupy.asarray(case.contents(seed)) for seed in (1, 2)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    for _ in range(20):
        for stream, x, new, mask in zip(streams, arrays, news, built, strict=True):
            with stream:
                x[...] = False
                mask.rebuild()
                x[...] = new
                mask.rebuild()
    for stream, mask, seed in zip(streams, built, (1, 2), strict=True):
        with stream:
            check_array(mask, case.meaning(case.contents(seed)))


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("s", SIZES)
@pytest.mark.parametrize("dtype", ("int32", "int64"))
def test_document_ids(dtype: str, s: int, causal: bool) -> None:
    import cupy

    g = np.random.default_rng(s)
    ids = np.repeat(g.integers(-2, 100, 9), g.multinomial(s, [1 / 9] * 9)).astype(dtype)
    pattern = masks.document_ids(cupy.asarray(ids), causal=causal)
    assert pattern.shape == (s, s)
    check_array(pattern.to("cuda"), documents(ids, causal))
    twice = cupy.asarray(np.repeat(ids, 2))[::2]
    check_array(masks.document_ids(twice, causal=causal).to("cuda"), documents(ids, causal))


def test_a_document_that_comes_back_is_another_one() -> None:
    import cupy

    ids = np.array([7, 7, 4, 5, 4, -1, -1, 7, -3, -3], np.int64)
    expected = documents(ids)
    assert expected.sum() == 4 + 1 + 1 + 1 + 1
    check_array(masks.document_ids(cupy.asarray(ids)).to("cuda"), expected)
    tokens = np.random.default_rng(0).integers(-1, 2, 1000)
    check_array(masks.document_ids(cupy.asarray(tokens)).to("cuda"), documents(tokens))
    alone = np.arange(1000)
    check_array(masks.document_ids(cupy.asarray(alone)).to("cuda"), np.eye(1000, dtype=bool))
    one = np.full(1000, 3)
    check_array(masks.document_ids(cupy.asarray(one)).to("cuda"), np.ones((1000, 1000), bool))


@pytest.mark.parametrize("sk", SIZES)
@pytest.mark.parametrize("sq", (None, 0, 1, 130))
def test_key_padding(sk: int, sq: int | None) -> None:
    import cupy

    rows = sk if sq is None else sq
    for keep in (np.random.default_rng(sk).random(sk) < 0.5, np.arange(sk) < sk // 2):
        expected = np.broadcast_to(keep, (rows, sk))
        check_array(masks.key_padding(cupy.asarray(keep), sq).to("cuda"), expected)
        backwards = cupy.asarray(keep[::-1].copy())[::-1]
        check_array(masks.key_padding(backwards, sq).to("cuda"), expected)


def views(x: Any) -> dict[str, Any]:
    """Return arrays equal to `x` whose memory is laid out otherwise."""
    import cupy

    *lead, rows, cols = x.shape
    larger = cupy.ones((*lead, 2 * rows + 1, 3 * cols + 5), bool)
    slices = {
        "slice": np.s_[..., 1 : 1 + rows, 5 : 5 + cols],
        "steps": np.s_[..., 1 : 2 * rows : 2, 4 : 4 + 3 * cols - 2 : 3],
        "backwards": np.s_[..., rows:0:-1, cols + 2 : 2 : -1],
    }
    found = {name: larger.copy()[cut] for name, cut in slices.items()}
    found["fortran"] = cupy.empty(x.shape, bool, order="F")
    found["transposed"] = cupy.empty((*lead, cols, rows), bool).swapaxes(-1, -2)
    found["leading axis last"] = cupy.moveaxis(cupy.empty((*x.shape[1:], x.shape[0]), bool), -1, 0)
    for view in found.values():
        view[...] = x
    return found


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1),
        (64, 64),
        (63, 65),
        (129, 300),
        (1000, 127),
        (3, 65, 130),
        (1, 2, 130, 64),
        (2, 3, 63, 129),
        (2, 1, 200, 200),
    ],
    ids=str,
)
def test_dense_arrays_of_any_layout(shape: tuple[int, ...]) -> None:
    import cupy

    g = np.random.default_rng(sum(shape))
    for density in (0.001, 0.5, 0.999):
        array = g.random(shape) < density
        array[..., :64, -64:] = True  # a tile that is full
        array[..., 64:128, :64] = False
        on_gpu = cupy.asarray(array)
        check_array(masks.dense(on_gpu).to("cuda"), array)
        for name, view in views(on_gpu).items():
            assert cupy.array_equal(view, on_gpu), name
            check_array(masks.dense(view).to("cuda"), array)


def test_dense_array_that_is_broadcast() -> None:
    import cupy

    array = np.random.default_rng(0).random((3, 1, 130)) < 0.5
    wide = np.broadcast_to(array, (3, 70, 130))
    check_array(masks.dense(cupy.broadcast_to(cupy.asarray(array), wide.shape)).to("cuda"), wide)


def test_dense_array_of_numpy() -> None:
    """It is an ordinary pattern, on both devices."""
    array = np.random.default_rng(0).random((300, 200)) < 0.01
    for view in (array, np.asfortranarray(array), array[::-1, ::-1], array[5:200:3, 1::2]):
        pattern = masks.dense(view)
        np.testing.assert_array_equal(pattern.toarray(), view)
        check_array(pattern.to("cuda"), view)


def test_combined_with_masks_of_other_leading_axes() -> None:
    """``(2, 1)`` and ``(3,)`` broadcast, as arrays do."""
    import cupy

    g = np.random.default_rng(0)
    a, b = g.random((2, 1, S, KEYS)) < 0.1, g.random((3, S, KEYS)) < 0.9
    pattern = masks.dense(cupy.asarray(a)) ^ masks.dense(cupy.asarray(b))
    check_array(pattern.to("cuda"), a ^ b)
    exact = counts(masks.MaskStack.from_dense(a ^ b))
    check_array(pattern.to("cuda", **exact), a ^ b)


@pytest.mark.parametrize(
    "make",
    [
        lambda cupy: masks.document_ids(cupy.zeros(5, np.float32)),
        lambda cupy: masks.document_ids(cupy.zeros((5, 5), np.int32)),
        lambda cupy: masks.key_padding(cupy.zeros(5, np.int32)),
        lambda cupy: masks.key_padding(cupy.zeros((5, 5), bool)),
        lambda cupy: masks.dense(cupy.zeros((5, 5), np.int8)),
        lambda cupy: masks.dense(cupy.zeros(5, bool)),
        lambda cupy: masks.dense(cupy.zeros((5, 5), bool)) & masks.full(6),
    ],
)
def test_arrays_that_do_not_fit(make: Callable[[Any], Pattern]) -> None:
    import cupy

    with pytest.raises(StofError):
        make(cupy)


def test_a_mask_outlives_the_pattern_and_the_names_of_its_arrays() -> None:
    import cupy

    array = np.random.default_rng(0).random((S, KEYS)) < 0.01
    mask = masks.dense(cupy.asarray(array)).to("cuda")
    spent = [cupy.ones((S, KEYS), bool) for _ in range(20)]  # of the same size as what was freed
    mask.rebuild()
    assert len(spent) == 20 and download(mask).equals(array)
