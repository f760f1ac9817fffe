"""Pieces of one token: what they are made of, that results are the same, and what is read early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from stof_cupy import TransformerEngine, models
from stof_cupy.fusion import few_rows, structured, token
from stof_cupy.fusion.few_rows import few_row_pieces
from stof_cupy.fusion.rewrites import fuse_epilogues
from stof_cupy.graph import Executor, Graph
from stof_cupy.ops.attention_token import Token, attend_token
from stof_cupy.testing import rng
from tests.goldens.cases import GEMMA3, GPT2, LLAMA
from tests.graph.test_decoder_graph import decoder

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,  # which rotary kernels turn
    "llama, turned by products": {**LLAMA, "head_dim": 32},
    "llama, neighbours": {**LLAMA, "rope_interleaved": True},
    "llama, biases": {**LLAMA, "attention_bias": True, "head_dim": 64},
    "gemma3": GEMMA3,
    "gemma3, a cap": {**GEMMA3, "attn_logit_softcapping": 2.0},
    "gpt2": {**GPT2, "n_embd": 64},
}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Token]:
    """What the operator of one token is given."""
    given: list[Token] = []

    def call(one: Token, **how: Any) -> Any:
        given.append(one)
        return attend_token(one, **how)

    monkeypatch.setattr(token, "attend_token", call)
    return given


def lowered(config: dict[str, Any]) -> Graph:
    graph = models.build(config, models.random_weights(config)).graph
    return fuse_epilogues(structured(graph))


def is_token(piece: Any) -> bool:
    return piece.nodes[-1].op == "attention" and "kv_cache" in {n.op for n in piece.nodes}


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("llama", {"rotary": 1, "merge_heads": 1, "columns": 2, "split_heads": 2}),
        ("llama, turned by products", {"turned_gemm": 1, "rms_norm": 1, "columns": 3}),
        ("gemma3", {"rotary": 2, "rms_norm": 2}),
        ("gpt2", {}),
    ],
)
def test_what_they_are_made_of(name: str, ops: dict[str, int]) -> None:
    graph = lowered(CONFIGS[name])
    pieces = few_row_pieces(graph)
    tokens = [piece for piece in pieces if is_token(piece)]
    assert len(tokens) == sum(node.op == "attention" for node in graph.nodes())
    for piece in tokens:
        found = Counter(node.op for node in piece.nodes)
        assert found == found | Counter({"kv_cache": 2, "attention": 1, **ops})
        assert set(found) <= {"kv_cache", "attention", "split_heads", *ops}
    inside = Counter(node for piece in pieces for node in piece.nodes)
    assert max(inside.values()) == 1


def tokens_of(graph: Graph, fused: Any, arena: bool, dtype: str = "float32") -> Iterator[Any]:
    """Run a prompt of three at once, and then tokens one by one; yield what each leaves."""
    g, batch, room = rng(3), 2, 24
    sizes = {"batch": batch, "keys": room, "near": min(room, 5)}
    caches = {
        n: np.zeros([sizes.get(d, d) for d in x.shape], np.float32)
        for n, x in graph.inputs.items()
        if x.dtype == "cache"
    }
    run = Executor(graph, backend="numpy", dtype=dtype, fused=fused, arena=arena).run
    ids = g.integers(0, 50, (batch, 12))
    for first, last in ((0, 3), *((i, i + 1) for i in range(3, 12))):
        at = np.tile(np.arange(first, last), (batch, 1))
        keys = np.arange(room)
        masks = {}
        if last - first > 1:
            for name, node in graph.inputs.items():
                if node.dtype == "mask":
                    count = sizes[node.shape[1]]
                    masks[name] = at[0][:, None] >= keys[:count]
        given = {"ids": ids[:, first:last], "positions": at, "rows": np.zeros((batch, 1), int)}
        given |= {"lengths": np.full(batch, last), **caches, **masks}
        yield (
            run({n: x for n, x in given.items() if n in graph.inputs})["hidden"].copy(),
            {n: x.copy() for n, x in caches.items()},
        )


@pytest.mark.parametrize("arena", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_results_are_the_same(name: str, arena: bool, seen: list[Token]) -> None:
    graph = lowered(CONFIGS[name])
    pieces = few_row_pieces(graph)
    assert any(map(is_token, pieces))
    layers = sum(node.op == "attention" for node in graph.nodes())
    want = list(tokens_of(graph, (), arena))
    assert not seen
    for number, (got, meant) in enumerate(zip(tokens_of(graph, pieces, arena), want, strict=True)):
        assert len(seen) == number * layers  # none of the prompt
        np.testing.assert_allclose(got[0], meant[0], atol=2e-5)
        for cache, x in meant[1].items():
            assert x.any()
            np.testing.assert_allclose(got[1][cache], x, atol=2e-5)
    assert all(one.settled for one in seen)
    assert {one.turn is None for one in seen} == {name == "gpt2"}
    assert {one.norms is None for one in seen} == {not name.startswith("gemma3")}
    assert {one.softcap for one in seen} == {2.0 if "cap" in name else None}
    rings = {one.ring for one in seen}
    assert rings == ({False, True} if name.startswith("gemma3") else {False})


@pytest.mark.parametrize("name", ["llama, turned by products", "gemma3"])
def test_they_stand_beside_what_was_tuned(name: str, seen: list[Token]) -> None:
    graph = lowered(CONFIGS[name])
    every = few_row_pieces(graph)
    for kept in (every[:2], every[-1:]):
        others = few_row_pieces(graph, kept)
        inside = Counter(node for piece in (*kept, *others) for node in piece.nodes)
        assert max(inside.values()) == 1 and len(others) >= len(every) - len(kept)
        want = list(tokens_of(graph, (), True))
        for got, meant in zip(tokens_of(graph, (*kept, *others), True), want, strict=True):
            np.testing.assert_allclose(got[0], meant[0], atol=2e-5)


def half_a_layer(build: Callable[[Graph, Any, Any], Any]) -> Graph:
    """One attention of 8-wide heads, whose parts `build` makes of rows and positions."""
    g = Graph("half a layer", ("batch", "seq", "keys"))
    x, at = g.input("x", ("batch", "seq", 24), "float"), g.input("at", ("batch", "seq"), "int")
    g.input("ids", ("batch", "seq"), "int")
    lengths = g.input("lengths", ("batch",), "lengths")
    q, k, v = build(g, x, at)
    shape = ("batch", k.shape[1], "keys", k.shape[3])
    k, v = (
        g.kv_cache(each, at, g.input(name, shape, "cache")) for name, each in (("k", k), ("v", v))
    )
    g.output("y", g.attention(q, k, v, None, lengths))
    return g


def pieces_of(g: Graph) -> list[Any]:
    return [piece for piece in few_row_pieces(g) if is_token(piece)]


def settled_of(g: Graph, seen: list[Token]) -> bool:
    g_ = rng(0)
    given = {
        "x": g_.standard_normal((1, 1, 24)).astype(np.float32),
        "at": np.array([[2]]),
        "ids": np.array([[1]]),
        "lengths": np.array([3]),
        **{n: np.zeros((1, 1, 4, 8), np.float32) for n in ("k", "v")},
    }
    seen.clear()
    given = {name: given[name] for name in g.inputs}
    Executor(g, backend="numpy", fused=pieces_of(g)).run(given)
    (one,) = seen
    return one.settled


def split(g: Graph, x: Any) -> list[Any]:
    return [g.split_heads(g.columns(x, start=i, stop=i + 8), heads=1) for i in (0, 8, 16)]


def test_what_is_read_early(seen: list[Token]) -> None:
    def of_input(g: Graph, x: Any, at: Any) -> Any:
        return split(g, x)

    def of_product(g: Graph, x: Any, at: Any) -> Any:
        return split(g, g.gemm(x, g.constant("w", np.eye(24, dtype=np.float32))))

    def of_ids(g: Graph, x: Any, at: Any) -> Any:
        table = g.constant("table", np.ones((2, 24), np.float32))
        return of_product(g, g.embedding(g.inputs["ids"], table), at)

    # Without a kernel in between that waits before the next one comes, what runs before might be
    # the token before.
    assert not settled_of(half_a_layer(of_input), seen)
    assert not settled_of(half_a_layer(of_product), seen)
    assert settled_of(half_a_layer(of_ids), seen)


def test_what_another_operator_writes_is_not_read_early(seen: list[Token]) -> None:
    g = Graph("two writers", ("batch", "seq", "keys"))
    ids, at = (g.input(name, ("batch", "seq"), "int") for name in ("ids", "at"))
    x = g.embedding(ids, g.constant("table", np.eye(24)))
    q, k, v = split(g, g.gemm(x, g.constant("w", np.eye(24, dtype=np.float32))))
    caches = [g.input(n, ("batch", 1, "keys", 8), "cache") for n in "kv"]
    lengths = g.input("lengths", ("batch",), "lengths")
    keys, values = (g.kv_cache(x, at, to) for x, to in zip((k, v), caches, strict=True))
    g.output("first", g.attention(q, keys, values, None, lengths))
    g.output("second", g.kv_cache(v, at, caches[0]))
    assert not settled_of(g, seen)


def test_what_others_read_stays_outside(seen: list[Token]) -> None:
    def turned(g: Graph, x: Any, at: Any) -> Any:
        q, k, v = split(g, g.gemm(x, g.constant("w", np.eye(24, dtype=np.float32))))
        turn = {"frequency": np.ones(4), "interleaved": True}
        q, k = g.rotary(q, at, **turn), g.rotary(k, at, **turn)
        g.output("keys", k)
        return q, k, v

    g = half_a_layer(turned)
    (piece,) = pieces_of(g)
    assert [node.op for node in piece.nodes] == ["kv_cache", "kv_cache", "attention"]
    assert not settled_of(g, seen) and seen[0].turn is None


TURN: dict[str, Any] = {"frequency": np.array([1.0, 0.5, 0.25, 0.1]), "interleaved": True}


def thirds(g: Graph, x: Any, heads: int) -> list[Any]:
    return [g.split_heads(g.columns(x, start=i, stop=i + 16), heads=heads) for i in (0, 16, 32)]


def projected(g: Graph, x: Any) -> Any:
    return g.gemm(x, g.constant("w", rng(5).standard_normal((48, 24)).astype(np.float32)))


def parts_of_heads(g: Graph, x: Any, at: Any) -> Any:
    q, k, v = thirds(g, projected(g, x), 1)
    q, k = (g.columns(g.rotary(each, at, **TURN), start=4, stop=12) for each in (q, k))
    return q, k, g.columns(v, start=0, stop=8)


def heads_that_are_merged(g: Graph, x: Any, at: Any) -> Any:
    q, k, v = thirds(g, projected(g, x), 2)
    q, k = (g.rotary(each, at, **TURN) for each in (q, k))
    return [g.split_heads(g.merge_heads(each), heads=1) for each in (q, k, v)]


def product_of_other_heads(g: Graph, x: Any, at: Any) -> Any:
    w = projected(g, x).inputs[1]
    return thirds(g, g.turned_gemm(x, w, at, heads=4, head_dim=8, **TURN), 1)


def product_of_heads_apart(g: Graph, x: Any, at: Any) -> Any:
    y = g.turned_gemm(x, projected(g, x).inputs[1], at, heads=4, head_dim=8, **TURN)
    return [g.split_heads(g.columns(y, start=i, stop=i + 8), heads=1) for i in (4, 12, 32)]


def values_that_are_keys(g: Graph, x: Any, at: Any) -> Any:
    q, k, _ = thirds(g, projected(g, x), 2)
    q, k = (g.rotary(each, at, **TURN) for each in (q, k))
    return q, k, k


def queries_turned_twice(g: Graph, x: Any, at: Any) -> Any:
    _, k, v = thirds(g, projected(g, x), 2)
    k = g.rotary(k, at, **TURN)
    return g.rotary(k, at, **TURN), k, v


def keys_turned_elsewhere(g: Graph, x: Any, at: Any) -> Any:
    q, k, v = thirds(g, projected(g, x), 2)
    ids = g.inputs["ids"]
    return g.rotary(q, at, **TURN), g.rotary(k, ids, **TURN), v


def as_the_kernel_does(g: Graph, x: Any, at: Any) -> Any:
    q, k, v = thirds(g, projected(g, x), 2)
    return g.rotary(q, at, **TURN), g.rotary(k, at, **TURN), v


@pytest.mark.parametrize(
    "build",
    [
        *(parts_of_heads, heads_that_are_merged, product_of_other_heads, product_of_heads_apart),
        *(values_that_are_keys, queries_turned_twice, keys_turned_elsewhere, as_the_kernel_does),
    ],
)
def test_only_heads_as_they_were_turned_are_left_to_the_kernel(
    build: Callable[[Graph, Any, Any], Any], seen: list[Token]
) -> None:
    g = half_a_layer(build)
    g_ = rng(0)
    given = {
        "x": g_.standard_normal((2, 1, 24)).astype(np.float32),
        "at": np.array([[3], [1]]),
        "ids": np.array([[1], [2]]),
        "lengths": np.array([4, 2]),
    }
    shapes = {n: (2, g.inputs[n].shape[1], 5, g.inputs[n].shape[3]) for n in "kv"}
    found = []
    for fused in ((), pieces_of(g)):
        caches = {n: np.ones(shape, np.float32) for n, shape in shapes.items()}
        inputs = {n: x for n, x in {**given, **caches}.items() if n in g.inputs}
        found.append((Executor(g, backend="numpy", fused=fused).run(inputs)["y"], caches))
    (one,) = seen
    assert (one.turn is not None) is (build is as_the_kernel_does)
    (want, kept), (got, after) = found
    np.testing.assert_allclose(got, want, atol=1e-6)
    for name, cache in kept.items():
        np.testing.assert_allclose(after[name], cache, atol=1e-6)


@pytest.mark.parametrize("head_dim", [12, 264])
def test_heads_that_the_kernel_does_not_take(head_dim: int) -> None:
    g = Graph("odd", ("batch", "seq", "keys"))
    x = g.input("x", ("batch", 1, "seq", head_dim), "float")
    at = g.input("at", ("batch", "seq"), "int")
    shape = ("batch", 1, "keys", head_dim)
    k, v = (g.kv_cache(x, at, g.input(name, shape, "cache")) for name in "kv")
    g.output("y", g.attention(x, k, v))
    assert not any(node.op == "turned_gemm" for piece in few_row_pieces(g) for node in piece.nodes)
    found = few_row_pieces(g)
    assert [piece.nodes[-1].op for piece in found] == ["attention"]
    assert found[0].call.__qualname__.startswith("_fused")  # that of before


def test_biases_by_distance_are_left_to_attention() -> None:
    graph = fuse_epilogues(structured(decoder()))
    pieces = [piece for piece in few_row_pieces(graph) if piece.nodes[-1].op == "attention"]
    assert pieces and all(piece.call.__qualname__.startswith("_fused") for piece in pieces)


@pytest.mark.parametrize("name", CONFIGS)
def test_generated_tokens_are_the_same(
    name: str, seen: list[Token], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIGS[name]
    weights = models.random_weights(config)
    said = []
    for made in (token.token_piece, lambda *how: None):
        seen.clear()
        monkeypatch.setattr(few_rows, "token_piece", made)
        with TransformerEngine(weights, config=config, backend="numpy") as engine:
            said.append(engine.generate([[1, 2, 3, 4], [5, 6]], max_new_tokens=20))
        assert bool(seen) is (made is token.token_piece)
    assert said[0] == said[1]
