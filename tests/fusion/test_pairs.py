"""Two products as one kernel: which runs of operators are, what is offered, and what runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.fusion import pairs, structured
from stof_cupy.fusion.bench import Site
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.cost import NUMPY, machine_of
from stof_cupy.fusion.kernels import kernel_of
from stof_cupy.fusion.lower import lower_one
from stof_cupy.fusion.tune import tune
from stof_cupy.graph import Graph, Node, meaning
from stof_cupy.jit.gemm_pair import PAIR_TILES
from stof_cupy.ops import gemm_gemm as ops
from tests.fusion.test_tune import H100

MACHINE = machine_of(H100)
SIZES = {"batch": 8, "seq": 512}
RNG = np.random.default_rng(0)


def constant(g: Graph, name: str, *shape: int) -> Node:
    return g.constant(name, (RNG.standard_normal(shape) / 4).astype(np.float32))


def mlp(inside: int = 256, *, gated: bool = False, residual: bool = True) -> Graph:
    g = Graph("mlp")
    x = g.input("x", ("batch", "seq", 64), "float")
    h = g.gemm(x, constant(g, "up", inside, 64), constant(g, "up.b", inside))
    gate = (("gate", inside, 64), ("gate.b", inside))
    if gated:
        h = g.gated(h, g.gemm(x, *(constant(g, *each) for each in gate)), activation="silu")
    else:
        h = g.gelu(h)
    y = g.gemm(h, constant(g, "down", 64, inside), constant(g, "down.b", 64))
    g.output("y", g.add(y, x) if residual else y)
    return structured(g)


def left_of(graph: Graph) -> list[Node]:
    chain = Chain(graph)
    return lower_one(chain, 0, len(chain))[1]


def test_what_is_a_pair() -> None:
    for graph in (mlp(), mlp(1024, residual=False)):
        nodes = left_of(graph)
        found = kernel_of(nodes, "cuda")
        assert pairs.is_pair(nodes) and found is not None and found.name == "gemm and gemm"
    assert not pairs.is_pair(left_of(mlp(1032)))
    assert not pairs.is_pair(left_of(mlp())[:1])
    g = Graph("given")
    x, w = g.input("x", ("seq", 8), "float"), g.input("w", (4, 8), "float")
    first = g.gemm(x, w)
    assert not pairs.is_pair([first, g.gemm(first, constant(g, "v", 8, 4))])


def test_settings_are_the_tiles_that_fit_best_first() -> None:
    nodes = left_of(mlp())
    assert pairs.settings(nodes, SIZES, NUMPY) == ((),)
    found = pairs.settings(nodes, SIZES, MACHINE)
    times = [pairs.predicted(nodes, SIZES, 2, MACHINE, each) for each in found]
    assert len(found) == len(PAIR_TILES) and times == sorted(times)
    assert times[0] < pairs.predicted(nodes, SIZES, 2, MACHINE, ())
    wide = pairs.settings(left_of(mlp(1000)), SIZES, MACHINE)
    assert wide == ((("tile", len(PAIR_TILES) - 1),),)
    assert pairs.settings(nodes, {"batch": 0, "seq": 5}, MACHINE) == ((),)
    assert pairs.predicted(nodes, {"batch": 0, "seq": 5}, 2, MACHINE, ()) >= 0


@pytest.mark.parametrize("residual", [False, True])
def test_the_call_computes_what_the_operators_do(residual: bool) -> None:
    graph = mlp(residual=residual)
    nodes = left_of(graph)
    reads = [each for node in nodes for each in node.inputs if each and each not in nodes]
    inputs = tuple(dict.fromkeys(reads))
    x = RNG.standard_normal((2, 5, 64)).astype(np.float32)
    arrays = [x if each.op == "input" else graph.constants[each.name] for each in inputs]
    out = np.empty((2, 5, 64), np.float32)
    for setting in ((), (("tile", 0),), (("tile", 99),)):
        assert pairs.build(nodes, inputs, setting)(*arrays, out=out) is out
        np.testing.assert_allclose(out, meaning.evaluate(graph, {"x": x})["y"], atol=1e-4)


@pytest.mark.parametrize(("depth", "fits"), [(64, True), (68, False)])
def test_what_lies_otherwise_is_left_to_the_model(
    depth: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On arrays of NumPy that pass for those of a GPU."""
    nodes = left_of(mlp(residual=False))
    reads = [each for node in nodes for each in node.inputs if each and each not in nodes]
    inputs = tuple(dict.fromkeys(reads))
    seen: list[Any] = []
    checked = ops.checked
    monkeypatch.setattr(pairs, "checked", lambda *a: ("cuda", checked(*a)[1]))
    monkeypatch.setattr(pairs, "launch", lambda *a: seen.append(a[0]))
    monkeypatch.setattr("stof_cupy.jit.device.facts", lambda number: H100)
    monkeypatch.setattr(pairs, "gemm_gemm", lambda *a, **how: seen.append(None))
    shapes = {"x": (3, depth), "up": (256, depth), "down": (64, 256), "up.b": (256,)}
    arrays = [np.zeros(shapes.get(each.name, (64,)), np.float16) for each in inputs]
    arrays[0] = arrays[0].view(_OfDevice)
    pairs.build(nodes, inputs, (("tile", 1),))(*arrays)
    assert seen == [PAIR_TILES[1] if fits else None]


class _OfDevice(np.ndarray):
    """An array that says, as CuPy's do, where it is."""

    @property
    def device(self) -> Any:
        return type("Device", (), {"id": 0})


@pytest.mark.parametrize("gated", [False, True])
def test_a_search_by_analysis_takes_it_where_it_is_expected_to_be_faster(gated: bool) -> None:
    def runs_as_one(graph: Graph, batch: int = 8) -> bool:
        site = Site("cuda", "bfloat16", None, MACHINE, {**SIZES, "batch": batch})
        fused = tune(graph, site, "fast").lowered.fused
        return any([node.op for node in each.nodes] == ["gemm", "gemm"] for each in fused)

    assert runs_as_one(mlp(gated=gated))
    assert not runs_as_one(mlp(1024, gated=gated), batch=256)
