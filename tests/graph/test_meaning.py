"""The definitions against arithmetic written out element by element."""

from __future__ import annotations

import math

import numpy as np

from stof_cupy.graph import Graph, meaning


def test_gelu_is_x_times_the_normal_distribution_function() -> None:
    x = np.linspace(-6, 6, 41)
    exact = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(meaning.gelu(x), exact, atol=1e-14)
    # The tanh form is known to stay within 5e-4 of the exact one, and is not the exact one.
    gap = np.abs(meaning.gelu(x, approximate="tanh") - exact).max()
    assert 1e-5 < gap < 5e-4


def test_gemm_applies_bias_then_activation_then_residual() -> None:
    x, w = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])
    bias, residual = np.array([-11.5]), np.array([[100.0]])
    got = meaning.gemm(x, w, bias, residual, activation="gelu")
    np.testing.assert_allclose(got, [[100 - 0.5 * 0.5 * math.erfc(0.5 / math.sqrt(2))]])


def test_layer_norm_uses_the_biased_variance() -> None:
    got = meaning.layer_norm(np.array([[1.0, 3.0]]), np.array([2.0, 2.0]), np.ones(2), eps=3.0)
    np.testing.assert_allclose(got, [[0.0, 2.0]])


def test_attention_row_by_row() -> None:
    rng = np.random.default_rng(0)
    batch, heads, kv_heads, sq, sk, d, dv = 2, 4, 2, 5, 7, 3, 4
    q = rng.standard_normal((batch, heads, sq, d))
    k = rng.standard_normal((batch, kv_heads, sk, d))
    v = rng.standard_normal((batch, kv_heads, sk, dv))
    mask = rng.random((sq, sk)) < 0.5
    mask[2] = False
    lengths = np.array([7, 0])
    expected = np.zeros((batch, heads, sq, dv))
    for b, h, i in np.ndindex(batch, heads, sq):
        keys = [j for j in range(sk) if mask[i, j] and j < lengths[b]]
        scores = [math.exp(0.3 * float(q[b, h, i] @ k[b, h // 2, j])) for j in keys]
        for j, score in zip(keys, scores, strict=True):
            expected[b, h, i] += score / sum(scores) * v[b, h // 2, j]
    got = meaning.attention(q, k, v, mask, lengths, scale=0.3)
    np.testing.assert_allclose(got, expected, atol=1e-14)


def test_attention_caps_its_scores() -> None:
    q, k, v = (
        np.full((1, 1, 1, 1), 5.0),
        np.array([[[[1.0], [-1.0]]]]),
        np.array([[[[1.0], [0.0]]]]),
    )
    got = meaning.attention(q, k, v, None, None, softcap=2.0)
    share = 1 / (1 + math.exp(-4 * math.tanh(2.5)))
    assert math.isclose(got.item(), share)


def test_heads_are_split_and_merged_in_order() -> None:
    x = np.arange(2 * 3 * 8.0).reshape(2, 3, 8)
    heads = meaning.split_heads(x, heads=4)
    assert heads[1, 2, 0].tolist() == x[1, 0, 4:6].tolist()
    assert (meaning.merge_heads(heads) == x).all()


def test_evaluate_runs_in_float64_and_takes_absent_masks() -> None:
    g = Graph("g")
    ids = g.input("ids", ("batch", "seq"), "int")
    mask = g.input("mask", ("seq", "seq"), "mask")
    x = g.embedding(ids, g.constant("table", np.float16([[1, 0], [0, 1]])))
    heads = g.split_heads(x, heads=1)
    g.output("y", g.merge_heads(g.attention(heads, heads, heads, mask)))
    y = meaning.evaluate(g, {"ids": [[1, 0]]})["y"]
    share = 1 / (1 + math.exp(-1 / math.sqrt(2)))
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, [[[1 - share, share], [share, 1 - share]]])
    y = meaning.evaluate(g, {"ids": [[1, 0]], "mask": [[True, False], [False, False]]})["y"]
    assert y.tolist() == [[[0, 1], [0, 0]]]
