"""Row-wise attention on CUDA: a warp a query row, for masks that keep few keys of a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from stof_cupy.jit.attention_kernels import PLAIN, ScoreKind
from stof_cupy.jit.attention_rowwise import ROWWISE_HEAD_DIMS, attention_rowwise
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.device.built import BuiltMask
from stof_cupy.masks.keylists import MOST
from stof_cupy.ops._arrays import Array
from stof_cupy.ops.attention_args import Problem, masking
from stof_cupy.ops.attention_demand import Case, Demand
from stof_cupy.ops.attention_fields import Args, Launch, common_fields
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = ["BLOCK_ROWS", "Config", "Lists", "configs", "launches", "legal", "stages"]

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
    scores : ScoreKind
    """

    head_dim: int
    pairs: int = 1
    lists: Lists = "keys"
    block_rows: int = 4
    scores: ScoreKind = PLAIN

    kernel: ClassVar[str] = "rowwise"

    @property
    def name(self) -> str:
        """What tells it from others for the same case, e.g. ``"rows 4 keys 16"``."""
        return f"rows {self.block_rows} {self.lists} {16 * self.pairs}"

    def spec(self, problem: Problem, *, wide: bool = True) -> KernelSpec:
        """Return the kernel for `problem`.

        `wide` says whether rows of q, k and v are aligned to 16 bytes, and head dims to 8.
        """
        source, terms = _SOURCES[self.lists], stages(self.scores)
        return attention_rowwise(problem.dtype, self.head_dim, self.pairs, source, terms, wide=wide)

    def resident(self, facts: DeviceFacts) -> int:
        """Return how many CTAs an SM runs at a time; ``kMinBlocks`` of ``rowwise.cuh``."""
        loaded = self.head_dim * self.pairs * (1 if self.scores == PLAIN else 2)
        blocks = 2 if loaded > 128 else 3 if loaded > 64 or self.pairs > 1 else 5
        return min(blocks, facts.threads_per_sm // 128)


def stages(kind: ScoreKind) -> tuple[str, ...]:
    """Return the stages of ``cuda/attention/element_scores.cuh`` that make scores.

    Examples
    --------
    >>> stages(ScoreKind(softcap=True, bias="float32"))
    ('Softcap', 'Additive<float>')
    """
    found = ["Softcap"] if kind.softcap else []
    found += ["Alibi"] if kind.alibi else []
    found += ["Relative"] if kind.distances else []
    found += [f"Additive<{_FLOATS[kind.bias]}>"] if kind.bias else []
    return tuple(found)


def legal(config: Config, case: Case) -> str:
    """Say why the kernel cannot run a case; empty if it can."""
    p, mask = case.problem, case.mask
    if config.head_dim not in ROWWISE_HEAD_DIMS or config.pairs not in (1, 2):
        return f"no kernel for {config}"
    if config.block_rows not in BLOCK_ROWS:
        return f"{config.block_rows} rows a block: one of {BLOCK_ROWS}"
    if max(p.dim_qk, p.dim_v) > config.head_dim:
        return f"head dims {p.dim_qk} and {p.dim_v}: at most {config.head_dim}"
    if config.pairs == 2 and config.head_dim > 128:
        return f"32 keys at a time in head dim {config.head_dim}: at most 128"
    if config.lists == "keys" and (mask is None or isinstance(mask, BuiltMask)):
        return "no list of keys without a mask, or of one that was built on the GPU"
    if config.lists == "keys" and case.demand.elements >= MOST:
        return f"{case.demand.elements} kept elements: below {MOST}"
    if max(p.seq_q, p.seq_k) > 2**31 - TILE:
        return "2^31 queries or keys"
    if (p.seq_q + TILE) * p.heads * p.batch >= 2**31:
        return "2^31 rows"
    return ""


def configs(case: Case) -> Iterator[Config]:
    """Yield the legal configurations, all of the smallest head-dim class.

    Lists of keys are taken where there can be any: they are shorter than tiles and bitmaps where
    row-wise attention pays.
    """
    dim = max(case.problem.dim_qk, case.problem.dim_v)
    head_dim = next((size for size in ROWWISE_HEAD_DIMS if dim <= size), ROWWISE_HEAD_DIMS[-1])
    lists: Lists = "tiles" if case.mask is None or isinstance(case.mask, BuiltMask) else "keys"
    for rows in BLOCK_ROWS:
        for pairs in (1, 2):
            config = Config(head_dim, pairs, lists, rows, case.scores)
            if not legal(config, case):
                yield config


def launches(config: Config, args: Args) -> tuple[list[Launch], list[Array]]:
    """Return the launch of a call, and the arrays made for it.

    Parameters
    ----------
    config : Config
        A legal one.
    args : Args
    """
    problem, mask = args.problem, args.mask
    lists: Any = None
    blocks, long_rows = -(-problem.seq_q // TILE) * (TILE // config.block_rows), 0
    if config.lists == "keys":
        lists = Demand(problem, mask).source.key_lists()
        long_rows = lists.long_rows
        blocks = long_rows + -(-(problem.seq_q - long_rows) // config.block_rows)
    elif mask is not None:
        lists = mask.schedule()
    if lists is not None and args.on_gpu:
        lists = lists.on_device()
    used: list[Array] = []
    fields = common_fields(args, lists, used)
    bias: Any = args.scores.bias
    array = bias is not None and not isinstance(bias, RelativeBias)
    aligned = fields["wide_q"] and fields["wide_k"] and fields["wide_v"]
    wide = bool(aligned and problem.dim_qk % 8 == 0 and problem.dim_v % 8 == 0)
    spec = config.spec(problem, wide=wide)
    out = args.out
    common = fields["out"] | out.strides[0] | out.strides[1] | out.strides[2]
    fields |= {
        "pairs_out": common % 4 == 0,
        "relative": fields["distances"],
        "bias_key": fields["bias_col"],
        "bias_masking": masking(bias.dtype) if array else 0,
        "factor": -fields["scale_log2"] if fields["negative"] else fields["scale_log2"],
        "cap": fields["softcap_log2"],
        "blocks": blocks,
        "block_rows": config.block_rows,
        "long_rows": long_rows,
    }
    told = {name: fields[name] for name, _ in spec.params}
    return [Launch(spec, blocks * problem.heads * problem.batch, told)], used
