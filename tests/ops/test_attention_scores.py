"""Score modifications: softcap, biases, ALiBi, sinks, beside the float64 oracle."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import RelativeBias, attention, masks
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, StofError
from stof_cupy.ops import reference, relative_bias
from stof_cupy.testing import assert_close, poison, random_array, rng, strided

BATCH, HEADS, SQ, SK = 2, 4, 70, 150


def qkv(
    seed: int = 0,
    *,
    batch: int = BATCH,
    heads: int = HEADS,
    kv_heads: int = 2,
    seq: tuple[int, int] = (SQ, SK),
    dims: tuple[int, int] = (16, 8),
    dtype: str = "float32",
) -> list[Any]:
    g = rng(seed)
    keys = (batch, kv_heads, seq[1])
    shapes = (batch, heads, seq[0], dims[0]), (*keys, dims[0]), (*keys, dims[1])
    return [random_array(g, shape, dtype) for shape in shapes]


def check(q: Any, k: Any, v: Any, mask: Any = None, **how: Any) -> tuple[Any, Any]:
    """Compare output and LSE, written over poison, with the oracle's; return them."""
    out = how.pop("out", poison((*q.shape[:3], v.shape[3]), q.dtype))
    got, lse = attention(q, k, v, mask, return_lse=True, out=out, **how)
    assert got is out
    exact, exact_lse = reference.attention(q, k, v, mask, return_lse=True, **how)
    precision = None if q.dtype == np.float64 else q.dtype.name
    low, low_lse = reference.attention(q, k, v, mask, return_lse=True, precision=precision, **how)
    assert_close(out, exact, low)
    assert_close(lse, exact_lse, low_lse)
    return out, lse


def table(buckets: int = 32, heads: int = HEADS, seed: int = 1) -> np.ndarray:
    return random_array(rng(seed), (buckets, heads))


FEATURES: dict[str, dict[str, Any]] = {
    "softcap": {"softcap": 3.0},
    "bias": {"bias": random_array(rng(2), (BATCH, HEADS, SQ, SK))},
    "half-bias": {"bias": random_array(rng(2), (HEADS, 1, SK), "float16")},
    "alibi": {"alibi": np.float32([0.5, 0.25, 0.0625, -0.1])},
    "sinks": {"sinks": np.float32([-1, 0, 9, -np.inf])},
    "t5": {"bias": RelativeBias(table(), bidirectional=True)},
    "t5-decoder": {"bias": RelativeBias(table(16), bidirectional=False, max_distance=40)},
}
FEATURES["all"] = {
    name: value
    for feature in ("softcap", "bias", "alibi", "sinks")
    for name, value in FEATURES[feature].items()
}

