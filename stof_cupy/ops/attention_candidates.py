"""The kernels that attention may choose among, and which of them can run a problem at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from stof_cupy.jit.catalogue import HEAD_DIM_CLASSES
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.device.built import BuiltMask
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops import attention_rowwise as rowwise
from stof_cupy.ops.attention_args import Problem

__all__ = ["BLOCK_TILES", "SPLITS", "Candidate", "Kernels", "candidates", "head_dim_of", "legal"]

BLOCK_TILES = ((64, 64), (64, 128), (128, 64), (128, 128))
"""Query rows and keys of a tile of the block-wise kernel."""

SPLITS = (1, 2, 4, 8, 16, 32)
"""Into how many blocks the keys of a query tile may be split; more than 1 needs a second kernel."""

_REGISTERS = 65536  # of an SM, on every GPU since sm_80


@dataclass(frozen=True)
class Kernels:
    """Which kernels there are: what `candidates` draws from.

    Attributes
    ----------
    tiles : tuple of (int, int)
        Of the block-wise kernel.
    splits : tuple of int
    rowwise : bool
    """

    tiles: tuple[tuple[int, int], ...] = BLOCK_TILES
    splits: tuple[int, ...] = SPLITS
    rowwise: bool = True


@dataclass(frozen=True, order=True)
class Candidate:
    """One way to compute an attention.

    Attributes
    ----------
    kernel : {"blockwise", "rowwise"}
    tile : tuple of int
        Query rows and keys of a block-wise tile; (1, 1) row-wise.
    splits : int
        Blocks that share the keys of a query tile.
    rowwise : attention_rowwise.Config or None
        Of the row-wise kernel.
    """

    kernel: Literal["blockwise", "rowwise"]
    tile: tuple[int, int] = (1, 1)
    splits: int = 1
    rowwise: rowwise.Config | None = None

    @property
    def threads(self) -> int:
        """Threads of a block: block-wise a warp for sixteen query rows."""
        return 128 if self.rowwise else self.tile[0] * 2

    def smem_bytes(self, head_dim: int) -> int:
        """Return a block's shared memory: block-wise a tile each of Q, K and V."""
        if self.rowwise:
            queue = 128 if self.rowwise.lists == "tiles" else 0
            return 4 * 4 * (max(head_dim, 64) + 2 + queue)
        return (self.tile[0] + 2 * self.tile[1]) * head_dim * 2

    def registers(self, head_dim: int) -> int:
        """Return about how many registers a thread needs (ptxas, sm_80 to sm_120, within 15 %)."""
        if self.rowwise:
            loaded = head_dim * self.rowwise.pairs
            return 96 if loaded <= 64 else 168 if loaded <= 128 else 208
        query = head_dim // 4 if head_dim <= 128 else 0
        columns = self.tile[1] if head_dim <= 192 else self.tile[1] // 4
        return min(72 + head_dim // 2 + query + columns // 2, 300)

    def occupancy(self, head_dim: int, facts: DeviceFacts) -> int:
        """Return how many blocks an SM holds; 0 if not even one fits."""
        registers = -(-self.registers(head_dim) // 8) * 8
        smem = self.smem_bytes(head_dim)
        if registers > 255 or smem > facts.smem_per_block_optin:
            return 0
        return min(
            facts.smem_per_sm // (smem + 1024),
            _REGISTERS // (registers * self.threads),
            facts.threads_per_sm // self.threads,
        )


def head_dim_of(candidate: Candidate, problem: Problem) -> int:
    """Return the head-dim class that a kernel computes a problem in; 0 if there is none."""
    if candidate.rowwise:
        return candidate.rowwise.head_dim
    dim = max(problem.dim_qk, problem.dim_v)
    return next((size for size in HEAD_DIM_CLASSES if dim <= size), 0)


def legal(candidate: Candidate, problem: Problem, mask: AnyMask | None, facts: DeviceFacts) -> str:
    """Say why a kernel cannot run a problem on a GPU; empty if it can.

    The one rule for the chooser, the tuner and the tests.

    Examples
    --------
    >>> l4 = DeviceFacts("NVIDIA L4", "89", (8, 9), 58, 101376, 102400, 48 << 20, 2040000, 24 << 30)
    >>> problem = Problem("float16", 1, 8, 8, 4096, 4096, 256, 256)
    >>> legal(Candidate("blockwise", (64, 64)), problem, None, l4)
    ''
    >>> legal(Candidate("blockwise", (128, 128)), problem, None, l4)
    '(128, 128) in head dim 256: 196608 bytes of shared memory and 216 registers do not fit an SM'
    """
    if candidate.rowwise:
        return rowwise.legal(candidate.rowwise, problem, mask)
    head_dim = head_dim_of(candidate, problem)
    if not head_dim:
        return f"head dims {problem.dim_qk} and {problem.dim_v}: at most {HEAD_DIM_CLASSES[-1]}"
    if max(problem.seq_q, problem.seq_k) > 2**31 - 256:
        return "2^31 queries or keys"
    rows, keys = candidate.tile
    blocks = -(-problem.seq_q // rows) * problem.heads * problem.batch * candidate.splits
    if blocks >= 2**31:
        return f"{blocks} blocks: fewer than 2^31"
    if candidate.splits > max(-(-problem.seq_k // keys), 1):
        return f"{candidate.splits} splits of {problem.seq_k} keys in tiles of {keys}"
    if isinstance(mask, BuiltMask) and (rows % TILE or keys % TILE):
        return "a mask built on the GPU has tiles of multiples of 64"
    if not candidate.occupancy(head_dim, facts):
        size, registers = candidate.smem_bytes(head_dim), candidate.registers(head_dim)
        return (
            f"{candidate.tile} in head dim {head_dim}: {size} bytes of shared memory and "
            f"{registers} registers do not fit an SM"
        )
    return ""


def candidates(
    problem: Problem, mask: AnyMask | None, facts: DeviceFacts, kernels: Kernels
) -> Iterator[Candidate]:
    """Yield every legal candidate."""
    every = [Candidate("blockwise", tile, n) for tile in kernels.tiles for n in kernels.splits]
    if kernels.rowwise:
        for config in rowwise.configs(problem, mask):
            every.append(Candidate("rowwise", rowwise=config))
    for each in every:
        if not legal(each, problem, mask, facts):
            yield each
