"""A product by a weight, and which of the kernels for it to take: what there is to search on CUDA.

A setting names a kernel by its place in :data:`CHOICES`, the pieces that K is cut into, and where
clusters share all steps how many do. The empty setting leaves the choice to the model of
`ops.gemm_model`, for each size anew; any other is kept for a whole class of sizes, so that another
length asks for no other kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

from stof_cupy.fusion.cost import Machine
from stof_cupy.graph import Node
from stof_cupy.graph.calls import Told, told_gemm
from stof_cupy.graph.memory import bound
from stof_cupy.graph.turned import normed_by, turn_of
from stof_cupy.jit.catalogue import GEMM_TILES
from stof_cupy.jit.decoder_kernels import FEW_ROWS
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS
from stof_cupy.ops import gemm_choice, gemm_model, gemm_sm80, gemm_sm90
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm_args import Problem, as_rows, validate

__all__ = [
    *("CHOICES", "build", "is_product", "layout_of", "normed_in_one", "predicted", "problem_of"),
    "settings",
]

Array: TypeAlias = Any
Setting: TypeAlias = "tuple[tuple[str, int], ...]"

CHOICES = (*GEMM_TILES, *GEMM_SM90_CONFIGS)
"""Tiles of the GEMM for every GPU, then configurations of Hopper's."""


_OPS = ("gemm", "turned_gemm", "told_gemm")


def is_product(nodes: Sequence[Node]) -> bool:
    """Whether operators are one product by a constant."""
    if len(nodes) != 1 or nodes[0].op not in _OPS:
        return False
    weight = nodes[0].inputs[1]
    return weight is not None and weight.op == "constant"


def settings(
    nodes: Sequence[Node], sizes: Mapping[str, int], machine: Machine
) -> tuple[Setting, ...]:
    """Return what a product can be set to on a GPU, best by the model first.

    Examples
    --------
    >>> import numpy as np
    >>> from stof_cupy.fusion.cost import NUMPY
    >>> from stof_cupy.graph import Graph
    >>> g = Graph("product")
    >>> y = g.gemm(g.input("x", ("batch", 64), "float"), g.constant("w", np.ones((32, 64))))
    >>> settings([y], {"batch": 8}, NUMPY)
    ((),)
    """
    if machine.facts is None:
        return ((),)
    problem = problem_of(nodes[0], sizes)
    found = _estimates(problem, machine.facts)
    # One that turns may as well be two kernels, which the empty setting can choose.
    turns = nodes[0].op == "turned_gemm"
    free = ((),) if turns or _has_another(problem, found, machine.facts) else ()
    return (*free, *found) or ((),)


def _has_another(problem: Problem, found: Mapping[Setting, float], facts: DeviceFacts) -> bool:
    """Whether `gemm` itself may choose what no setting names, or what the model does not expect.

    That is a kernel for few rows, cuBLASLt, or what was measured to be the fastest.
    """
    if problem.m <= FEW_ROWS[-1]:
        return True
    best = next(iter(found), None)
    for dtype in ("float16", "bfloat16"):
        own = gemm_choice.choices(replace(problem, dtype=dtype), layout_of(problem), facts)[0]
        if not isinstance(own, gemm_sm80.Config | gemm_sm90.Plan) or _setting(own) != best:
            return True
    return False


def predicted(
    nodes: Sequence[Node], sizes: Mapping[str, int], machine: Machine, setting: Setting
) -> float | None:
    """Return the seconds of a product at a setting; None where the model does not know it."""
    if machine.facts is None:
        return None
    found = _estimates(problem_of(nodes[0], sizes), machine.facts)
    return found.get(setting, min(found.values())) if found else None


def problem_of(node: Node, sizes: Mapping[str, int]) -> Problem:
    """Return what a product computes at some sizes."""
    x, w = node.inputs[:2]
    rows = 0 if x is None else math.prod(bound(x.shape[:-1], sizes))
    depth = 0 if w is None else bound(w.shape[1:], sizes)[0]
    # The other type of 16 bits takes as long.
    return Problem("bfloat16", rows, bound(node.shape[-1:], sizes)[0], depth, _kind(node))


def _kind(node: Node) -> EpilogueKind:
    attrs = dict(node.attrs)
    if node.op == "turned_gemm":
        turn = turn_of(None, None, **attrs)
        _, _, _, bias, statistics = node.inputs
        return EpilogueKind(bias=bias is not None, rotary=turn.kind, normed=statistics is not None)
    _, _, bias, residual, statistics = node.inputs
    return EpilogueKind(
        bias=bias is not None,
        activation=attrs["activation"],
        gated=attrs.get("gated", False),
        residual=residual is not None,
        normed=statistics is not None,
        statistics=node.op == "told_gemm",
    )


