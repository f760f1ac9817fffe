"""Building, sharing, printing and hashing graphs."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from stof_cupy.errors import DTypeError, GraphError
from stof_cupy.graph import Graph, Node
from stof_cupy.graph.registry import OPS


def block(name: str = "block", prefix: str = "", width: int = 6) -> tuple[Graph, Node]:
    g = Graph(name)
    x = g.input("x", ("batch", "seq", width), "float")
    w = g.constant(f"{prefix}w", np.zeros((width, width), np.float32))
    heads = g.split_heads(g.gemm(x, w), heads=2)
    y = g.merge_heads(g.attention(heads, heads, heads))
    g.output("y", g.gelu(y, approximate="tanh"))
    return g, x


def test_equal_nodes_are_one_object() -> None:
    g, x = block()
    w = g.constant("v", np.zeros((3, 6)))
    assert g.gemm(x, w) is g.gemm(x, w=w)
    assert g.gelu(x) is g.gelu(x, approximate="none")
    assert g.gelu(x) is not g.gelu(x, approximate="tanh")
    assert g.input("x", ("batch", "seq", 6), "float") is x
    ones = g.constant("ones", np.ones(6))
    assert g.layer_norm(x, ones, ones, eps=1) is g.layer_norm(x, ones, ones, eps=1.0)


def test_attributes_equal_under_hash_but_of_different_type_do_not_meet() -> None:
    g, x = block()
    with pytest.raises(GraphError, match=r"split_heads: heads: got True, expected an int"):
        g.split_heads(x, heads=True)
    assert g.split_heads(x, heads=np.int64(2)) is g.split_heads(x, heads=2)


def test_nodes_are_immutable() -> None:
    _, x = block()
    with pytest.raises(AttributeError):
        x.op = "gemm"  # type: ignore[misc]


def test_order_puts_inputs_first_and_leaves_out_what_no_output_needs() -> None:
    g, x = block()
    unused = g.gelu(x)
    nodes = g.nodes()
    place = {node: number for number, node in enumerate(nodes)}
    assert unused not in place
    assert all(place[each] < place[node] for node in nodes for each in node.inputs if each)


def test_a_deep_graph_does_not_recurse() -> None:
    g = Graph("deep")
    node = g.input("x", ("batch", 3), "float")
    for _ in range(5000):
        node = g.gelu(node)
    g.output("y", node)
    assert len(g.nodes()) == 5001
    assert len(g.digest()) == 16


def test_uses_count_every_reader_and_every_output() -> None:
    g = Graph("uses")
    x = g.input("x", ("batch", 3), "float")
    y = g.add(x, x)
    g.output("y", y)
    g.output("same", y)
    assert g.uses() == {x: 2, y: 2}


def test_show_gives_one_line_a_node_with_constants_in_place() -> None:
    g, _ = block(prefix="layer.0.")
    assert g.show().splitlines() == [
        "block (batch, seq)",
        '%0 = input("x") float (batch, seq, 6) [leaf]',
        '%1 = gemm(%0, w:"layer.0.w") float (batch, seq, 6) [CI]',
        "%2 = split_heads(%1, heads=2) float (batch, 2, seq, 3) [view]",
        "%3 = attention(%2, %2, %2) float (batch, 2, seq, 3) [CI]",
        "%4 = merge_heads(%3) float (batch, seq, 6) [view]",
        "%5 = gelu(%4, approximate='tanh') float (batch, seq, 6) [MI]",
        "y = %5",
    ]


def test_digest_sees_structure_and_not_names_or_values_of_constants() -> None:
    digest = block()[0].digest()
    assert digest == block("another", prefix="layer.7.")[0].digest()
    assert digest != block(width=8)[0].digest()
    g, x = block()
    g.output("more", x)
    assert g.digest() != digest


def test_digest_sees_attributes_wiring_and_dtypes() -> None:
    def one(dtype: type, swap: bool, approximate: str) -> str:
        g = Graph("one")
        x = g.input("x", ("batch", 4), "float")
        a, b = g.constant("a", np.ones((4, 4), dtype)), g.constant("b", np.ones((4, 4), dtype))
        p, q = g.gemm(x, a), g.gelu(g.gemm(x, b), approximate=approximate)
        g.output("y", g.add(q, p) if swap else g.add(p, q))
        return g.digest()

    variants = [
        one(np.float32, False, "none"),
        one(np.float16, False, "none"),
        one(np.float32, True, "none"),
        one(np.float32, False, "tanh"),
    ]
    assert len(set(variants)) == 4


def test_builders_have_the_signature_of_their_definition() -> None:
    assert str(inspect.signature(Graph.layer_norm)) == "(self, x, weight, bias, *, eps)"
    assert str(inspect.signature(Graph.gemm)) == (
        "(self, x, w, bias=None, residual=None, statistics=None, *, activation=None, gated=False)"
    )
    for name, op in OPS.items():
        assert op.summary in (getattr(Graph, name).__doc__ or "")


def test_constants_are_kept_without_a_copy() -> None:
    g = Graph("constants")
    array = np.ones((3, 2), np.float32)
    node = g.constant("w", array)
    assert g.constants["w"] is array
    assert g.constant("w", array) is node
    assert g.constant("n", np.arange(3)).dtype == "int"
    with pytest.raises(GraphError, match=r"constant 'w': got a second array"):
        g.constant("w", array.copy())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g, x: g.apply("conv", x), GraphError, r"op: got 'conv', expected gemm"),
        (lambda g, x: g.apply(["gelu"], x), GraphError, r"op: got \['gelu'\], expected gemm"),
        (lambda g, x: g.gelu(), GraphError, r"gelu: x: got nothing, expected a node of this graph"),
        (lambda g, x: g.gelu(3), GraphError, r"gelu: x: got int, expected a node.*constant\(name"),
        (lambda g, x: g.gelu(np.ones((3, 2))), GraphError, r"x: got ndarray \(3, 2\), expected a "),
        (lambda g, x: g.gelu(x, x), GraphError, r"gelu: got 2 inputs, expected at most 1"),
        (lambda g, x: g.gelu(x, x=x), GraphError, r"gelu: x: got two values"),
        (lambda g, x: g.gelu(x, kind="erf"), GraphError, r"argument: got 'kind', expected x, ap"),
        (lambda g, x: g.gelu(x, approximate="erf"), GraphError, r"got 'erf', expected 'none' or"),
        (lambda g, x: g.gelu(x, approximate=[]), GraphError, r"approximate: got \[\]"),
        (lambda g, x: g.layer_norm(x, x, x), GraphError, r"eps: got nothing, expected a positive"),
        (lambda g, x: g.layer_norm(x, x, x, eps=0), GraphError, r"eps: got 0, expected a positive"),
        (lambda g, x: g.layer_norm(x, x, x, eps="1"), GraphError, r"eps: got '1'"),
        (lambda g, x: g.gelu(Graph("b").input("z", (1,), "float")), GraphError, r"of this graph"),
        (lambda g, x: g.output("y", Graph("b").input("z", (1,), "int")), GraphError, r"output 'y'"),
        (lambda g, x: g.output("a", np.ones(2)), GraphError, r"'a': got ndarray \(2,\), expected"),
        (lambda g, x: g.output("y", x), GraphError, r"output 'y': got %0, expected %5"),
        (lambda g, x: g.output("m", g.input("m", (2, 2), "mask")), GraphError, r"got mask, exp"),
        (lambda g, x: g.gelu(g.input("i", (2,), "int")), GraphError, r"x: got %6 = .*dtype float"),
        (lambda g, x: g.input("x", (2,), "float"), GraphError, r"'x': got float \(2,\), expected"),
        (lambda g, x: g.input("z", ("time",), "float"), GraphError, r"'time', expected a positive"),
        (lambda g, x: g.input("z", (0,), "float"), GraphError, r"dim: got 0, expected a positive"),
        (lambda g, x: g.input("z", (2,), "half"), GraphError, r"dtype: got 'half', expected float"),
        (lambda g, x: g.input("z", (2,), "mask"), GraphError, r"\(2,\), expected 2 dims"),
        (lambda g, x: g.input("a b", (2,), "float"), GraphError, r"name of input: got 'a b'"),
        (lambda g, x: g.constant("c", [1.0]), DTypeError, r"constant 'c': got list, expected a"),
        (lambda g, x: g.constant("c", np.ones(1, bool)), DTypeError, r"constant 'c': got bool"),
        (lambda g, x: Graph("g", dims=("a b",)), GraphError, r"dims: got 'a b'"),
    ],
)  # fmt: skip
def test_misuse_is_refused_by_name(call, error, message) -> None:  # type: ignore[no-untyped-def]
    g, x = block()
    with pytest.raises(error, match=message):
        call(g, x)


def test_a_refused_call_leaves_no_trace() -> None:
    g, _ = block()
    before = g.show()
    with pytest.raises(GraphError):
        g.input("bad", ("time",), "float")
    with pytest.raises(GraphError):
        g.input("x", (7,), "float")
    with pytest.raises(GraphError):
        g.constant("a b", np.ones(2))
    assert g.gelu(g.inputs["x"]).index == 6
    assert "bad" not in g.inputs
    assert list(g.constants) == ["w"]
    assert g.show() == before
