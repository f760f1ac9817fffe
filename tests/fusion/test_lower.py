"""Segments: which runs are legal, and that any legal scheme computes the same."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy.errors import UnsupportedError
from stof_cupy.fusion.chain import ROWS, TEMPLATES, Chain
from stof_cupy.fusion.cost import NUMPY, machine_of
from stof_cupy.fusion.kernels import KERNELS, kernel_of
from stof_cupy.fusion.lengths import norm_kernels
from stof_cupy.fusion.lower import extract, lower, lower_one
from stof_cupy.fusion.scheme import Scheme
from stof_cupy.graph import Executor, Graph, meaning
from stof_cupy.graph.registry import OPS
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops import gemm_model, reference_decoder
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_model import Constants
from stof_cupy.ops.gemm_sm90 import Layout
from tests.fusion.stacks import WIDTH, constant, norm, paper_stack
from tests.fusion.test_tune import H100
from tests.ops.gpus import L4

RNG = np.random.default_rng(0)
FIGURE_7 = "0 1 00000 111 000 11"


def feeds(batch: int = 2, seq: int = 33) -> dict[str, Any]:
    x = np.random.default_rng(5).standard_normal((batch, seq, WIDTH)).astype(np.float32)
    return {"x": x, "mask": np.random.default_rng(6).random((seq, seq)) < 0.4}


def test_the_layer_of_the_paper_has_its_operators_and_classes() -> None:
    chain = Chain(paper_stack(1))
    assert [node.op for node in chain.ops] == [
        "gemm", "add", "matmul", "scale", "masked", "softmax", "matmul", "gemm", "add",
        "layer_norm", "gemm", "gelu", "gemm", "add", "layer_norm",
    ]  # fmt: skip
    assert [i for i, kind in enumerate(chain.kinds) if kind == "CI"] == [0, 2, 6, 7, 10, 12]
    found = [chain.template(*span) for span in Scheme.from_bits(FIGURE_7).spans()]
    assert [each and each.name for each in found] == ["CI", "MI", "MHA", "CI+MI", "CI+CI", "MI+MI"]


def test_segments_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(paper_stack(2))
    found = chain.segments()
    assert found == [
        (start, stop)
        for start in range(len(chain))
        for stop in range(start + 1, len(chain) + 1)
        if chain.template(start, stop)
    ]
    monkeypatch.setattr(Chain, "template", lambda *span: pytest.fail("looked at again"))
    assert chain.segments() == found


def by_hand(chain: Chain, start: int, stop: int) -> bool:
    """Say anew, by the words of the definition, whether a run is a segment."""
    ops = chain.ops[start:stop]
    users: dict[Any, list[Any]] = {}
    for node in chain.graph.nodes():
        for each in node.inputs:
            users.setdefault(each, []).append(node)
    for one, two in pairwise(ops):
        if users[one] != [two] or one in chain.graph.outputs.values():
            return False
    names = " ".join(node.op for node in ops)
    if re.fullmatch(r"matmul( scale| masked)* softmax matmul", names):
        return ops[-1].inputs[0] is ops[-2]
    if len(ops) == 1:
        return True
    heavy = sum(node.kind == "CI" for node in ops)
    right_start = heavy == 0 or ops[0].kind == "CI"
    return right_start and heavy <= 2 and all(node.op in ROWS for node in ops)


def test_segments_are_those_of_the_definition() -> None:
    chain = Chain(paper_stack(2))
    count = len(chain)
    for start in range(count):
        for stop in range(start + 1, min(start + 9, count) + 1):
            assert (chain.template(start, stop) is not None) == by_hand(chain, start, stop)
    every = [(a, b) for a in range(count) for b in range(a + 1, count + 1) if chain.template(a, b)]
    assert chain.segments() == every
    assert chain.template(3, 3) is None and chain.template(-1, 2) is None


def schemes(chain: Chain) -> Any:
    @st.composite
    def draw_one(draw: Any) -> list[tuple[int, int]]:
        legal, at, spans = chain.segments(), 0, []
        while at < len(chain):
            spans.append(draw(st.sampled_from([span for span in legal if span[0] == at])))
            at = spans[-1][1]
        return spans

    return draw_one()


TWO = Chain(paper_stack(2))
EXPECTED = meaning.evaluate(TWO.graph, feeds())["y"]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(schemes(TWO), st.data())
def test_any_legal_scheme_computes_the_same(spans: list[tuple[int, int]], data: Any) -> None:
    chosen = []
    for span in spans:
        _, nodes = lower_one(TWO, *span)
        kernel = kernel_of(nodes, "numpy")
        assert kernel is not None
        chosen.append(
            data.draw(st.sampled_from(kernel.settings(nodes, {"batch": 2, "seq": 33}, NUMPY)))
        )
    lowered = lower(TWO, spans, chosen, "numpy")
    for arena in (False, True):
        run = Executor(lowered.graph, backend="numpy", fused=lowered.fused, arena=arena).run
        np.testing.assert_allclose(run(feeds())["y"], EXPECTED, atol=2e-5)
    assert Scheme.from_spans(spans).spans() == spans


@pytest.mark.parametrize("span", [(0, 1), (0, 2), (2, 7), (7, 10), (10, 14), (10, 15), (13, 15)])
def test_a_segment_by_itself_is_what_it_is_in_the_graph(span: tuple[int, int]) -> None:
    chain = Chain(paper_stack(1))
    graph, folded = extract(chain, *span), lower_one(chain, *span)[0]
    given = {}
    for name, node in graph.inputs.items():
        shape = [{"batch": 2, "seq": 5}.get(dim, dim) for dim in node.shape]
        given[name] = (
            RNG.random(shape) < 0.5 if node.dtype == "mask" else RNG.standard_normal(shape)
        )
    a, b = meaning.evaluate(graph, given), meaning.evaluate(folded, given)
    np.testing.assert_allclose(a["result"], b["result"], atol=1e-9)


def test_what_is_left_of_a_segment() -> None:
    chain = Chain(paper_stack(1))
    left = {
        (0, 2): ["gemm"], (2, 7): ["attention"], (7, 9): ["gemm"], (10, 12): ["gemm"],
        (7, 10): ["gemm", "layer_norm"], (10, 14): ["gemm", "gemm"],
        (13, 15): ["add", "layer_norm"],
    }  # fmt: skip
    for span, ops in left.items():
        assert [node.op for node in lower_one(chain, *span)[1]] == ops


def test_a_segment_without_a_kernel_is_refused() -> None:
    chain = Chain(paper_stack(1))
    spans = [(0, 1), (1, 2), (2, 7), (7, 9), (9, 11), (11, 12), (12, 15)]
    with pytest.raises(UnsupportedError, match=r"segment: got layer_norm \+ gemm, .* cuda"):
        lower(chain, spans, [()] * len(spans), "cuda")


def test_layers_are_equal_and_what_differs_is_not() -> None:
    chain = Chain(paper_stack(3))
    for start, stop in [(7, 10), (2, 7), (10, 15)]:
        digests = {chain.digest(start + 15 * i, stop + 15 * i) for i in range(3)}
        assert len(digests) == 1
    every = {chain.digest(*span) for span in chain.segments() if span[1] <= 15}
    assert len(every) == sum(span[1] <= 15 for span in chain.segments()) - 3  # add, norms, matmuls
    assert len(chain.digest(0, 45)) == 16


def test_what_repeats_along_rows_is_no_row() -> None:
    g = Graph("positions")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    y = g.add(g.gemm(x, constant(g, "w", WIDTH, WIDTH)), g.input("p", ("seq", WIDTH), "float"))
    g.output("y", norm(g, y, "n"))
    assert Chain(g).segments() == [(0, 1), (1, 2), (2, 3)]


def test_an_output_or_a_second_reader_ends_a_segment() -> None:
    g = Graph("read")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    y = g.gelu(g.gemm(x, constant(g, "w", WIDTH, WIDTH)))
    g.output("y", y)
    z = norm(g, y, "n")
    g.output("z", g.add(z, z))
    assert Chain(g).segments() == [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]


def test_tables_name_operators() -> None:
    for op, ports in ROWS.items():
        assert set(ports) <= {port.name for port in OPS[op].ports}
    assert len({each.name for each in TEMPLATES}) == len(TEMPLATES)
    assert len({each.name for each in KERNELS}) == len(KERNELS)


def test_a_run_of_no_rows() -> None:
    chain = Chain(paper_stack(1))
    site_sizes = {"batch": 2, "seq": 0}
    _, nodes = lower_one(chain, 7, 10)
    kernel = kernel_of(nodes, "numpy")
    assert kernel is not None and kernel.build is not None
    (setting,) = kernel.settings(nodes, site_sizes, NUMPY)
    inputs = tuple(dict.fromkeys(e for n in nodes for e in n.inputs if e and e not in nodes))
    run = kernel.build(nodes, inputs, setting)
    arrays = [
        np.ones(
            [0 if dim == "seq" else 2 if dim == "batch" else dim for dim in each.shape], np.float32
        )
        for each in inputs
    ]
    assert run(*arrays).shape == (2, 0, WIDTH)


@pytest.mark.parametrize(
    ("span", "name"),
    [
        ((7, 10), "gemm and norm"),
        ((12, 15), "gemm and norm"),
        ((8, 10), "add and norm"),
        ((13, 15), "add and norm"),
    ],
)
def test_kernels_that_end_in_a_norm(span: tuple[int, int], name: str) -> None:
    """Which are for CUDA; on NumPy their operators do the same in two steps."""
    chain = Chain(paper_stack(1))
    graph, nodes = lower_one(chain, *span)
    kernel = kernel_of(nodes, "cuda")
    assert kernel is not None and kernel.build is not None and kernel.name == name
    assert kernel.seconds(nodes, {"batch": 2, "seq": 5}, 2, NUMPY, ()) > 0
    reads = [each for node in nodes for each in node.inputs if each and each not in nodes]
    inputs = tuple(dict.fromkeys(reads))
    given, arrays = {}, []
    for each in inputs:
        if each.op == "constant":
            arrays.append(graph.constants[each.name])
            continue
        shape = [{"batch": 2, "seq": 5}.get(dim, dim) for dim in each.shape]
        arrays.append(RNG.standard_normal(shape).astype(np.float32))
        source = each if each.op == "input" else each.inputs[0]  # heads that were merged
        assert source is not None
        if source is each:
            given[each.name] = arrays[-1]
        else:
            given[source.name] = arrays[-1].reshape(2, 5, 2, 4).transpose(0, 2, 1, 3)
    out = np.empty((2, 5, WIDTH), np.float32)
    got = kernel.build(nodes, inputs, ())(*arrays, out=out)
    assert got is out
    np.testing.assert_allclose(got, meaning.evaluate(graph, given)["result"], atol=1e-5)


def test_the_kernel_of_product_and_rms_norm() -> None:
    g = Graph("post-norm")
    x = g.input("x", ("seq", WIDTH), "float")
    y = g.gemm(x, constant(g, "w", WIDTH, WIDTH), constant(g, "b", WIDTH))
    g.output("y", g.rms_norm(y, constant(g, "n", WIDTH), eps=1e-6))
    nodes = lower_one(Chain(g), 0, 2)[1]
    kernel = kernel_of(nodes, "cuda")
    assert kernel is not None and kernel.name == "gemm and norm" and kernel.build is not None
    inputs = (x, *nodes[0].inputs[1:3], nodes[1].inputs[1])
    given = RNG.standard_normal((3, WIDTH)).astype(np.float32)
    weights = [g.constants[each.name] for each in inputs[1:] if each is not None]
    got = kernel.build(nodes, (nodes[0].inputs[0], *inputs[1:]), ())(given, *weights)
    np.testing.assert_allclose(got, meaning.evaluate(g, {"x": given})["y"], atol=1e-5)


def test_a_norm_costs_what_the_model_says() -> None:
    """One kernel, where it is expected to be faster than two."""
    g = Graph("wide")
    x = g.input("x", ("batch", "seq", 256), "float")
    y = g.gemm(x, g.constant("w", np.ones((256, 256), np.float32)))
    g.output("y", g.rms_norm(y, g.constant("n", np.ones(256, np.float32)), eps=1e-6))
    nodes, machine = lower_one(Chain(g), 0, 2)[1], machine_of(H100)
    kernel = kernel_of(nodes, "cuda")
    assert kernel is not None
    for rows, norms in ((8, False), (512, True)):
        sizes = {"batch": 64, "seq": rows}
        problem = Problem("float16", 64 * rows, 256, 256)
        plan = gemm_model.choose_norm(problem, Layout(), H100)
        assert (plan is not None) == norms
        product = gemm_model.explain(problem, Layout(), H100)[0].us
        us = 1e6 * kernel.seconds(nodes, sizes, 2, machine, ())
        if plan is None:
            assert us > product
        else:
            assert us == pytest.approx(gemm_model.predict(plan, problem, H100, Constants()).us)


@pytest.mark.parametrize("gpu, one", [(L4, False), (H100, True)], ids=["L4", "H100"])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_the_norm_of_a_product_is_compiled_ahead(op: str, gpu: DeviceFacts, one: bool) -> None:
    """Where both are two kernels at some length, it is that norm's."""
    g = Graph("normed")
    x = g.input("x", ("batch", "seq", 64), "float")
    y = g.gemm(x, constant(g, "w", 64, 64))
    gains = [constant(g, name, 64) for name in ("gain", "shift")[: 2 - (op == "rms_norm")]]
    norm = getattr(g, op)(y, *gains, eps=1e-6)
    found = norm_kernels([norm], {"batch": 2, "seq": 100}, "float16", gpu)
    in_one = ["gemm_sm90_f16_128x64_c1_norm1"] if one else []
    assert [spec.name for spec in found] == [f"{op}_f16", *in_one]