def normed_in_one(node: Node, sizes: Mapping[str, int], machine: Machine) -> float | None:
    """Return the seconds of a product and the norm of its rows in one kernel; None: in two."""
    problem = problem_of(node, sizes)
    if machine.facts is None or not problem.m:
        return None
    plan = gemm_choice.norm(problem, layout_of(problem), machine.facts)
    if isinstance(plan, str):
        return None
    return gemm_model.predict(plan, problem, machine.facts, gemm_model.Constants()).us * 1e-6


def layout_of(problem: Problem) -> gemm_sm90.Layout | None:
    """Return how operands lie: weights as the executor uploads them, the others like them."""
    return gemm_sm90.Layout() if problem.k % 8 == 0 else None


@lru_cache(maxsize=256)
def _estimates(problem: Problem, facts: DeviceFacts) -> Mapping[Setting, float]:
    """Return seconds by setting, the least first."""
    if not problem.m:
        return {}
    every = gemm_model.explain(problem, layout_of(problem), facts)
    return {_setting(each.choice): each.us * 1e-6 for each in every}


def _setting(choice: gemm_model.Choice) -> Setting:
    if isinstance(choice, gemm_sm80.Config):
        return (("kernel", CHOICES.index(choice.tile)), ("splits", 1))
    stream = (("stream", choice.stream),) if choice.stream else ()
    return (("kernel", CHOICES.index(choice.config)), ("splits", choice.splits), *stream)


def _choice(setting: Setting) -> gemm_model.Choice | None:
    """Return what a setting names; None: the model's choice."""
    if not setting:
        return None
    named = dict(setting)
    number = named["kernel"]
    if number < len(GEMM_TILES):
        return gemm_sm80.Config(GEMM_TILES[number])
    if number < len(CHOICES):
        config = GEMM_SM90_CONFIGS[number - len(GEMM_TILES)]
        return gemm_sm90.Plan(config, named["splits"], stream=named.get("stream", 0))
    return None


def build(
    nodes: Sequence[Node], inputs: Sequence[Node | None], setting: Setting
) -> Callable[..., Array]:
    """Return a call that takes the operands of a product, and runs the kernel of a setting.

    Where that kernel cannot compute what it is given, it is the model's.
    """
    attrs, choice = dict(nodes[0].attrs), _choice(setting)

    def multiply(x: Array, w: Array, epilogue: Epilogue, out: Array | None) -> Array:
        from stof_cupy.ops.gemm import _launch  # which takes the choice that `gemm` makes

        _, problem = validate(x, w.T, epilogue, out)
        chosen = choice if _fits(choice, problem, x, w) else None
        return _launch(problem, x, w.T, epilogue, out, chosen)

    def run(
        x: Array,
        w: Array,
        bias: Array | None,
        residual: Array | None,
        statistics: Array | None = None,
        out: Array | None = None,
    ) -> Array:
        how = {"gated": attrs["gated"], "normed": normed_by(statistics, w)}
        return multiply(x, w, Epilogue(bias, attrs["activation"], residual, **how), out)

    def turned(
        x: Array,
        w: Array,
        positions: Array,
        bias: Array | None,
        statistics: Array | None = None,
        out: Array | None = None,
    ) -> Array:
        turn = turn_of(positions, x.device.id, **attrs)
        return multiply(x, w, Epilogue(bias, rotary=turn, normed=normed_by(statistics, w)), out)

    def told(*arrays: Array) -> Told:
        """Return what a told_gemm is, which is no array to be written anywhere."""

        def chosen(x: Array, w: Array, epilogue: Epilogue) -> Array:
            return multiply(x, w.T, epilogue, None)

        return told_gemm(*arrays, activation=attrs["activation"], multiply=chosen)

    return {"turned_gemm": turned, "told_gemm": told}.get(nodes[0].op, run)


def _fits(choice: gemm_model.Choice | None, problem: Problem, x: Array, w: Array) -> bool:
    if isinstance(choice, gemm_sm80.Config):
        return choice.fault(problem) is None
    if not isinstance(choice, gemm_sm90.Plan):
        return True
    found = gemm_sm90.layout(problem, as_rows(x), w)
    return gemm_sm90.fault(choice, problem, found) is None
