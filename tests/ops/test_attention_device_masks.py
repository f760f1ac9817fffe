"""Attention under masks that were built on the GPU, beside the dense oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stof_cupy import attention, masks
from stof_cupy.errors import MaskError, ShapeError, StofError
from stof_cupy.masks import MaskStack
from stof_cupy.ops import reference
from stof_cupy.testing import assert_close, poison, random_array, rng

pytestmark = pytest.mark.gpu

BATCH, HEADS, SQ, SK = 2, 6, 130, 200
DTYPES = ("float16", "bfloat16")


def inputs(
    dtype: str = "float16", dim: int = 32, kv_heads: int = 2, sq: int = SQ, sk: int = SK
) -> list[np.ndarray]:
    g = rng(dim)
    shapes = (BATCH, HEADS, sq, dim), (BATCH, kv_heads, sk, dim), (BATCH, kv_heads, sk, dim)
    return [random_array(g, shape, dtype) for shape in shapes]


def check(arrays: list[np.ndarray], mask: Any, dense: np.ndarray, **how: Any) -> Any:
    """Attention into poisoned memory is what the oracle says under `dense`."""
    import cupy

    q, k, v = (cupy.asarray(x) for x in arrays)
    lengths = how.pop("kv_lengths", None)
    out = poison((*q.shape[:3], v.shape[3]), q.dtype, cupy)
    on_gpu = None if lengths is None else cupy.asarray(lengths)
    got, lse = attention(q, k, v, mask, kv_lengths=on_gpu, return_lse=True, out=out, **how)
    assert got is out
    how["kv_lengths"] = lengths
    exact, exact_lse = reference.attention(*arrays, dense, return_lse=True, **how)
    dtype = arrays[0].dtype.name
    assert_close(got, exact, reference.attention(*arrays, dense, **how, precision=dtype))
    np.testing.assert_allclose(lse.get(), exact_lse, rtol=2e-6, atol=2e-5)
    assert not got.get().astype(np.float32)[np.isneginf(exact_lse)].any()
    return got


def random_dense(lead: tuple[int, ...], sq: int = SQ, sk: int = SK) -> np.ndarray:
    """Masks of very different densities; the first is empty and so are some rows of the others."""
    g = rng(len(lead) + sum(lead))
    dense = g.random((*lead, sq, sk)) < g.choice([0.02, 0.5, 1.1], (*lead, 1, 1))
    dense[..., 3:9, :] = False
    dense[..., 64:128, :64] = True  # a full tile
    if lead:
        dense.reshape(-1, sq, sk)[0] = False
    return dense


LEADS = ((), (2, 1), (1, 6), (2, 6), (6,), (1,), (1, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_heads", (1, 2, 6))
@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_dense_array_on_the_gpu(lead: tuple[int, ...], kv_heads: int, dtype: str) -> None:
    """As it is, as a pattern, and built before: three ways to the same bits."""
    import cupy

    dense, arrays = random_dense(lead), inputs(dtype, kv_heads=kv_heads)
    on_gpu = cupy.asarray(dense)
    first = check(arrays, on_gpu, dense)
    for mask in (masks.dense(on_gpu), masks.dense(on_gpu).to("cuda")):
        assert cupy.array_equal(check(arrays, mask, dense).view("u2"), first.view("u2"))
    check(arrays, on_gpu, dense, kv_lengths=np.array([0, 77], np.int32), scale=0.3)


@pytest.mark.parametrize("view", ("transposed", "steps", "backwards", "broadcast"))
def test_dense_array_of_any_layout(view: str) -> None:
    import cupy

    dense = random_dense((2, 6))
    on_gpu = {
        "transposed": lambda: cupy.asarray(dense.swapaxes(2, 3).copy()).swapaxes(2, 3),
        "steps": lambda: cupy.asarray(dense.repeat(2, 2).repeat(3, 3))[:, :, ::2, ::3],
        "backwards": lambda: cupy.asarray(dense[:, ::-1, ::-1, ::-1].copy())[:, ::-1, ::-1, ::-1],
        "broadcast": lambda: cupy.broadcast_to(cupy.asarray(dense[:1, 1:2]), dense.shape),
    }[view]()
    check(inputs(), on_gpu, on_gpu.get())


PATTERNS: dict[str, Callable[[int], masks.Pattern]] = {
    "full": lambda s: masks.full(s),
    "causal": lambda s: masks.causal(s),
    "longformer": lambda s: masks.longformer(s, window=20, global_tokens=5),
    "bigbird": lambda s: masks.bigbird(s, block=32),
    "dilated": lambda s: masks.dilated(s, window=4, dilation=33),
    "nothing": lambda s: ~masks.full(s),
    "function": lambda s: masks.predicate((s, s), lambda q, k: (q ^ k) & 5 == 0),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", (16, 40, 64, 128, 256))
@pytest.mark.parametrize("name", PATTERNS)
def test_built_patterns_of_every_head_dim(name: str, dim: int, dtype: str) -> None:
    pattern, arrays = PATTERNS[name](300), inputs(dtype, dim, sq=300, sk=300)
    check(arrays, pattern.to("cuda"), pattern.toarray())


@pytest.mark.parametrize("lead", LEADS[1:], ids=str)
def test_uploaded_stacks(lead: tuple[int, ...]) -> None:
    dense = random_dense(lead)
    check(inputs(), MaskStack.from_dense(dense).to("cuda"), dense)


def test_patterns_that_name_arrays() -> None:
    import cupy

    s = 200
    arrays = inputs(sq=s, sk=s)
    ids = np.repeat([3, -1, 0, 7], [70, 30, 64, 36])
    keep = rng(1).random(s) < 0.7
    doc, past = (ids[:, None] == ids) & (ids >= 0), np.tri(s, dtype=bool)
    named = cupy.asarray(ids)
    for pattern, dense in (
        (masks.document_ids(named), doc),
        (masks.document_ids(named, causal=True), doc & past),
        (masks.key_padding(cupy.asarray(keep)), np.broadcast_to(keep, (s, s))),
        (masks.key_padding(cupy.asarray(keep)) & masks.causal(s), keep & past),
        (
            masks.predicate((s, s), "i >= j && doc[i] == doc[j]", arrays={"doc": named}),
            past & (ids[:, None] == ids),
        ),
    ):
        check(arrays, pattern, dense)
        check(arrays, pattern.to("cuda"), dense)


def kept_blocks(scores: np.ndarray, top: int, block: int, shape: tuple[int, int]) -> np.ndarray:
    """The `top` highest of distinct scores in each row, spread over their blocks."""
    kept = scores >= np.sort(scores, axis=-1)[..., -top, None]
    return kept.repeat(block, -2).repeat(block, -1)[..., : shape[0], : shape[1]]


@pytest.mark.parametrize("kv_heads", (1, 2, 3, 6))
@pytest.mark.parametrize("block", (16, 64))
@pytest.mark.parametrize("lead", ((2, 6), (1, 6), (6,), (2, 1), ()), ids=str)
def test_scores_of_each_query_head(lead: tuple[int, ...], block: int, kv_heads: int) -> None:
    """Query heads that share keys have masks of their own."""
    import cupy

    grid = -(-SQ // block), -(-SK // block)
    scores = rng(block).standard_normal((*lead, *grid)).astype(np.float32)
    on_gpu = cupy.asarray(scores)
    arrays = inputs(kv_heads=kv_heads)
    pattern = masks.score_blocks(on_gpu, shape=(SQ, SK), block=block, top=2)
    check(arrays, pattern, kept_blocks(scores, 2, block, (SQ, SK)))
    near = masks.sliding_window(SQ, SK, window=50, align="bottom-right")
    mask = (pattern | near).to("cuda")
    check(arrays, mask, kept_blocks(scores, 2, block, (SQ, SK)) | near.toarray())


def test_scores_change_between_layers() -> None:
    """Scores, mask and attention on one stream, and the host waits for none of it."""
    import cupy

    arrays = inputs()
    q, k, v = (cupy.asarray(x) for x in arrays)
    scores = cupy.zeros((BATCH, HEADS, 3, 4), np.float32)
    pattern = masks.score_blocks(scores, shape=(SQ, SK), top=2)
    mask = pattern.to("cuda", tiles=BATCH * HEADS * 12, bitmaps=BATCH * HEADS * 12)
    layers = [rng(n).standard_normal(scores.shape).astype(np.float32) for n in range(4)]
    on_gpu = [cupy.asarray(layer) for layer in layers]
    outs = []
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for layer in on_gpu:
            scores[...] = layer
            mask.rebuild()
            outs.append(attention(q, k, v, mask))
        stream.synchronize()
    for layer, out in zip(layers, outs, strict=True):
        dense = kept_blocks(layer, 2, 64, (SQ, SK))
        exact = reference.attention(*arrays, dense)
        assert_close(out, exact, reference.attention(*arrays, dense, precision="float16"))


def test_two_streams_at_once() -> None:
    """Each with a mask and contents of its own; nothing is shared between them."""
    import cupy

    arrays = inputs()
    q, k, v = (cupy.asarray(x) for x in arrays)
    contents = [[random_dense((2, 6)), ~random_dense((2, 6))], [random_dense((6,))] * 2]
    on_gpu = [[cupy.asarray(x) for x in each] for each in contents]
    room = BATCH * HEADS * 12
    current = [cupy.zeros(each[0].shape, bool) for each in contents]
    built = [masks.dense(x).to("cuda", tiles=room, bitmaps=room) for x in current]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    outs: list[list[Any]] = [[], []]
    cupy.cuda.Device().synchronize()
    for turn in range(20):
        for which, stream in enumerate(streams):
            with stream:
                current[which][...] = on_gpu[which][turn % 2]
                built[which].rebuild()
                outs[which].append(attention(q, k, v, built[which]))
    for stream in streams:
        stream.synchronize()
    for which, each in enumerate(contents):
        for turn, dense in enumerate(each):
            exact = reference.attention(*arrays, dense)
            low = reference.attention(*arrays, dense, precision="float16")
            for out in outs[which][turn::2]:
                assert_close(out, exact, low)


def test_a_mask_of_another_stream_is_waited_for_by_its_event() -> None:
    """Built on one stream and read on another after an event, as any array is."""
    import cupy

    dense, arrays = random_dense((2, 6)), inputs()
    on_gpu = cupy.asarray(dense)
    q, k, v = (cupy.asarray(x) for x in arrays)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        mask = masks.dense(on_gpu).to("cuda", tiles=144, bitmaps=144)
        built = stream.record()
    with cupy.cuda.Stream(non_blocking=True) as other:
        other.wait_event(built)
        out = attention(q, k, v, mask)
        other.synchronize()
    low = reference.attention(*arrays, dense, precision="float16")
    assert_close(out, reference.attention(*arrays, dense), low)


def test_a_mask_serves_many_shapes_of_the_others() -> None:
    """Batch, heads, head dim and type are not the mask's: one build is enough."""
    mask = masks.causal(SQ, SK, align="bottom-right").to("cuda")
    dense = masks.causal(SQ, SK, align="bottom-right").toarray()
    for dtype in DTYPES:
        for dim, kv_heads in ((16, 1), (64, 6), (128, 2)):
            check(inputs(dtype, dim, kv_heads), mask, dense)


