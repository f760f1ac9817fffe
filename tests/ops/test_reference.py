"""The oracle against plain Python: scalars, loops and the math module."""

from __future__ import annotations

import ast
import inspect
import math

import numpy as np
import pytest

from stof_cupy.ops import reference
from stof_cupy.testing import rng


def plain_attention(q, k, v, seen, scale, *, softcap=None, added=None, sink=-math.inf):  # type: ignore[no-untyped-def]
    """Attention of one head, one number at a time; `added` of a query's and a key's number."""
    out, lse = [], []
    for i, query in enumerate(q):
        keys = [j for j in range(len(k)) if seen[i][j]]
        scores = [scale * math.fsum(a * b for a, b in zip(query, k[j], strict=True)) for j in keys]
        if softcap is not None:
            scores = [softcap * math.tanh(score / softcap) for score in scores]
        if added is not None:
            scores = [score + added(i, j) for score, j in zip(scores, keys, strict=True)]
        weights = [math.exp(score) for score in scores]
        total = math.fsum([*weights, math.exp(sink)])
        lse.append(math.log(total) if total else -math.inf)
        out.append(
            [
                math.fsum(w * v[j][d] for w, j in zip(weights, keys, strict=True)) / (total or 1)
                for d in range(len(v[0]))
            ]
        )
    return np.array(out), np.array(lse)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention(scale: float | None) -> None:
    generator = rng(0)
    q = generator.standard_normal((2, 4, 5, 3))
    k, v = generator.standard_normal((2, 2, 7, 3)), generator.standard_normal((2, 2, 7, 2))
    mask = generator.random((5, 7)) < 0.4
    mask[3] = False
    lengths = [7, 4]
    out, lse = reference.attention(q, k, v, mask, scale=scale, kv_lengths=lengths, return_lse=True)
    for b, h in np.ndindex(2, 4):
        seen = mask & (np.arange(7) < lengths[b])
        expected = plain_attention(q[b, h], k[b, h // 2], v[b, h // 2], seen, scale or 3**-0.5)
        np.testing.assert_allclose(out[b, h], expected[0], atol=1e-14)
        np.testing.assert_allclose(lse[b, h], expected[1], atol=1e-14)


def test_attention_with_scores_modified() -> None:
    generator = rng(0)
    q, k, v = generator.standard_normal((3, 1, 2, 5, 3))
    k, v = (np.concatenate([x, x[:, :, :2] + 1], axis=2) for x in (k, v))
    mask = generator.random((5, 7)) < 0.5
    mask[3] = False
    bias = generator.standard_normal((2, 5, 7)).astype(np.float32)
    bias[0, 1, 2], bias[1, 2, 3] = -np.inf, np.finfo(np.float32).min
    slopes, sinks = [0.5, -2.0], [0.3, -1.0]
    how = {"softcap": 0.7, "bias": bias, "alibi": slopes, "sinks": sinks}
    out, lse = reference.attention(q, k, v, mask, scale=0.9, return_lse=True, **how)
    for h in range(2):

        def added(i: int, j: int, h: int = h) -> float:
            return float(bias[h, i, j]) - slopes[h] * abs(i + 2 - j)

        seen = mask & (bias[h] > -1e30)
        one = q[0, h], k[0, h], v[0, h], seen, 0.9
        expected = plain_attention(*one, softcap=0.7, added=added, sink=sinks[h])
        np.testing.assert_allclose(out[0, h], expected[0], atol=1e-14)
        np.testing.assert_allclose(lse[0, h], expected[1], atol=1e-14)
    np.testing.assert_array_equal(lse[0, :, 3], sinks)


def test_attention_takes_a_bias_that_has_toarray() -> None:
    class Bias:
        def toarray(self, seq_q: int, seq_k: int) -> np.ndarray:
            return np.arange(seq_q * seq_k, dtype=float).reshape(seq_q, seq_k)

    q, k, v = rng(3).standard_normal((3, 1, 1, 4, 2))
    got = reference.attention(q, k[:, :, :3], v[:, :, :3], bias=Bias())
    want = reference.attention(q, k[:, :, :3], v[:, :, :3], bias=Bias().toarray(4, 3))
    np.testing.assert_array_equal(got, want)


def test_attention_mask_broadcasts_over_heads_and_batches() -> None:
    generator = rng(1)
    q, k, v = generator.standard_normal((3, 2, 2, 4, 3))
    masks = generator.random((2, 2, 4, 4)) < 0.5
    out = reference.attention(q, k, v, masks)
    for b, h in np.ndindex(2, 2):
        one = reference.attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], masks[b, h])
        np.testing.assert_array_equal(out[b, h], one[0, h])


