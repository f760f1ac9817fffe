"""The memory plan: no two live values share a byte, and a run in an arena gives the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy.errors import GraphError
from stof_cupy.graph import Executor, Graph, Node
from stof_cupy.graph.memory import ALIGNMENT, PLACES, MemoryPlan, describe, plan_memory
from stof_cupy.graph.registry import OPS

RNG = np.random.default_rng(0)
WIDTH = 8


@st.composite
def graphs(draw: Any) -> Graph:
    g = Graph("any")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    w = g.constant("w", RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4)
    b = g.constant("b", RNG.standard_normal(WIDTH).astype(np.float32))
    pool: list[Node] = [x]
    for _ in range(draw(st.integers(1, 14))):
        one, two, latest = draw(st.sampled_from(pool)), draw(st.sampled_from(pool)), pool[-1]
        heads = [g.split_heads(each, heads=2) for each in (one, latest, two)]
        options = [
            lambda one=one, two=two: g.gemm(one, w, b, two),
            lambda latest=latest: g.gemm(latest, w, activation="gelu"),
            lambda one=one, latest=latest: g.add(latest, one),
            lambda latest=latest: g.gelu(latest),
            lambda latest=latest: g.layer_norm(latest, b, b, eps=1e-3),
            lambda heads=heads: g.merge_heads(g.attention(*heads)),
            lambda latest=latest: g.softmax(latest),
        ]
        pool.append(draw(st.sampled_from(options))())
    g.output("y", pool[-1])
    g.output("z", draw(st.sampled_from(pool)))
    return g


def live_ranges(graph: Graph) -> dict[Node, tuple[int, int]]:
    """Compute anew, by looking at every step, when each placed value must be intact."""
    steps = [node for node in graph.nodes() if node.op in OPS]

    def sources(node: Node) -> set[Node]:
        """Values whose memory reading `node` may touch."""
        if node.kind != "view":
            return {node}
        return {each for source in node.inputs if source for each in sources(source)}

    ranges: dict[Node, tuple[int, int]] = {}
    for number, node in enumerate(steps):
        ranges.setdefault(node, (number, number))
        for each in node.inputs:
            for source in sources(each) if each is not None else ():
                if source in ranges:
                    ranges[source] = (ranges[source][0], number)
    return ranges


@settings(max_examples=80, deadline=None, derandomize=True)
@given(graphs())
def test_live_values_never_overlap(g: Graph) -> None:
    sizes = {"batch": 3, "seq": 37}
    plan, ranges = plan_memory(g, sizes, 4), live_ranges(g)
    size = 3 * 37 * WIDTH * 4
    kept = set(g.outputs.values())
    placed = list(plan.slots.items())
    assert not kept & set(plan.slots)
    for i, (one, slot) in enumerate(placed):
        assert slot.offset % ALIGNMENT == 0 and slot.offset + size <= plan.arena_bytes
        for other, beside in placed[:i]:
            (a, b), (c, d) = ranges[one], ranges[other]
            apart = slot.offset + size <= beside.offset or beside.offset + size <= slot.offset
            # In place: one is read for the last time by the step that writes the other.
            handed_over = b == c or d == a
            in_place = plan.in_place.get(one) is other or plan.in_place.get(other) is one
            assert apart or b < c or d < a or (handed_over and in_place)
    assert plan.least_bytes <= plan.arena_bytes <= plan.total_bytes


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs())
def test_a_run_in_an_arena_gives_the_same(g: Graph) -> None:
    x = RNG.standard_normal((2, 5, WIDTH)).astype(np.float32)
    plain, placed = Executor(g, backend="numpy"), Executor(g, backend="numpy", arena=True)
    a, b = plain.run({"x": x}), placed.run({"x": x})
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def stack(layers: int) -> Graph:
    g = Graph("stack")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    w = g.constant("w", RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4)
    b = g.constant("b", np.ones(WIDTH, np.float32))
    for _ in range(layers):
        q, k, v = (
            g.split_heads(g.gemm(x, w, b, activation=a), heads=2)
            for a in (None, "gelu", "gelu_tanh")
        )
        x = g.layer_norm(g.add(g.gemm(g.merge_heads(g.attention(q, k, v)), w), x), b, b, eps=1e-3)
    g.output("y", x)
    return g


def test_a_stack_needs_no_more_than_a_layer() -> None:
    sizes = {"batch": 4, "seq": 64}
    two, ten = (plan_memory(stack(n), sizes, 2) for n in (2, 10))
    assert two.arena_bytes == ten.arena_bytes == 5 * 4 * 64 * WIDTH * 2  # x, q, k, v, attended
    assert ten.total_bytes > 9 * two.arena_bytes
    assert len(ten.in_place) >= 2 * 9
    assert f"{ten.arena_bytes:,} bytes" in str(ten)
    assert len(describe(ten).splitlines()) == 1 + len(ten.slots)


def test_plans_follow_the_sizes_of_a_run_and_threads_do_not_meet() -> None:
    g = stack(2)
    placed, plain = Executor(g, backend="numpy", arena=True), Executor(g, backend="numpy")
    inputs = [RNG.standard_normal((b, s, WIDTH)).astype(np.float32) for b, s in ((1, 9), (3, 70))]
    expected = [plain.run({"x": x})["y"] for x in inputs]
    wrong = []

    def work(which: int) -> None:
        for _ in range(20):
            if not np.array_equal(placed.run({"x": inputs[which]})["y"], expected[which]):
                wrong.append(which)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [i % 2 for i in range(4)]))
    assert not wrong
    plans = [placed.plan({"batch": b, "seq": s}) for b, s in ((1, 9), (3, 70))]
    assert plans[0].arena_bytes < plans[1].arena_bytes
    assert isinstance(plans[0], MemoryPlan) and placed.plan({"batch": 1, "seq": 9}) is plans[0]


def test_an_observer_sees_values_that_stay() -> None:
    seen: list[Any] = []
    executor = Executor(stack(1), backend="numpy", arena=True)
    x = RNG.standard_normal((1, 9, WIDTH)).astype(np.float32)
    executor.run({"x": x}, observe=lambda node, y: seen.append((y, y.copy())))
    assert all(np.array_equal(y, copy) for y, copy in seen)


def test_a_size_that_is_missing_is_named() -> None:
    with pytest.raises(GraphError, match="size of 'seq': got none, expected a number"):
        plan_memory(stack(1), {"batch": 1}, 2)


def test_places_are_operators_with_ports_of_those_names() -> None:
    for op, place in PLACES.items():
        assert set(place.in_place) <= {port.name for port in OPS[op].ports}
