"""Runs a graph, operator by operator, on NumPy or on CuPy arrays.

The walk is planned once: which values each step reads, and which are dead after it. A run keeps its
values in a list of its own, so any number of threads may run one executor at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from stof_cupy.dtypes import DEFAULT_FLOAT, as_dtype, compute_dtype
from stof_cupy.errors import ArgumentError, DeviceError, mismatch
from stof_cupy.graph import meaning
from stof_cupy.graph.calls_decoder import DECODER_CALLS
from stof_cupy.graph.feeds import mask_leads, read_feeds
from stof_cupy.graph.ir import Graph, Node
from stof_cupy.graph.registry import OPS
from stof_cupy.graph.verify import verify
from stof_cupy.ops.attention import attention
from stof_cupy.ops.elementwise import add, gelu
from stof_cupy.ops.embedding import embedding
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.norm import layer_norm
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = ["CALLS", "Executor"]

Array: TypeAlias = Any
Observer: TypeAlias = "Callable[[Node, Any], Any]"


def _gemm(
    x: Array, w: Array, bias: Array | None, residual: Array | None, *, activation: str | None
) -> Array:
    plain = bias is None and residual is None and activation is None
    epilogue = None if plain else Epilogue(bias=bias, activation=activation, residual=residual)
    return gemm(x, w.T, epilogue=epilogue)


def _attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Any,
    lengths: Array | None,
    table: Array | None,
    *,
    scale: float | None,
    softcap: float | None,
    bidirectional: bool,
    max_distance: int,
) -> Array:
    bias = None
    if table is not None:
        bias = RelativeBias(table, bidirectional=bidirectional, max_distance=max_distance)
    return attention(q, k, v, mask, scale=scale, softcap=softcap, kv_lengths=lengths, bias=bias)


def _embedding(
    ids: Array,
    table: Array,
    position_table: Array | None,
    token_types: Array | None,
    type_table: Array | None,
) -> Array:
    return embedding(
        ids, table, position_table=position_table, type_table=type_table, token_types=token_types
    )


CALLS: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "gemm": _gemm,
        "attention": _attention,
        "layer_norm": layer_norm,
        "add": add,
        "gelu": gelu,
        "embedding": _embedding,
        "split_heads": meaning.split_heads,
        "merge_heads": meaning.merge_heads,
        **DECODER_CALLS,
    }
)
"""How each operator is run, on NumPy and on CuPy arrays: inputs by position, attrs by keyword."""


@dataclass(frozen=True)
class _Step:
    """One operator of the walk; numbers are places in the list of values, of which 0 holds None."""

    node: Node
    call: Callable[..., Array]
    attrs: dict[str, Any]
    reads: tuple[int, ...]
    writes: int
    dead: tuple[int, ...]


def _plan(nodes: list[Node], place: Mapping[Node | None, int], kept: set[Node]) -> list[_Step]:
    last = {each: user for user in nodes for each in user.inputs if each is not None}
    steps = []
    for node in nodes:
        if node.op in OPS:
            ended = {each for each in node.inputs if each is not None and last[each] is node}
            dead = tuple(sorted(place[each] for each in ended - kept))
            reads = tuple(place[each] for each in node.inputs)
            steps.append(_Step(node, CALLS[node.op], dict(node.attrs), reads, place[node], dead))
    return steps


class Executor:
    """A verified graph with its constants in place, ready to run.

    Parameters
    ----------
    graph : Graph
    backend : {"numpy", "cuda"}
    dtype : {"float16", "bfloat16", "float32"}, optional
        Float type of the outputs and, on CUDA, of every value in between; on NumPy those are
        float32. Default: :data:`stof_cupy.dtypes.DEFAULT_FLOAT`. CUDA has no float32.
    device : int, optional
        CUDA device; default: the current one.

    Raises
    ------
    GraphError
        If the graph does not verify.
    ArgumentError, DTypeError, UnsupportedError, DeviceError, MissingDependencyError
        If there is no such backend, type or device, or the type is not one of that backend.

    Examples
    --------
    >>> g = Graph("block")
    >>> x = g.input("x", ("batch", "seq", 2), "float")
    >>> w = g.constant("w", np.float32([[1, 2], [3, 4], [5, 6]]))
    >>> g.output("y", g.gemm(x, w))
    >>> run = Executor(g, backend="numpy").run
    >>> run({"x": np.float32([[[1, 1], [0, 1]]])})["y"]
    array([[[ 3.,  7., 11.],
            [ 2.,  4.,  6.]]], dtype=float32)
    """

    def __init__(
        self, graph: Graph, *, backend: str, dtype: str | None = None, device: int | None = None
    ) -> None:
        if backend not in DEFAULT_FLOAT:
            expected = " or ".join(map(repr, DEFAULT_FLOAT))
            raise ArgumentError(mismatch("backend", repr(backend), expected))
        self.graph = graph
        self.backend = backend
        self.dtype = compute_dtype(dtype, backend)
        self._out_dtype = as_dtype(self.dtype)
        self._float = self._out_dtype if backend == "cuda" else np.dtype(np.float32)
        if backend == "numpy" and device is not None:
            raise DeviceError(mismatch("device", device, "None: NumPy has no devices"))
        verify(graph)
        nodes = graph.nodes()
        self._inputs = dict(graph.inputs)
        self._outputs = dict(graph.outputs)
        self._leads = mask_leads(nodes)
        self._place: dict[Node | None, int] = {None: 0}
        self._place.update((node, number) for number, node in enumerate(nodes, start=1))
        self._steps = _plan(nodes, self._place, set(self._outputs.values()))
        self.device = self._checked_device(device)
        self._constants = self._uploaded([node for node in nodes if node.op == "constant"])

    def _checked_device(self, device: int | None) -> int | None:
        if self.backend == "numpy":
            return None
        from stof_cupy.jit.device import current, facts

        number = current() if device is None else device
        facts(number)  # refuses what is not there or too old, before anything is uploaded
        return number

    def _on_device(self) -> Any:
        if self.backend == "numpy":
            return nullcontext()
        import cupy

        return cupy.cuda.Device(self.device)

    def _uploaded(self, nodes: list[Node]) -> dict[int, Array]:
        """Return the constants by place: floats in the compute type, on the device."""
        placed = {}
        with self._on_device():
            for node in nodes:
                array = self.graph.constants[node.name]
                dtype = self._float if node.dtype == "float" else array.dtype
                placed[self._place[node]] = self._upload(np.require(array, dtype, "A"))
            if self.backend == "cuda":
                import cupy

                # The runs may be on other streams than the one that is current now.
                cupy.cuda.get_current_stream().synchronize()
        return placed

    def _upload(self, array: np.ndarray[Any, Any]) -> Array:
        if self.backend == "numpy":
            return array
        import cupy

        # Not from CuPy's pool, for the reason given in `Schedule.on_device`.
        with cupy.cuda.using_allocator(None):
            return cupy.asarray(np.ascontiguousarray(array))

    def run(
        self, inputs: Mapping[str, Any], *, observe: Observer | None = None
    ) -> dict[str, Array]:
        """Compute the outputs.

        Parameters
        ----------
        inputs : mapping of str to array
            By input name: NumPy arrays, or CuPy arrays on the executor's device. Floats may be of
            any float type, int and lengths inputs of any integer type. A mask is anything that
            `masks.as_masks` takes: one for all, or with leading axes that broadcast to the (batch,
            heads) of every attention that reads it. Masks, lengths and caches may be None or
            absent. A cache is an array of the type that values between operators have (see
            `dtype`), which the run writes to.
        observe : callable, optional
            Called as ``observe(node, array)`` after every operator; an array it returns takes the
            place of the operator's result.

        Returns
        -------
        dict of str to array
            By output name, on the backend, floats in `dtype`.

        Raises
        ------
        ArgumentError
            If an input is missing or there is none of a given name.
        ShapeError
            If a shape does not fit its declaration, two inputs disagree on a symbolic dim, or the
            leading axes of a mask do not broadcast.
        MaskError
            If a mask is not boolean.
        DTypeError, DeviceError
            If an array is of another kind, backend or device than its input.
        """
        with self._on_device():
            feeds = read_feeds(self._inputs, inputs, self._float, self.device, self._leads)
            values = self._walk(feeds, observe)
            return {
                name: self._output(node, values[self._place[node]])
                for name, node in self._outputs.items()
            }

    def _walk(self, feeds: Mapping[str, Any], observe: Observer | None) -> list[Any]:
        """Return the values by place; those that nothing needs any more are None."""
        values: list[Any] = [None] * len(self._place)
        for place, array in self._constants.items():
            values[place] = array
        for name, value in feeds.items():
            if self._inputs[name] in self._place:
                values[self._place[self._inputs[name]]] = value
        for step in self._steps:
            operands = [values[place] for place in step.reads]
            result = step.call(*operands, **step.attrs)
            if observe is not None:
                replaced = observe(step.node, result)
                result = result if replaced is None else replaced
            values[step.writes] = result
            for place in step.dead:
                values[place] = None
        return values

    def _output(self, node: Node, value: Array) -> Array:
        dtype = self._out_dtype if node.dtype == "float" else value.dtype
        # A leaf, or a view that may be one of a leaf, is not the caller's to write to.
        return value.astype(dtype, copy=node.kind in ("leaf", "view"))