def test_attention_hides_what_is_masked_and_shows_what_is_not() -> None:
    q, k, v = rng(2).standard_normal((3, 1, 1, 3, 2))
    v[0, 0, 1] = [np.nan, np.inf]
    out = reference.attention(q, k, v, [[1, 0, 1], [1, 1, 1], [0, 1, 0]])[0, 0]
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1:, 0]).all()
    assert np.isposinf(out[1:, 1]).all()
    k[0, 0, 1] = np.nan
    assert np.isfinite(reference.attention(q, k, v, [[1, 0, 1]] * 3)).all()


def test_attention_shows_a_bias_that_is_nan() -> None:
    q, k, v = rng(2).standard_normal((3, 1, 1, 3, 2))
    bias = np.zeros((3, 3))
    bias[1, 0] = bias[2, 1] = np.nan
    out = reference.attention(q, k, v, [[1, 1, 1], [1, 1, 1], [1, 0, 1]], bias=bias)[0, 0]
    assert np.isnan(out[1]).all() and np.isfinite(out[[0, 2]]).all()


def test_attention_accepts_large_scores() -> None:
    x = np.array([[[[1e3], [-1e3]]]])
    np.testing.assert_array_equal(reference.attention(x, x, x, scale=1.0), x)


def test_attention_takes_what_has_toarray() -> None:
    from scipy.sparse import csr_array

    q, k, v = rng(3).standard_normal((3, 1, 1, 4, 2))
    mask = np.tri(4, dtype=bool)
    got = reference.attention(q, k, v, csr_array(mask))
    np.testing.assert_array_equal(got, reference.attention(q, k, v, mask))


@pytest.mark.parametrize("activation", [None, "gelu", "gelu_tanh"])
def test_gemm(activation: str | None) -> None:
    generator = rng(4)
    a, b = generator.standard_normal((2, 3, 4)), generator.standard_normal((4, 5))
    bias, residual = generator.standard_normal(5), generator.standard_normal((2, 3, 5))
    got = reference.gemm(a, b, bias=bias, activation=activation, residual=residual)
    for i, m, n in np.ndindex(2, 3, 5):
        x = math.fsum(a[i, m, c] * b[c, n] for c in range(4)) + bias[n]
        if activation == "gelu":
            x = 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
        elif activation == "gelu_tanh":
            x = 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        assert got[i, m, n] == pytest.approx(x + residual[i, m, n], abs=1e-14)


def test_layer_norm() -> None:
    x, weight, bias = rng(5).standard_normal((3, 6))
    mean = math.fsum(x) / 6
    deviation = math.sqrt(math.fsum((e - mean) ** 2 for e in x) / 6 + 0.1)
    expected = [(e - mean) / deviation * w + b for e, w, b in zip(x, weight, bias, strict=True)]
    np.testing.assert_allclose(reference.layer_norm(x, weight, bias, eps=0.1), expected, atol=1e-14)


def test_embedding() -> None:
    table, positions, types = np.arange(5.0)[:, None], np.array([[10.0], [20]]), [[100.0], [200]]
    got = reference.embedding(
        [[4, 0]], table, position_table=positions, type_table=types, token_types=[[1, 0]]
    )
    assert got.ravel().tolist() == [214, 120]
    untyped = reference.embedding([[4, 0]], table, position_table=positions, type_table=types)
    assert untyped.ravel().tolist() == [114, 120]


@pytest.mark.parametrize(
    ("precision", "digits"), [("float16", 11), ("bfloat16", 8), ("float32", 24)]
)
def test_precision_rounds_inputs_and_output(precision: str, digits: int) -> None:
    ulp = 2.0 ** (1 - digits)
    a_little = 1 + 0.6 * ulp  # rounds to 1 + ulp
    assert reference.add(a_little, 0, precision=precision) == 1 + ulp
    assert reference.add(1, 0.3 * ulp, precision=precision) == 1  # the sum is rounded too
    assert reference.gemm([[a_little]], [[1.0]], precision=precision) == 1 + ulp
    assert reference.gelu(a_little, precision=precision) == pytest.approx(
        float(reference.gelu(1 + ulp)), rel=ulp / 2
    )
    table = [[a_little]]
    assert reference.embedding([[0]], table, precision=precision) == 1 + ulp


def test_precision_rounds_the_softmax_weights() -> None:
    q, k = np.ones((1, 1, 1, 1)), np.array([[[[0.0], [-8.0]]]])
    v = np.array([[[[0.0], [4096.0]]]])
    weight = math.exp(-8)
    got = reference.attention(q, k, v, scale=1.0, precision="bfloat16")[0, 0, 0, 0]
    from ml_dtypes import bfloat16

    rounded = float(bfloat16(weight))
    assert rounded != weight
    assert got == float(bfloat16(rounded * 4096 / (1 + weight)))


def test_the_oracle_owes_nothing_to_the_code_it_judges() -> None:
    tree = ast.parse(inspect.getsource(reference))
    modules = {
        node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert {name for name in modules if name.startswith("stof_cupy")} == {"stof_cupy.dtypes"}
