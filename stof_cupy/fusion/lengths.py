"""Which kernels products ask for at all lengths of a class, to be compiled when it is first met."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from stof_cupy.fusion.cost import shapes_class
from stof_cupy.fusion.products import layout_of, problem_of
from stof_cupy.graph import Node
from stof_cupy.graph.turned import in_one
from stof_cupy.jit import catalogue
from stof_cupy.jit.decoder_kernels import rotary as rotary_spec
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.gemm_sm90 import gemm_sm90 as gemm_sm90_spec
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops import gemm_choice, gemm_sm90
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_vendor import Vendor

__all__ = ["kernels", "norm_kernels"]


def kernels(
    nodes: Iterable[Node], sizes: Mapping[str, int], dtype: str, facts: DeviceFacts
) -> dict[KernelSpec, None]:
    """Return what is chosen of our own for products at the lengths of the class of `sizes`.

    So that all of them are compiled when the class is first met, and none at another length of it.
    """
    found: dict[KernelSpec, None] = {}
    for node in {_form(node): node for node in nodes}.values():  # layers are alike
        found |= _kernels(node, sizes, dtype, facts)
    return found


def _form(node: Node) -> Any:
    shapes = tuple(None if each is None else each.shape for each in node.inputs)
    return node.op, node.attrs, shapes


def _kernels(
    node: Node, sizes: Mapping[str, int], dtype: str, facts: DeviceFacts
) -> dict[KernelSpec, None]:
    found: dict[KernelSpec, None] = {}
    if node.op == "turned_gemm":
        found[rotary_spec(dtype, dict(node.attrs)["interleaved"])] = None
    for problem in _problems(node, sizes, dtype):
        if node.op == "turned_gemm" and not _turns(problem, node, facts):
            problem = _unturned(problem)
        found |= _kernel(problem, dtype, facts)
    return found


def _kernel(problem: Problem, dtype: str, facts: DeviceFacts) -> dict[KernelSpec, None]:
    choice = gemm_choice.choices(problem, layout_of(problem), facts)[-1]
    if isinstance(choice, gemm_sm90.Plan):
        return {gemm_sm90_spec(dtype, choice.config, problem.epilogue): None}
    return {} if isinstance(choice, Vendor) else {choice.spec(problem): None}


def _problems(node: Node, sizes: Mapping[str, int], dtype: str) -> Iterator[Problem]:
    """Yield a product at lengths of the class of `sizes`, so that every choice is met."""
    most = shapes_class(sizes).get("seq", 0)
    rows, seq = max(problem_of(node, {**sizes, "seq": 1}).m, 1), most
    while seq > most // 2:
        problem = replace(problem_of(node, {**sizes, "seq": seq}), dtype=dtype)
        if problem.m:
            yield problem
        fine = next((step for upto, step in _ROWS if problem.m <= upto), _MANY)
        seq -= max(fine // rows, most // (2 * _LENGTHS), 1)


def norm_kernels(
    nodes: Iterable[Node], sizes: Mapping[str, int], dtype: str, facts: DeviceFacts
) -> dict[KernelSpec, None]:
    """Return as `kernels` what norms of products ask for, beside a plain product's.

    `nodes` are the norms, which read the products first.
    """
    found: dict[KernelSpec, None] = {}
    pairs = ((node.inputs[0], node.op) for node in nodes)
    distinct = {(_form(node), op): (node, op) for node, op in pairs if node is not None}
    for node, op in distinct.values():
        found[_NORMS[op](dtype)] = None
        for problem in _problems(node, sizes, dtype):
            plan = gemm_choice.norm(problem, layout_of(problem), facts)
            if isinstance(plan, gemm_sm90.Plan):
                found[gemm_sm90_spec(dtype, plan.config, problem.epilogue)] = None
            elif plan == gemm_choice.LATE:
                without = replace(problem, epilogue=replace(problem.epilogue, residual=False))
                found |= _kernel(without, dtype, facts)
    return found


def _turns(problem: Problem, node: Node, facts: DeviceFacts) -> bool:
    """Whether one kernel computes what `turned_gemm` does, by the model."""
    attrs, kind = dict(node.attrs), problem.epilogue.rotary
    if kind is None:
        return False
    columns = attrs["heads"] * attrs["head_dim"]
    return in_one(_unturned(problem), kind, columns, layout_of(problem), facts)


def _unturned(problem: Problem) -> Problem:
    return replace(problem, epilogue=replace(problem.epilogue, rotary=None))


_NORMS = {"layer_norm": catalogue.layer_norm, "rms_norm": catalogue.rms_norm}
"""Kernels of norms, by operator."""

_ROWS, _MANY = ((64, 1), (512, 8)), 64
"""Up to how many rows a choice changes with how many more: where another row of tiles begins, and
the smallest tiles are those of few rows."""

_LENGTHS = 512
"""Lengths of a class that are looked at, at most; one takes a fifth of a millisecond."""
