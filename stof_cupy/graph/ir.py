"""The graph: hash-consed nodes with inferred shapes, and the builder that makes them.

The IR knows NumPy and no backend. A node is a value: building the same operator on the same inputs
twice gives the same object, so a piece that is written twice is computed once.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.dtypes import dtype_name, is_float
from stof_cupy.errors import DTypeError, GraphError, mismatch
from stof_cupy.graph import arguments
from stof_cupy.graph.node import Node, call, reference, topological
from stof_cupy.graph.registry import DTYPES, OPS, OpDef
from stof_cupy.graph.shapes import Dim, Shape, format_shape

__all__ = ["Graph", "Node"]


class Graph:
    """A computation over named inputs and constants.

    Every operator of `registry.OPS` is a method that takes nodes by position or by port name and
    attributes by keyword, infers the shape, and returns the node. Nodes that no output needs are
    never run.

    Parameters
    ----------
    name : str
        For people.
    dims : tuple of str
        The symbolic dims that input shapes may use.

    Attributes
    ----------
    inputs, constants, outputs : mapping
        Input nodes, constant arrays and output nodes by name; read-only views.

    Examples
    --------
    >>> g = Graph("block")
    >>> x = g.input("x", ("batch", "seq", 2), "float")
    >>> w = g.constant("w", np.ones((3, 2), np.float32))
    >>> g.output("y", g.gelu(g.gemm(x, w)))
    >>> print(g.show())
    block (batch, seq)
    %0 = input("x") float (batch, seq, 2) [leaf]
    %1 = gemm(%0, w:"w") float (batch, seq, 3) [CI]
    %2 = gelu(%1) float (batch, seq, 3) [MI]
    y = %2
    """

    def __init__(self, name: str, dims: tuple[str, ...] = ("batch", "seq")) -> None:
        self.name = name
        if not isinstance(dims, tuple | list):
            raise GraphError(mismatch("dims", repr(dims), "a tuple of names"))
        self.dims = tuple(dims)
        for dim in self.dims:
            if not (isinstance(dim, str) and dim.isidentifier()):
                raise GraphError(mismatch("dims", repr(dim), "names that are identifiers"))
        self._nodes: dict[tuple[Any, ...], Node] = {}
        self._inputs: dict[str, Node] = {}
        self._constants: dict[str, NDArray[Any]] = {}
        self._outputs: dict[str, Node] = {}
        self._count = 0

    if TYPE_CHECKING:

        def __getattr__(self, op: str) -> Callable[..., Node]: ...

    @property
    def inputs(self) -> Mapping[str, Node]:
        """Input nodes by name, in order of declaration."""
        return MappingProxyType(self._inputs)

    @property
    def constants(self) -> Mapping[str, NDArray[Any]]:
        """Constant arrays by name."""
        return MappingProxyType(self._constants)

    @property
    def outputs(self) -> Mapping[str, Node]:
        """Output nodes by name, in order of declaration."""
        return MappingProxyType(self._outputs)

    def input(self, name: str, shape: Shape, dtype: str) -> Node:
        """Declare an input.

        Parameters
        ----------
        name : str
        shape : tuple of int or str
            Positive sizes and names out of `dims`; a mask is ``(queries, keys)``, lengths are
            ``(batch,)``. What a run gives for a mask may have leading axes all the same: they
            broadcast to the batch and heads of the attention that reads it.
        dtype : {"float", "int", "mask", "lengths"}
            A mask, lengths or cache input may be None at run time; a run writes to a cache.

        Raises
        ------
        GraphError
            If the name is taken by a different input, or shape or dtype is not one of the above.
        """
        if dtype not in DTYPES:
            raise GraphError(mismatch(f"input {name!r}: dtype", repr(dtype), ", ".join(DTYPES)))
        if not isinstance(shape, tuple | list):
            raise GraphError(mismatch(f"input {name!r}: shape", repr(shape), "a tuple of dims"))
        shape = tuple(self._dim(name, dim) for dim in shape)
        rank = {"mask": 2, "lengths": 1}.get(dtype, len(shape))
        if len(shape) != rank:
            hint = "a run's mask may have leading axes" if dtype == "mask" else ""
            raise GraphError(
                mismatch(f"input {name!r}", format_shape(shape), f"{rank} dims for {dtype}", hint)
            )
        declared = self._inputs.get(_checked_name("input", name))
        if declared is None:
            declared = self._intern("input", (), (("name", name),), shape, dtype)
            self._inputs[name] = declared
        elif (declared.shape, declared.dtype) != (shape, dtype):
            got = f"{dtype} {format_shape(shape)}"
            raise GraphError(mismatch(f"input {name!r}", got, repr(declared)))
        return declared

    def _dim(self, name: str, dim: Dim) -> Dim:
        if isinstance(dim, str) and dim in self.dims:
            return dim
        if isinstance(dim, (int, np.integer)) and not isinstance(dim, bool) and dim > 0:
            return int(dim)
        expected = " or ".join(["a positive int", *map(repr, self.dims)])
        raise GraphError(mismatch(f"input {name!r}: dim", repr(dim), expected))

    def constant(self, name: str, array: NDArray[Any]) -> Node:
        """Add a constant; the array is kept, not copied, and must not be written to afterwards.

        Raises
        ------
        DTypeError
            If it is not a NumPy array of floats (bfloat16 included) or integers.
        GraphError
            If the name is taken by a different array.
        """
        if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
            got = type(array).__name__
            raise DTypeError(mismatch(f"constant {name!r}", got, "a plain NumPy array"))
        if not is_float(array.dtype) and array.dtype.kind not in "iu":
            got = dtype_name(array.dtype)
            raise DTypeError(mismatch(f"constant {name!r}", got, "an array of floats or integers"))
        if self._constants.setdefault(_checked_name("constant", name), array) is not array:
            raise GraphError(mismatch(f"constant {name!r}", "a second array of this name", "one"))
        dtype = "int" if array.dtype.kind in "iu" else "float"
        return self._intern("constant", (), (("name", name),), array.shape, dtype)

    def output(self, name: str, node: Node) -> None:
        """Name a node as an output.

        Raises
        ------
        GraphError
            If the node is of another graph or no array, or the name is taken by a different node.
        """
        if not (isinstance(node, Node) and self.owns(node)):
            raise GraphError(mismatch(f"output {name!r}", reference(node), "a node of this graph"))
        if node.dtype not in ("float", "int"):
            raise GraphError(mismatch(f"output {name!r}", node.dtype, "float or int"))
        if self._outputs.setdefault(_checked_name("output", name), node) is not node:
            raise GraphError(
                mismatch(f"output {name!r}", reference(node), reference(self._outputs[name]))
            )

    def apply(self, op: str, *inputs: Node | None, **attrs: Any) -> Node:
        """Build the node of an operator; ``g.gemm(...)`` is ``g.apply("gemm", ...)``.

        Raises
        ------
        GraphError
            If there is no such operator, or the inputs or attributes do not fit it; the message
            names the node and both sides.
        """
        if not isinstance(op, str) or op not in OPS:
            raise GraphError(mismatch("op", repr(op), ", ".join(OPS)))
        definition = OPS[op]
        operands = arguments.operands(definition, inputs, attrs, self.owns)
        values = arguments.attributes(definition, attrs)
        draft = Node(op, operands, values, (), definition.dtype, self._count)
        try:
            shape = definition.infer(arguments.shapes(definition, operands), dict(values))
        except GraphError as error:
            raise GraphError(f"{call(draft)}: {error}") from None
        return self._intern(op, operands, values, shape, definition.dtype)

    def _intern(
        self,
        op: str,
        inputs: tuple[Node | None, ...],
        attrs: tuple[tuple[str, Any], ...],
        shape: Shape,
        dtype: str,
    ) -> Node:
        key = (op, inputs, attrs, shape, dtype)
        node = self._nodes.get(key)
        if node is None:
            index = -1 if op == "constant" else self._count
            self._count += op != "constant"
            node = self._nodes[key] = Node(*key, index)
        return node

    def owns(self, node: Node) -> bool:
        """Whether this graph made `node`."""
        key = (node.op, node.inputs, node.attrs, node.shape, node.dtype)
        return self._nodes.get(key) is node

    def nodes(self) -> list[Node]:
        """Return the nodes that the outputs need, inputs before users.

        Raises
        ------
        GraphError
            If a node needs itself, which only nodes made by hand can.
        """
        return topological(self._outputs.values())

    def uses(self) -> dict[Node, int]:
        """Return how often each needed node is read; being an output counts once."""
        nodes = self.nodes()
        count = dict.fromkeys(nodes, 0)
        for node in (*(each for user in nodes for each in user.inputs), *self._outputs.values()):
            if node is not None:
                count[node] += 1
        return count

    def show(self) -> str:
        """Return the graph as text, one line a node; constants stand where they are used."""
        lines = [f"{self.name} ({', '.join(self.dims)})"]
        lines += [repr(node) for node in self.nodes() if node.op != "constant"]
        lines += [f"{name} = {reference(node)}" for name, node in self._outputs.items()]
        return "\n".join(lines)

    def emptied(self) -> Graph:
        """Return it with zeros that take no memory for constants: to be shown, not to be run."""
        shown = copy.copy(self)
        shown._constants = {
            name: np.broadcast_to(np.zeros((), array.dtype), array.shape)
            for name, array in self._constants.items()
        }
        return shown

    def digest(self) -> str:
        """Return 16 hex digits of the structure: ops, wiring, attributes and shapes.

        Names and values of constants do not count, so the layers of a stack, cut out as graphs, are
        equal; names of inputs and outputs and the dtypes of constants do.
        """
        nodes = self.nodes()
        place = {node: position for position, node in enumerate(nodes)}
        text = []
        for node in nodes:
            wires = [None if each is None else place[each] for each in node.inputs]
            attrs: Any = node.attrs
            if node.op == "constant":
                attrs = dtype_name(self._constants[node.name].dtype)
            text.append(repr((node.op, wires, attrs, node.shape, node.dtype)))
        text += [repr((name, place[node])) for name, node in self._outputs.items()]
        return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]


def _checked_name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[^\s\"]+", name):
        raise GraphError(mismatch(f"name of {what}", repr(name), "a str without spaces or quotes"))
    return name


def _builder(op: OpDef) -> Callable[..., Node]:
    """Return the method of :class:`Graph` that builds `op`, with its signature and docstring."""

    def build(self: Graph, *inputs: Node | None, **attrs: Any) -> Node:
        return self.apply(op.name, *inputs, **attrs)

    build.__signature__ = arguments.signature(op)  # type: ignore[attr-defined]
    build.__name__, build.__qualname__ = op.name, f"Graph.{op.name}"
    build.__doc__ = f"{op.summary}\n\nShapes: {op.infer.__doc__}"
    return build


for _op in OPS.values():
    setattr(Graph, _op.name, _builder(_op))
