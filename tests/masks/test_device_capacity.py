"""Buffers of stated capacity: what fits is exact, what does not is said, nothing else is hit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stof_cupy import attention, masks
from stof_cupy.errors import MaskError
from stof_cupy.masks import Pattern
from tests.masks.on_device import (
    check_array,
    check_overflow,
    counts,
    download,
    guarded,
    occupy,
    room,
)

pytestmark = pytest.mark.gpu

PATTERNS: dict[str, Callable[[], Pattern]] = {
    "causal": lambda: masks.causal(1000),
    "longformer": lambda: masks.longformer(1000, window=20, global_tokens=70),
    "dilated": lambda: masks.dilated(1000, 700, window=3, dilation=90, align="top-left"),
    "bigbird": lambda: masks.bigbird(1000, block=48),
    "blocks": lambda: masks.blocks((900, 1000), [0, 3, 13], [15, 2, 0]),
    "stored": lambda: masks.full(300, 500) & (np.random.default_rng(0).random((300, 500)) < 0.001),
    "empty rows": lambda: masks.document_ids(np.repeat([-1, 0, -2, 1], [100, 130, 200, 170])),
    "no key at all": lambda: ~masks.full(200),
}


def heads(dim: int, sq: int, sk: int) -> tuple[Any, Any, Any]:
    """Return queries of 2 heads and keys and values of one."""
    import cupy

    g = np.random.default_rng(dim)
    shapes = (1, 2, sq, dim), (1, 1, sk, dim), (1, 1, sk, dim)
    q, k, v = (cupy.asarray(g.standard_normal(shape).astype(np.float16)) for shape in shapes)
    return q, k, v


def block_scores() -> Any:
    """Return scores of 16 blocks of queries and of keys."""
    import cupy

    return cupy.asarray(np.random.default_rng(0).standard_normal((16, 16), np.float32))


@pytest.mark.parametrize("name", PATTERNS)
def test_exact_capacity_and_one_less(name: str) -> None:
    pattern = PATTERNS[name]()
    exact = counts(pattern.tobsr())
    assert download(pattern.to("cuda", **exact)).equals(pattern.tobsr())
    for what, needed in exact.items():
        if needed:
            check_overflow(pattern.to("cuda", **{**exact, what: needed - 1}), needed, needed - 1)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_capacity_at_all(name: str) -> None:
    pattern = PATTERNS[name]()
    needed = counts(pattern.tobsr())["tiles"]
    mask = pattern.to("cuda", tiles=0, bitmaps=0)
    if needed:
        check_overflow(mask, needed, 0)
    else:
        assert download(mask).equals(pattern.tobsr())


def test_capacity_is_that_of_all_leading_axes() -> None:
    import cupy

    dense = np.random.default_rng(0).random((2, 3, 130, 200)) < 0.0005
    pattern = masks.dense(cupy.asarray(dense))
    exact = counts(masks.MaskStack.from_dense(dense))
    check_array(pattern.to("cuda", **exact), dense)
    for what, needed in exact.items():
        check_overflow(pattern.to("cuda", **{**exact, what: needed - 1}), needed, needed - 1)


def assert_near(got: Any, want: Any) -> None:
    """Equal but for the roundings of another kernel."""
    np.testing.assert_allclose(got.get(), want.get(), rtol=0, atol=4e-3)


@pytest.mark.parametrize("what", ("tiles", "bitmaps"))
@pytest.mark.parametrize("dim", (16, 64, 128))
@pytest.mark.parametrize("name", ("longformer", "empty rows"))
def test_attention_after_an_overflow_is_nan_everywhere(name: str, dim: int, what: str) -> None:
    """In rows before the first that did not fit, and in rows that see nothing, too."""
    import cupy

    pattern = PATTERNS[name]()
    q, k, v = heads(dim, *pattern.shape)
    exact = counts(pattern.tobsr())
    mask = pattern.to("cuda", **{**exact, what: exact[what] - 1})
    out = cupy.zeros_like(q)
    assert attention(q, k, v, mask, out=out) is out
    assert cupy.isnan(out).all()
    fits = attention(q, k, v, pattern.to("cuda", **exact))
    assert cupy.isfinite(fits).all()
    assert_near(fits, attention(q, k, v, pattern.tobsr()))


@pytest.mark.parametrize("measured", (False, True))
def test_a_rebuild_that_fits_again_clears_the_overflow(measured: bool) -> None:
    import cupy

    few, many = np.arange(500) < 70, np.arange(500) % 2 == 0
    keep = cupy.asarray(few)
    pattern = masks.key_padding(keep, 300)
    exact = counts(masks.key_padding(few, 300).tobsr())
    mask = pattern.to("cuda", **({} if measured else exact))
    q, k, v = heads(64, 300, 500)
    needed = counts(masks.key_padding(many, 300).tobsr())
    attention(q, k, v, mask)  # whose lists are for tiles of their own, and have room for these keys
    for _ in range(3):
        keep[...] = cupy.asarray(many)
        mask.rebuild()
        check_overflow(mask, needed["tiles"], exact["tiles"])
        assert cupy.isnan(attention(q, k, v, mask)).all()
        keep[...] = cupy.asarray(few)
        mask.rebuild()
        check_array(mask, np.broadcast_to(few, (300, 500)))
        want = attention(q, k, v, masks.key_padding(few, 300).tobsr())
        assert_near(attention(q, k, v, mask), want)


def test_the_guards_notice_one_byte() -> None:
    import cupy

    with guarded() as guards:
        x = cupy.zeros(5, np.uint8)
        guards.contents()
        cupy.ndarray((6,), np.uint8, memptr=x.data)[5:] = 0
        with pytest.raises(AssertionError, match="beyond an allocation of 5 bytes"):
            guards.contents()


@pytest.mark.parametrize("part", (0, 0.3, 0.5, 1))
@pytest.mark.parametrize("name", PATTERNS)
def test_nothing_beyond_the_capacity_is_written(name: str, part: float) -> None:
    """Nor beside any other array, by the build, by rebuilds, and by attention that reads it."""
    pattern = PATTERNS[name]()
    exact = counts(pattern.tobsr())
    q, k, v = heads(64, *pattern.shape)
    for stated in (
        {what: int(n * part) for what, n in exact.items()},
        {**exact, "tiles": int(exact["tiles"] * part)},
        {**exact, "bitmaps": int(exact["bitmaps"] * part)},
    ):
        with guarded() as guards:
            mask = pattern.to("cuda", **stated)
            for _ in range(2):
                mask.rebuild()
            attention(q, k, v, mask)
            assert len(guards.contents()) > 0
        if stated == exact:
            assert download(mask).equals(pattern.tobsr())
        else:
            with pytest.raises(MaskError):
                mask.check()


@pytest.mark.parametrize("name", ("longformer", "bigbird", "stored"))
def test_what_does_not_fit_leaves_the_lists_before_it_alone(name: str) -> None:
    """The lists may lie side by side in one allocation: none may reach into the next."""
    pattern = PATTERNS[name]()
    exact = counts(pattern.tobsr())
    whole = pattern.to("cuda", **exact).schedule()
    for tiles in (1, exact["tiles"] // 2, exact["tiles"] - 1):
        short = pattern.to("cuda", **{**exact, "tiles": tiles}).schedule()
        np.testing.assert_array_equal(short.cols.get(), whole.cols.get()[:tiles])
    for bitmaps in (0, exact["bitmaps"] // 2, exact["bitmaps"] - 1):
        short = pattern.to("cuda", **{**exact, "bitmaps": bitmaps}).schedule()
        np.testing.assert_array_equal(short.cols.get(), whole.cols.get())
        np.testing.assert_array_equal(short.bitmaps.get(), whole.bitmaps.get()[:bitmaps])


@pytest.mark.parametrize("name", PATTERNS)
def test_two_builds_have_the_same_bytes(name: str) -> None:
    """Nothing depends on which thread block comes first; addresses are the same ones."""
    pattern = PATTERNS[name]()
    with guarded() as guards:
        mask = pattern.to("cuda", **room(pattern.shape))
        first = guards.contents()
        for _ in range(5):
            mask.rebuild()
            again = guards.contents()
            assert len(again) == len(first), "a rebuild allocates"
            for before, after in zip(first, again, strict=True):
                np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", PATTERNS)
def test_two_builds_give_bit_equal_attention(name: str) -> None:
    import cupy

    pattern = PATTERNS[name]()
    q, k, v = heads(64, *pattern.shape)
    first, again = (attention(q, k, v, pattern.to("cuda")) for _ in range(2))
    assert cupy.array_equal(first.view(np.uint16), again.view(np.uint16))


def test_memory_follows_the_listed_tiles() -> None:
    """16 GiB as booleans, 2 GiB as bits; 22,000 tiles."""
    import cupy

    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        mask = masks.longformer(131_072, window=256, global_tokens=64).to("cuda")
        mask.check()
    assert mask.nbytes < 8 * 2**20
    assert pool.total_bytes() < 32 * 2**20  # the peak: the pool gives nothing back by itself
    exact = counts(masks.longformer(131_072, window=256, global_tokens=64).tobsr())
    assert mask.nbytes >= 4 * exact["tiles"] + 512 * exact["bitmaps"]


def test_rebuilds_take_no_memory() -> None:
    import cupy

    keep, ids = cupy.arange(1000) % 3 == 0, cupy.arange(1000) // 90
    doc = masks.predicate((1000, 1000), "doc[i] == doc[j]", arrays={"doc": ids})
    scores = masks.score_blocks(block_scores(), shape=(1000, 1000), top=5)
    pattern = (masks.document_ids(ids) & masks.key_padding(keep)) | (doc ^ scores)
    mask = pattern.to("cuda", **room(pattern.shape))
    mask.rebuild()
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes(), pool.total_bytes()
    for _ in range(100):
        mask.rebuild()
        assert (pool.used_bytes(), pool.total_bytes()) == before


@pytest.mark.parametrize(
    "name", ("causal", "bigbird", "documents", "scores", "formula", "a large upload")
)
def test_with_a_stated_capacity_the_host_does_not_wait(name: str) -> None:
    import cupy

    ids, scores = cupy.arange(1000) // 90, block_scores()
    rows, cols = np.random.default_rng(0).integers(0, 1024, (2, 100_000))  # 0.8 MB of blocks
    make = {
        **PATTERNS,
        "documents": lambda: masks.document_ids(ids),
        "scores": lambda: masks.score_blocks(scores, shape=(1000, 1000), top=5),
        "formula": lambda: masks.predicate((1000, 1000), "d[i] == d[j]", arrays={"d": ids}),
        "a large upload": lambda: masks.blocks((65_536, 65_536), rows, cols),
    }[name]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        occupy(0)
        make().to("cuda", tiles=100_000, bitmaps=300)  # compiled, loaded, allocated before
        stream.synchronize()
        occupy(500)
        mask = make().to("cuda", tiles=100_000, bitmaps=300)
        mask.rebuild()
        assert not stream.done, "the host waited for the GPU"
        mask.check()
        assert stream.done
