"""What a segment is run by, once its epilogues are folded: the table of kernels.

A template says that operators may be one segment; whether that is worth anything is up to the
kernels. A new fused kernel is one entry of :data:`KERNELS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from stof_cupy.fusion import pairs, products
from stof_cupy.fusion.chain import ROWS
from stof_cupy.fusion.cost import Machine, seconds, work
from stof_cupy.graph import Node
from stof_cupy.graph.calls import CALLS
from stof_cupy.graph.memory import bound
from stof_cupy.graph.registry import OPS
from stof_cupy.ops.epilogue import Epilogue

__all__ = ["KERNELS", "Kernel", "Setting", "is_normed", "kernel_of"]

Setting: TypeAlias = "tuple[tuple[str, int], ...]"
"""Names and values of a kernel's parameters; empty: it has none, or chooses them itself."""

Array: TypeAlias = Any
Sizes: TypeAlias = "Mapping[str, int]"


@dataclass(frozen=True)
class Kernel:
    """One way to run the operators that are left of a segment.

    Attributes
    ----------
    name : str
    backends : tuple of str
    fits : callable
        ``operators -> bool``.
    settings : callable
        ``(operators, sizes, machine) -> settings`` that it takes.
    seconds : callable
        ``(operators, sizes, itemsize, machine, setting) -> time``, by analysis.
    build : callable, optional
        ``(operators, what they read from outside, setting) -> call``, which takes the arrays of
        those, of one operator all its operands, and ``out=``. None: each has a call of its own.
    sure : callable, optional
        ``(operators, sizes, machine) -> bool``: whether analysis is so sure that it is faster than
        its parts that the rules take it, too, without a search.
    """

    name: str
    backends: tuple[str, ...]
    fits: Callable[[Sequence[Node]], bool]
    settings: Callable[[Sequence[Node], Sizes, Machine], tuple[Setting, ...]]
    seconds: Callable[[Sequence[Node], Sizes, int, Machine, Setting], float]
    build: Callable[[Sequence[Node], Sequence[Any], Setting], Callable[..., Array]] | None = None
    sure: Callable[[Sequence[Node], Sizes, Machine], bool] | None = None


def kernel_of(nodes: Sequence[Node], backend: str) -> Kernel | None:
    """Return the first kernel for operators on a backend, or None."""
    fitting = (each for each in KERNELS if backend in each.backends and each.fits(nodes))
    return next(fitting, None)


def _no_settings(nodes: Sequence[Node], sizes: Sizes, machine: Machine) -> tuple[Setting, ...]:
    return ((),)


def _alone_seconds(
    nodes: Sequence[Node], sizes: Sizes, itemsize: int, machine: Machine, setting: Setting
) -> float:
    return seconds(nodes, sizes, itemsize, machine)


_BLOCKS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


def _by_rows(nodes: Sequence[Node]) -> bool:
    return len(nodes) > 1 and all(node.op in ROWS for node in nodes)


def _row_settings(nodes: Sequence[Node], sizes: Sizes, machine: Machine) -> tuple[Setting, ...]:
    rows = max(math.prod(bound(nodes[0].shape[:-1], sizes)), 1)
    # A block of all rows is no block; of more, the same.
    return tuple((("rows", each),) for each in _BLOCKS if each < rows) or ((("rows", rows),),)


