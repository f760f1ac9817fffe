"""Arguments that no one should give: each is a typed error that names them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import DTypeError, GraphError
from stof_cupy.graph import Graph


@pytest.mark.parametrize("shape", [4, None, "bs", {"b": 1}])
def test_shapes_are_tuples(shape: Any) -> None:
    g = Graph("g", dims=("b", "s"))
    with pytest.raises(GraphError, match=r"input 'z': shape: got .*, expected a tuple of dims"):
        g.input("z", shape, "float")
    assert g.input("z", ["b", 3], "float").shape == ("b", 3)


@pytest.mark.parametrize("dims", [3, None, "batch"])
def test_dims_are_tuples(dims: Any) -> None:
    with pytest.raises(GraphError, match=r"dims: got .*, expected a tuple of names"):
        Graph("g", dims=dims)


def test_masked_constants_are_refused() -> None:
    array = np.ma.masked_equal(np.arange(6.0), 3)
    with pytest.raises(DTypeError, match="constant 'w': got MaskedArray, expected a plain NumPy"):
        Graph("g").constant("w", array)


def test_attention_without_key_heads() -> None:
    g = Graph("g")
    q = g.constant("q", np.zeros((2, 4, 3, 8)))
    k = g.constant("k", np.zeros((2, 0, 3, 8)))
    with pytest.raises(GraphError, match="k: got 0 heads, expected a divisor of the 4 heads of q"):
        g.attention(q, k, k)


def test_an_attribute_that_overflows_a_float() -> None:
    g = Graph("g")
    x = g.input("x", (2, 4), "float")
    w = g.constant("w", np.ones(4))
    with pytest.raises(GraphError, match="layer_norm: eps: got 1000"):
        g.layer_norm(x, w, w, eps=10**400)
