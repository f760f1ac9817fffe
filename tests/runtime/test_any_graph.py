"""Any graph: rewritten, tuned, fused, placed in an arena, recorded; it computes what it means."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stof_cupy.fusion import fuse, structured
from stof_cupy.fusion.bench import Site
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.cost import NUMPY
from stof_cupy.fusion.pieces import pieces
from stof_cupy.fusion.tune import tune
from stof_cupy.graph import Executor, Graph, Node, meaning
from stof_cupy.runtime import Options, Program
from tests.runtime.fake import FakeRecorder

HEADS, DIM = 2, 3
WIDTH = HEADS * DIM


KINDS = (
    *("gemm", "matmul", "bias", "gelu", "add", "norm", "scale", "cut", "split", "spell"),
    *("rms_norm", "mul", "gated", "silu", "relu", "softcap", "turned"),
)


def array(name: str, *shape: int) -> Any:
    values = np.random.default_rng(sum(name.encode())).standard_normal(shape)
    return (values / 2).astype(np.float32)


WEIGHTS = {f"w{i}": array(f"w{i}", WIDTH, WIDTH) for i in range(4)}
WIDE, VECTOR = array("wide", 2 * WIDTH, WIDTH), array("vector", WIDTH)


@st.composite
def graphs(draw: Any) -> Graph:
    """Up to a dozen operators of every kind on (batch, seq, WIDTH) and (batch, HEADS, seq, DIM)."""
    g = Graph("any")
    mask, lengths = g.input("mask", ("seq", "seq"), "mask"), g.input("n", ("batch",), "lengths")
    rows: list[Node] = [g.input("x", ("batch", "seq", WIDTH), "float")]
    heads: list[Node] = []
    cap = g.constant("cap", np.full(WIDTH, 2, np.float32))
    at = g.input("at", ("batch", "seq"), "int")
    wide, vector = g.constant("wide", WIDE), g.constant("vector", VECTOR)
    weights = [g.constant(name, values) for name, values in WEIGHTS.items()]
    for _ in range(draw(st.integers(2, 12))):
        x = rows[draw(st.sampled_from([-1, -1, 0, len(rows) // 2]))]
        y = draw(st.sampled_from(rows))
        w = draw(st.sampled_from(weights))
        kind = draw(st.sampled_from(KINDS))
        if kind == "gemm":
            activation = draw(st.sampled_from([None, "gelu", "gelu_tanh"]))
            rows.append(g.gemm(x, w, draw(st.sampled_from([None, vector])), activation=activation))
        elif kind == "matmul":
            rows.append(g.matmul(x, w))
        elif kind == "bias":
            rows.append(g.add(x, vector))
        elif kind == "gelu":
            rows.append(g.gelu(x))
        elif kind == "add":
            rows.append(g.add(x, y))
        elif kind == "norm":
            rows.append(g.layer_norm(x, vector, vector, eps=0.1))
        elif kind == "rms_norm":
            rows.append(g.rms_norm(x, vector, eps=0.1))
        elif kind == "mul":
            rows.append(g.mul(x, draw(st.sampled_from([vector, y]))))
        elif kind == "gated":
            rows.append(g.gated(x, y))
        elif kind in ("silu", "relu"):
            rows.append(g.apply(kind, x))
        elif kind == "softcap":
            rows.append(g.softcap(x, cap))
        elif kind == "scale":
            rows.append(g.scale(x, factor=draw(st.sampled_from([0.5, 1.0, -1.5]))))
        elif kind == "cut":
            start = draw(st.sampled_from([0, WIDTH // 2, WIDTH]))
            rows.append(g.columns(g.gemm(x, wide), start=start, stop=start + WIDTH))
        else:
            q, k, v = (g.split_heads(draw(st.sampled_from([x, y])), heads=HEADS) for _ in range(3))
            if kind == "turned":  # as decoders do, without a cache
                q, k = (g.rotary(each, at, frequency=(1.0, 0.1)[: DIM // 2]) for each in (q, k))
                k, v = g.kv_cache(k, at), g.kv_cache(v, at)
            if kind in ("split", "turned"):
                seen = draw(st.sampled_from([None, mask]))
                made = g.attention(q, k, v, seen, draw(st.sampled_from([None, lengths])))
            else:
                scores = g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2)))
                scores = g.scale(scores, factor=0.5)
                if draw(st.booleans()):
                    scores = g.masked(scores, mask, draw(st.sampled_from([None, lengths])))
                made = g.matmul(g.softmax(scores), v)
            heads.append(made)
            rows.append(g.merge_heads(made))
    g.output("last", rows[-1])
    g.output("any", draw(st.sampled_from(rows)))
    if heads and draw(st.booleans()):
        g.output("heads", g.transpose(draw(st.sampled_from(heads)), axes=(0, 2, 1, 3)))
    return g


def feeds(batch: int, seq: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((batch, seq, WIDTH)).astype(np.float32) / 2,
        "mask": rng.random((seq, seq)) < 0.6,
        "n": rng.integers(0, seq + 1, batch),
        "at": rng.integers(0, 99, (batch, seq)),
    }


def check(got: dict[str, Any], graph: Graph, inputs: dict[str, Any]) -> None:
    exact = meaning.evaluate(graph, inputs)
    assert list(got) == list(exact)
    for name, value in exact.items():
        # Values grow along a chain of operators, and their rounding with them.
        np.testing.assert_allclose(
            got[name], value, rtol=1e-3, atol=1e-4 * (1 + np.abs(value).max())
        )


@settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(graphs(), st.integers(1, 3), st.integers(1, 40))
def test_every_way_to_run_it_is_the_same(g: Graph, batch: int, seq: int) -> None:
    inputs = feeds(batch, seq, 0)
    for graph in (g, structured(g), fuse(g)):
        for arena in (False, True):
            check(Executor(graph, backend="numpy", arena=arena).run(inputs), g, inputs)
    site = Site("numpy", "float32", None, NUMPY, {"batch": batch, "seq": seq})
    for graph in (g, structured(g)):
        lowered = tune(graph, site, "full").lowered
        for arena in (False, True):
            run = Executor(lowered.graph, backend="numpy", fused=lowered.fused, arena=arena).run
            check(run(inputs), g, inputs)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(graphs())
def test_programs_replay_it(g: Graph) -> None:
    options = Options(record=True, recorder=FakeRecorder())
    program = Program(g, options=options)
    for seed in range(4):
        inputs = {**feeds(2, 9, seed), "mask": None}
        check(program.run(inputs), g, inputs)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs())
def test_pieces_cover_it_and_segments_stay_inside(g: Graph) -> None:
    chain = Chain(structured(g))
    at = 0
    for piece in pieces(chain):
        assert piece.start == at
        at += (piece.stop - piece.start) * piece.copies
    assert at == len(chain)
