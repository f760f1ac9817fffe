"""The attention kernels compiled for the CPU, beside the oracle: no GPU needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from stof_cupy import RelativeBias, masks
from stof_cupy.jit.attention_kernels import SHAPES, Shape
from stof_cupy.ops import attention_cuda, reference
from stof_cupy.ops.attention_args import Scores, validate
from stof_cupy.ops.attention_config import Config
from stof_cupy.ops.attention_cuda import launches
from stof_cupy.ops.attention_fields import Args, kind_of
from stof_cupy.testing import assert_close, poison, random_array, rng, strided
from tests.masks import on_host


def config_of(problem: Any, scores: Scores, shape: Shape, mask: Any, **how: Any) -> Config:
    """Return the config of a shape: `choose` would take the fastest."""
    dim = min(d for d in SHAPES if d >= max(problem.dim_qk, problem.dim_v))
    rows = max(64, shape.rows) if mask is not None else shape.rows
    rows = 64 if how.get("pack", 1) > 1 else rows
    return Config(dim, shape, kind_of(scores), mask_rows=rows, **how)


def check(
    arrays: Any, mask: Any, shape: Shape, *, pack: int = 1, cut: Any = None, **args: Any
) -> int:
    """Run the kernels into poisoned memory; compare output and LSE with the oracle.

    Returned is how many products of mma.sync they made.
    """
    q, k, v = arrays
    out = poison((*q.shape[:3], v.shape[3]), q.dtype)
    lse = poison(q.shape[:3], np.float32)
    lengths, positions = args.pop("kv_lengths", None), args.pop("positions", None)
    terms = Scores(**args, positions=positions)
    _, problem, bsr, scores = validate(q, k, v, mask, terms, lengths, out)
    problem = replace(problem, dtype=q.dtype.name)
    config = config_of(problem, scores, shape, bsr, pack=pack)
    if cut is not None:
        slots = config.slots(problem)
        config = replace(config, long_slots=min(cut[0], slots), splits=cut[1], slice=cut[2])
    with mock.patch.object(attention_cuda, "_AT_ONCE", 100 if q.shape[0] == 1 else 0):
        every, _used = launches(config, Args(problem, q, k, v, out, lse, bsr, scores, lengths))
    products = sum(on_host.launch(spec, (blocks, 1), **fields) for spec, blocks, fields in every)
    args |= {"kv_lengths": lengths, "return_lse": True}
    if positions is not None:
        args["bias"] = args["bias"].toarray(problem.seq_q, problem.seq_k, positions[0])
    dense = mask.toarray() if hasattr(mask, "toarray") else mask
    exact, exact_lse = reference.attention(q, k, v, dense, **args)
    low, _ = reference.attention(q, k, v, dense, **args, precision=q.dtype.name)
    assert_close(out, exact, low)
    np.testing.assert_allclose(lse, exact_lse, rtol=2e-6, atol=2e-5)
    assert not out[np.isneginf(exact_lse)].astype(np.float32).any()
    return products


def inputs(
    seed: int = 0,
    heads: int = 2,
    kv_heads: int = 1,
    seq: tuple[int, int] = (70, 200),
    dims: tuple[int, int] = (64, 64),
    dtype: str = "float16",
    batch: int = 1,
) -> list[Any]:
    g = rng(seed)
    keys = (batch, kv_heads, seq[1])
    shapes = (batch, heads, seq[0], dims[0]), (*keys, dims[0]), (*keys, dims[1])
    return [random_array(g, shape, dtype) for shape in shapes]


SCATTERED = rng(3).random((70, 200)) < 0.4
SCATTERED[5:9] = False
SCATTERED[:, 64:128] = True


SMALL = Shape(2, 16, 2, True, 1)
"""A shape that is quick to compile and to run here."""

WIDE = Shape(2, 32, 1, False, 1)
"""Two fragments a warp, one stage, Q in shared memory: what SMALL is not."""

GROUPS = Shape(1, 16, 2, True, 1, groups=2)
THREE_GROUPS = Shape(2, 16, 1, False, 1, groups=3)
"""Groups of warps that share key tiles."""


@pytest.mark.parametrize(
    "shape", [SMALL, WIDE, Shape(1, 16, 2, False, 1), GROUPS, THREE_GROUPS], ids=lambda s: s.name
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_mask_with_every_kind_of_tile(shape: Shape, dtype: str) -> None:
    check(inputs(heads=1, dims=(32, 32), dtype=dtype), SCATTERED, shape)
    check(inputs(heads=1, dims=(32, 32), dtype=dtype), None, shape)


FIRST = np.arange(32) * 7 % 6 * 64
"""Of each row the first key of a mask, in one of six tiles."""

LATE = rng(7).random((32, 640)) < 0.1
LATE[:, ::64] = True  # all tiles keep some key of every row
LATE[:, 5] = False  # and are part tiles
LATE &= np.arange(640) >= FIRST[:, None]


@pytest.mark.parametrize("shape", [SMALL, WIDE, GROUPS, THREE_GROUPS], ids=lambda s: s.name)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_that_begin_late_take_no_tile_twice(shape: Shape, dtype: str) -> None:
    arrays = inputs(heads=1, seq=(32, 640), dims=(32, 32), dtype=dtype)
    both = 2 * 16  # products of a fragment of rows with a tile: those of Q and K, of P and V
    fragments = shape.rows // 16
    assert check(arrays, LATE, shape) == -(-2 // fragments) * fragments * both * 10


@pytest.mark.parametrize("first", [0, 4, 9])
def test_rows_that_begin_late_or_never_take_no_tile_twice(first: int) -> None:
    """A row of the first warp begins late, one of the second never."""
    arrays = inputs(heads=1, seq=(32, 640), dims=(32, 32))
    mask = np.zeros((32, 640), bool)
    mask[:, ::64] = True
    mask[3, : first * 64] = mask[20] = False
    assert check(arrays, mask, SMALL) == 2 * 10 * 2 * 16


def test_padded_and_unequal_head_dims_of_any_stride() -> None:
    for dims, layout in (((31, 24), "rows"), ((8, 32), "slice"), ((32, 1), "transposed")):
        arrays = [strided(x)[layout] for x in inputs(dims=dims)]
        check(arrays, SCATTERED, SMALL)
        check(arrays, None, WIDE)


@pytest.mark.parametrize("shape", [SMALL, WIDE, THREE_GROUPS], ids=lambda s: s.name)
def test_lengths_and_masks_of_each_head(shape: Shape) -> None:
    arrays = inputs(heads=4, kv_heads=2, batch=3, dims=(32, 32))
    g = rng(1)
    mask = g.random((3, 4, 70, 200)) < g.choice([0.05, 0.5, 1.1], (3, 4, 1, 1))
    mask[:, 1] = False
    check(arrays, mask, shape, kv_lengths=np.array([0, 130, 200]))
    check(arrays, None, shape, kv_lengths=np.array([64, 1, 199]), scale=-0.3)


FEATURES: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 3.0, "scale": -0.2},
    "bias": {"bias": random_array(rng(2), (2, 70, 200), "float16")},
    "alibi": {"alibi": np.float32([0.5, -0.1]), "sinks": np.float32([1, -np.inf])},
    "t5": {"bias": RelativeBias(random_array(rng(4), (8, 2)), bidirectional=True, max_distance=9)},
    "all": {
        "bias": np.where(rng(5).random((1, 1, 70, 200)) < 0.3, -np.inf, 0.5).astype(np.float32),
        "softcap": 2.0,
        "alibi": np.float32([0.5, 0.1]),
        "sinks": np.float32([3, 0]),
    },
}


@pytest.mark.parametrize("feature", FEATURES)
def test_score_modifications(feature: str) -> None:
    arrays = inputs(dims=(32, 32))
    check(arrays, SCATTERED, SMALL, **FEATURES[feature])
    if feature in ("bias", "all"):
        arrays[2][:, :, 3] = np.nan  # masked by the mask and the bias
        mask = SCATTERED.copy()
        mask[:, 3] = False
        check(arrays, mask, SMALL, **FEATURES[feature])


@pytest.mark.parametrize("at", [0, 40, 199])
@pytest.mark.parametrize("cut", [None, (2, 3, 2)], ids=str)
def test_a_query_that_stands_within_its_keys(at: int, cut: Any) -> None:
    """A token of T5's decoder: its cache has room for more keys than there are."""
    bias = RelativeBias(random_array(rng(4), (8, 2)), bidirectional=False, max_distance=50)
    arrays = inputs(kv_heads=2, seq=(1, 200), dims=(32, 32), batch=2, dtype="bfloat16")
    stands = np.int32([at]), np.arange(200, dtype=np.int32)
    lengths = np.full(2, at + 1, np.int32)
    how: dict[str, Any] = {"bias": bias, "positions": stands, "kv_lengths": lengths, "scale": 1.0}
    check(arrays, None, Shape(1, 16, 2, True, 1), cut=cut, **how)


