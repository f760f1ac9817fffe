"""Executors against a transformer block written independently, in plain float64 NumPy."""

from __future__ import annotations

import math
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from stof_cupy import testing
from stof_cupy.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    GraphError,
    MissingDependencyError,
    ShapeError,
    UnsupportedError,
)
from stof_cupy.graph import Executor, Graph, Node, meaning
from stof_cupy.graph.executor import CALLS
from stof_cupy.graph.feeds import read_feeds
from stof_cupy.graph.registry import OPS
from stof_cupy.jit.device import is_available

VOCAB, POSITIONS, HIDDEN, HEADS, WIDE, EPS = 11, 90, 15, 3, 37, 1e-5


def weights(seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    shapes = {
        "tokens": (VOCAB, HIDDEN),
        "positions": (POSITIONS, HIDDEN),
        "types": (2, HIDDEN),
        **{f"{name}.w": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "o")},
        **{f"{name}.b": (HIDDEN,) for name in ("q", "k", "v", "o", "down")},
        "up.w": (WIDE, HIDDEN),
        "up.b": (WIDE,),
        "down.w": (HIDDEN, WIDE),
        "gain": (HIDDEN,),
        "shift": (HIDDEN,),
    }
    rng = testing.rng(seed)
    return {name: rng.standard_normal(s).astype(np.float32) / 2 for name, s in shapes.items()}


def block(w: dict[str, np.ndarray[Any, Any]]) -> Graph:
    """Return a post-LN encoder layer with its embeddings."""
    g = Graph("block")
    c = {name: g.constant(name, array) for name, array in w.items()}
    ids = g.input("ids", ("batch", "seq"), "int")
    kinds = g.input("kinds", ("batch", "seq"), "int")
    mask = g.input("mask", ("seq", "seq"), "mask")
    lengths = g.input("lengths", ("batch",), "lengths")

    def linear(x: Node, name: str) -> Node:
        return g.add(g.gemm(x, c[f"{name}.w"]), c[f"{name}.b"])

    def norm(x: Node) -> Node:
        return g.layer_norm(x, c["gain"], c["shift"], eps=EPS)

    x = norm(g.embedding(ids, c["tokens"], c["positions"], kinds, c["types"]))
    q, k, v = (g.split_heads(linear(x, name), heads=HEADS) for name in "qkv")
    attended = g.merge_heads(g.attention(q, k, v, mask, lengths))
    x = norm(g.add(linear(attended, "o"), x))
    x = norm(g.add(linear(g.gelu(linear(x, "up")), "down"), x))
    g.output("hidden", x)
    return g


def expected(
    w: dict[str, np.ndarray[Any, Any]],
    ids: np.ndarray[Any, Any],
    kinds: np.ndarray[Any, Any],
    mask: np.ndarray[Any, Any] | None,
    lengths: np.ndarray[Any, Any] | None,
) -> np.ndarray[Any, Any]:
    """Compute the block one sequence and one query at a time."""
    w = {name: array.astype(np.float64) for name, array in w.items()}
    seq, dim = ids.shape[1], HIDDEN // HEADS

    def norm(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        mean, deviation = x.mean(1, keepdims=True), np.sqrt(x.var(1, keepdims=True) + EPS)
        return (x - mean) / deviation * w["gain"] + w["shift"]

    hidden = []
    for b in range(len(ids)):
        x = norm(w["tokens"][ids[b]] + w["positions"][:seq] + w["types"][kinds[b]])
        q, k, v = (x @ w[f"{name}.w"].T + w[f"{name}.b"] for name in "qkv")
        mixed = np.zeros_like(x)
        for i in range(seq):
            keys = np.arange(seq if lengths is None else lengths[b])
            keys = keys if mask is None else keys[mask[i, keys]]
            for h in range(HEADS):
                part = slice(h * dim, (h + 1) * dim)
                p = np.exp(k[keys, part] @ q[i, part] / math.sqrt(dim))
                mixed[i, part] = p @ v[keys, part] / p.sum() if len(keys) else 0
        x = norm(mixed @ w["o.w"].T + w["o.b"] + x)
        up = x @ w["up.w"].T + w["up.b"]
        up = np.vectorize(lambda u: u * math.erfc(-u / math.sqrt(2)) / 2)(up)
        hidden.append(norm(up @ w["down.w"].T + w["down.b"] + x))
    return np.array(hidden)


def feeds(batch: int = 3, seq: int = 70) -> dict[str, Any]:
    rng = testing.rng(2)
    return {
        "ids": rng.integers(VOCAB, size=(batch, seq)),
        "kinds": rng.integers(2, size=(batch, seq)),
        "mask": rng.random((seq, seq)) < 0.1,
        "lengths": rng.integers(1, seq + 1, size=batch),
    }


def rounded_run(graph: Graph, inputs: dict[str, Any], dtype: Any) -> Any:
    """Run on NumPy with every operator's result rounded: what a plain low-precision run gives."""
    executor = Executor(graph, backend="numpy")
    return executor.run(inputs, observe=lambda _, y: y.astype(dtype).astype(np.float32))["hidden"]


def test_every_operator_has_a_call() -> None:
    assert set(CALLS) == set(OPS)


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_block_on_numpy(with_mask: bool, with_lengths: bool) -> None:
    w, inputs = weights(), feeds()
    inputs["mask"] = inputs["mask"] if with_mask else None
    if not with_lengths:
        del inputs["lengths"]
    got = Executor(block(w), backend="numpy").run(inputs)["hidden"]
    exact = expected(w, inputs["ids"], inputs["kinds"], inputs["mask"], inputs.get("lengths"))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, exact, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_outputs_come_in_the_dtype_asked_for_and_are_rounded_once(dtype: str) -> None:
    graph, inputs = block(weights()), feeds(2, 5)
    full = Executor(graph, backend="numpy").run(inputs)["hidden"]
    got = Executor(graph, backend="numpy", dtype=dtype).run(inputs)["hidden"]
    assert got.dtype.name == dtype
    assert (got == full.astype(got.dtype)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (3, 70)])
