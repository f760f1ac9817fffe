"""Norms that are applied to the results of products: the same results, no normalised rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import models
from stof_cupy.errors import GraphError
from stof_cupy.fusion import products, structured
from stof_cupy.fusion.cost import NUMPY
from stof_cupy.fusion.lower import Lowered
from stof_cupy.fusion.norms import fold_norms, pays, tell_statistics, told
from stof_cupy.fusion.rewrites import fuse_epilogues
from stof_cupy.fusion.store import SchemeStore
from stof_cupy.graph import Executor, Graph, Node, meaning
from stof_cupy.graph.steps import Fused
from stof_cupy.runtime import Options, Program
from tests.runtime.cuda_path import BERT, GPT2, H100, LLAMA, T5

WIDTH = 6


def constant(g: Graph, name: str, *shape: int) -> Node:
    values = np.random.default_rng(sum(name.encode())).standard_normal(shape)
    return g.constant(name, (values / 2).astype(np.float32))


def ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes() if node.kind in ("CI", "MI"))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(["layer_norm", "rms_norm"]),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=3),
    st.sampled_from(["", "add", "output", "residual"]),
    st.sampled_from([0.0, 3.0]),
)
def test_products_divide_instead(
    op: str, products: list[tuple[bool, bool, bool]], also: str, mean: float
) -> None:
    g = Graph("norm")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    gain, shift = constant(g, "gain", WIDTH), constant(g, "shift", WIDTH)
    y = (
        g.layer_norm(x, gain, shift, eps=0.1)
        if op == "layer_norm"
        else g.rms_norm(x, gain, eps=0.1)
    )
    made = []
    for i, (biased, gated, after) in enumerate(products):
        bias = constant(g, f"b{i}", 2 * WIDTH) if biased else None
        how: dict[str, Any] = {"activation": "silu", "gated": True} if gated else {}
        z = g.gemm(y, constant(g, f"w{i}", 2 * WIDTH, WIDTH), bias, **how)
        made.append(g.gelu(z) if after and not gated else z)
        g.output(f"z{i}", made[-1])
    if also == "add":
        g.output("also", g.add(y, x))
    elif also == "residual":
        g.output("also", g.gemm(x, constant(g, "sq", WIDTH, WIDTH), None, y))
    elif also == "output":
        g.output("also", y)
    folded = fuse_epilogues(fold_norms(g))
    assert ops(folded)["row_statistics"] == (not also)
    assert ops(folded)[op] == bool(also) and "gelu" not in ops(folded)
    given = {"x": np.random.default_rng(0).standard_normal((2, 5, WIDTH)) + mean}
    exact = meaning.evaluate(g, given)
    for graph in (folded, fold_norms(g)):
        close(meaning.evaluate(graph, given), exact, 1e-5)
        for arena in (False, True):
            run = Executor(graph, backend="numpy", arena=arena).run
            close(run({"x": given["x"].astype(np.float32)}), exact, 1e-4)


def close(got: dict[str, Any], exact: dict[str, Any], atol: float) -> None:
    assert got.keys() == exact.keys()
    for name, value in exact.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=atol)


def test_what_is_no_constant_stays() -> None:
    for where in ("gain", "w", "bias"):
        g = Graph("inputs")
        x = g.input("x", ("seq", WIDTH), "float")
        names = {"gain": (WIDTH,), "w": (3, WIDTH), "bias": (3,)}
        made = {
            name: g.input(name, shape, "float") if name == where else constant(g, name, *shape)
            for name, shape in names.items()
        }
        y = g.gemm(g.rms_norm(x, made["gain"], eps=0.1), made["w"], made["bias"])
        g.output("y", y)
        assert "row_statistics" not in ops(fold_norms(g))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.booleans(), st.booleans(), st.sampled_from([None, "gelu"]), st.sampled_from([6, 64, 130]))
def test_products_tell(centred: bool, residual: bool, activation: str | None, width: int) -> None:
    """Whoever reads the product gets its rows, its norms what it tells."""
    g = Graph("told")
    x = g.input("x", ("batch", "seq", width), "float")
    w, gain = constant(g, "w", width, width), constant(g, "gain", width)
    y = g.gemm(x, w, None, x if residual else None, activation=activation)
    norms = [
        g.layer_norm(y, gain, gain, eps=eps) if centred else g.rms_norm(y, gain, eps=eps)
        for eps in (0.1, 0.2)
    ]
    z = g.add(g.gemm(norms[0], w), g.gemm(norms[1], w))
    g.output("z", g.layer_norm(g.gemm(z, w, None, y), gain, gain, eps=0.1))
    g.output("y", y)
    told = tell_statistics(fuse_epilogues(fold_norms(g)))
    found = Counter(node.op for node in told.nodes())
    assert found["told_gemm"] == found["told_rows"] == 1 and found["told_statistics"] == 2
    assert not found["row_statistics"] and found["layer_norm"] == 1
    given = {"x": np.random.default_rng(0).standard_normal((2, 5, width))}
    exact = meaning.evaluate(g, given)
    close(meaning.evaluate(told, given), exact, 1e-4)
    for arena in (False, True):
        run = Executor(told, backend="numpy", arena=arena).run
        close(run({"x": given["x"].astype(np.float32)}), exact, 2e-4)


def test_what_is_told_is_no_array() -> None:
    g = Graph("told")
    x = g.input("x", ("seq", WIDTH), "float")
    told = g.told_gemm(x, constant(g, "w", WIDTH, WIDTH))
    with pytest.raises(GraphError, match=r"add: x: got .*, expected dtype float"):
        g.add(told, x)
    with pytest.raises(GraphError, match="output 'y': got told"):
        g.output("y", told)
    with pytest.raises(GraphError, match=r"told_rows: x: got .*, expected dtype told"):
        g.told_rows(x)


FAMILIES = {"gpt2": (GPT2, 4, 1), "llama": (LLAMA, 4, 1), "t5": (T5, 4, 1), "bert": (BERT, 0, 5)}
"""Norms of two layers that products alone read, and others: BERT adds what is normalised."""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tune", ["off", "fast"])
def test_models_run_the_same(family: str, tune: str, tmp_path: Any) -> None:
    config, inside, beside = FAMILIES[family]
    graph = models.build(config, models.random_weights(config)).graph
    counts = ops(fold_norms(structured(graph)))
    assert counts["row_statistics"] == inside
    assert counts["layer_norm"] + counts["rms_norm"] == beside
    rng, seq = np.random.default_rng(0), 11
    ids = {"ids": rng.integers(0, 50, (2, seq)), "lengths": np.array([seq, 4])}
    ids |= {"token_types": np.zeros((2, seq), int), "rows": np.array([[seq - 1], [seq + 3]])}
    ids["positions"] = np.broadcast_to(np.arange(seq), (2, seq))
    inputs = {name: ids[name] for name in ids if name in graph.inputs}
    store = SchemeStore(tmp_path)
    run = {
        fold: Program(graph, options=Options(tune=tune, store=store, fold_norms=fold)).run(inputs)
        for fold in (False, True)
    }
    close(run[True], run[False], 3e-5)


def test_what_was_tuned_tells_with_its_settings() -> None:
    g = Graph("told")
    x = g.input("x", ("batch", "seq", 64), "float")
    w, gain = constant(g, "w", 64, 64), constant(g, "gain", 64)
    y = g.gemm(x, w, None, x)
    z = g.gemm(g.rms_norm(y, gain, eps=0.1), w)
    g.output("y", g.add(z, y))
    graph = fuse_epilogues(fold_norms(g))
    first, second = (node for node in graph.nodes() if node.op == "gemm")
    chosen = (("kernel", 1), ("splits", 1)), (("kernel", 2), ("splits", 1))
    fused = [
        Fused((node,), node.inputs, products.build((node,), node.inputs, setting), setting)
        for node, setting in zip((first, second), chosen, strict=True)
    ]
    made = told(Lowered(graph, tuple(fused)))
    assert ops(made.graph) == ops(tell_statistics(graph))
    assert [each.nodes[0].op for each in made.fused] == ["told_gemm", "gemm"]
    nodes = made.graph.nodes()
    for each, setting in zip(made.fused, chosen, strict=True):
        assert each.setting == setting and each.nodes[0] in nodes
        assert each.inputs == each.nodes[0].inputs
    assert made.left_to_the_model() == [] and len(Lowered(made.graph, ()).left_to_the_model()) == 2


def test_folding_pays_where_no_cache_holds_the_rows() -> None:
    graph = structured(models.build(GPT2, models.random_weights(GPT2)).graph)
    width = GPT2["n_embd"]
    h100 = replace(NUMPY, cache_size=25 << 20, facts=H100)
    for rows, machine, expected in (
        ((25 << 20) // (2 * width) + 1, h100, True),
        ((25 << 20) // (2 * width) - 1, h100, False),
        (1 << 30, NUMPY, False),
    ):
        assert pays(graph, {"batch": 1, "seq": rows}, 2, machine) is expected
    bert = structured(models.build(BERT, models.random_weights(BERT)).graph)
    assert not pays(bert, {"batch": 1, "seq": 1 << 30}, 2, h100)
