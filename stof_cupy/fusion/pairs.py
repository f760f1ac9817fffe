"""Two products of which the second multiplies what the first gives, as one kernel on CUDA.

The paper's template CI+CI. A setting names a tile by its place in `PAIR_TILES`; the empty one
leaves to `ops.gemm_gemm` whether it is one kernel at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from stof_cupy.fusion import products
from stof_cupy.fusion.cost import Machine, seconds
from stof_cupy.graph import Node
from stof_cupy.jit.gemm_pair import PAIR_TILES
from stof_cupy.ops import gemm_pair
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm_args import as_rows
from stof_cupy.ops.gemm_gemm import checked, gemm_gemm, launch
from stof_cupy.ops.gemm_pair import Pair

__all__ = ["build", "is_pair", "predicted", "settings"]

Array: TypeAlias = Any
Setting: TypeAlias = "tuple[tuple[str, int], ...]"


def is_pair(nodes: Sequence[Node]) -> bool:
    """Whether operators are two products by constants, and what is between them fits a kernel."""
    if [node.op for node in nodes] != ["gemm", "gemm"]:
        return False
    first, second = nodes
    weights = [node.inputs[1] for node in nodes]
    if any(w is None or w.op != "constant" for w in weights) or second.inputs[0] is not first:
        return False
    inside = first.shape[-1]
    fits = isinstance(inside, int) and inside <= max(tile.hidden for tile in PAIR_TILES)
    others = (first.inputs[3], first.inputs[4], second.inputs[4])  # a residual, and folded norms
    return fits and not dict(second.attrs)["gated"] and all(each is None for each in others)


def _pair(nodes: Sequence[Node], sizes: Mapping[str, int]) -> Pair:
    first, second = (products.problem_of(node, sizes) for node in nodes)
    return Pair(first, second)


def settings(
    nodes: Sequence[Node], sizes: Mapping[str, int], machine: Machine
) -> tuple[Setting, ...]:
    """Return the tiles that compute two products, best by the model first."""
    if machine.facts is None:
        return ((),)
    facts, pair = machine.facts, _pair(nodes, sizes)
    legal = list(gemm_pair.candidates(pair, facts))
    legal.sort(key=lambda tile: gemm_pair.predict(tile, pair, facts))
    return tuple((("tile", PAIR_TILES.index(tile)),) for tile in legal) or ((),)


def predicted(
    nodes: Sequence[Node],
    sizes: Mapping[str, int],
    itemsize: int,
    machine: Machine,
    setting: Setting,
) -> float:
    """Return the seconds of two products at a setting."""
    pair = _pair(nodes, sizes)
    if machine.facts is None or not pair.first.m:
        return seconds(nodes, sizes, itemsize, machine)
    if setting:
        return gemm_pair.predict(PAIR_TILES[setting[0][1]], pair, machine.facts) * 1e-6
    return gemm_pair.apart(pair, machine.facts) * 1e-6


def build(nodes: Sequence[Node], inputs: Sequence[Node], setting: Setting) -> Callable[..., Array]:
    """Return a call that takes what both products read, and runs the tile of a setting.

    Where that cannot compute what it is given, it is left to `gemm_gemm`.
    """
    first, second = nodes
    attrs = [dict(node.attrs) for node in nodes]
    tile = PAIR_TILES[setting[0][1]] if setting and setting[0][1] < len(PAIR_TILES) else None

    def run(*arrays: Array, out: Array | None = None) -> Array:
        given: dict[Node | None, Array] = {None: None, **dict(zip(inputs, arrays, strict=True))}
        x, w, bias = (given[each] for each in first.inputs[:3])
        v, last_bias, residual = (given[each] for each in second.inputs[1:4])
        between = Epilogue(bias, attrs[0]["activation"], gated=attrs[0]["gated"])
        after = Epilogue(last_bias, attrs[1]["activation"], residual)
        where, pair = checked(x, w.T, v.T, between, after, out)
        if where == "cuda" and tile is not None and _fits(tile, pair, x, w, v):
            return launch(tile, pair, x, w.T, v.T, between, after, out)
        return gemm_gemm(x, w.T, v.T, between=between, epilogue=after, out=out)

    return run


def _fits(tile: Any, pair: Pair, x: Array, w: Array, v: Array) -> bool:
    from stof_cupy.jit.device import facts

    legal = gemm_pair.fault(tile, pair, facts(x.device.id)) is None
    return legal and gemm_pair.lies(pair, as_rows(x), w, v)
