"""Graphs spoilt by hand, one for each rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stof_cupy.errors import GraphError
from stof_cupy.graph import Graph, Node, verify
from stof_cupy.graph.verify import RULES


def good() -> tuple[Graph, Node]:
    g = Graph("good")
    x = g.input("x", ("batch", "seq", 6), "float")
    y = g.gemm(x, g.constant("w", np.ones((4, 6), np.float32)))
    g.output("y", y)
    return g, y


def test_a_built_graph_verifies() -> None:
    verify(good()[0])


SPOILT: dict[str, Callable[[Node], Node]] = {
    "is a registered op": lambda y: replace(y, op="conv"),
    "takes the inputs of its op": lambda y: replace(y, inputs=y.inputs[:2]),
    "has the attributes of its op": lambda y: replace(y, attrs=(("activation", "relu"),)),
    "has the shape and dtype that its inputs imply": lambda y: replace(
        y, shape=("batch", "seq", 5)
    ),
    "uses declared dims": lambda y: replace(y.inputs[0], shape=("batch", "time", 6)),
    "is a declared input or constant": lambda y: replace(y.inputs[0], shape=("batch", "seq", 7)),
    "was made by this graph": replace,
}


@pytest.mark.parametrize("rule", SPOILT)
def test_each_rule_catches_its_fault_and_names_itself_and_the_node(rule: str) -> None:
    g, y = good()
    g._outputs["y"] = SPOILT[rule](y)
    with pytest.raises(GraphError, match=rf"^%\d+: got \w+ with .*, expected a node that {rule}"):
        verify(g)


def test_every_rule_has_a_fault() -> None:
    assert [rule.name for rule in RULES] == list(SPOILT)


def test_a_wrong_dtype_of_an_operand_is_found() -> None:
    g, y = good()
    ids = g.input("ids", ("batch", "seq", 6), "int")
    g._outputs["y"] = replace(y, inputs=(ids, *y.inputs[1:]))
    with pytest.raises(GraphError, match="takes the inputs of its op"):
        verify(g)


def test_shapes_that_do_not_fit_are_explained() -> None:
    g, y = good()
    other = g.input("z", ("batch", "seq", 5), "float")
    g._outputs["y"] = replace(y, inputs=(other, *y.inputs[1:]))
    with pytest.raises(GraphError, match=r"implied w: got \(4, 6\), expected \(any, 5\)"):
        verify(g)


def test_a_spoilt_node_still_prints() -> None:
    _, y = good()
    assert repr(replace(y, inputs=y.inputs[:1])) == "%1 = gemm(%0) float (batch, seq, 4) [CI]"
    assert "colour='red'" in repr(replace(y, attrs=(("colour", "red"),)))


def test_a_cycle_is_found() -> None:
    g, y = good()
    loop = g.gelu(y)
    object.__setattr__(y, "inputs", (loop, *y.inputs[1:]))
    with pytest.raises(GraphError, match=r"%1: got a node that needs itself, expected no cycle"):
        verify(g)


def test_a_constant_that_changed_shape_is_found() -> None:
    g, _ = good()
    g._constants["w"] = np.ones((5, 6), np.float32)
    with pytest.raises(
        GraphError, match=r'"w": got constant with w, expected a node that is a decl'
    ):
        verify(g)


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(GraphError, match=r"graph empty: got no output"):
        verify(Graph("empty"))
