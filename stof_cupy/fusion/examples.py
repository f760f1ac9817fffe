"""Inputs to time a graph with, where the caller's are not to be read or not there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from stof_cupy.dtypes import as_dtype
from stof_cupy.graph import Graph
from stof_cupy.graph.memory import bound

__all__ = ["example_inputs"]


def example_inputs(
    graph: Graph,
    sizes: Mapping[str, int],
    given: Mapping[str, Any],
    dtype: str,
    device: int | None,
) -> dict[str, Any]:
    """Return inputs of a graph: given ones, else normal numbers, and ids of 0.

    Parameters
    ----------
    graph : Graph
    sizes : mapping of str to int
        What the symbolic dims are.
    given : mapping of str to object
        Masks and lengths by name; those that are not there are None.
    dtype : str
        Of floats on a device; on the host they are float32.
    device : int or None
        The current CUDA device; None: NumPy arrays.

    Examples
    --------
    >>> g = Graph("one")
    >>> x = g.input("x", ("batch", 4), "float")
    >>> example_inputs(g, {"batch": 2}, {}, "float16", None)["x"].shape
    (2, 4)
    """
    inputs: dict[str, Any] = {}
    for name, node in graph.inputs.items():
        if name in given or node.dtype in ("mask", "lengths", "cache"):
            inputs[name] = given.get(name)
            continue
        shape = bound(node.shape, sizes)
        drawn = "float32" if device is None else dtype
        block = np.zeros(_BLOCK, np.int32) if node.dtype == "int" else _normal(drawn)
        inputs[name] = np.resize(block, shape) if device is None else _tiled(block, shape)
    return inputs


_BLOCK = 1 << 16
"""Numbers that are drawn, and repeated: drawing as many as there are takes longer than a search."""


@lru_cache(maxsize=4)
def _normal(dtype: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(_BLOCK, np.float32).astype(as_dtype(dtype))


def _tiled(block: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Any:
    """Return an array on the current device that repeats a block, by doubling."""
    import cupy

    flat = cupy.empty(math.prod(shape), block.dtype)
    done = min(flat.size, block.size)
    flat[:done] = cupy.asarray(block[:done])
    while done < flat.size:
        more = min(done, flat.size - done)
        flat[done : done + more] = flat[:more]
        done += more
    return flat.reshape(shape)