@pytest.mark.parametrize("shape", [SMALL, WIDE, THREE_GROUPS], ids=lambda s: s.name)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_a_masked_key_holds_stays_there(shape: Shape, dtype: str) -> None:
    q, k, v = inputs(heads=2, kv_heads=2, dims=(32, 32), dtype=dtype)
    mask = SCATTERED.copy()
    mask[:, [3, 77]] = False
    mask[:50, 140] = False
    k[:, :, 3], v[:, :, 77] = np.nan, np.inf
    v[:, 0, 140, ::3], v[:, 1, 140, 1::3] = np.nan, -np.inf
    check((q, k, v), mask, shape)


CUTS = [(3, 2, 1), (1, 4, 1), (2, 7, 2)]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_slices(cut: tuple[int, int, int]) -> None:
    arrays = inputs(batch=2, dims=(32, 32))
    check(arrays, SCATTERED, SMALL, cut=cut, sinks=np.float32([1, -np.inf]))
    check(arrays, None, SMALL, cut=cut, kv_lengths=np.array([0, 130]))


@pytest.mark.parametrize("queries", [1, 5, 16])
@pytest.mark.parametrize("cut", [None, (9, 3, 1)], ids=str)
def test_heads_packed_together(queries: int, cut: Any) -> None:
    g = rng(queries)
    arrays = inputs(heads=6, kv_heads=2, seq=(queries, 200), dims=(32, 32), batch=2)
    few = Shape(1, 16, 2, True, 1)
    check(arrays, None, few, pack=3, cut=cut, sinks=g.normal(size=6).astype(np.float32))
    mask = g.random((2, 1, queries, 200)) < 0.3
    check(arrays, mask, few, pack=3, cut=cut)
    if queries == 5:
        bias = random_array(g, (6, queries, 200))
        check(arrays, mask, few, pack=3, cut=cut, bias=bias, alibi=np.float32([1, 2, 0, 3, 4, 5]))