MASKS = {
    "none": None,
    "window": masks.sliding_window(SQ, SK, window=20, align="bottom-right"),
    "causal": masks.causal(SQ, SK, align="top-left"),
    "scattered": rng(3).random((SQ, SK)) < 0.03,
    "per-head": rng(4).random((BATCH, HEADS, SQ, SK)) < rng(5).choice([0, 0.1, 1], (2, 4, 1, 1)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_with_every_mask(feature: str, mask: str, dtype: str) -> None:
    check(*qkv(dtype=dtype), MASKS[mask], **FEATURES[feature])


@pytest.mark.parametrize("feature", FEATURES)
def test_lengths_cut_keys_and_move_no_position(feature: str) -> None:
    how = FEATURES[feature]
    check(*qkv(), MASKS["window"], kv_lengths=np.array([0, 99]), **how)
    arrays = qkv()
    keep = np.arange(SK) < np.array([120, 99])[:, None, None, None]
    keep = np.broadcast_to(keep, (BATCH, 1, SQ, SK))
    exact, low = (
        reference.attention(*arrays, keep, precision=precision, **how)
        for precision in (None, "float32")
    )
    assert_close(attention(*arrays, kv_lengths=np.array([120, 99]), **how), exact, low)
    assert_close(attention(*arrays, keep, **how), exact, low)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("layout", ["rows", "slice", "reversed", "transposed"])
def test_strides_and_runs_change_no_bit(feature: str, layout: str) -> None:
    arrays, how = qkv(), FEATURES[feature]
    first = attention(*arrays, MASKS["scattered"], **how)
    views = [strided(x)[layout] for x in arrays]
    if isinstance(how.get("bias"), np.ndarray):
        how = {**how, "bias": strided(how["bias"])[layout]}
    for _ in range(2):
        np.testing.assert_array_equal(attention(*views, MASKS["scattered"], **how), first)


@pytest.mark.parametrize(
    "shape", [(), (1,), (SK,), (SQ, 1), (1, SK), (HEADS, 1, 1), (BATCH, 1, SQ, SK), (1, 1, 1, 1)]
)
def test_a_bias_broadcasts(shape: tuple[int, ...]) -> None:
    check(*qkv(), MASKS["scattered"], bias=np.asarray(random_array(rng(6), shape)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("lowest", [False, True])
def test_t1_an_additive_mask_masks(dtype: str, lowest: bool) -> None:
    """-inf or the type's lowest number: a row of it is empty, and what it masks never leaks."""
    q, k, v = qkv(batch=1, heads=2, seq=(6, 10), dims=(8, 8), dtype=dtype)
    keep = np.tri(6, 10, dtype=bool)
    keep[5] = False
    kind = as_dtype(dtype) if dtype != "float64" else np.dtype(dtype)
    low = np.nextafter(np.array(-np.inf, kind), np.zeros((), kind)) if lowest else -np.inf
    bias = np.where(keep, np.zeros((), kind), np.array(low, kind))
    assert bias.dtype == kind
    out, lse = check(q, k, v, bias=bias)
    assert not out[:, :, 5].any() and np.isneginf(lse[:, :, 5]).all()
    np.testing.assert_array_equal(out, attention(q, k, v, keep))
    k[:, :, 9], v[:, :, 8] = np.nan, np.inf
    np.testing.assert_array_equal(attention(q, k, v, bias=bias), out)


def test_a_row_without_keys_gives_its_sink_as_lse() -> None:
    sinks = np.float32([-2, 0, 3, -np.inf])
    out, lse = check(*qkv(), np.zeros((SQ, SK), bool), sinks=sinks)
    assert not out.any()
    np.testing.assert_array_equal(lse, np.broadcast_to(sinks[:, None], lse.shape))


def test_a_sink_is_a_key_whose_value_is_zero() -> None:
    q, k, v = qkv(heads=1, kv_heads=1)
    longer = [np.concatenate([x[:, :, :1] * 0, x], axis=2) for x in (k, v)]
    bias = np.zeros((SQ, SK + 1), np.float32)
    bias[:, 0] = 1.5
    got = attention(q, k, v, sinks=np.float32([1.5]), return_lse=True)
    for one, other in zip(got, attention(q, *longer, bias=bias, return_lse=True), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_alibi_by_hand() -> None:
    """Equal products: only the distance to the key at the query's own place counts."""
    q, k = np.zeros((1, 2, 2, 4), np.float32), np.zeros((1, 2, 3, 4), np.float32)
    slopes = np.float32([1, 0.5])
    _, lse = attention(q, k, k, alibi=slopes, return_lse=True)
    for h, i in np.ndindex(2, 2):
        away = np.array([abs(i + 1 - j) for j in range(3)])
        assert lse[0, h, i] == pytest.approx(np.log(np.sum(np.exp(-slopes[h] * away))), rel=1e-6)


def test_softcap_by_hand() -> None:
    q, k = np.float32([[[[100.0]]]]), np.float32([[[[1.0], [-1.0]]]])
    _, lse = attention(q, k, k, scale=1.0, softcap=2.0, return_lse=True)
    assert lse.item() == pytest.approx(np.log(np.exp(2.0) + np.exp(-2.0)), rel=1e-6)


def test_a_cap_that_is_never_reached_changes_little() -> None:
    arrays = qkv()
    np.testing.assert_allclose(attention(*arrays, softcap=1e4), attention(*arrays), atol=1e-5)


def test_a_bias_makes_nothing_of_the_size_of_the_mask() -> None:
    tokens = 16384
    q, k, v = qkv(batch=1, heads=1, kv_heads=1, seq=(tokens, tokens), dims=(8, 8))
    mask = masks.sliding_window(tokens, window=64).tobsr()
    how = {"alibi": np.float32([0.1]), "bias": RelativeBias(table(heads=1), bidirectional=True)}
    tracemalloc.start()
    attention(q, k, v, mask, **how)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < tokens * tokens / 32


def test_t10_calls_leave_nothing_behind() -> None:
    """A mask, then causal, then none."""
    arrays = qkv(seq=(SQ, SQ))
    first = attention(*arrays)
    for mask in (rng(0).random((SQ, SQ)) < 0.1, masks.causal(SQ)):
        check(*arrays, mask, softcap=5.0)
    np.testing.assert_array_equal(attention(*arrays), first)


def test_t24_masks_of_more_than_two_to_the_31_elements() -> None:
    heads, tokens = (8, 28), 4096
    g = rng(24)
    two = [masks.sliding_window(tokens, window=3), masks.causal(tokens)[:, :] & ~masks.full(tokens)]
    numbers = np.zeros(heads, np.int32)
    numbers[:, ::5] = 1
    stacked = masks.MaskStack([each.tobsr() for each in two], numbers)
    assert np.prod(stacked.shape, dtype=np.int64) > 2**31
    q, k, v = (random_array(g, (*heads, tokens, 2)) for _ in range(3))
    out = attention(q, k, v, stacked)
    assert not out[:, ::5].any()
    last = attention(q[-1:, -2:], k[-1:, -2:], v[-1:, -2:], two[0])
    np.testing.assert_allclose(out[-1:, -2:], last, atol=1e-6)


# ---------------------------------------------------------------- fuzz


@st.composite
def problems(draw: Any) -> dict[str, Any]:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return {
        "seed": draw(st.integers(0, 2**32 - 1)),
        "batch": draw(st.integers(1, 2)),
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "seq": (draw(st.integers(1, 150)), draw(st.integers(1, 200))),
        "dims": (draw(st.integers(1, 40)), draw(st.integers(1, 40))),
        "dtype": draw(st.sampled_from(["float16", "bfloat16", "float32", "float64"])),
        "density": draw(st.sampled_from([None, 0, 0.01, 0.3, 0.9, 1])),
        "lead": draw(st.sampled_from(["none", "heads", "batch", "both"])),
        "layout": draw(st.sampled_from(["rows", "slice", "reversed", "transposed"])),
        "features": draw(st.sets(st.sampled_from(["softcap", "bias", "t5", "alibi", "sinks"]))),
        "lengths": draw(st.booleans()),
    }


@settings(max_examples=150, deadline=None, derandomize=True)
@given(problems())
def test_any_problem(problem: dict[str, Any]) -> None:
    features, density = problem.pop("features"), problem.pop("density")
    lead, layout, cut = (problem.pop(name) for name in ("lead", "layout", "lengths"))
    g = rng(problem["seed"])
    batch, heads, (sq, sk) = problem["batch"], problem["heads"], problem["seq"]
    leads = {"none": (), "heads": (heads,), "batch": (batch, 1), "both": (batch, heads)}[lead]
    mask = None if density is None else g.random((*leads, sq, sk)) < density
    how: dict[str, Any] = {"kv_lengths": g.integers(0, sk + 1, batch)} if cut else {}
    if "softcap" in features:
        how["softcap"] = float(10 ** g.uniform(-0.3, 12))
    if "bias" in features:
        shape = tuple(n if g.random() < 0.7 else 1 for n in (batch, heads, sq, sk))
        how["bias"] = random_array(g, shape)
        how["bias"][g.random(shape) < 0.1] = -np.inf
    elif "t5" in features:
        both = bool(g.random() < 0.5)
        how["bias"] = RelativeBias(table(8, heads), bidirectional=both, max_distance=20)
    if "alibi" in features:
        how["alibi"] = np.exp2(-g.uniform(1, 8, heads)).astype(np.float32)
    if "sinks" in features:
        how["sinks"] = g.normal(size=heads).astype(np.float32)
    check(*(strided(x)[layout] for x in qkv(**problem)), mask, **how)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"softcap": 0.0}, ArgumentError, "softcap: got 0.0, expected a positive number"),
        ({"softcap": -1}, ArgumentError, "softcap"),
        ({"softcap": float("nan")}, ArgumentError, "softcap"),
        ({"softcap": "30"}, ArgumentError, "softcap"),
        ({"softcap": 1e-40}, ArgumentError, "softcap"),
        ({"softcap": 1e39}, ArgumentError, "softcap"),
        ({"softcap": 1e20}, ArgumentError, r"softcap: got 1e\+20, expected .* up to 2\*\*64"),
        ({"softcap": True}, ArgumentError, "softcap: got True"),
        ({"scale": np.float16("inf")}, ArgumentError, "scale: got inf"),
        ({"scale": "1"}, ArgumentError, "scale: got '1', expected a real number"),
        ({"scale": 1j}, ArgumentError, "scale"),
        ({"select": np.ones(2)}, ArgumentError, "select"),
        ({"return_lse": "no"}, ArgumentError, "return_lse: got 'no', expected True or False"),
        ({"explain": None}, ArgumentError, "explain"),
        ({"alibi": np.ones(HEADS)}, DTypeError, "alibi: got float64, expected float32"),
        ({"alibi": [1, 2, 3, 4]}, DTypeError, "alibi: got list"),
        ({"alibi": np.ones(2, np.float32)}, ShapeError, r"alibi: got \(2,\), expected \(4,\)"),
        ({"sinks": np.ones(HEADS, np.float16)}, DTypeError, "sinks: got float16"),
        ({"sinks": np.ones((1, HEADS), np.float32)}, ShapeError, r"sinks: got \(1, 4\)"),
        ({"bias": np.ones((SQ, SK), bool)}, DTypeError, "bias: got bool.*mask="),
        ({"bias": np.ones((SQ, SK), np.int32)}, DTypeError, "bias: got int32"),
        ({"bias": 1.0}, DTypeError, "bias: got float"),
        ({"bias": np.ones((SK, SQ), np.float32)}, ShapeError, r"\(150, 70\).*\(2, 4, 70, 150\)"),
        ({"bias": np.ones((1,) * 5, np.float32)}, ShapeError, "bias"),
        ({"bias": np.ones((3, 1, 1, 1), np.float32)}, ShapeError, "bias"),
        (
            {"bias": RelativeBias(table(heads=3), bidirectional=True)},
            ShapeError,
            "bias: got 3 heads, expected q's 4",
        ),
    ],
)
def test_bad_arguments_leave_out_alone(change: Any, error: type[StofError], text: str) -> None:
    out = poison((BATCH, HEADS, SQ, 8), np.float32)
    with pytest.raises(error, match=text):
        attention(*qkv(), out=out, **change)
    assert np.isnan(out).all()


@pytest.mark.parametrize("missing", ["q", "k", "v"])
def test_none_is_no_array(missing: str) -> None:
    given = dict(zip("qkv", qkv(), strict=True)) | {missing: None}
    with pytest.raises(DTypeError, match=f"{missing}: got None, expected a NumPy or CuPy array"):
        attention(**given)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, as_dtype("bfloat16").type])