BAD: dict[str, tuple[type[Exception], str, Callable[[Any], Any]]] = {
    "built for other keys": (
        ShapeError,
        r"mask: got \(130, 201\), expected \(130, 200\)",
        lambda xp: masks.full(SQ, SK + 1).to("cuda"),
    ),
    "pattern for other queries": (
        ShapeError,
        r"mask: got .*131, 200\), expected .*130, 200\)",
        lambda xp: masks.key_padding(xp.ones(SK, bool), SQ + 1),
    ),
    "dense, transposed": (
        ShapeError,
        r"mask: got .*200, 130\), expected .*130, 200\)",
        lambda xp: xp.ones((SK, SQ), bool),
    ),
    "other batches": (
        ShapeError,
        r"mask: got \(3, 6, 130, 200\), expected \(2, 6, 130, 200\)",
        lambda xp: masks.dense(xp.ones((3, 6, SQ, SK), bool)).to("cuda"),
    ),
    "batches without an axis of heads": (
        ShapeError,
        r"mask: got \(2, 130, 200\), expected \(2, 6, 130, 200\)",
        lambda xp: masks.dense(xp.ones((2, SQ, SK), bool)).to("cuda"),
    ),
    "dense, for the heads of keys": (
        ShapeError,
        r"mask: got \(2, 2, 130, 200\), expected \(2, 6, 130, 200\)",
        lambda xp: xp.ones((2, 2, SQ, SK), bool),
    ),
    "too many axes": (
        StofError,
        "mask|array",
        lambda xp: xp.ones((1, 2, 6, SQ, SK), bool),
    ),
    "numbers": (MaskError, "mask: got .*float32", lambda xp: xp.ones((SQ, SK), np.float32)),
    "one axis": (StofError, "mask", lambda xp: xp.ones(SK, bool)),
}


