"""What the time model of attention does not read from the driver: constants, one table of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from stof_cupy.jit.attention_kernels import ScoreKind
from stof_cupy.jit.device import DeviceFacts

__all__ = ["NAMES", "TERMS", "Constants", "Speeds", "speeds", "terms_clk"]


@dataclass(frozen=True)
class Constants:
    """Calibrated per GPU; the defaults are those of an H100.

    ``_us`` are microseconds, ``_clk`` clocks of an SM, the others shares of a peak, 0 to 1.

    Attributes
    ----------
    launch_us : float
        From a kernel's start to the first instruction of a block, and from the last one to its end.
    combine_us : float
        What a second kernel that adds up slices takes, besides the bytes it moves.
    clock : float
        Share of the peak SM clock that is held under load.
    l2, l2_sustained, scattered, dram : float
        Bandwidth of the L2 in tiles, for less than a millisecond or longer, and in single rows of K
        and V, and of the memory.
    tensor : float
        Rate of ``mma.sync``.
    smem : float
        Bandwidth of an SM's shared memory.
    overlap : float
        Of the time of what does not bind a tile, the share that is hidden behind what does: 1 is
        ``max(...)``, 0 the sum.
    score_clk : float
        Of an SM, for the softmax of 16 scores.
    part_clk : float
        The same, for the mask of 16 scores of a part tile.
    term_clk : float
        The same, for what modifies 16 scores: times `TERMS`.
    tile_clk : float
        That a block waits at each barrier of a tile, if it is alone.
    block_clk : float
        From a block's first instruction to its last, without its tiles.
    busy_clk : float
        Of these, those in which no other block can use the SM, for 64 rows of each group of warps.
    empty_clk : float
        Of a block that finds that it has nothing to do.
    blend : float
        How sharply the longer of two times decides: ``(a^n + b^n)^(1/n)``.
    row_clk : float
        Of a warp for a query row without its keys: lists, q, reductions, output.
    chunk_clk : float
        Of a warp from one chunk of keys of a row to the next, when it is alone.
    issue : float
        Row-wise: instructions that a scheduler issues per clock.
    row_overlap : float
        As `overlap`, row-wise.
    wgmma : float
        Of Hopper's kernel: share of the rate of ``wgmma``.
    wg_l2 : float
        Of the bandwidth of the L2, in TMA's boxes.
    wg_first : float
        Of that, what a block's queries and first tile come with, before which it can do nothing.
    wg_score_clk, wg_part_clk, wg_term_clk : float
        As those without ``wg_``.
    wg_copy_clk : float
        From one group of 8 packed keys to the next.
    wg_tile_clk : float
        That a warpgroup waits in a tile, if it is alone.
    wg_turn_clk : float
        The same, if its two products take turns with each other.
    wg_halves : float
        Of the halves of tiles that are left out, the share that is saved.
    wg_row_clk : float
        Of a warpgroup's 64 query rows without its tiles.
    """

    launch_us: float = 2.05
    combine_us: float = 4.1
    clock: float = 1.0
    l2: float = 0.961
    l2_sustained: float = 0.473
    scattered: float = 0.942
    dram: float = 0.7
    tensor: float = 0.63
    smem: float = 1.0
    overlap: float = 1.0
    score_clk: float = 1.047
    part_clk: float = 1.653
    term_clk: float = 1.0
    tile_clk: float = 273.7
    block_clk: float = 1240.0
    busy_clk: float = 2560.0
    empty_clk: float = 790.0
    blend: float = 2.61
    row_clk: float = 1324.0
    chunk_clk: float = 1280.0
    issue: float = 0.517
    row_overlap: float = 0.71
    wgmma: float = 0.971
    wg_l2: float = 1.0
    wg_first: float = 0.65
    wg_score_clk: float = 1.422
    wg_part_clk: float = 0.226
    wg_term_clk: float = 1.0
    wg_copy_clk: float = 423.0
    wg_tile_clk: float = 810.0
    wg_turn_clk: float = 417.0
    wg_halves: float = 0.723
    wg_row_clk: float = 1470.0

    def scaled(self, name: str, factor: float) -> Constants:
        """Return them with one multiplied; shares stay between 0.05 and 1."""
        low, high = self.room(name)
        return replace(self, **{name: getattr(self, name) * min(max(factor, low), high)})

    def room(self, name: str) -> tuple[float, float]:
        """Return what one may be multiplied by at least and at most.

        Examples
        --------
        >>> Constants(tensor=0.5).room("tensor")
        (0.1, 2.0)
        """
        if name not in _SHARES:
            return 0.01, 100.0
        value = getattr(self, name)
        return 0.05 / value, 1.0 / value


TERMS = {
    "softcap": (6.0, 2.3),
    "alibi": (3.6, 1.3),
    "distances": (4.5, 0.7),
    "bias": (6.0, 5.0),
}
"""Clocks of an SM, for each modification of 16 scores: in the kernel of mma.sync, and in Hopper's.

