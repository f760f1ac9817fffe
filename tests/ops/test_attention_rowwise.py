"""The row-wise kernel against the dense oracle, compiled for the CPU and on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.masks.keylists import LONG
from stof_cupy.ops import attention_cuda, reference
from stof_cupy.ops import attention_rowwise as rowwise
from stof_cupy.ops.attention_args import Scores, validate
from stof_cupy.ops.attention_candidates import legal
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_fields import Args, common_fields, kind_of
from stof_cupy.ops.attention_rowwise import Config
from stof_cupy.ops.relative_bias import RelativeBias
from stof_cupy.testing import assert_close, poison, random_array, rng, strided
from tests.masks import on_host
from tests.ops.gpus import OnGpu

DTYPES = ("float16", "bfloat16")
WHERE = ("cpu", pytest.param("gpu", marks=pytest.mark.gpu))
H100 = DeviceFacts(
    *("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20, 1980000, 80 << 30)
)


class Overflowed:
    """A mask whose lists were cut off."""

    def __init__(self, mask: Any) -> None:
        self.overflow = np.ones(1, np.int32)
        for name in ("row_ptr", "cols", "bitmap_id", "bitmaps", "order", "mask_of"):
            setattr(self, name, getattr(mask.schedule(), name))

    def schedule(self) -> Any:
        return self


def run(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    where: str = "cpu",
    lists: str = "keys",
    pairs: int = 1,
    rows: int = 4,
    views: tuple[str, ...] = ("", "", "", ""),
    kv_lengths: Any = None,
    overflow: bool = False,
    **scores: Any,
) -> tuple[Any, Any]:
    """Return output and LSE of the kernel, written into poisoned memory."""
    if where == "gpu":
        import cupy as xp

        terms = {
            name: xp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in scores.items()
        }
        if isinstance(bias := scores.get("bias"), RelativeBias):
            terms["bias"] = RelativeBias(
                xp.asarray(bias.table),
                bidirectional=bias.bidirectional,
                max_distance=bias.max_distance,
            )
    else:
        xp, terms = np, scores

    def placed(x: Any, view: str) -> Any:
        return strided(xp.asarray(x))[view] if view else xp.asarray(x)

    out = poison((*q.shape[:3], v.shape[3]), q.dtype, xp)
    q, k, v, out = (placed(x, view) for x, view in zip((q, k, v, out), views, strict=True))
    lengths = None if kv_lengths is None else xp.asarray(kv_lengths)
    _, problem, bsr, complete = validate(q, k, v, mask, Scores(**terms), lengths, out)
    case = Case(problem, bsr, H100, kind_of(complete))
    config = next(c for c in rowwise.configs(case) if (c.pairs, c.block_rows) == (pairs, rows))
    config = replace(config, lists="tiles" if bsr is None else lists)
    assert legal(config, case) == ""
    args = Args(problem, q, k, v, out, None, bsr, complete, lengths)
    if where == "gpu":
        return attention_cuda.run(args, True, candidate=config)
    lse = np.full(q.shape[:3], np.nan, np.float32)
    args = replace(args, lse=lse, mask=Overflowed(bsr) if overflow else bsr)
    ((spec, blocks, fields),), _used = attention_cuda.launches(config, args)
    on_host.launch(spec, (blocks, 1), **fields)
    return out, lse


def check(q: Any, k: Any, v: Any, mask: Any = None, dense: Any = None, **how: Any) -> None:
    out, lse = run(q, k, v, mask, **how)
    names = ("scale", "bias", "alibi", "softcap", "sinks", "kv_lengths")
    args = {name: how[name] for name in names if name in how}
    if dense is None and mask is not None:
        dense = mask.toarray() if hasattr(mask, "toarray") else mask
    exact, exact_lse = reference.attention(q, k, v, dense, **args, return_lse=True)
    low = reference.attention(q, k, v, dense, **args, precision=q.dtype.name)
    assert_close(out, exact, low)
    lse = lse.get() if hasattr(lse, "get") else lse
    np.testing.assert_allclose(lse, exact_lse, rtol=2e-6, atol=2e-5)
    got = np.asarray(out.get() if hasattr(out, "get") else out)
    if "sinks" not in how:
        assert not got.astype(np.float32)[np.isneginf(exact_lse)].any()


def inputs(
    seed: int = 0,
    dtype: str = "float16",
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int = 1,
    sq: int = 70,
    sk: int = 130,
    dim: int = 64,
    dim_v: int | None = None,
) -> tuple[Any, Any, Any]:
    g = rng(seed)
    shapes = (
        (batch, heads, sq, dim),
        (batch, kv_heads, sk, dim),
        (batch, kv_heads, sk, dim_v or dim),
    )
    return tuple(random_array(g, shape, dtype) for shape in shapes)


def draw_mask(seed: int, sq: int, sk: int) -> Any:
    """Every kind of row and tile: sparse, dense, empty, full."""
    g = rng(seed)
    fine = g.random((sq, sk)) < g.choice([0.01, 0.05, 0.3])
    fine |= np.kron(g.random((-(-sq // 64), -(-sk // 64))) < 0.3, np.ones((64, 64), bool))[:sq, :sk]
    fine[g.random(sq) < 0.2] = False
    return fine


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    ("dim", "dim_v", "dtype", "lists"),
    [
        (64, 64, "float16", "keys"),
        (64, 64, "bfloat16", "tiles"),
        (40, 24, "bfloat16", "keys"),
        (100, 128, "float16", "tiles"),
        (31, 5, "float16", "keys"),
        (256, 200, "bfloat16", "keys"),
        (200, 256, "float16", "tiles"),
    ],
)
def test_head_dims(where, dim, dim_v, dtype, lists):
    arrays = inputs(dim, dtype, dim=dim, dim_v=dim_v, sq=20)
    check(*arrays, draw_mask(dim, 20, 130), where=where, lists=lists)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lists", ["keys", "tiles"])
def test_several_rows_a_warp(where, lists):
    check(*inputs(sq=45, sk=130), draw_mask(3, 45, 130), where=where, lists=lists, rows=16)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_thirty_two_keys_at_a_time(where, dim):
    check(*inputs(dim, dim=dim, sq=20), draw_mask(1, 20, 130), where=where, pairs=2)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lists", ["keys", "tiles"])
def test_mask_per_batch_and_head(where, lists):
    q, k, v = inputs(batch=2, heads=4, kv_heads=2, sq=33, sk=90, dim=32)
    dense = np.stack([draw_mask(i, 33, 90) for i in range(8)]).reshape(2, 4, 33, 90)
    for chosen in (dense, dense[:1], dense[:, :1]):
        check(q, k, v, chosen, where=where, lists=lists)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lists", ["keys", "tiles"])
def test_long_rows_are_shared_by_the_warps_of_a_block(where, lists):
    sq, sk = 9, 64 * 17
    dense = rng(3).random((sq, sk)) < 0.02
    dense[1], dense[4, 100:], dense[7] = True, True, False
    mask = masks.BsrMask(dense)
    assert mask.key_lists().long_rows == 2 and dense.sum(1).max() > LONG
    assert mask.schedule().stats.longest > 16
    check(*inputs(sq=sq, sk=sk, dim=32), mask, where=where, lists=lists)


@pytest.mark.parametrize("where", WHERE)
def test_long_rows_of_several_masks(where):
    dense = rng(4).random((1, 2, 6, 400)) < 0.02
    dense[0, 0, 3], dense[0, 1, :4] = True, True
    check(*inputs(sq=6, sk=400, dim=32), dense, where=where)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("sk", [1, 64, 100, 1100])
def test_without_a_mask(where, sk):
    check(*inputs(sq=5, sk=sk, dim=32), where=where)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("view", ["rows", "slice", "reversed", "transposed"])
def test_strides(where, view):
    for dim in (64, 37):
        q, k, v = inputs(dim=dim, sq=12, sk=40)
        for views in ((view, "", view, ""), ("", view, "", view)):
            check(q, k, v, draw_mask(2, 12, 40), where=where, views=views)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lists", ["keys", "tiles"])
def test_lengths(where, lists):
    arrays = inputs(batch=3, sq=20, sk=130, dim=32)
    lengths = np.array([0, 65, 1000], np.int32)
    check(*arrays, draw_mask(5, 20, 130), where=where, lists=lists, kv_lengths=lengths)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lists", ["keys", "tiles"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_keys_are_not_read(where, lists, dtype):
    q, k, v = inputs(6, dtype, sq=40, sk=130, dim=32)
    dense = draw_mask(6, 40, 130)
    dense[:, [3, 77]] = False
    dense[10:, 90] = False
    dense[2, 90] = True
    k[:, :, 3], v[:, :, 77] = np.nan, np.inf
    v[:, :, 90, ::3] = np.nan
    assert np.isnan(reference.attention(q, k, v, dense)).any()
    check(q, k, v, dense, where=where, lists=lists)


MODIFICATIONS: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 1.5},
    "softcap beyond all scores": {"softcap": 1e7},
    "alibi": {"alibi": np.array([0.5, 0.031], np.float32)},
    "sinks": {"sinks": np.array([1.0, -np.inf], np.float32)},
    "encoder": {
        "bias": RelativeBias(
            random_array(rng(1), (8, 2), "float32"), bidirectional=True, max_distance=20
        ),
        "scale": 1.0,
    },
    "decoder": {
        "bias": RelativeBias(
            random_array(rng(1), (32, 2), "float32"), bidirectional=False, max_distance=128
        )
    },
}
for _dtype in ("float16", "bfloat16", "float32", "float64"):
    _bias = random_array(rng(2), (1, 2, 30, 130), "float32").astype(
        random_array(rng(0), (1,), _dtype).dtype if _dtype != "float64" else np.float64
    )
    _bias[..., ::7] = -np.inf
    _bias[..., 5, 3:90] = np.nextafter(np.array(-np.inf, _bias.dtype), np.zeros(1, _bias.dtype))
    MODIFICATIONS[f"bias of {_dtype}"] = {"bias": _bias}
MODIFICATIONS["bias of keys"] = {"bias": random_array(rng(3), (1, 130), "float32")}
MODIFICATIONS["everything"] = {
    **MODIFICATIONS["softcap"],
    **MODIFICATIONS["alibi"],
    **MODIFICATIONS["sinks"],
    **MODIFICATIONS["bias of float16"],
    "scale": 0.3,
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", MODIFICATIONS)
def test_score_modifications(where, name):
    q, k, v = inputs(7, batch=2, sq=30, sk=130, dim=32)
    dense = draw_mask(7, 30, 130)
    check(q, k, v, dense, where=where, **MODIFICATIONS[name])


@pytest.mark.parametrize("where", WHERE)
def test_modifications_of_shared_rows(where):
    q, k, v = inputs(8, sq=4, sk=700, dim=32)
    dense = np.ones((4, 700), bool)
    dense[0] = False
    check(q, k, v, dense, where=where, softcap=2.0, **MODIFICATIONS["sinks"])


@pytest.mark.parametrize("where", WHERE)
def test_what_a_bias_masks_does_not_count(where):
    q, k, v = inputs(9, sq=8, sk=40, dim=32)
    bias = np.zeros((40,), np.float32)
    bias[[3, 4]] = -np.inf, np.finfo(np.float32).min
    k[:, :, 3], v[:, :, 3], v[:, :, 4] = np.nan, np.nan, np.inf
    check(q, k, v, np.ones((8, 40), bool), where=where, bias=bias)


def test_positions():
    """Two packed sequences: distances count within each."""
    q, k, v = inputs(10, sq=12, sk=20, dim=32)
    slopes = np.array([0.5, 0.25], np.float32)
    places = np.r_[np.arange(2, 8), np.arange(1, 7)], np.r_[np.arange(8), np.arange(12)]
    away = places[1] - places[0][:, None]
    bias = -slopes[:, None, None] * abs(away)
    dense = draw_mask(8, 12, 20)
    got, _ = run(q, k, v, dense, alibi=slopes, positions=places)
    exact = reference.attention(q, k, v, dense, bias=bias)
    assert_close(got, exact, reference.attention(q, k, v, dense, bias=bias, precision="float16"))


def test_lists_that_were_cut_off_give_nan():
    q, k, v = inputs(sq=5, sk=70, dim=32)
    out, lse = run(q, k, v, np.ones((5, 70), bool), lists="tiles", overflow=True)
    assert np.isnan(out).all() and np.isnan(lse).all()


@pytest.mark.parametrize("where", WHERE)
def test_runs_are_bit_equal(where):
    arrays = inputs(11, sq=6, sk=700, dim=64)
    dense = draw_mask(11, 6, 700)
    dense[2] = True
    first, _ = run(*arrays, dense, where=where)
    again, _ = run(*arrays, dense, where=where)
    assert first.tobytes() == again.tobytes()


def test_lists_are_read_before_the_wait_if_no_kernel_writes_them():
    q, k, v = inputs(sq=5, sk=70, dim=32)
    _, problem, bsr, scores = validate(q, k, v, np.ones((5, 70), bool), Scores(), None, None)
    built, lengths = OnGpu((1, 1)), np.int32([70])
    for mask, given, early in (
        (None, None, True),
        (bsr, None, True),
        (built, None, False),
        (bsr, lengths, False),
    ):
        args = Args(problem, q, k, v, q, None, mask, scores, given)
        assert common_fields(args, None, [])["early"] is early


def test_what_is_refused():
    q, k, v = inputs()
    _, problem, _, _ = validate(q, k, v, None, Scores(), None, None)
    case = Case(problem, None, H100)
    assert "without a mask" in legal(Config(64), case)
    assert "at most 32" in legal(Config(32, lists="tiles"), case)
    assert "no kernel" in legal(Config(96, lists="tiles"), case)
    assert "one of" in legal(Config(64, lists="tiles", block_rows=8), case)
    assert "at most 128" in legal(Config(256, 2), case)
    many = replace(case, problem=replace(problem, seq_q=2**24, heads=256))
    assert "rows" in legal(Config(64, lists="tiles"), many)
    assert list(rowwise.configs(replace(case, problem=replace(problem, dim_qk=257)))) == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_built_on_the_gpu(dtype):
    pattern = masks.longformer(300, window=20, global_tokens=3)
    check(*inputs(12, dtype, sq=300, sk=300), pattern.to("cuda"), pattern.toarray(),
          where="gpu", lists="tiles")  # fmt: skip
    check(*inputs(12, dtype, sq=300, sk=300), pattern.tobsr().to("cuda"), pattern.toarray(),
          where="gpu")  # fmt: skip


@pytest.mark.gpu
def test_lists_cut_off_on_the_gpu():
    mask = masks.causal(300).to("cuda", tiles=3, bitmaps=1)
    out, lse = run(*inputs(sq=300, sk=300), mask, where="gpu", lists="tiles")
    assert bool((out != out).all()) and bool((lse != lse).all())


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(40))
def test_random_cases(seed):
    g = rng(seed)
    dim, dim_v = (int(g.choice([1, 8, 31, 32, 40, 64, 80, 128, 160, 256])) for _ in "kv")
    sq, sk = (int(g.choice([1, 2, 63, 64, 65, 130, 257, 1100])) for _ in "qk")
    kv_heads, group = (int(g.integers(1, 4)) for _ in "kg")
    batch = int(g.integers(1, 4))
    arrays = inputs(
        seed, DTYPES[seed % 2], batch=batch, heads=kv_heads * group, kv_heads=kv_heads,
        sq=sq, sk=sk, dim=dim, dim_v=dim_v,
    )  # fmt: skip
    how: dict[str, Any] = {
        "lists": str(g.choice(["keys", "tiles"])),
        "rows": int(g.choice([4, 16])),
    }
    if g.random() < 0.3:
        how["kv_lengths"] = g.integers(0, sk + 1, batch).astype(np.int32)
    if g.random() < 0.3:
        how["softcap"] = 5.0
    names = ("", "rows", "slice", "reversed", "transposed")
    views = (*g.choice(names, 3), "")
    check(*arrays, draw_mask(seed, sq, sk), where="gpu", views=views, **how)
