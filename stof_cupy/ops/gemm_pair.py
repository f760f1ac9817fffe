"""Two products in one kernel: what it takes, how long it is expected to take, and its launch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from stof_cupy.errors import mismatch
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.gemm_pair import PAIR_TILES, PairTile, gemm_pair
from stof_cupy.ops import gemm_model, gemm_ways
from stof_cupy.ops._arrays import Array, aligned, pointer
from stof_cupy.ops.gemm_args import Problem, strides
from stof_cupy.ops.gemm_model import Constants
from stof_cupy.ops.gemm_sm80 import layout
from stof_cupy.ops.gemm_sm90 import Layout

__all__ = ["Pair", "apart", "candidates", "choose", "fault", "fields", "launch", "lies", "predict"]


class Pair(NamedTuple):
    """Two products, of which the first's result is the second's A."""

    first: Problem
    second: Problem


def lies(pair: Pair, a: Array, b: Array, d: Array) -> bool:
    """Whether A ``(M, K)``, B ``(H, K)`` and D ``(N, H)`` lie as the kernel reads them.

    That is contiguous along their last axis, in rows that are 16-byte aligned.
    """
    halves = pair.first.epilogue.halves
    return layout(a) == layout(b, halves) == layout(d) == "k"


def fault(tile: PairTile, pair: Pair, facts: DeviceFacts) -> str | None:
    """Return why the kernel does not compute two products on a GPU, or None.

    Examples
    --------
    >>> l4 = DeviceFacts("NVIDIA L4", "89", (8, 9), 58, 101376, 102400, 48 << 20, 2040000, 24 << 30)
    >>> pair = Pair(Problem("float16", 8, 512, 64), Problem("float16", 8, 64, 512))
    >>> fault(PAIR_TILES[2], pair, l4)
    >>> fault(PAIR_TILES[1], pair, l4)
    'shared memory: got 102400, expected at most 101376'
    """
    first, second = pair
    sizes = (first.m, first.k, first.n, second.n)
    if min(sizes) == 0:
        return mismatch("(M, K, H, N)", sizes, "no empty axis")
    if first.n > tile.hidden:
        return mismatch("H", first.n, f"at most {tile.hidden}")
    if tile.smem_bytes > facts.smem_per_block_optin:
        return mismatch("shared memory", tile.smem_bytes, f"at most {facts.smem_per_block_optin}")
    if not first.epilogue.rows_alone or first.epilogue.residual:
        return mismatch("between", first.epilogue.name, "bias, activation, gate and scale alone")
    if not second.epilogue.rows_alone or second.epilogue.gated:
        return mismatch("epilogue", second.epilogue.name, "none that gates or moves columns")
    return None


def candidates(pair: Pair, facts: DeviceFacts) -> Iterator[PairTile]:
    """Yield every tile for two products."""
    yield from (tile for tile in PAIR_TILES if fault(tile, pair, facts) is None)


@lru_cache(maxsize=4096)
def choose(pair: Pair, facts: DeviceFacts) -> PairTile | None:
    """Return how to compute two products that lie as the kernel reads them; None: in two kernels.

    Examples
    --------
    >>> h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20,
    ...                    1980000, 80 << 30, 2048, 2619000, 5120)
    >>> pair = Pair(Problem("float16", 16, 1024, 512), Problem("float16", 16, 512, 1024))
    >>> choose(pair, h100) is None
    True
    """
    times = {predict(tile, pair, facts): tile for tile in candidates(pair, facts)}
    return times[min(times)] if times and min(times) < apart(pair, facts) else None


def apart(pair: Pair, facts: DeviceFacts) -> float:
    """Return the microseconds of two kernels, by the model."""
    found = [Layout() if each.k % 8 == 0 else None for each in pair]
    return sum(gemm_ways.ways(*each, facts)[0].us for each in zip(pair, found, strict=True))


def predict(tile: PairTile, pair: Pair, facts: DeviceFacts, c: Constants | None = None) -> float:
    """Return the microseconds of the kernel, by the model.

    As `gemm_model` has the GEMM on mma.sync, but that all of the weights come to every CTA.
    """
    c = c or Constants()
    first, second = pair
    rate = gemm_model.mma_rate(facts) * (0.8 if tile.warp_n == 64 else 0.5)
    rounds = -(-first.m // (tile.m * facts.sm_count))
    # CTAs that share an SM hide each other's epilogues.
    shared = 2 * tile.smem_bytes < facts.smem_per_sm and rounds > 1
    clocks = 0.0
    for each, rows in ((first, tile.m), (second, 0)):
        tiles, steps = -(-each.columns // 128), -(-each.k // 64)
        step = max(tile.m * 128 * 64 * 2 / rate, (rows + 128) * 128 / c.l2_bytes)
        tail = tile.m * gemm_model.epilogue_clk(each.epilogue, c) * (0.5 if shared else 1.0)
        clocks += tiles * (steps * step + tail)
    us = (rounds * clocks + 2 * c.start_clk) / gemm_model.clock(facts, c)
    read = first.m * first.k + first.columns * first.k + second.columns * second.k
    written = second.m * second.n * (2 if second.epilogue.residual else 1)
    moved = 2 * (read + written) / gemm_model.bandwidth(facts, c)
    return max(us, moved) + c.beside * min(us, moved) + c.launch_us


def launch(
    tile: PairTile,
    pair: Pair,
    a: Array,
    b: Array,
    d: Array,
    c: Array,
    between: dict[str, Any],
    after: dict[str, Any],
) -> None:
    """Run the kernel on the current device and CuPy's current stream.

    Parameters
    ----------
    a, b, d, c : cupy.ndarray
        ``(M, K)``, ``(H, K)``, ``(N, H)`` and the result's rows, all matrices; `c` has a unit
        column stride.
    between, after : dict
        From `gemm.operands_of`.
    """
    from stof_cupy.jit.launch import kernel

    kinds = (pair.first.epilogue, pair.second.epilogue)
    run = kernel(gemm_pair(pair.first.dtype, tile, *kinds), c.device.id)
    params = run.pack(**fields(pair, a, b, d, c, between, after))
    run((-(-pair.first.m // tile.m),), params)


def fields(
    pair: Pair,
    a: Array,
    b: Array,
    d: Array,
    c: Array,
    between: dict[str, Any],
    after: dict[str, Any],
) -> dict[str, Any]:
    """Return the kernel's parameters."""
    residual, c_row = after["residual"], strides(c)[0]
    residual_row = 0 if residual is None else strides(residual)[0]
    return {
        **{name: pointer(x) for name, x in (("a", a), ("b", b), ("d", d), ("c", c))},
        "bias_b": pointer(between["bias"]),
        "bias_d": pointer(after["bias"]),
        "residual": pointer(residual),
        "residual_row": residual_row,
        "c_row": c_row,
        **{f"{name}_row": strides(x)[0] for name, x in (("a", a), ("b", b), ("d", d))},
        **{"m": pair.second.m, "n": pair.second.n, "k": pair.first.k, "hidden": pair.first.n},
        "pairs_c": aligned(c, 4, c_row),
        "pairs_residual": residual is not None and aligned(residual, 4, residual_row),
        "scale_b": between["scale"],
        "scale_d": after["scale"],
    }