@pytest.mark.parametrize("splits", [8, 9, 35, 40])
def test_more_slices_than_a_warp_takes(splits: int) -> None:
    arrays = inputs(heads=4, kv_heads=2, seq=(2, 2400), dims=(24, 31), batch=2)
    few = Shape(1, 16, 2, True, 1)
    lengths = np.array([2400, 700])
    check(arrays, None, few, pack=2, cut=(1, splits, 1), kv_lengths=lengths)
    mask = rng(splits).random((2, 2400)) < 0.01
    mask[:, 64:1300] = False
    check(arrays, mask, few, pack=2, cut=(1, splits, 1), sinks=np.float32([1, 0, -np.inf, 2]))


def test_many_packed_rows() -> None:
    g = rng(7)
    arrays = inputs(heads=4, kv_heads=1, seq=(40, 130), dims=(32, 32))
    check(arrays, g.random((40, 130)) < 0.5, Shape(4, 32, 2, True, 1), pack=4)


def test_a_mask_of_larger_tiles_serves_smaller_query_tiles() -> None:
    mask = masks.sliding_window(200, window=20)
    check(inputs(seq=(200, 200), dims=(32, 32)), mask, Shape(1, 16, 2, True, 1))
    check(inputs(seq=(200, 200), dims=(32, 32)), mask, Shape(4, 32, 2, True, 1))
