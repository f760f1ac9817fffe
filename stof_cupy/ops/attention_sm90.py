"""Attention on Hopper's own instructions: what the kernel takes, and its launch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit import tensormap
from stof_cupy.jit.attention_sm90 import SM90_CONFIGS, Sm90Config, attention_sm90, sm90_dim
from stof_cupy.masks import DeviceMask
from stof_cupy.masks.layout import GROUP
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops._arrays import Array, empty_in_order_of, pointer, unit_last
from stof_cupy.ops._counters import counters
from stof_cupy.ops.attention_args import Problem

__all__ = ["Config", "Prepared", "candidates", "fault", "launch", "prepare"]

Config = Sm90Config
"""Tile, buffers and CTAs per SM; see there."""

_STORED = 8  # elements: a TMA store writes whole pieces of 16 bytes, and what follows a row too
_MASK_TILE = 64  # the GPU builds lists of tiles of multiples of it
_LONG = 1 / 8  # of a CTA's work
_LISTS = ("row_ptr", "full_ptr", "cols", "bitmap_id", "bitmaps", "groups", "order", "overflow")


def candidates(problem: Problem) -> list[Config]:
    """Return the configurations that are compiled ahead for a problem's head dims.

    For head dims of a pair that is not among them, those of the larger one.

    Examples
    --------
    >>> problem = Problem("float16", 1, 8, 8, 100, 100, 40, 40)
    >>> [(config.m, config.n) for config in candidates(problem)]
    [(192, 128), (128, 128), (64, 64), (128, 64)]
    """
    dims = sm90_dim(problem.dim_qk), sm90_dim(problem.dim_v)
    found = [each for each in SM90_CONFIGS if (each.dim_qk, each.dim_v) == dims]
    if not found:
        larger = [each for each in SM90_CONFIGS if each.dim_qk == each.dim_v == max(dims)]
        found = [replace(each, dim_qk=dims[0], dim_v=dims[1]) for each in larger]
    return found


def fault(
    config: Config,
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    mask: AnyMask | None,
    scale: float,
    lengths: Array | None,
    out: Array | None,
) -> str | None:
    """Return why the kernel does not take these arguments, or None; another kernel may.

    `q`, `k` and `v` have a contiguous last axis.
    """
    wrong = config.fault()
    if wrong is not None:
        return wrong
    if not 0 < problem.dim_qk <= config.dim_qk or not 0 < problem.dim_v <= config.dim_v:
        got = (problem.dim_qk, problem.dim_v)
        return mismatch("head dims", got, f"at most {(config.dim_qk, config.dim_v)}")
    if problem.dim_v % _STORED:
        return mismatch("value dim", problem.dim_v, f"a multiple of {_STORED}")
    if not scale > 0:
        return mismatch("scale", scale, "a positive number")
    if min(problem.batch, problem.heads, problem.seq_q, problem.seq_k) == 0:
        return mismatch("problem", problem, "no empty axis")
    if _rows(config, problem) > 2**31 - 2**16:
        return mismatch("query tiles", _rows(config, problem), "at most 2**31 - 2**16")
    if max(problem.seq_q, problem.seq_k) > 2**31 - 256:
        sizes = (problem.seq_q, problem.seq_k)
        return mismatch("(seq_q, seq_k)", sizes, "each at most 2**31 - 256")
    if isinstance(mask, DeviceMask) and config.n % _MASK_TILE:
        return mismatch("n", config.n, f"a multiple of {_MASK_TILE} for a mask on the GPU")
    if config.packed and (mask is None or isinstance(mask, DeviceMask) or lengths is not None):
        return mismatch("packed", True, "False without a mask of the CPU or with kv_lengths")
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        if x is not None:
            wrong = tensormap.fault(pointer(x), problem.dtype, *tensormap.layout(x))
            if wrong is not None:
                return f"{name}: {wrong}"
    return None


@dataclass(frozen=True, eq=False)
class Prepared:
    """A launch with everything in place; calling it again computes from what the arrays hold then.

    Calls must not overlap, on two streams say: they count their rows in one place.

    Attributes
    ----------
    kernel : stof_cupy.jit.launch.Kernel
    grid : tuple of int
    params : numpy.void
    out, lse : cupy.ndarray
        Where the results go; no `lse` unless asked for.
    arrays : tuple
        What `params` points to.
    """

    kernel: Any
    grid: tuple[int]
    params: np.void
    out: Array
    lse: Array | None
    arrays: tuple[Any, ...]

    def __call__(self) -> None:
        """Launch on CuPy's current stream; the arrays' device must be the current one."""
        self.kernel(self.grid, self.params)


def launch(
    config: Config,
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    mask: AnyMask | None,
    scale: float,
    kv_lengths: Array | None,
    return_lse: bool,
    out: Array | None,
    **how: int,
) -> Any:
    """Run the kernel on the arrays' device and CuPy's current stream; see `prepare`."""
    import cupy

    with cupy.cuda.Device(q.device.id):
        ready = prepare(config, problem, q, k, v, mask, scale, kv_lengths, return_lse, out, **how)
        ready()
    return (ready.out, ready.lse) if return_lse else ready.out


def prepare(
    config: Config,
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    mask: AnyMask | None,
    scale: float,
    kv_lengths: Array | None,
    return_lse: bool,
    out: Array | None,
    *,
    section: int = 0,
    report: int = 0,
) -> Prepared:
    """Build the kernel and its parameters for the arrays' device, which is the current one.

    Parameters
    ----------
    section : int
        Heads, of all batches, that are worked on at a time; 0: as many as keep to L2.
    report : int
        With a bounded configuration: the address of four uint32 of pinned memory, zeros. Before it
        faults the kernel writes there what it waited for (``Wait`` in
        ``cuda/attention/sm90_shape.cuh``), block, thread and parity.

    Raises
    ------
    UnsupportedError
        See `fault`.
    """
    import cupy

    from stof_cupy.jit import device
    from stof_cupy.jit.launch import kernel

    number = q.device.id
    q, k, v = unit_last(q), unit_last(k), unit_last(v)
    if out is None:
        out = empty_in_order_of(q, (*q.shape[:3], problem.dim_v))
    wrong = fault(config, problem, q, k, v, mask, scale, kv_lengths, out)
    if wrong is not None:
        raise UnsupportedError(wrong)
    run = kernel(attention_sm90(problem.dtype, config), number)
    size = (problem.batch, problem.heads, problem.seq_q)
    lse = cupy.empty(size, np.float32) if return_lse else None
    lengths = kv_lengths
    if lengths is not None:
        if lengths.dtype != np.int32:  # a value beyond int32 is to be clipped, not wrapped
            lengths = cupy.clip(lengths, 0, problem.seq_k)
        lengths = cupy.ascontiguousarray(lengths, np.int32)
    facts = device.facts(number)
    grid = (min(_rows(config, problem), facts.sm_count * config.blocks),)
    params = run.pack(
        **_tensor_fields(config, problem, q, k, v, out),
        **_mask_fields(config, mask, problem),
        lse=pointer(lse),
        kv_lengths=pointer(lengths),
        counter=counters(number).take(),
        report=report,
        batch=problem.batch,
        heads=problem.heads,
        heads_per_kv=problem.heads // problem.kv_heads,
        section=min(section or _section(problem, facts.l2_bytes), problem.heads * problem.batch),
        long_slots=_long_slots(config, mask, problem, grid[0]),
        seq_q=problem.seq_q,
        seq_k=problem.seq_k,
        dim_qk=problem.dim_qk,
        dim_v=problem.dim_v,
        scale_log2=scale * math.log2(math.e),
    )
    return Prepared(run, grid, params, out, lse, (q, k, v, mask, lengths))


def _rows(config: Config, problem: Problem) -> int:
    """Return how many query tiles there are, of all heads and batches."""
    return -(-problem.seq_q // config.m) * problem.heads * problem.batch


def _section(problem: Problem, l2_bytes: int) -> int:
    """Return how many heads are worked on at a time: their keys and values fit into L2.

    Two thirds of it, because the two halves of a Hopper's L2 hold some lines twice.

    Examples
    --------
    >>> _section(Problem("float16", 1, 32, 32, 8192, 8192, 128, 128), 50 * 2**20)
    8
    """
    head = problem.seq_k * (problem.dim_qk + problem.dim_v) * 2
    return max(1, l2_bytes * 2 // 3 // head) * (problem.heads // problem.kv_heads)


def _long_slots(config: Config, mask: AnyMask | None, problem: Problem, ctas: int) -> int:
    """Return how many query tiles of a head are long beside the work of all of a CTA's.

    Begun late, such a tile would be worked on alone in the end. Of a mask on the GPU it is not
    known here.
    """
    if mask is None or isinstance(mask, DeviceMask):
        return 0
    schedule = mask.schedule((config.m, config.n), layout="accumulator", packed=config.packed)
    copies = problem.batch * problem.heads / schedule.mask_of.size  # of the masks that it counts
    most = schedule.stats.visited * copies / ctas * _LONG
    if schedule.stats.longest <= most:
        return 0
    return int((np.diff(schedule.row_ptr, axis=-1) > most).sum(axis=-1).max())


def _tensor_fields(
    config: Config, problem: Problem, q: Array, k: Array, v: Array, out: Array
) -> dict[str, Any]:
    """Return the tensor maps, and where the inputs are."""
    fields: dict[str, Any] = {}
    # The output leaves in the 64 rows of one warpgroup.
    for name, x, rows in (("q", q, config.m), ("k", k, config.n), ("v", v, config.n)):
        fields[name] = pointer(x)
        for axis, step in zip(("batch", "head", "row"), x.strides, strict=False):
            fields[f"{name}_{axis}"] = step // x.itemsize
        fields[f"map_{name}"] = _map(x, problem.dtype, rows)
    fields["map_out"] = _map(out, problem.dtype, 64)
    for name, x in (("k", k), ("v", v)):
        fields[f"map_{name}_group"] = _map(x, problem.dtype, GROUP) if config.packed else bytes(128)
    return fields


def _map(x: Array, dtype: str, rows: int) -> bytes:
    """Return the tensor map of an array whose boxes are `rows` rows of 64 columns."""
    return tensormap.tensor_map(pointer(x), dtype, *tensormap.layout(x), (64, rows, 1, 1))


def _mask_fields(config: Config, mask: AnyMask | None, problem: Problem) -> dict[str, int]:
    """Return where the lists of the mask are on the current device; zeros without a mask."""
    fields = dict.fromkeys((*_LISTS, "mask_of", "mask_batch", "mask_head"), 0)
    if mask is not None:
        tile = (config.m, config.n)
        lists = mask.schedule(tile, layout="accumulator", packed=config.packed).on_device()
        for name in _LISTS:
            fields[name] = pointer(getattr(lists, name))
        if lists.mask_of.size > 1:
            fields["mask_of"] = pointer(lists.mask_of)
            strides = lists.mask_strides(problem.batch, problem.heads)
            fields["mask_batch"], fields["mask_head"] = strides
    return fields
