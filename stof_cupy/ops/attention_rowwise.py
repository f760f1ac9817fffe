"""Row-wise attention on CUDA: a warp a query row, for masks that keep few keys and small problems.

`attention_model` says when; `attention` validates. What is here: describe (`Config`), `legal`,
build and launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stof_cupy.dtypes import dtype_name
from stof_cupy.jit.attention_rowwise import ROWWISE_HEAD_DIMS, attention_rowwise
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.device.built import BuiltMask, UploadedMask
from stof_cupy.masks.keylists import MOST
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops._arrays import Array, empty_in_order_of, pointer, unit_last
from stof_cupy.ops.attention_args import Problem, Scores
from stof_cupy.ops.attention_fields import (
    is_wide,
    mask_fields,
    score_fields,
    tensor_fields,
)
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = [
    "BLOCK_ROWS",
    "Config",
    "Lists",
    "arguments",
    "configs",
    "launch",
    "legal",
    "stages",
]

BLOCK_ROWS = (4, 16)
"""Query rows of a block of four warps: one each, which starts most warps, or four in turn."""

Lists = Literal["keys", "tiles"]
"""What the kernel reads of a mask: `KeyLists`, or the tiles and bitmaps of a `Schedule`."""

_SOURCES = {"keys": "KeyLists", "tiles": "TileLists"}
_FLOATS = {"float16": "stof::f16", "bfloat16": "stof::bf16", "float32": "float"}


@dataclass(frozen=True)
class Config:
    """How.

    Attributes
    ----------
    head_dim : int
        One of `ROWWISE_HEAD_DIMS`.
    pairs : int
        Keys that a warp takes at once, over 16: 1 or 2.
    lists : {"keys", "tiles"}
        The form of the mask.
    block_rows : int
        One of `BLOCK_ROWS`.
    """

    head_dim: int
    pairs: int = 1
    lists: Lists = "keys"
    block_rows: int = 4

    def spec(
        self, problem: Problem, scores: Scores | None = None, *, wide: bool = True
    ) -> KernelSpec:
        """Return the kernel for `problem`, with the modifications that `scores` has.

        `wide` says whether rows of q, k and v are aligned to 16 bytes, and head dims to 8.
        """
        source = _SOURCES[self.lists]
        return attention_rowwise(
            problem.dtype, self.head_dim, self.pairs, source, stages(scores), wide=wide
        )


def stages(scores: Scores | None) -> tuple[str, ...]:
    """Return the stages of ``cuda/attention/element_scores.cuh`` that make `scores`."""
    if scores is None:
        return ()
    found = ["Softcap"] if scores.softcap is not None else []
    found += ["Alibi"] if scores.alibi is not None else []
    if isinstance(scores.bias, RelativeBias):
        found.append("Relative")
    elif scores.bias is not None:
        name = dtype_name(scores.bias.dtype)
        found.append(f"Additive<{_FLOATS.get(name, 'float')}>")
    return tuple(found)


def legal(config: Config, problem: Problem, mask: AnyMask | None) -> str:
    """Say why the kernel cannot run `problem`; empty if it can.

    Examples
    --------
    >>> problem = Problem("float16", 1, 12, 12, 1024, 1024, 64, 64)
    >>> legal(Config(64, lists="tiles"), problem, None), legal(Config(32), problem, None)
    ('', 'head dims 64 and 64: at most 32')
    """
    dims = problem.dim_qk, problem.dim_v
    if config.head_dim not in ROWWISE_HEAD_DIMS or config.pairs not in (1, 2):
        return f"no kernel for {config}"
    if config.block_rows not in BLOCK_ROWS:
        return f"{config.block_rows} rows a block: one of {BLOCK_ROWS}"
    if max(dims) > config.head_dim:
        return f"head dims {dims[0]} and {dims[1]}: at most {config.head_dim}"
    if config.pairs == 2 and config.head_dim > 128:
        return f"32 keys at a time in head dim {config.head_dim}: at most 128"
    if config.lists == "keys" and (mask is None or isinstance(mask, BuiltMask)):
        return "no list of keys without a mask, or of one that was built on the GPU"
    if config.lists == "keys" and _elements(mask) >= MOST:
        return f"{_elements(mask)} kept elements: below {MOST}"
    if max(problem.seq_q, problem.seq_k) > 2**31 - TILE:
        return "2^31 queries or keys"
    if (problem.seq_q + TILE) * problem.heads * problem.batch >= 2**31:
        return "2^31 rows"
    return ""


def configs(problem: Problem, mask: AnyMask | None) -> list[Config]:
    """Return the configurations worth a choice, all of the smallest head-dim class.

    Lists of keys are taken where there can be any: they are shorter than tiles and bitmaps where
    row-wise attention pays.
    """
    dim = max(problem.dim_qk, problem.dim_v)
    head_dim = next((size for size in ROWWISE_HEAD_DIMS if dim <= size), ROWWISE_HEAD_DIMS[-1])
    lists: Lists = "tiles" if mask is None or isinstance(mask, BuiltMask) else "keys"
    made = (Config(head_dim, pairs, lists, rows) for rows in BLOCK_ROWS for pairs in (1, 2))
    return [each for each in made if not legal(each, problem, mask)]


def launch(
    config: Config,
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    mask: AnyMask | None,
    scores: Scores,
    kv_lengths: Array | None = None,
    return_lse: bool = False,
    out: Array | None = None,
) -> Any:
    """Build the kernel and run it on the arrays' device and CuPy's current stream.

    Parameters
    ----------
    config : Config
        A legal one.
    problem, mask, scores
        From `attention_args.validate`.
    q, k, v, kv_lengths, return_lse, out
        As `attention`.
    """
    import cupy

    from stof_cupy.jit.launch import kernel

    device = q.device.id
    with cupy.cuda.Device(device):
        q, k, v = unit_last(q), unit_last(k), unit_last(v)
        if out is None:
            out = empty_in_order_of(q, (*q.shape[:3], problem.dim_v))
        rows = (problem.batch, problem.heads, problem.seq_q)
        lse = cupy.empty(rows, np.float32) if return_lse else None
        if out.size:
            if kv_lengths is not None:
                if kv_lengths.dtype != np.int32:  # beyond int32 is to be clipped, not wrapped
                    kv_lengths = cupy.clip(kv_lengths, 0, problem.seq_k)
                kv_lengths = cupy.ascontiguousarray(kv_lengths, np.int32)
            lists = _lists(config, mask)
            lists = None if lists is None else lists.on_device()
            long_rows = 0 if config.lists == "tiles" else _source(mask).key_lists().long_rows
            grid, fields, kept = arguments(
                config, problem, (q, k, v, out, lse), lists, long_rows, scores, kv_lengths
            )
            wide = is_wide(problem, fields)
            run = kernel(config.spec(problem, scores, wide=wide), device)
            run(grid, run.pack(**fields))
            del kept  # what the kernel reads lives until it is launched
    return (out, lse) if return_lse else out


def _source(mask: AnyMask | None) -> Any:
    return mask.to("cpu") if isinstance(mask, UploadedMask) else mask


def _elements(mask: AnyMask | None) -> int:
    """Return the elements that the distinct masks of one on the CPU keep."""
    source = _source(mask)
    return sum(each.nnz for each in getattr(source, "masks", (source,)))


def _lists(config: Config, mask: AnyMask | None) -> Any:
    if mask is None:
        return None
    return _source(mask).key_lists() if config.lists == "keys" else mask.schedule()


def arguments(
    config: Config,
    problem: Problem,
    tensors: tuple[Array, Array, Array, Array, Array | None],
    lists: Any,
    long_rows: int,
    scores: Scores,
    kv_lengths: Array | None,
) -> tuple[tuple[int], dict[str, Any], list[Any]]:
    """Return the grid, the fields of the kernel's params, and arrays made for them.

    Parameters
    ----------
    config, problem, scores
        As `launch`.
    tensors : tuple of array
        q, k, v, out, and the LSE or None: all of one device, or of NumPy.
    lists : DeviceSchedule, DeviceKeyLists or None
        Of the same device; or `Schedule` or `KeyLists` for NumPy.
    long_rows : int
        Of `KeyLists`.
    kv_lengths : int32 array (batch,) or None
    """
    q, k, v, out, lse = tensors
    if config.lists == "keys":
        blocks = long_rows + -(-(problem.seq_q - long_rows) // config.block_rows)
    else:
        blocks = -(-problem.seq_q // TILE) * (TILE // config.block_rows)
    terms, kept = score_fields(scores, problem, q)
    fields = {
        **tensor_fields(q=q, k=k, v=v, out=out),
        **mask_fields(lists, problem),
        **terms,
        "lse": pointer(lse),
        "kv_lengths": pointer(kv_lengths),
        "heads": problem.heads,
        "heads_per_kv": problem.heads // problem.kv_heads,
        "seq_q": problem.seq_q,
        "seq_k": problem.seq_k,
        "dim_qk": problem.dim_qk,
        "dim_v": problem.dim_v,
        "blocks": blocks,
        "block_rows": config.block_rows,
        "long_rows": long_rows,
    }
    return (blocks * problem.heads * problem.batch,), fields, kept