From times on an H200 (benchmarks/notes/sm90_attention.md) with what the model says without. Of
biases by distance those far from their queries cost Hopper's nothing; this is a mean of lengths and
masks, of T5's 128 distances. ALiBi's takes less in Hopper's since it was found (0.7); with that one
choice would be another, which nobody has timed.
"""


def terms_clk(constants: Constants, kind: ScoreKind, kernel: str) -> float:
    """Return the clocks of what modifies 16 scores in a kernel, by `Candidate.kernel`.

    Examples
    --------
    >>> terms_clk(Constants(), ScoreKind(softcap=True, alibi=True), "blockwise")
    9.6
    """
    hopper = kernel == "sm90"
    clocks = sum(each[hopper] for name, each in TERMS.items() if getattr(kind, name))
    return clocks * (constants.wg_term_clk if hopper else constants.term_clk) if clocks else 0.0


_SHARES = (
    *("clock", "l2", "l2_sustained", "scattered", "dram", "tensor", "smem", "overlap", "issue"),
    *("row_overlap", "wgmma", "wg_l2", "wg_first", "wg_halves"),
)

NAMES = tuple(each.name for each in fields(Constants))
"""Of the constants, in order."""


@dataclass(frozen=True)
class Speeds:
    """A GPU's rates per microsecond.

    Attributes
    ----------
    clocks : float
        Of an SM.
    tensor_flops_per_clk : float
        Of an SM, 16-bit ``mma.sync`` with float32 sums.
    l2_bytes, dram_bytes : float
        Of the whole GPU, at their peaks.
    """

    clocks: float
    tensor_flops_per_clk: float
    l2_bytes: float
    dram_bytes: float


# What a fit starts from, published by others and not measured here. By compute capability: FLOP
# per clock and SM of mma.sync (dense, float32 sums; 9.0: 62 % of wgmma's 4096, later ones as 8.0),
# and bytes per clock and SM from L2 (of the whole L2, divided by SMs).
_TENSOR = {(8, 0): 2048, (9, 0): 2560, (10, 0): 2048, (10, 3): 2048}
_L2 = {(8, 0): 36.0, (8, 6): 24.0, (8, 9): 16.0, (9, 0): 42.0, (10, 0): 32.0, (12, 0): 16.0}
_CONSUMER_TENSOR = 1024  # sm_86, 89, 120; half of it on GeForce cards


def speeds(facts: DeviceFacts, constants: Constants) -> Speeds:
    """Return the rates of a GPU.

    Examples
    --------
    >>> h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20,
    ...                    1980000, 80 << 30, 2048, 2619000, 5120)
    >>> found = speeds(h100, Constants())
    >>> round(found.l2_bytes / 1e6, 1), round(found.dram_bytes / 1e6, 2)  # TB/s
    (11.0, 3.35)
    """
    clocks = facts.clock_khz / 1e3 * constants.clock
    tensor = _TENSOR.get(facts.compute_capability, 0)
    if not tensor:
        tensor = _CONSUMER_TENSOR // 2 if "GeForce" in facts.name else _CONSUMER_TENSOR
    l2_bytes = _L2.get(facts.compute_capability, 24.0) * facts.sm_count * clocks
    dram = facts.memory_clock_khz * 1e3 * 2 * facts.memory_bus_bits / 8 / 1e6
    return Speeds(clocks, tensor, l2_bytes, dram or l2_bytes / 4)