def test_numbers_of_any_type(dtype: Any) -> None:
    expected = attention(*qkv(), scale=0.5, softcap=2.0)
    got = attention(*qkv(), scale=dtype(0.5), softcap=dtype(2.0))
    assert np.array_equal(got, expected)


def test_out_must_not_overlap_a_bias() -> None:
    bias = np.zeros((BATCH, HEADS, SQ, SK), np.float32)
    with pytest.raises(ArgumentError, match="possibly shared with bias"):
        attention(*qkv(), bias=bias, out=bias[..., :8])


@pytest.mark.parametrize(
    ("mask", "shapes"),
    [((10, 15), "20"), ((20, 10), "20"), ((10, 21), "20")],
)
def test_t9_a_mask_of_another_shape_names_both(mask: tuple[int, int], shapes: str) -> None:
    q, k, v = qkv(batch=1, heads=8, kv_heads=4, seq=(10, 20), dims=(128, 128))
    with pytest.raises(ShapeError, match=rf"\({mask[0]}, {mask[1]}\).*\(10, {shapes}\)"):
        attention(q, k, v, np.ones(mask, bool))


def test_t11_a_mask_for_more_keys_than_there_are() -> None:
    q, k, v = qkv(batch=2, heads=1, kv_heads=1, seq=(2, 2), dims=(16, 16))
    with pytest.raises(ShapeError, match=r"\(128, 256\).*\(2, 2\)"):
        attention(q, k, v, np.ones((128, 256), bool))


