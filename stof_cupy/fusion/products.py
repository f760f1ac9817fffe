"""A product by a weight, and which of the kernels for it to take: what there is to search on CUDA.

A setting names a kernel by its place in :data:`CHOICES`, and the pieces that K is cut into. The
empty setting leaves the choice to the model of `ops.gemm_model`, for each size anew; any other is
kept for a whole class of sizes, so that another length asks for no other kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

from stof_cupy.fusion.cost import Machine, shapes_class
from stof_cupy.graph import Node
from stof_cupy.graph.calls import Told, told_gemm
from stof_cupy.graph.memory import bound
from stof_cupy.graph.turned import in_one, normed_by, turn_of
from stof_cupy.jit.catalogue import GEMM_TILES
from stof_cupy.jit.catalogue import layer_norm as layer_norm_spec
from stof_cupy.jit.decoder_kernels import FEW_ROWS
from stof_cupy.jit.decoder_kernels import rotary as rotary_spec
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS
from stof_cupy.jit.gemm_sm90 import gemm_sm90 as gemm_sm90_spec
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops import gemm_choice, gemm_model, gemm_sm80, gemm_sm90
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm_args import Problem, as_rows, validate

__all__ = [
    *("CHOICES", "build", "is_product", "kernels", "norm_kernels", "predicted", "settings"),
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
    problem = _problem(nodes[0], sizes)
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
        own = gemm_choice.choices(replace(problem, dtype=dtype), _layout(problem), facts)[0]
        if not isinstance(own, gemm_sm80.Config | gemm_sm90.Plan) or _setting(own) != best:
            return True
    return False


def predicted(
    nodes: Sequence[Node], sizes: Mapping[str, int], machine: Machine, setting: Setting
) -> float | None:
    """Return the seconds of a product at a setting; None where the model does not know it."""
    if machine.facts is None:
        return None
    found = _estimates(_problem(nodes[0], sizes), machine.facts)
    return found.get(setting, min(found.values())) if found else None


def _problem(node: Node, sizes: Mapping[str, int]) -> Problem:
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


def kernels(
    nodes: Iterable[Node], sizes: Mapping[str, int], dtype: str, facts: DeviceFacts
) -> dict[KernelSpec, None]:
    """Return what the model chooses for products at the lengths of the class of `sizes`.

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
        choice = gemm_model.choose(problem, _layout(problem), facts)
        if isinstance(choice, gemm_sm80.Config):
            found[choice.spec(problem)] = None
        else:
            found[gemm_sm90_spec(dtype, choice.config, problem.epilogue)] = None
    return found


def _problems(node: Node, sizes: Mapping[str, int], dtype: str) -> Iterator[Problem]:
    """Yield a product at lengths of the class of `sizes`, so that every choice is met."""
    most = shapes_class(sizes).get("seq", 0)
    # A choice changes where another row of tiles begins.
    rows = max(_problem(node, {**sizes, "seq": 1}).m, 1)
    step = max(_ROWS // rows, most // (2 * _LENGTHS), 1)
    for seq in range(most, most // 2, -step):
        problem = replace(_problem(node, {**sizes, "seq": seq}), dtype=dtype)
        if problem.m:
            yield problem


def norm_kernels(
    nodes: Iterable[Node], sizes: Mapping[str, int], dtype: str, facts: DeviceFacts
) -> dict[KernelSpec, None]:
    """Return as `kernels` what `gemm_layer_norm` asks for, beside a plain product's."""
    found: dict[KernelSpec, None] = {}
    for node in {_form(node): node for node in nodes}.values():
        found[layer_norm_spec(dtype)] = None
        for problem in _problems(node, sizes, dtype):
            plan = gemm_choice.norm(problem, _layout(problem), facts)
            if plan is not None:
                found[gemm_sm90_spec(dtype, plan.config, problem.epilogue)] = None
    return found


def _turns(problem: Problem, node: Node, facts: DeviceFacts) -> bool:
    """Whether one kernel computes what `turned_gemm` does, by the model."""
    attrs, kind = dict(node.attrs), problem.epilogue.rotary
    if kind is None:
        return False
    columns = attrs["heads"] * attrs["head_dim"]
    return in_one(_unturned(problem), kind, columns, _layout(problem), facts)


def _unturned(problem: Problem) -> Problem:
    return replace(problem, epilogue=replace(problem.epilogue, rotary=None))


_ROWS = 64
"""Of the smallest tile."""

_LENGTHS = 512
"""Lengths of a class that are looked at, at most; one takes a fifth of a millisecond."""


def _layout(problem: Problem) -> gemm_sm90.Layout | None:
    """Return how operands lie: weights as the executor uploads them, the others like them."""
    return gemm_sm90.Layout() if problem.k % 8 == 0 else None


@lru_cache(maxsize=256)
def _estimates(problem: Problem, facts: DeviceFacts) -> Mapping[Setting, float]:
    """Return seconds by setting, the least first."""
    if not problem.m:
        return {}
    every = gemm_model.explain(problem, _layout(problem), facts)
    return {_setting(each.choice): each.us * 1e-6 for each in every}


def _setting(choice: gemm_model.Choice) -> Setting:
    if isinstance(choice, gemm_sm80.Config):
        return (("kernel", CHOICES.index(choice.tile)), ("splits", 1))
    return (("kernel", CHOICES.index(choice.config)), ("splits", choice.splits))


def _choice(setting: Setting) -> gemm_model.Choice | None:
    """Return what a setting names; None: the model's choice."""
    if not setting:
        return None
    number, splits = (value for _, value in setting)
    if number < len(GEMM_TILES):
        return gemm_sm80.Config(GEMM_TILES[number])
    if number < len(CHOICES):
        return gemm_sm90.Plan(GEMM_SM90_CONFIGS[number - len(GEMM_TILES)], splits)
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