def test_block_on_cuda(dtype: str, batch: int, seq: int) -> None:
    import cupy

    from stof_cupy import masks
    from stof_cupy.dtypes import as_dtype

    low = as_dtype(dtype)
    w = {name: array.astype(low).astype(np.float32) for name, array in weights().items()}
    inputs = feeds(batch, seq)
    inputs["lengths"] = np.minimum(inputs["lengths"], seq)
    exact = expected(w, **inputs)
    plain = rounded_run(block(w), inputs, low)
    on_device = {name: cupy.asarray(array) for name, array in inputs.items() if name != "mask"}
    on_device["mask"] = masks.as_mask(inputs["mask"])
    got = Executor(block(w), backend="cuda", dtype=dtype).run(on_device)["hidden"]
    assert isinstance(got, cupy.ndarray)
    assert got.dtype == low
    testing.assert_close(got, exact, plain.astype(low))


@pytest.mark.gpu
def test_views_stay_views_on_cuda() -> None:
    import cupy

    seen: dict[str, Any] = {}
    x = np.ones((2, 5, HIDDEN), np.float32)
    executor = Executor(_heads(), backend="cuda")
    executor.run({"x": cupy.asarray(x)}, observe=lambda n, y: seen.update({n.op: y}))
    assert seen["split_heads"].data.ptr == seen["gemm"].data.ptr
    assert seen["merge_heads"].data.ptr == seen["attention"].data.ptr


@pytest.mark.gpu
def test_host_arrays_are_refused_on_cuda() -> None:
    with pytest.raises(DTypeError, match=r"'x': got ndarray, expected a CuPy array on device 0"):
        Executor(_heads(), backend="cuda", device=0).run({"x": np.ones((2, 5, HIDDEN))})