def test_few_arrays_on_a_device_serve_all_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay, because recorded runs read them; so there must not be one a length."""

    class Placed(np.ndarray[Any, Any]):
        device = SimpleNamespace(id=0)

    made: dict[int, Any] = {}

    def uploaded(reach: int, *how: Any) -> Any:
        return made.setdefault(
            reach, relative_bias._buckets(np.arange(-reach, reach + 1), *how[:3])
        )

    host = RelativeBias(table(16), bidirectional=False, max_distance=100)
    placed = RelativeBias(table(16).view(Placed), bidirectional=False, max_distance=100)
    expected = [host.by_distance(reach) for reach in range(150)]
    monkeypatch.setattr(relative_bias, "is_cupy", lambda x: True)
    monkeypatch.setattr(relative_bias, "_uploaded", uploaded)
    for reach, each in enumerate(expected):
        np.testing.assert_array_equal(placed.by_distance(reach), each)
    assert len(made) == 8


# ---------------------------------------------------------------- on a GPU


def uploaded(how: dict[str, Any]) -> dict[str, Any]:
    import cupy

    def upload(x: Any) -> Any:
        if isinstance(x, RelativeBias):
            return RelativeBias(
                cupy.asarray(x.table), bidirectional=x.bidirectional, max_distance=x.max_distance
            )
        return cupy.asarray(x) if isinstance(x, np.ndarray) else x

    return {name: upload(x) for name, x in how.items()}


def check_on_gpu(arrays: list[Any], mask: Any = None, **how: Any) -> Any:
    """Compare the kernels' output and LSE, written over poison, with the oracle's."""
    import cupy

    q, k, v = map(cupy.asarray, arrays)
    out = poison((*q.shape[:3], v.shape[3]), q.dtype, cupy)
    got, lse = attention(q, k, v, mask, return_lse=True, out=out, **uploaded(how))
    assert got is out
    exact, exact_lse = reference.attention(*arrays, mask, return_lse=True, **how)
    assert_close(out, exact, reference.attention(*arrays, mask, precision=q.dtype.name, **how))
    np.testing.assert_allclose(lse.get(), exact_lse, rtol=4e-6, atol=4e-5)
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("feature", FEATURES)
def test_the_kernels_have_every_feature(feature: str, mask: str, dtype: str) -> None:
    check_on_gpu(qkv(dtype=dtype), MASKS[mask], **FEATURES[feature])


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [32, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("feature", FEATURES)
def test_the_kernels_have_every_feature_at_every_head_dim(feature: str, dim: int) -> None:
    arrays = qkv(dims=(dim, dim), dtype="float16")
    check_on_gpu(arrays, MASKS["per-head"], **FEATURES[feature])
    check_on_gpu(arrays, kv_lengths=np.array([0, 99]), **FEATURES[feature])


@pytest.mark.gpu
@pytest.mark.parametrize("queries", [1, 3, 16, 64])
@pytest.mark.parametrize("feature", FEATURES)
def test_decoding_with_every_feature(feature: str, queries: int) -> None:
    """Heads packed in one tile, and lists of keys in slices."""
    how = dict(FEATURES[feature])
    if isinstance(how.get("bias"), np.ndarray):
        how["bias"] = random_array(rng(2), (HEADS, queries, 1500), "float16")
    arrays = qkv(seq=(queries, 1500), dtype="float16")
    check_on_gpu(arrays, **how)
    check_on_gpu(arrays, rng(4).random((BATCH, 1, queries, 1500)) < 0.3, **how)
    check_on_gpu(arrays, rng(4).random((BATCH, HEADS, queries, 1500)) < 0.3, **how)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["rows", "slice", "reversed", "transposed"])
def test_a_bias_of_any_type_and_stride_on_a_gpu(dtype: str, layout: str) -> None:
    import cupy

    arrays = qkv(dtype="float16")
    bias = random_array(rng(9), (BATCH, HEADS, SQ, SK), dtype)
    bias[:, :, :, 5] = -np.inf
    q, k, v = map(cupy.asarray, arrays)
    first = check_on_gpu(arrays, MASKS["scattered"], bias=bias)
    view = strided(cupy.asarray(bias))[layout]
    got = attention(q, k, v, MASKS["scattered"], bias=view)
    np.testing.assert_array_equal(got.view("u2").get(), first.view("u2").get())
    for shape in ((), (SK,), (SQ, 1), (1, SK), (HEADS, 1, 1), (BATCH, 1, SQ, SK)):
        check_on_gpu(arrays, bias=np.asarray(random_array(rng(6), shape, dtype)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("lowest", [False, True])
def test_t1_an_additive_mask_masks_on_a_gpu(dtype: str, lowest: bool) -> None:
    arrays = qkv(batch=1, heads=2, seq=(6, 10), dims=(8, 8), dtype=dtype)
    keep = np.tri(6, 10, dtype=bool)
    keep[5] = False
    kind = as_dtype(dtype)
    low = np.nextafter(np.array(-np.inf, kind), np.zeros((), kind)) if lowest else -np.inf
    bias = np.where(keep, np.zeros((), kind), np.array(low, kind))
    out = check_on_gpu(arrays, bias=bias)
    arrays[1][:, :, 9], arrays[2][:, :, 8] = np.nan, np.inf
    again = check_on_gpu(arrays, bias=bias)
    np.testing.assert_array_equal(out.view("u2").get(), again.view("u2").get())


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1000, 8200])
def test_sequences_packed_with_biases_by_distance_on_a_gpu(tokens: int) -> None:
    import cupy

    from stof_cupy import attention_varlen

    lens = [tokens // 3, 0, 1, tokens - tokens // 3 - 1]
    q, k, v = (x[0].swapaxes(0, 1) for x in qkv(batch=1, seq=(tokens, tokens), dtype="float16"))
    for name in ("alibi", "t5"):
        how = FEATURES[name]
        got = attention_varlen(*map(cupy.asarray, (q, k, v)), lens, causal=True, **uploaded(how))
        want = attention_varlen(
            *(x.astype(np.float32) for x in (q, k, v)), lens, causal=True, **how
        )
        np.testing.assert_allclose(got.get().astype(np.float32), want, atol=4e-3)


@pytest.mark.gpu
def test_arrays_of_numpy_beside_cupy_are_refused() -> None:
    import cupy

    q, k, v = map(cupy.asarray, qkv(dtype="float16"))
    out = poison((BATCH, HEADS, SQ, 8), q.dtype, cupy)
    with pytest.raises(DTypeError, match="alibi: got numpy array, expected cuda array like q"):
        attention(q, k, v, alibi=np.ones(HEADS, np.float32), out=out)
    assert cupy.isnan(out).all()