def _row_seconds(
    nodes: Sequence[Node], sizes: Sizes, itemsize: int, machine: Machine, setting: Setting
) -> float:
    """Count what lies between the operators as cached if a block of it fits there."""
    rows, total = dict(setting)["rows"], math.prod(bound(nodes[0].shape[:-1], sizes))
    blocks = max(-(-total // rows), 1)
    inside = set(nodes[:-1])
    time = 0.0
    for node in nodes:
        w = work(node, sizes, itemsize)
        between = node.shape[-1] if isinstance(node.shape[-1], int) else 1
        fits = rows * between * itemsize * 4 <= machine.cache_size
        near = 0.0 if node not in inside else w.writes
        whole = [each for each in node.inputs if each is not None and _is_whole(node, each)]
        again = sum(math.prod(bound(each.shape, sizes)) * itemsize for each in whole)
        for each in node.inputs:
            near += work(each, sizes, itemsize).writes if each in inside else 0
        far = max(sum(w.reads) + w.writes - near, 0)
        near_rate = machine.cache_bytes if fits else machine.memory_bytes
        # A product of few rows reads its weights for little: half the rate at 64 rows.
        rate = machine.matrix_flops * rows / (rows + 64) if w.matrix else machine.vector_flops
        moved = far / machine.memory_bytes + (near * w.passes) / near_rate
        moved += (blocks - 1) * again / machine.cache_bytes
        time += max(w.flops / rate, moved) + blocks * machine.launch
    return time


def _is_whole(node: Node, each: Node) -> bool:
    ports = (
        p.name for p, given in zip(OPS[node.op].ports, node.inputs, strict=True) if given is each
    )
    return not any(port in ROWS[node.op] for port in ports) or len(each.shape) == 1


def _build_rows(
    nodes: Sequence[Node], inputs: Sequence[Node], setting: Setting
) -> Callable[..., Array]:
    """Return a call that takes the operators through one block of rows after another."""
    count = dict(setting)["rows"]
    lead = len(nodes[0].shape) - 1
    by_rows = {
        each: not all(_is_whole(node, each) for node in nodes if each in node.inputs)
        for each in inputs
    }

    def run(*arrays: Array, out: Array | None = None) -> Array:
        given = dict(zip(inputs, arrays, strict=True))
        first = next(given[each] for each in inputs if by_rows[each])
        shape = first.shape[:lead]
        rows = math.prod(shape)
        flat = {
            each: array.reshape(rows, array.shape[-1]) if by_rows[each] else array
            for each, array in given.items()
        }
        to: Array = None if out is None else out.reshape(rows, out.shape[-1])
        for start in range(0, max(rows, 1), count):  # none of rows is a block of none
            part = slice(start, start + count)
            values: dict[Node | None, Array] = {None: None}
            values.update((e, a[part] if by_rows[e] else a) for e, a in flat.items())
            for node in nodes:
                operands = [values[each] for each in node.inputs]
                values[node] = CALLS[node.op](*operands, **dict(node.attrs))
            made = values[nodes[-1]]
            if to is None:
                to = np.empty((rows, made.shape[-1]), made.dtype)
            to[part] = made
        return to.reshape(*shape, to.shape[-1]) if out is None else out

    return run


def is_normed(nodes: Sequence[Node]) -> bool:
    """Whether operators are a product and a norm."""
    return len(nodes) == 2 and nodes[0].op == "gemm" and nodes[1].op in _NORMS


def _product_and_norm(nodes: Sequence[Node]) -> bool:
    """Whether a cluster can hold whole rows; `gemm_norm` knows, and has two kernels else."""
    if not is_normed(nodes) or nodes[1].inputs[0] is not nodes[0]:
        return False
    columns = nodes[0].shape[-1]
    plain = not dict(nodes[0].attrs)["gated"] and nodes[0].inputs[4] is None
    return isinstance(columns, int) and columns <= 2048 and plain


def _product_and_norm_seconds(
    nodes: Sequence[Node], sizes: Sizes, itemsize: int, machine: Machine, setting: Setting
) -> float:
    """Ask the model whether it is one kernel; else the norm is one of its own."""
    product, norm = nodes
    whole = products.normed_in_one(product, sizes, machine)
    if whole is not None:
        return whole
    apart = _product_seconds([product], sizes, itemsize, machine, ())
    return apart + seconds([norm], sizes, itemsize, machine)


def _product_and_norm_sure(nodes: Sequence[Node], sizes: Sizes, machine: Machine) -> bool:
    return products.normed_in_one(nodes[0], sizes, machine) is not None


def _product_seconds(
    nodes: Sequence[Node], sizes: Sizes, itemsize: int, machine: Machine, setting: Setting
) -> float:
    found = products.predicted(nodes, sizes, machine, setting)
    return seconds(nodes, sizes, itemsize, machine) if found is None else found


def _build_product_and_norm(
    nodes: Sequence[Node], inputs: Sequence[Node], setting: Setting
) -> Callable[..., Array]:
    from stof_cupy.ops.gemm_norm import gemm_layer_norm, gemm_rms_norm

    product, norm = nodes
    activation, eps = dict(product.attrs)["activation"], dict(norm.attrs)["eps"]

    def run(*arrays: Array, out: Array | None = None) -> Array:
        given: dict[Node | None, Array] = {None: None, **dict(zip(inputs, arrays, strict=True))}
        x, w, bias, residual, _ = (given[each] for each in product.inputs)
        weights = [given[each] for each in norm.inputs[1:]]
        how = {"eps": eps, "epilogue": Epilogue(bias, activation, residual), "out": out}
        normed = gemm_rms_norm if norm.op == "rms_norm" else gemm_layer_norm
        return normed(x, w.T, *weights, **how)

    return run


def _sum_and_norm(nodes: Sequence[Node]) -> bool:
    """Whether a norm is of a sum of rows, which it can read as two arrays."""
    if len(nodes) != 2 or nodes[0].op != "add" or nodes[1].op not in _NORMS:
        return False
    x, y = nodes[0].inputs
    return x is not None and y is not None and x.shape == y.shape and len(x.shape) > 1


def _sum_and_norm_seconds(
    nodes: Sequence[Node], sizes: Sizes, itemsize: int, machine: Machine, setting: Setting
) -> float:
    """Count the norm, and the other array that it reads."""
    added = work(nodes[0], sizes, itemsize)
    return seconds(nodes[1:], sizes, itemsize, machine) + added.reads[1] / machine.memory_bytes


def _build_sum_and_norm(
    nodes: Sequence[Node], inputs: Sequence[Node], setting: Setting
) -> Callable[..., Array]:
    total, norm = nodes
    call, eps = CALLS[norm.op], dict(norm.attrs)["eps"]

    def run(*arrays: Array, out: Array | None = None) -> Array:
        given = dict(zip(inputs, arrays, strict=True))
        x, y = (given[each] for each in total.inputs if each is not None)
        weights = (given[each] for each in norm.inputs[1:] if each is not None)
        return call(x, *weights, eps=eps, residual=y, out=out)

    return run


_NORMS = ("layer_norm", "rms_norm")


KERNELS = (
    Kernel(
        "a product",
        ("cuda",),
        products.is_product,
        products.settings,
        _product_seconds,
        products.build,
    ),
    Kernel(
        "the operator's own",
        ("numpy", "cuda"),
        lambda nodes: len(nodes) == 1,
        _no_settings,
        _alone_seconds,
    ),
    Kernel(
        "gemm and norm",
        ("cuda",),
        _product_and_norm,
        _no_settings,
        _product_and_norm_seconds,
        _build_product_and_norm,
        _product_and_norm_sure,
    ),
    Kernel(
        "add and norm",
        ("cuda",),
        _sum_and_norm,
        _no_settings,
        _sum_and_norm_seconds,
        _build_sum_and_norm,
    ),
    Kernel("gemm and gemm", ("cuda",), pairs.is_pair, pairs.settings, pairs.predicted, pairs.build),
    Kernel("blocks of rows", ("numpy",), _by_rows, _row_settings, _row_seconds, _build_rows),
)
"""In order: the first that fits is taken."""