@pytest.mark.skipif(is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_cuda_backend_says_so() -> None:
    with pytest.raises((DeviceError, MissingDependencyError), match=r"CUDA"):
        Executor(_heads(), backend="cuda")


def _heads() -> Graph:
    g = Graph("heads")
    x = g.input("x", ("batch", "seq", HIDDEN), "float")
    q = g.split_heads(g.gemm(x, g.constant("w", np.eye(HIDDEN, dtype=np.float32))), heads=HEADS)
    g.output("y", g.gelu(g.merge_heads(g.attention(q, q, q))))
    return g


def test_attention_takes_a_softcap() -> None:
    g = Graph("capped")
    x = g.input("x", ("batch", 2, "seq", 4), "float")
    g.output("y", g.attention(x, x, x, softcap=0.5))
    feed = {"x": np.random.default_rng(0).standard_normal((1, 2, 9, 4)).astype(np.float32)}
    got = Executor(g, backend="numpy").run(feed)["y"]
    np.testing.assert_allclose(got, meaning.evaluate(g, feed)["y"], atol=1e-6)
    with pytest.raises(GraphError, match="softcap: got -1, expected a positive number, or None"):
        g.attention(x, x, x, softcap=-1)


def test_views_stay_views_on_numpy() -> None:
    seen: dict[str, Any] = {}
    x = np.ones((2, 5, HIDDEN), np.float32)
    Executor(_heads(), backend="numpy").run(
        {"x": x}, observe=lambda node, array: seen.update({node.op: array})
    )
    assert np.shares_memory(seen["gemm"], seen["split_heads"])
    assert np.shares_memory(seen["attention"], seen["merge_heads"])


def test_intermediates_are_freed_after_their_last_use() -> None:
    g = Graph("chain")
    first = node = g.input("x", (3,), "float")
    for _ in range(9):
        node = g.gelu(node)
    g.output("y", g.add(node, first))
    refs: list[weakref.ref[Any]] = []
    alive = []

    def count(node: Node, array: Any) -> None:
        alive.append(sum(ref() is not None for ref in refs))
        refs.append(weakref.ref(array))

    Executor(g, backend="numpy").run({"x": np.ones(3, np.float32)}, observe=count)
    assert max(alive) <= 2, "at most the operand and the value before it"
    assert sum(ref() is not None for ref in refs) == 0


def test_a_value_read_twice_outlives_its_first_use() -> None:
    g = Graph("diamond")
    x = g.input("x", (3,), "float")
    y = g.gelu(x)
    g.output("z", g.add(g.gelu(g.gelu(y)), g.add(y, y)))
    g.output("y", y)
    a = np.float32([0.5, -1, 2])
    got = Executor(g, backend="numpy").run({"x": a})

    def gelu(x: Any) -> Any:
        return np.array([v * math.erfc(-v / math.sqrt(2)) / 2 for v in x])

    np.testing.assert_allclose(got["y"], gelu(a), atol=1e-6)
    np.testing.assert_allclose(got["z"], gelu(gelu(gelu(a))) + 2 * gelu(a), atol=1e-6)


def test_constants_are_cast_once_and_float32_is_not_copied() -> None:
    g = Graph("one")
    x = g.input("x", ("batch", 2), "float")
    half, full = np.eye(2, dtype=np.float16), np.eye(2, dtype=np.float32)
    y = g.gemm(x, g.constant("half", half))
    g.output("y", g.gemm(g.gemm(y, g.constant("full", full)), g.constant("half", half)))
    executor = Executor(g, backend="numpy")
    held = list(executor._constants.values())
    assert [array.dtype for array in held] == [np.float32] * 2
    assert any(array is full for array in held)
    want = np.float32([[1, 2]])
    assert (executor.run({"x": want})["y"] == want).all()
    assert all(a is b for a, b in zip(executor._constants.values(), held, strict=True))


@pytest.mark.parametrize("view", [False, True])
def test_outputs_never_alias_inputs_or_constants(view: bool) -> None:
    g = Graph("pass")
    x = g.input("x", ("batch", "seq", 4), "float")
    w = g.constant("w", np.ones((1, 2, 4), np.float32))
    g.output("x", g.split_heads(x, heads=2) if view else x)
    g.output("w", g.split_heads(w, heads=2) if view else w)
    given = np.zeros((1, 3, 4), np.float32)
    got = Executor(g, backend="numpy").run({"x": given})
    got["x"][...] = got["w"][...] = 7
    assert (given == 0).all()
    assert (g.constants["w"] == 1).all()


def test_observer_sees_every_operator_in_order_and_may_replace() -> None:
    g = Graph("observed")
    x = g.input("x", (2,), "float")
    g.output("y", g.add(g.gelu(x), x))
    seen = []

    def observe(node: Node, array: Any) -> Any:
        seen.append(node.op)
        return np.full_like(array, 5) if node.op == "gelu" else None

    got = Executor(g, backend="numpy").run({"x": np.float32([1, 2])}, observe=observe)
    assert seen == ["gelu", "add"]
    assert got["y"].tolist() == [6, 7]


def test_threads_share_an_executor() -> None:
    w = weights()
    executor = Executor(block(w), backend="numpy")
    jobs = [feeds(batch, seq) for batch, seq in ((1, 9), (2, 33), (3, 65), (1, 20))]
    alone = [executor.run(job)["hidden"] for job in jobs]
    wrong: list[int] = []

    def work(start: int) -> None:
        for turn in range(8):
            which = (start + turn) % len(jobs)
            if not (executor.run(jobs[which])["hidden"] == alone[which]).all():
                wrong.append(which)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


def test_float_inputs_of_any_type_and_narrow_integers_are_taken() -> None:
    w, inputs = weights(), feeds(2, 6)
    executor = Executor(block(w), backend="numpy")
    want = executor.run(inputs)["hidden"]
    narrow = {
        **inputs,
        "ids": inputs["ids"].astype(np.int32),
        "kinds": inputs["kinds"].astype("u1"),
    }
    narrow["lengths"] = inputs["lengths"].astype(np.uint8)
    assert (executor.run(narrow)["hidden"] == want).all()
    g = Graph("double")
    g.output("y", g.gelu(g.input("x", (2,), "float")))
    assert Executor(g, backend="numpy").run({"x": np.ones(2)})["y"].dtype == np.float32


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.array([2**32 + 3, -1, 2, -(2**32) + 2]), [2**31 - 1, 0, 2, 0]),
        (np.array([2**31 + 3, 5], np.uint32), [2**31 - 1, 5]),
        (np.array([2**64 - 1, 5], np.uint64), [2**31 - 1, 5]),
        (np.array([-7, 5], np.int8), [0, 5]),
        (np.arange(9, dtype=np.int32)[::-2], [8, 6, 4, 2, 0]),
    ],
)
def test_lengths_are_read_as_contiguous_int32_that_does_not_wrap(
    given: np.ndarray[Any, Any], kept: list[int]
) -> None:
    declared = {"lengths": block(weights()).inputs["lengths"]}
    read = read_feeds(declared, {"lengths": given}, np.dtype(np.float32), None, {})["lengths"]
    assert read.dtype == np.int32
    assert read.flags.c_contiguous
    assert read.tolist() == kept


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_lengths_of_any_layout_and_type_on_cuda(dtype: Any) -> None:
    import cupy

    inputs = {name: cupy.asarray(x) for name, x in feeds().items() if name != "mask"}
    executor = Executor(block(weights()), backend="cuda")
    inputs["lengths"] = cupy.asarray([70, 3, 41])
    want = executor.run(inputs)["hidden"]
    large = 70 if dtype == np.int32 else 2**31 + 3
    apart = cupy.asarray(np.array([large, 1, 3, 1, 41, 1], dtype))[::2]
    assert (executor.run({**inputs, "lengths": apart})["hidden"] == want).all()