@pytest.mark.parametrize("name", BAD)
def test_masks_that_do_not_fit_are_refused_before_anything_runs(name: str) -> None:
    import cupy

    error, match, make = BAD[name]
    q, k, v = (cupy.asarray(x) for x in inputs())
    out = poison(q.shape, q.dtype, cupy)
    with pytest.raises(error, match=match):
        attention(q, k, v, make(cupy), out=out)
    assert cupy.isnan(out).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda xp: masks.full(SQ, SK).to("cuda"),
        lambda xp: masks.key_padding(xp.ones(SK, bool), SQ),
        lambda xp: masks.dense(xp.ones((6, SQ, SK), bool)),
    ],
)
def test_numpy_inputs_under_masks_of_the_gpu(make: Callable[[Any], Any]) -> None:
    import cupy

    arrays = inputs("float16")
    with pytest.raises(StofError):
        attention(*arrays, make(cupy))


def test_masks_on_another_device() -> None:
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    dense, arrays = random_dense((6,)), inputs()
    q, k, v = (cupy.asarray(x) for x in arrays)
    out = poison(q.shape, q.dtype, cupy)
    with cupy.cuda.Device(1):
        mask = masks.dense(cupy.asarray(dense)).to("cuda")
        there = cupy.asarray(dense)
        low = reference.attention(*arrays, dense, precision="float16")
        same = attention(*(cupy.asarray(x) for x in arrays), mask)
        assert same.device.id == 1
        assert_close(same, reference.attention(*arrays, dense), low)
    for wrong in (mask, there, masks.dense(there)):
        with pytest.raises(StofError, match=r"device"):
            attention(q, k, v, wrong, out=out)
    assert cupy.isnan(out).all()


def test_no_batches_and_no_queries() -> None:
    import cupy

    q, k, v = (cupy.asarray(x) for x in inputs())
    mask = masks.full(SQ, SK).to("cuda")
    assert attention(q[:0], k[:0], v[:0], mask).shape == (0, HEADS, SQ, 32)
    none = masks.full(0, SK).to("cuda")
    assert attention(q[:, :, :0], k, v, none).shape == (BATCH, HEADS, 0, 32)
    unseen = masks.full(SQ, 0).to("cuda")
    out, lse = attention(q, k[:, :, :0], v[:, :, :0], unseen, return_lse=True)
    assert not out.any() and cupy.isneginf(lse).all()
