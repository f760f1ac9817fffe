"""Decoder blocks as graphs: executors against the definitions, with a cache and without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy import RelativeBias, attention
from stof_cupy.errors import ArgumentError, DTypeError, GraphError, ShapeError
from stof_cupy.graph import Executor, Graph, meaning_decoder, verify
from stof_cupy.graph.frequencies import Frequencies
from stof_cupy.graph.meaning import evaluate
from stof_cupy.testing import assert_close, rng

HIDDEN, HEADS, KV, DIM, VOCAB = 24, 4, 2, 6, 13


def decoder() -> Graph:
    """A layer with everything in it that decoders have."""
    g = Graph("decoder", dims=("batch", "seq", "keys", "picked"))
    draw = rng(0)

    def constant(name: str, *shape: int) -> Any:
        size = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
        return g.constant(name, (draw.standard_normal(shape) * size).astype(np.float32))

    ids, at = (g.input(name, ("batch", "seq"), "int") for name in ("ids", "positions"))
    mask = g.input("mask", ("seq", "keys"), "mask")
    lengths = g.input("lengths", ("batch",), "lengths")
    x = g.embedding(ids, constant("table", VOCAB, HIDDEN))
    y = g.rms_norm(x, constant("norm", HIDDEN), eps=1e-6)
    q, k, v = (
        g.split_heads(g.gemm(y, constant(name, heads * DIM, HIDDEN)), heads=heads)
        for name, heads in (("q", HEADS), ("k", KV), ("v", KV))
    )
    q = g.rms_norm(q, constant("q_norm", DIM), eps=1e-6)
    q, k = (g.rotary(each, at, frequency=(1.0, 0.1, 0.01), magnitude=1.5) for each in (q, k))
    k, v = (
        g.kv_cache(each, at, g.input(f"cache_{name}", ("batch", KV, "keys", DIM), "cache"))
        for each, name in ((k, "k"), (v, "v"))
    )
    bias = constant("buckets", 8, HEADS)
    y = g.attention(q, k, v, mask, lengths, bias, scale=0.4, bidirectional=False, max_distance=20)
    x = g.add(x, g.gemm(g.merge_heads(y), constant("o", HIDDEN, HEADS * DIM)))
    gate, up = (g.gemm(x, constant(name, 32, HIDDEN)) for name in ("gate", "up"))
    y = g.gemm(g.gated(gate, up, activation="gelu_tanh"), constant("down", HIDDEN, 32))
    x = g.add(x, g.mul(y, constant("scale", HIDDEN)))
    g.output("hidden", x)
    picked = g.take_rows(g.silu(g.relu(x)), g.input("rows", ("batch", "picked"), "int"))
    logits = g.gemm(picked, g.constant("head", g.constants["table"]))
    g.output("logits", g.softcap(logits, g.constant("cap", np.full(VOCAB, 2, np.float32))))
    return g


def whole(seq: int = 7) -> dict[str, Any]:
    g = rng(1)
    return {
        "ids": g.integers(0, VOCAB, (2, seq)),
        "positions": np.tile(np.arange(seq), (2, 1)),
        "mask": np.tril(np.ones((seq, seq), bool)),
        "lengths": None,
        "rows": np.array([[seq - 1], [2 * seq - 1]]),
    }


def test_verifies_and_runs_as_defined():
    graph = decoder()
    verify(graph)
    exact = evaluate(graph, whole())
    got = Executor(graph, backend="numpy").run(whole())
    for name in ("hidden", "logits"):
        np.testing.assert_allclose(got[name], exact[name], atol=2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_runs_on_the_gpu(dtype):
    import cupy

    from stof_cupy.dtypes import as_dtype

    graph, inputs = decoder(), whole(70)
    exact = evaluate(graph, inputs)
    low = Executor(graph, backend="numpy").run(
        inputs, observe=lambda _, y: y.astype(as_dtype(dtype)).astype(np.float32)
    )
    on = {name: None if x is None else cupy.asarray(x) for name, x in inputs.items()}
    got = Executor(graph, backend="cuda", dtype=dtype).run(on)
    for name in ("hidden", "logits"):
        assert_close(got[name], exact[name], low[name].astype(as_dtype(dtype)))


@pytest.mark.parametrize("first", [1, 4])
def test_with_a_cache_it_continues(first):
    """A prompt, then token by token: the same as all tokens at once."""
    graph, inputs, seq = decoder(), whole(), 7
    run = Executor(graph, backend="numpy").run
    expected = run(inputs)["hidden"]
    caches = {f"cache_{name}": np.full((2, KV, seq, DIM), np.nan, np.float32) for name in "kv"}
    start, got = 0, []
    for end in [first, *range(first + 1, seq + 1)]:
        step = {
            "ids": inputs["ids"][:, start:end],
            "positions": inputs["positions"][:, start:end],
            "mask": inputs["mask"][start:end, :end],
            "lengths": np.array([end, end]),
            "rows": np.zeros((2, 0), int),
            **{name: cache[:, :, :end] for name, cache in caches.items()},
        }
        result = run(step)
        assert result["logits"].shape == (2, 0, VOCAB)
        got.append(result["hidden"])
        assert not np.isnan(caches["cache_k"][:, :, :end]).any()
        start = end
    np.testing.assert_allclose(np.concatenate(got, axis=1), expected, atol=1e-5)


def biased() -> Graph:
    """Attention whose bias counts from where queries stand."""
    g = Graph("biased", dims=("batch", "seq", "keys"))
    q = g.input("q", ("batch", 2, "seq", 8), "float")
    k, v = (g.input(name, ("batch", 2, "keys", 8), "float") for name in "kv")
    at = g.input("query_at", ("seq",), "int")
    table = g.constant("table", rng(3).standard_normal((8, 2)).astype(np.float32))
    lengths = g.input("lengths", ("batch",), "lengths")
    how = {"scale": 1.0, "bidirectional": False, "max_distance": 20}
    g.output("y", g.attention(q, k, v, None, lengths, table, at, **how))
    return g


@pytest.mark.parametrize("at", [[8], [0], [29], [3, 17]])
def test_a_bias_counts_from_where_queries_stand(at):
    graph, draw = biased(), rng(4)
    verify(graph)
    q = draw.standard_normal((2, 2, len(at), 8))
    given = {name: draw.standard_normal((2, 2, 30, 8)) for name in "kv"}
    given = {"q": q, **given, "query_at": np.int32(at), "lengths": np.full(2, max(at) + 1)}
    got = Executor(graph, backend="numpy").run(given)["y"]
    np.testing.assert_allclose(got, evaluate(graph, given)["y"], atol=2e-5)
    if len(at) == 1:  # as of a cache that ends with the query
        alone = attention(
            q, given["k"][:, :, : at[0] + 1], given["v"][:, :, : at[0] + 1], scale=1.0,
            bias=RelativeBias(graph.constants["table"], bidirectional=False, max_distance=20),
        )  # fmt: skip
        np.testing.assert_allclose(got, alone, atol=2e-5)


@pytest.mark.parametrize(
    ("at", "error", "match"),
    [
        (np.int32([30]), ArgumentError, "query_at: got 30, expected positions from 0 to 29"),
        (np.int32([-1]), ArgumentError, "query_at: got -1"),
        (np.int32([1, 2]), ShapeError, "query_at"),
        (np.float32([1]), DTypeError, "query_at.*expected integers"),
        (None, ArgumentError, "query_at.*nothing"),
    ],
)
def test_where_queries_stand_is_checked(at, error, match):
    given = {"q": np.zeros((2, 2, 1, 8)), "query_at": at}
    given |= {name: np.zeros((2, 2, 30, 8)) for name in "kv"}
    with pytest.raises(error, match=match):
        Executor(biased(), backend="numpy").run(given)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"cache_k": np.zeros((2, KV, 7, DIM))}, DTypeError, "cache_k.*float64, expected float32"),
        ({"cache_k": np.zeros((2, KV, 7, DIM), int)}, DTypeError, "cache_k.*expected floats"),
        ({"cache_k": np.zeros((2, 1, 7, DIM), np.float32)}, ShapeError, "cache_k"),
        ({"rows": np.array([[14], [0]])}, ArgumentError, "14"),
        ({"positions": np.full((2, 7), 9)}, ArgumentError, "9"),
    ],
)
def test_inputs_are_checked(change, error, match):
    inputs = whole()
    if "positions" in change:
        change = {**change, "cache_k": np.zeros((2, KV, 7, DIM), np.float32)}
    with pytest.raises(error, match=match):
        Executor(decoder(), backend="numpy").run(inputs | change)


def test_definitions_by_hand():
    x = np.array([[3.0, -4.0]])
    np.testing.assert_allclose(
        meaning_decoder.rms_norm(x, np.array([1.0, 2.0]), eps=0), x * [1, 2] / np.sqrt(12.5)
    )
    np.testing.assert_allclose(meaning_decoder.silu(x), x / (1 + np.exp(-x)))
    assert meaning_decoder.relu(x).tolist() == [[3, 0]]
    assert meaning_decoder.gated(x, x, activation="relu").tolist() == [[9, 0]]
    np.testing.assert_allclose(meaning_decoder.softcap(x, np.float64(2)), 2 * np.tanh(x / 2))
    rows = meaning_decoder.take_rows(np.arange(12).reshape(2, 3, 2), np.array([[5], [0]]))
    assert rows.tolist() == [[[10, 11]], [[0, 1]]]


def test_frequencies():
    a, b = Frequencies([1, 0.1]), Frequencies(np.float64([1, 0.1]))
    assert a == b and hash(a) == hash(b) and a[1] == float(np.float32(0.1))
    assert repr(a) != repr(Frequencies([1, 0.11]))
    g = Graph("g")
    x, at = g.input("x", ("batch", 1, "seq", 4), "float"), g.input("at", ("batch", "seq"), "int")
    for wrong in ((), (np.nan,), "ab", 3):
        with pytest.raises(GraphError, match="frequency: got"):
            g.rotary(x, at, frequency=wrong)
    with pytest.raises(GraphError, match="interleaved: got 1"):
        g.rotary(x, at, frequency=a, interleaved=1)