@pytest.mark.gpu
def test_constants_are_not_in_the_memory_pool() -> None:
    import cupy

    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    executor = Executor(_heads(), backend="cuda")
    assert pool.used_bytes() <= before
    assert executor.backend == "cuda"


SEQ = 6


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ids": None}, ArgumentError, r"input 'ids': got nothing, expected int \(batch, seq\)"),
        ({"id": np.ones(1)}, ArgumentError, r"input: got 'id', expected ids, kinds, "),
        ({"ids": [[1]]}, DTypeError, r"input 'ids': got list, expected a NumPy array"),
        ({"ids": np.ones((2, SEQ))}, DTypeError, r"input 'ids': got float64, expected integers"),
        ({"lengths": np.ones(2)}, DTypeError, r"input 'lengths': got float64, expected integers"),
        ({"ids": np.ones(2, int)}, ShapeError, r"'ids': got \(2,\), expected \(batch, seq\)"),
        (
            {"kinds": np.ones((2, SEQ + 1), int)},
            ShapeError,
            r"'kinds': got \(2, 7\), expected \(batch, seq\); batch is 2 in 'ids', seq is 6",
        ),
        ({"lengths": np.ones(3, int)}, ShapeError, r"got \(3,\), .*; batch is 2 in 'ids'"),
        ({"mask": np.ones((5, 5), bool)}, ShapeError, r"'mask': got \(5, 5\), .*; seq is 6"),
        ({"mask": np.ones((5, 6), bool)}, ShapeError, r"'mask': got \(5, 6\), expected \(seq, seq"),
    ],
)  # fmt: skip
def test_inputs_are_checked_by_name(change, error, message) -> None:  # type: ignore[no-untyped-def]
    executor = Executor(block(weights()), backend="numpy")
    with pytest.raises(error, match=message):
        executor.run({**feeds(2, SEQ), **change})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backend": "torch"}, ArgumentError, r"backend: got 'torch', expected 'numpy' or 'cuda'"),
        ({"backend": "numpy", "dtype": "int8"}, DTypeError, r"dtype: got 'int8'"),
        (
            {"backend": "cuda", "dtype": "float32"},
            UnsupportedError,
            r"got 'float32' with backend 'cuda', expected 'float16' or 'bfloat16'",
        ),
        ({"backend": "numpy", "device": 1}, DeviceError, r"device: got 1, expected None"),
    ],
)
def test_options_are_checked(options, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        Executor(block(weights()), **options)


def test_a_graph_that_does_not_verify_is_not_run() -> None:
    with pytest.raises(GraphError, match="no output"):
        Executor(Graph("empty"), backend="numpy")
