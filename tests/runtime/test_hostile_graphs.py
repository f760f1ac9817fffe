"""Graphs as nobody should write them: every way to run one agrees with what it means.

More axes than usual, operands that are views of each other, values that are outputs and are read
on, masks that differ from layer to layer, constants in one memory, norms that many products read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stof_cupy.fusion import fuse, structured
from stof_cupy.fusion.bench import PieceSpace, Site
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.cost import NUMPY
from stof_cupy.fusion.lower import lower
from stof_cupy.fusion.norms import fold_norms, tell_statistics
from stof_cupy.fusion.pieces import Piece
from stof_cupy.graph import Executor, Graph, Node
from stof_cupy.graph.memory import PASSED_ON
from stof_cupy.graph.registry import OPS
from stof_cupy.runtime import Options, Program
from stof_cupy.testing import assert_close
from tests.runtime.fake import FakeRecorder

HEADS, DIM = 2, 3
WIDTH = HEADS * DIM

SHARED = np.random.default_rng(5).standard_normal((4 * WIDTH, WIDTH)).astype(np.float32) / 2
"""Of which all weights are parts."""


class Builder:
    """Draws operators on (batch, seq, WIDTH), and on (batch, 2, seq, WIDTH)."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.g = draw, Graph("hostile")
        g = self.g
        self.masks = [g.input(name, ("seq", "seq"), "mask") for name in ("mask.0", "mask.1")]
        self.lengths = g.input("n", ("batch",), "lengths")
        self.weights = [
            g.constant(f"w{i}", SHARED[i * WIDTH : (i + 1) * WIDTH]) for i in range(4)
        ] + [g.constant("again", SHARED[:WIDTH])]
        self.wide = g.constant("wide", SHARED[: 2 * WIDTH])
        self.turned = g.transpose(g.constant("turned", SHARED[:WIDTH]), axes=(1, 0))
        self.vector = g.constant("vector", SHARED[0])
        self.rows = [g.input(name, ("batch", "seq", WIDTH), "float") for name in "xy"]
        self.deep = [g.input("z", ("batch", 2, "seq", WIDTH), "float")]

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def row(self, x: Node, pool: list[Node]) -> Node:
        """What any leading axes can have."""
        g, y, w = self.g, self.one_of(*pool), self.one_of(*self.weights)
        bias = self.one_of(None, self.vector)
        kind = self.one_of(
            *("act", "act", "act", "add", "add", "mul", "res", "own"),  # may work in place
            *("gemm", "gate", "wide", "ln", "rms"),
        )
        if kind == "gemm":
            return g.gemm(x, w, bias, activation=self.one_of(None, "gelu", "silu", "relu"))
        if kind in ("res", "own"):  # what is added may be what is multiplied
            return g.gemm(x, w, bias, x if kind == "own" else y)
        if kind == "gate":
            return g.gated(g.gemm(x, w), g.gemm(self.one_of(x, y), self.weights[1]))
        if kind == "wide":
            start = self.one_of(0, DIM, WIDTH)
            return g.columns(g.gemm(x, self.wide), start=start, stop=start + WIDTH)
        if kind in ("ln", "rms"):
            norm = (
                g.layer_norm(x, self.vector, self.vector, eps=0.1)
                if kind == "ln"
                else g.rms_norm(x, self.vector, eps=0.1)
            )
            read = self.one_of(0, 1, 2)  # by products alone, by one and others, by none
            parts = [
                g.gemm(norm, self.one_of(*self.weights), bias) for _ in range(min(read, 1) + 1)
            ]
            return norm if read == 2 else g.add(parts[0], parts[-1])
        if kind == "add":
            return g.add(x, self.one_of(x, y, self.vector))
        if kind == "mul":
            return g.mul(x, self.one_of(x, y, self.vector))
        return self.one_of(g.gelu, g.silu, g.relu)(x)  # and x may be read again

    def attention(self, x: Node) -> Node:
        g = self.g
        q, k, v = (g.split_heads(self.one_of(x, *self.rows[-3:]), heads=HEADS) for _ in range(3))
        mask, lengths = self.one_of(None, *self.masks), self.one_of(None, self.lengths)
        if self.one_of(True, False):
            return g.merge_heads(g.attention(q, k, v, mask, lengths))
        turned = (0, 1, 3, 2)
        scores = g.matmul(q, g.transpose(k, axes=turned))
        if self.one_of(True, False):
            scores = g.transpose(g.matmul(k, g.transpose(q, axes=turned)), axes=turned)
        scores = g.masked(g.scale(scores, factor=0.5), mask, lengths)
        return g.merge_heads(g.matmul(g.softmax(scores), v))

    def build(self) -> Graph:
        g = self.g
        for _ in range(self.draw(st.integers(4, 14))):
            pool = self.one_of(self.rows, self.rows, self.deep)
            x = self.one_of(pool[-1], pool[-1], *pool[-3:])
            if pool is self.rows and self.one_of(*[False] * 4, True):
                pool.append(self.attention(x))
            elif self.one_of(*[False] * 7, True):
                pool.append(g.matmul(x, self.turned))
            else:
                pool.append(self.row(x, pool))
        g.output("rows", self.rows[-1])
        g.output("deep", self.deep[-1])
        if self.one_of(True, False):  # which may be read on, a view, an input, or another output
            g.output("any", self.one_of(*self.rows, *self.deep))
        return g


