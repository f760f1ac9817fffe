"""Relative biases that are constants: what attention's kernels read of them is made once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from stof_cupy import RelativeBias
from stof_cupy.graph import Executor, Graph, steps
from stof_cupy.graph.executor import CALLS, Fused
from stof_cupy.testing import rng

HEADS = 2
TABLE = rng(1).standard_normal((8, HEADS)).astype(np.float32)


def graph(kind: str) -> Graph:
    """Return two attentions, one after the other, with a table as `kind` says."""
    g = Graph("biased")
    x = g.input("x", ("batch", HEADS, "seq", 64), "float")
    table = g.input("t", TABLE.shape, "float") if kind == "an input" else g.constant("t", TABLE)
    for turn in range(2):
        how = {"max_distance": 9 + turn} if kind == "two ways" else {"max_distance": 9}
        x = g.attention(x, x, x, relative_bias=table, bidirectional=True, **how)
    if kind == "used otherwise":
        g.output("more", g.scale(table, factor=2.0))
    if kind == "an output":
        g.output("more", table)
    g.output("out", x)
    return g


def made(kind: str, monkeypatch: pytest.MonkeyPatch) -> list[RelativeBias]:
    """Return what an executor on a GPU would hold."""
    monkeypatch.setattr(steps, "FixedBias", RelativeBias)
    g = graph(kind)
    first = next(node for node in g.nodes() if node.op == "attention")
    alone = Fused((first,), first.inputs, partial(CALLS["attention"], **dict(first.attrs)))
    fused = [alone] if kind == "one fused" else []
    executor = Executor(g, backend="numpy", dtype="float32", fused=fused)
    every: dict[int, Any] = executor._constants
    uploads: dict[Any, Any] = {}

    def found(constants: dict[int, Any]) -> list[Any]:
        last = executor._outputs.values()
        return list(steps.fixed_biases(executor._steps, constants, last, uploads).values())

    first, again = found(every), found(every)
    assert len(first) == len(again) == len(uploads)
    assert all(one is other for one, other in zip(first, again, strict=True))
    # Another table of that name is another one.
    others = {place: array.copy() for place, array in every.items()}
    for new in found(others):
        assert new is not first[0] and any(new.table is array for array in others.values())
    return first


def test_a_constant_that_several_layers_read_is_held_once(monkeypatch: Any) -> None:
    (bias,) = made("a constant", monkeypatch)
    assert (bias.bidirectional, bias.max_distance) == (True, 9)
    np.testing.assert_array_equal(bias.table, TABLE)


@pytest.mark.parametrize(
    "kind", ["an input", "two ways", "used otherwise", "an output", "one fused"]
)
def test_what_may_change_or_is_needed_as_it_is_is_not_held(kind: str, monkeypatch: Any) -> None:
    assert made(kind, monkeypatch) == []


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["a constant", "two ways", "used otherwise", "an output"])
def test_on_a_gpu(kind: str, monkeypatch: Any) -> None:
    cupy = pytest.importorskip("cupy")
    x = rng(2).standard_normal((2, HEADS, 70, 64)).astype(np.float16)
    expected = Executor(graph(kind), backend="numpy", dtype="float32").run({"x": x})
    executor = Executor(graph(kind), backend="cuda", dtype="float16")
    if kind == "a constant":
        monkeypatch.setattr(RelativeBias, "_to", None)  # nothing more is made
    placed = cupy.asarray(x)
    for _ in range(2):
        for name, array in executor.run({"x": placed}).items():
            np.testing.assert_allclose(array.get(), expected[name], atol=4e-3)
