"""Runs a graph, operator by operator, on NumPy or on CuPy arrays.

The walk is planned once: which values each step reads, and which are dead after it. A run keeps its
values in a list of its own, so any number of threads may run one executor at the same time.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np

from stof_cupy.dtypes import DEFAULT_FLOAT, as_dtype, compute_dtype
from stof_cupy.errors import ArgumentError, DeviceError, mismatch
from stof_cupy.graph.calls import CALLS
from stof_cupy.graph.feeds import mask_leads, read_feeds
from stof_cupy.graph.ir import Graph, Node
from stof_cupy.graph.memory import PASSED_ON, MemoryPlan, Slot, plan_memory
from stof_cupy.graph.steps import Fused, fixed_biases, steps_of
from stof_cupy.graph.verify import verify

__all__ = ["CALLS", "Executor", "Fused"]

Array: TypeAlias = Any
Observer: TypeAlias = "Callable[[Node, Any], Any]"
Around: TypeAlias = "Callable[[Node], AbstractContextManager[Any]]"

_PLANS = 64
"""Memory plans that an executor keeps; one costs about a millisecond for each hundred nodes."""

_NOTHING: AbstractContextManager[None] = nullcontext()


def _plainly(node: Node) -> AbstractContextManager[None]:
    return _NOTHING


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
    fused : iterable of Fused
        Operators of the graph that run as one.
    arena : bool
        Whether a run keeps its values in one allocation, placed by `memory.plan_memory`: what a
        captured CUDA graph needs. On NumPy it costs a copy of each result.
    uploads : mapping of str to array, optional
        Constants by name as they are used, for several executors of one type and device to share:
        those that are missing are added, and what is made of them, by other keys.

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
        self,
        graph: Graph,
        *,
        backend: str,
        dtype: str | None = None,
        device: int | None = None,
        fused: Iterable[Fused] = (),
        arena: bool = False,
        uploads: MutableMapping[str, Array] | None = None,
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
        self._steps = steps_of(nodes, self._place, set(self._outputs.values()), fused)
        self._arena = arena
        self._plans: OrderedDict[tuple[int, ...], MemoryPlan] = OrderedDict()
        self._lock = threading.Lock()
        self.device = self._checked_device(device)
        constants = [node for node in nodes if node.op == "constant"]
        self._constants = self._uploaded(constants, {} if uploads is None else uploads)

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

    def _uploaded(self, nodes: list[Node], uploads: MutableMapping[str, Array]) -> dict[int, Array]:
        """Return the constants by place: floats in the compute type, on the device."""
        placed: dict[int, Array] = {}
        with self._on_device():
            for node in nodes:
                if node.name not in uploads:
                    array = self.graph.constants[node.name]
                    dtype = self._float if node.dtype == "float" else array.dtype
                    uploads[node.name] = self._upload(np.require(array, dtype, "A"))
                placed[self._place[node]] = uploads[node.name]
            if self.backend == "cuda":
                import cupy

                with cupy.cuda.using_allocator(None):  # as in _upload
                    placed |= fixed_biases(self._steps, placed, self._outputs.values(), uploads)
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
        self,
        inputs: Mapping[str, Any],
        *,
        observe: Observer | None = None,
        around: Around | None = None,
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
        around : callable, optional
            Called as ``around(node)`` before every operator; returns a context in which it is run,
            for timing.

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
            # An observer may keep what it is shown, so that nothing may be written over.
            outs = self._slots(feeds) if self._arena and observe is None else {}
            values = self._walk(feeds, observe, outs, around or _plainly)
            made: dict[str, Array] = {}
            for name, node in self._outputs.items():
                again = node in (self._outputs[each] for each in made)
                made[name] = self._output(node, values[self._place[node]], again)
            return made

    def plan(self, sizes: Mapping[str, int]) -> MemoryPlan:
        """Return where a run with symbolic dims of `sizes` keeps its values; plans are kept.

        Raises
        ------
        GraphError
            If a symbolic dim has no size.
        """
        key = tuple(sizes.get(dim, -1) for dim in self.graph.dims)
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                steps = [(step.node, step.operands) for step in self._steps]
                plan = plan_memory(self.graph, sizes, self._float.itemsize, steps)
                self._plans[key] = plan
                while len(self._plans) > _PLANS:
                    self._plans.popitem(last=False)
            return plan

    @property
    def plans(self) -> list[MemoryPlan]:
        """The plans that are kept, in the order in which they were made."""
        with self._lock:
            return list(self._plans.values())

    def _slots(self, feeds: Mapping[str, Any]) -> dict[Node, Array]:
        """Return an array for every value that is placed, all in one new allocation."""
        sizes: dict[str, int] = {}
        for name, value in feeds.items():
            node = self._inputs[name]
            own = value.shape[-2:] if node.dtype == "mask" else value.shape
            sizes |= {d: n for d, n in zip(node.shape, own, strict=True) if isinstance(d, str)}
        plan = self.plan(sizes)
        if not plan.arena_bytes:
            return {}
        arena = self._empty(plan.arena_bytes)
        return {node: self._view(arena, slot) for node, slot in plan.slots.items()}

    def _view(self, arena: Array, slot: Slot) -> Array:
        axes = range(len(slot.order))
        shape = [slot.shape[axis] for axis in slot.order] or slot.shape
        size = math.prod(shape) * self._float.itemsize
        lying = arena[slot.offset : slot.offset + size].view(self._float).reshape(shape)
        return lying.transpose([slot.order.index(axis) for axis in axes]) if slot.order else lying

    def _empty(self, size: int) -> Array:
        if self.backend == "numpy":
            return np.empty(size, np.uint8)
        import cupy

        return cupy.empty(size, cupy.uint8)

    def _walk(
        self,
        feeds: Mapping[str, Any],
        observe: Observer | None,
        outs: Mapping[Node, Array],
        around: Around,
    ) -> list[Any]:
        """Return the values by place; those that nothing needs any more are None."""
        values: list[Any] = [None] * len(self._place)
        for place, array in self._constants.items():
            values[place] = array
        for name, value in feeds.items():
            if self._inputs[name] in self._place:
                values[self._place[self._inputs[name]]] = value
        for step in self._steps:
            operands = [values[place] for place in step.reads]
            out = outs.get(step.node)
            given = step.attrs if out is None else {**step.attrs, "out": out}
            with around(step.node):
                result = step.call(*operands, **given)
            if observe is not None:
                replaced = observe(step.node, result)
                result = result if replaced is None else replaced
            values[step.writes] = result
            for place in step.dead:
                values[place] = None
        return values

    def _output(self, node: Node, value: Array, again: bool) -> Array:
        dtype = self._out_dtype if node.dtype == "float" else value.dtype
        # A leaf, what may be a view of one, or another output's is not the caller's to write to.
        shared = again or node.kind in ("leaf", "view") or node.op in PASSED_ON
        return value.astype(dtype, copy=shared)
