"""Row-wise attention on CUDA: a warp a query row, for masks that keep few keys and small problems.

`attention_model` says when; `attention` validates. What is here: describe (`Config`), `legal`,
build and launch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stof_cupy.dtypes import dtype_name
from stof_cupy.jit import catalogue
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.device.mask import BuiltMask, UploadedMask
from stof_cupy.masks.keylists import MOST
from stof_cupy.masks.schedule import mask_strides
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops._arrays import Array, empty_in_order_of, is_cupy, unit_last
from stof_cupy.ops.attention_args import Problem, Scores, masking
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = [
    "HEAD_DIMS",
    "WARPS",
    "Config",
    "Lists",
    "arguments",
    "configs",
    "is_wide",
    "launch",
    "legal",
    "stages",
]

HEAD_DIMS = (32, 64, 128, 256)
"""Head dims that the kernel is instantiated for: 4, 8, 16 or 32 lanes read a row of K or V."""

WARPS = 4
"""Query rows of a CTA, or warps of a long row."""

Lists = Literal["keys", "tiles"]
"""What the kernel reads of a mask: `KeyLists`, or the tiles and bitmaps of a `Schedule`."""

_SOURCES = {"keys": "KeyLists", "tiles": "TileLists"}
_FLOATS = {"float16": "stof::f16", "bfloat16": "stof::bf16", "float32": "float"}
_LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Config:
    """How: the head-dim class, the keys a lane loads at a time, and the form of the mask."""

    head_dim: int
    steps: int = 4
    lists: Lists = "keys"

    def spec(
        self, problem: Problem, scores: Scores | None = None, *, wide: bool = True
    ) -> KernelSpec:
        """Return the kernel for `problem`, with the modifications that `scores` has.

        `wide` says whether rows of q, k and v are aligned to 16 bytes, and head dims to 8.
        """
        source = _SOURCES[self.lists]
        return catalogue.attention_rowwise(
            problem.dtype, self.head_dim, self.steps, source, stages(scores), wide=wide
        )


def stages(scores: Scores | None) -> tuple[str, ...]:
    """Return the stages of ``cuda/attention/scores.cuh`` that make `scores` from products."""
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
    if config.head_dim not in HEAD_DIMS or config.steps not in (4, 8):
        return f"no kernel for {config}"
    if max(dims) > config.head_dim:
        return f"head dims {dims[0]} and {dims[1]}: at most {config.head_dim}"
    if config.steps > config.head_dim // 8:
        return f"{config.steps} steps: at most {config.head_dim // 8}"
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
    """Return the configurations worth a choice: the smallest head-dim class, each number of steps.

    Lists of keys are taken where there can be any: they are shorter than tiles and bitmaps where
    row-wise attention pays.
    """
    dim = max(problem.dim_qk, problem.dim_v)
    head_dim = next((size for size in HEAD_DIMS if dim <= size), HEAD_DIMS[-1])
    lists: Lists = "tiles" if mask is None or isinstance(mask, BuiltMask) else "keys"
    made = (Config(head_dim, steps, lists) for steps in (4, 8))
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
        blocks = long_rows + -(-(problem.seq_q - long_rows) // WARPS)
    else:
        blocks = -(-problem.seq_q // TILE) * (TILE // WARPS)
    terms, kept = _score_fields(scores, problem, q)
    fields = {
        **_tensor_fields(config, q=q, k=k, v=v, out=out),
        **_mask_fields(lists, problem),
        **terms,
        "lse": _address(lse),
        "kv_lengths": _address(kv_lengths),
        "heads": problem.heads,
        "heads_per_kv": problem.heads // problem.kv_heads,
        "seq_q": problem.seq_q,
        "seq_k": problem.seq_k,
        "dim_qk": problem.dim_qk,
        "dim_v": problem.dim_v,
        "blocks": blocks,
        "long_rows": long_rows,
    }
    return (blocks * problem.heads * problem.batch,), fields, kept


def is_wide(problem: Problem, fields: dict[str, Any]) -> bool:
    """Whether every row of q, k and v is whole, aligned pieces of 16 bytes."""
    aligned = fields["wide_q"] and fields["wide_k"] and fields["wide_v"]
    return bool(aligned and problem.dim_qk % 8 == 0 and problem.dim_v % 8 == 0)


def _address(x: Array | None) -> int:
    if x is None:
        return 0
    return int(x.data.ptr) if is_cupy(x) else int(x.ctypes.data)


def _tensor_fields(config: Config, **tensors: Array) -> dict[str, int]:
    """Return where the tensors are, their strides in elements, and how wide accesses may be."""
    fields = {}
    store = min(config.head_dim // 16, 16)  # bytes of a lane's share of an output row
    for name, x in tensors.items():
        address = fields[name] = _address(x)
        batch, head, row, _ = x.strides
        for axis, stride in (("batch", batch), ("head", head), ("row", row)):
            fields[f"{name}_{axis}"] = stride // x.itemsize
        common = address | batch | head | row  # its powers of 2 divide all of them
        fields[f"wide_{name}"] = common % (store if name == "out" else 16) == 0
    return fields


def _mask_fields(lists: Any, problem: Problem) -> dict[str, int]:
    """Return where the lists are; zeros without a mask."""
    names = ("row_ptr", "cols", "bitmap_id", "bitmaps", "order", "mask_of", "overflow")
    fields = dict.fromkeys((*names, "mask_batch", "mask_head"), 0)
    if lists is not None:
        for name in ("row_ptr", "cols", "bitmap_id", "bitmaps", "order", "overflow"):
            fields[name] = _address(getattr(lists, name, None))
        if hasattr(lists, "keys"):
            fields["cols"] = _address(lists.keys)
        if lists.mask_of.size > 1:
            fields["mask_of"] = _address(lists.mask_of)
            strides = mask_strides(lists.mask_of.shape, problem.batch, problem.heads)
            fields["mask_batch"], fields["mask_head"] = strides
    return fields


def _score_fields(
    scores: Scores, problem: Problem, like: Array
) -> tuple[dict[str, Any], list[Any]]:
    """Return the fields of ``cuda/attention/scores.cuh``, and the arrays made for them."""
    if is_cupy(like):
        import cupy as xp
    else:
        xp = np
    cap = scores.softcap
    fields: dict[str, Any] = {
        "factor": scores.scale * _LOG2E if cap is None else scores.scale / cap,
        "cap": 0.0 if cap is None else cap * _LOG2E,
        **dict.fromkeys(("bias", "relative", "query_at", "key_at", "reach", "bias_masking"), 0),
        **dict.fromkeys(("bias_batch", "bias_head", "bias_row", "bias_key"), 0),
    }
    kept: list[Any] = []

    def keep(name: str, x: Array | None, dtype: Any) -> None:
        made = None if x is None else xp.ascontiguousarray(xp.asarray(x), dtype)
        kept.append(made)
        fields[name] = _address(made)

    keep("sinks", scores.sinks, np.float32)
    keep("alibi", scores.alibi, np.float32)
    if isinstance(scores.bias, RelativeBias):
        reach = min(scores.bias.max_distance, problem.seq_q + problem.seq_k)
        keep("relative", scores.bias.by_distance(reach), np.float32)
        fields["reach"] = reach
    elif scores.bias is not None:
        bias = scores.bias
        fields["bias_masking"] = masking(bias.dtype)
        if bias.dtype == np.float64:  # of a broadcast axis, one element
            chosen = tuple(slice(0, 1) if step == 0 else slice(None) for step in bias.strides)
            with np.errstate(over="ignore"):  # below the lowest of float32: masked too
                bias = xp.broadcast_to(bias[chosen].astype(np.float32), bias.shape)
        kept.append(bias)
        fields["bias"] = _address(bias)
        for axis, step in zip(("batch", "head", "row", "key"), bias.strides, strict=True):
            fields[f"bias_{axis}"] = step // bias.itemsize
    if scores.positions is not None:
        for name, places in zip(("query_at", "key_at"), scores.positions, strict=True):
            keep(name, places, np.int32)
    return fields, kept