@st.composite
def graphs(draw: Any) -> Graph:
    return Builder(draw).build()


LEADS = [(), (HEADS,), (1, HEADS), ("batch", 1), ("batch", HEADS), None]


def feeds(draw: Any) -> dict[str, Any]:
    batch, seq = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 7, 40]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    given: dict[str, Any] = {
        name: rng.standard_normal((batch, *axes, seq, WIDTH)).astype(np.float32) / 2
        for name, axes in (("x", ()), ("y", ()), ("z", (2,)))
    }
    for name in ("mask.0", "mask.1"):
        lead = draw(st.sampled_from(LEADS))
        if lead is not None:
            axes = [batch if axis == "batch" else axis for axis in lead]
            given[name] = rng.random((*axes, seq, seq)) < 0.6
    return given | {"n": rng.integers(0, seq + 1, batch)}


def evaluated(graph: Graph, inputs: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """By the definitions of the operators, all values rounded to a type."""
    values: dict[Any, Any] = {None: None}
    for node in graph.nodes():
        if node.op in OPS:
            value = OPS[node.op].meaning(*(values[x] for x in node.inputs), **dict(node.attrs))
            values[node] = value.astype(dtype)
        else:
            value = graph.constants[node.name] if node.op == "constant" else inputs.get(node.name)
            values[node] = value.astype(dtype) if node.dtype == "float" else value
    return {name: values[node] for name, node in graph.outputs.items()}


class Checked:
    """A graph, inputs, and what comes of them; runs may write to neither."""

    def __init__(self, graph: Graph, inputs: dict[str, Any]) -> None:
        self.graph, self.inputs = graph, inputs
        self._before = {name: value.copy() for name, value in inputs.items()}
        self._exact = evaluated(graph, inputs, np.float64)
        self._single = evaluated(graph, inputs, np.float32)

    def __call__(self, got: dict[str, Any]) -> None:
        assert list(got) == list(self._exact)
        for name, value in got.items():
            assert_close(value, self._exact[name], self._single[name])
        for name, value in self._before.items():
            np.testing.assert_array_equal(self.inputs[name], value)
        # Whoever gets a result may write to it; one of two names is got once.
        results = list({self.graph.outputs[name]: value for name, value in got.items()}.values())
        for one, other in itertools.combinations([*results, *self.inputs.values(), SHARED], 2):
            assert not np.shares_memory(one, other)


def schemes(graph: Graph, sizes: dict[str, int], data: Any) -> Iterator[Any]:
    """Yield the graph lowered by some legal schemes at any settings."""
    chain = Chain(graph)
    if not len(chain):
        return
    site = Site("numpy", "float32", None, NUMPY, sizes)
    space = PieceSpace(chain, Piece(0, len(chain)), site)
    by_start: dict[int, list[tuple[int, int]]] = {}
    for span in space.segments():
        by_start.setdefault(span[0], []).append(span)
    for _ in range(2):
        spans, chosen, at = [], [], 0
        while at < len(chain):
            spans.append(data.draw(st.sampled_from(by_start[at])))
            chosen.append(data.draw(st.sampled_from(list(space.settings(spans[-1])))))
            at = spans[-1][1]
        yield lower(chain, spans, chosen, "numpy")


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an arena hold NaN where nothing was written."""
    monkeypatch.setattr(Executor, "_empty", lambda self, size: np.full(size, 0xFF, np.uint8))


MANY = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@MANY
@given(graphs(), st.data())
def test_every_way_agrees(g: Graph, data: Any) -> None:
    inputs = feeds(data.draw)
    check = Checked(g, inputs)
    made = structured(g)
    for graph in (g, made, fuse(g), fold_norms(made), tell_statistics(fuse(fold_norms(made)))):
        for arena in (False, True):
            check(Executor(graph, backend="numpy", arena=arena).run(inputs))
    sizes = dict(zip(("batch", "seq"), inputs["x"].shape, strict=False))
    for graph in (made, fold_norms(made)):
        for lowered in schemes(graph, sizes, data):
            for arena in (False, True):
                how: dict[str, Any] = {"fused": lowered.fused, "arena": arena}
                executor = Executor(lowered.graph, backend="numpy", **how)
                check(executor.run(inputs))
                never_aliases(executor, sizes)


def never_aliases(executor: Executor, sizes: dict[str, int]) -> None:
    """No two values that are needed at one time share a byte, but for what is done in place."""
    plan, steps = executor.plan(sizes), executor._steps

    def sources(node: Node) -> set[Node]:
        seen = node.kind == "view" or node.op in PASSED_ON
        return {y for x in node.inputs if x for y in sources(x)} if seen else {node}

    needed: dict[Node, tuple[int, int]] = {}
    for number, step in enumerate(steps):
        needed.setdefault(step.node, (number, number))
        for operand in step.operands:
            for source in sources(operand) if operand is not None else ():
                needed[source] = (needed.get(source, (number, 0))[0], number)
    for output in executor.graph.outputs.values():
        assert not sources(output) & set(plan.slots)
    for node, taken in plan.in_place.items():  # which nothing else reads, nor the same step twice
        operands = next(step.operands for step in steps if step.node is node)
        assert sum(taken in sources(x) for x in operands if x) == 1
        assert needed[taken][1] == needed[node][0]
    for (one, a), (two, b) in itertools.combinations(plan.slots.items(), 2):
        sizes_of = [int(np.prod(slot.shape)) * 4 for slot in (a, b)]
        apart = a.offset + sizes_of[0] <= b.offset or b.offset + sizes_of[1] <= a.offset
        (first, last), (begun, ended) = needed[one], needed[two]
        if apart or last < begun or ended < first:
            continue
        assert last == begun or ended == first
        assert plan.in_place.get(one) is two or plan.in_place.get(two) is one


@settings(MANY, max_examples=40)
@given(graphs(), st.data())
def test_programs_agree_however_they_are_set(g: Graph, data: Any) -> None:
    """Tuned or not, recorded or not, folded or not, and at other sizes after that."""
    how = {
        "tune": data.draw(st.sampled_from(["off", "fast"])),
        "fold_norms": data.draw(st.booleans()),
    }
    if data.draw(st.booleans()):
        how |= {"record": True, "recorder": FakeRecorder()}
    program = Program(g, options=Options(**how))
    for _ in range(2):
        inputs = feeds(data.draw)
        check = Checked(g, inputs)
        for _ in range(4):
            check(program.run(inputs))
    program.close()