@pytest.mark.parametrize("width, late", [(64, False), (768, True)])
def test_the_product_without_a_residual_is_compiled_ahead(width: int, late: bool) -> None:
    """It is what runs where the norm adds the residual."""
    g = Graph("added")
    x = g.input("x", ("batch", "seq", width), "float")
    y = g.gemm(x, constant(g, "w", width, width), residual=x)
    norm = g.rms_norm(y, constant(g, "gain", width), eps=1e-6)
    found = norm_kernels([norm], {"batch": 1, "seq": 512}, "float16", L4 if late else H100)
    names = [spec.name for spec in found if not spec.name.startswith("rms_norm")]
    assert names and all("residual" in name for name in names) != late


def test_a_norm_of_a_sum_of_rows_alone() -> None:
    g = Graph("sums")
    x, y = (g.input(name, ("batch", "seq", 8), "float") for name in "xy")
    gain, shift = (g.constant(name, RNG.standard_normal(8)) for name in ("gain", "shift"))
    both = [g.add(x, y), g.rms_norm(g.add(x, y), gain, eps=1e-6)]
    kernel = kernel_of(both, "cuda")
    assert kernel is not None and kernel.build is not None and kernel.name == "add and norm"
    rows = RNG.standard_normal((2, 3, 8)).astype(np.float32), np.ones((2, 3, 8), np.float32)
    got = kernel.build(both, (x, y, gain), ())(*rows, g.constants["gain"].astype(np.float32))
    want = reference_decoder.rms_norm(rows[0] + 1, g.constants["gain"], eps=1e-6)
    np.testing.assert_allclose(got, want, atol=1e-5)
    bias = [g.add(x, shift), g.rms_norm(g.add(x, shift), gain, eps=1e-6)]
    assert kernel_of(bias, "cuda") is None
