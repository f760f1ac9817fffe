"""How long each kernel of attention takes on the GPU: the time model.

A kernel's time is that of the resource that it uses most, plus part of the others'. Block-wise, a
tile of keys takes tensor cores, softmax, shared memory and L2; an SM has so many tiles to work
through (`busy`), and each block takes its time for its own (`alone`), however few there are. Both
are times of blocks that are handed out as the hardware does it, see `makespan`. Row-wise: rows of K
and V through L2, instructions, and the latency of a warp's rows. Hopper's kernel is as block-wise,
but its blocks stay for many query tiles, which they take one after another.

Counts come from the mask (`attention_demand`), rates from the driver, and the rest is one table,
`attention_constants`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from stof_cupy.jit.attention_sm90 import Sm90Config
from stof_cupy.masks.bitmap import TILE
from stof_cupy.ops import attention_config as blockwise
from stof_cupy.ops import attention_rowwise as rowwise
from stof_cupy.ops import attention_sm90 as sm90
from stof_cupy.ops.attention_blocks import WAVES, Blocks, crowded, makespan
from stof_cupy.ops.attention_candidates import Candidate
from stof_cupy.ops.attention_constants import Constants, Speeds, speeds, terms_clk
from stof_cupy.ops.attention_demand import Case, TileDemand

__all__ = ["Time", "Times", "time_of"]

_WGMMA_FLOPS = 4096  # of an SM per clock
_SMEM_BYTES = 128  # that an SM reads or writes per clock
_LOOK = 0.25  # of the instructions of a softmax, those that find its maximum
_LONG_US = 450.0  # at the tensor cores' peak; from then on the L2 gives what it can sustain


class Time(NamedTuple):
    """Microseconds on the GPU, and what binds."""

    us: float
    bound: str


class Tile(NamedTuple):
    """What a tile of keys takes: clocks of the SM, and of a block that is alone there.

    Where groups of warps share a list, `alone` is that of a tile each.
    """

    busy: float
    alone: float
    bound: str


@dataclass(frozen=True, eq=False)
class Times:
    """The times of a case's candidates; what several of them have in common is found once."""

    case: Case
    constants: Constants
    seen: dict[Any, Any] = field(default_factory=dict, repr=False)

    def of(self, candidate: Candidate, *, least: bool = False) -> Time:
        """Return the predicted time of a legal candidate, launch included.

        With `least` one that is no more than that, and is there sooner.
        """
        time = _TIMES[candidate.kernel](candidate, self, least)
        floor, c = self.floor, self.constants
        if floor:
            time = Time(_blended(floor, time.us, c), "dram" if floor > time.us else time.bound)
        return Time(time.us + c.launch_us, time.bound)

    @cached_property
    def rate(self) -> Speeds:
        """The GPU's."""
        return speeds(self.case.facts, self.constants)

    @cached_property
    def l2(self) -> float:
        """Share of the L2's bandwidth that tiles are read with."""
        p, c = self.case.problem, self.constants
        flops = 4 * self.case.demand.visited((TILE, TILE)) * TILE**2 * max(p.dim_qk, p.dim_v)
        peak = self.rate.tensor_flops_per_clk * self.case.facts.sm_count * self.rate.clocks
        return min(c.l2, c.l2_sustained) if flops > peak * _LONG_US else c.l2

    @cached_property
    def floor(self) -> float:
        """Microseconds that inputs and outputs take from and to memory; 0 where the L2 has them."""
        p = self.case.problem
        queries, keys = p.batch * p.heads * p.seq_q, p.batch * p.kv_heads * p.seq_k
        moved = 2 * (queries + keys) * (p.dim_qk + p.dim_v)
        if moved <= self.case.facts.l2_bytes / 2:  # what fits there is mostly there
            return 0.0
        return moved / (self.rate.dram_bytes * self.constants.dram)


def time_of(candidate: Candidate, case: Case, constants: Constants) -> Time:
    """Return the predicted time of a legal candidate, launch included."""
    return Times(case, constants).of(candidate)


def _total(terms: dict[str, float], overlap: float) -> tuple[float, str]:
    """Return the time of work that overlaps but for a share, and what binds."""
    bound = max(terms, key=lambda name: terms[name])
    return terms[bound] + (1 - overlap) * (sum(terms.values()) - terms[bound]), bound


def _blended(a: float, b: float, c: Constants) -> float:
    """Return the time of two things at once, neither of which hides the other quite."""
    longer = max(a, b)
    return longer * (1 + (min(a, b) / longer) ** c.blend) ** (1 / c.blend) if longer else 0.0


def _looks(work: TileDemand, keys: int) -> float:
    """Return the share of tiles whose scores are looked at first, as if keys were kept at random.

    That is until each of a warp's 16 rows has kept a key, but for the first tile.
    """
    kept = (1 - work.waste) * keys  # of a row in a tile
    until_all_began = math.log(16) / max(kept, 1e-9)
    tiles = max(float(work.lengths.mean()), 1.0) if len(work.lengths) else 1.0
    return min(until_all_began, tiles - 1) / tiles * work.part


def _tile(config: blockwise.Config, work: TileDemand, of: Times) -> Tile:
    """Return the clocks of a key tile, on average."""
    shape, dim, keys = config.shape, config.head_dim, config.tile[1]
    rate, c = of.rate, of.constants
    scores, tile_bytes = shape.rows * keys, 2 * keys * dim * 2
    queries = 0 if shape.q_in_registers else shape.rows * dim * 2
    each = (1 + _LOOK * _looks(work, keys)) * c.score_clk + work.part * c.part_clk
    each += terms_clk(c, config.scores, config.kernel)
    terms = {
        "tensor": 4 * scores * dim / (rate.tensor_flops_per_clk * c.tensor),
        "softmax": scores / 16 * each,
        "smem": ((shape.warps + 1) * tile_bytes + queries) / (_SMEM_BYTES * c.smem),
        "l2": tile_bytes * of.case.facts.sm_count * rate.clocks / (rate.l2_bytes * of.l2),
    }
    busy, bound = _total(terms, c.overlap)
    # A warp multiplies, weighs and reads by turns; only another one on its scheduler fills in.
    own = (terms["tensor"] + terms["softmax"]) * 4 / shape.warps + terms["smem"]
    barriers = 1 if shape.stages > 1 else 2
    return Tile(busy, max(busy * shape.groups, own) + barriers * c.tile_clk, bound)


def _blocks(config: blockwise.Config, of: Times) -> Blocks:
    """Return the blocks of a head, or of heads packed together."""
    rows = config.shape.rows, config.mask_rows, config.pack
    key = *rows, config.long_slots, config.splits, config.slice
    found: Blocks | None = of.seen.get(key)
    if found is None:
        tiles, cut = of.case.demand.tiles(config.tile).lengths, 0
        tiles = config.of_slots(tiles, of.case.problem)
        if config.long_slots:
            first, rest = tiles[: config.long_slots], tiles[config.long_slots :]
            pieces = blockwise.slices(config, first)
            tiles, cut = np.concatenate([np.repeat(first / pieces, pieces), rest]), pieces.sum()
        found = of.seen[key] = Blocks(tiles, int(cut))
    return found


def _blockwise(config: blockwise.Config, of: Times, least: bool) -> Time:
    """Return microseconds without the launch."""
    p, facts, rate, c = of.case.problem, of.case.facts, of.rate, of.constants
    heads, shape, blocks = config.heads(p), config.shape, _blocks(config, of)
    key = shape, config.pack, config.mask_rows
    if key not in of.seen:
        of.seen[key] = _tile(config, of.case.demand.tiles(config.tile), of)
    tile: Tile = of.seen[key]
    resident = config.resident(facts)
    running = facts.sm_count * resident
    joined = (shape.groups - 1) * 8 * shape.rows * config.head_dim / (_SMEM_BYTES * c.smem)
    fixed = c.busy_clk * shape.groups * shape.rows / TILE + joined
    busy = max(
        blocks.end(tile.busy, fixed, heads, facts.sm_count, least=least),
        blocks.even(tile.busy, fixed, heads, facts.sm_count)
        * crowded(len(blocks.tiles) * heads, facts.sm_count, resident),
    )
    turns = blocks.shared(shape.groups)
    alone = turns.end(tile.alone, c.block_clk + joined, heads, running, least=least)
    empty = (config.items(p) - len(blocks.tiles)) * heads
    us = (_blended(busy, alone, c) + empty * c.empty_clk / running) / rate.clocks
    if config.long_slots:
        moved = 8 * blocks.cut * heads * shape.rows * config.head_dim
        us += c.combine_us + moved / (rate.l2_bytes * c.l2)
    return Time(us, tile.bound if busy >= alone else "latency")


def _rowwise(config: rowwise.Config, of: Times, _: bool) -> Time:
    """Return microseconds without the launch."""
    p, facts, rate, c = of.case.problem, of.case.facts, of.rate, of.constants
    demand = of.case.demand
    stats, rows = demand.rows(), max(demand.query_rows, 1)
    chunk = 16 * config.pairs
    # Half a chunk of every row is empty; of lists of tiles, each is looked through by its rows.
    chunks = stats.kept / chunk + min(rows, stats.kept) / 2
    visited = demand.visited((TILE, TILE))
    looks = visited * TILE if config.lists == "tiles" else 0.0
    # Of the four rows of a block, those that keep a key share what they read of it.
    missing = 1 - min(stats.kept / (visited * TILE**2), 1.0) if visited else 1.0
    fresh = (1 - missing**4) / (4 - 4 * missing) if missing < 1 else 1.0
    row_bytes = 32 * (-(-p.dim_qk // 16) + -(-p.dim_v // 16))  # whole sectors
    per_chunk = config.pairs * (70 + 1.7 * config.head_dim)  # as ptxas has them
    in_turn = config.block_rows / 4  # of a warp
    instructions = (110 / in_turn + 140) * rows + per_chunk * chunks + 45 * looks
    moved = stats.kept * row_bytes * fresh + (8 * looks or 4 * stats.kept)
    running = facts.sm_count * config.resident(facts)
    chunk_clk = c.chunk_clk * (1 + 0.5 * (config.pairs - 1))
    row = c.row_clk + chunk_clk * chunks / rows
    blocks = -(-rows // config.block_rows)
    latency = makespan(np.array([row * in_turn]), blocks, running)
    most = crowded(blocks, facts.sm_count, config.resident(facts))
    # A row of many keys is shared by the four warps of its block.
    longest = stats.longest / chunk / (4 if stats.longest > 256 else 1)
    terms = {
        "issue": instructions * most / (facts.sm_count * 4 * c.issue) / rate.clocks,
        "l2": moved / (rate.l2_bytes * c.scattered),
        "latency": latency / rate.clocks,
    }
    us, bound = _total(terms, c.row_overlap)
    least = (longest * chunk_clk + c.row_clk * in_turn) / rate.clocks
    return Time(us, bound) if us > least else Time(least, "longest")


def _needed(shape: Sm90Config, work: TileDemand, of: Times) -> float:
    """Return the share of listed tiles that is worked on."""
    listed = float(work.lengths.sum()) * shape.m * shape.n
    if not shape.halves or not listed:
        return 1.0
    needed = float(of.case.demand.tiles((TILE, TILE)).lengths.sum()) * TILE**2
    return 1 - of.constants.wg_halves * (1 - min(needed / listed, 1.0))


def _l2_share(of: Times) -> float:
    """Return the bytes that an SM gets from L2 in a clock while all of them load tiles."""
    clocks = of.case.facts.sm_count * of.rate.clocks
    return of.rate.l2_bytes * of.constants.wg_l2 / clocks


def _sm90_tile(shape: Sm90Config, work: TileDemand, of: Times) -> Tile:
    """Return the clocks of a key tile, on average."""
    part, share = work.part, _needed(shape, work, of)
    dims = shape.dim_qk + shape.dim_v
    scores, c = shape.m * shape.n * share, of.constants
    each = c.wg_score_clk + part * c.wg_part_clk
    each += terms_clk(c, of.case.scores, sm90.Config.kernel)
    terms = {
        "tensor": 2 * scores * dims / (_WGMMA_FLOPS * c.wgmma),
        "softmax": scores / 16 * each,
        "l2": 2 * shape.n * dims / _l2_share(of),
    }
    busy, bound = _total(terms, c.overlap)
    own = (terms["tensor"] + terms["softmax"]) / shape.warpgroups + c.wg_tile_clk
    own += 0.0 if shape.overlaps else c.wg_turn_clk
    copies = shape.n / 8 * c.wg_copy_clk * part if shape.packed else 0.0
    return Tile(busy, max(busy, own, copies), bound)


def _sm90(config: sm90.Config, of: Times, least: bool) -> Time:
    """Return microseconds without the launch."""
    p, facts, demand = of.case.problem, of.case.facts, of.case.demand
    rate, c, shape = of.rate, of.constants, config.shape
    work, heads = demand.tiles(config.tile, packed=shape.packed), demand.places
    tile, running = _sm90_tile(shape, work, of), facts.sm_count * shape.blocks
    first, rest = np.split(work.lengths, [config.long_slots])
    first = np.repeat(first / config.splits, config.splits)

    def end(each: float, fixed: float, machines: int) -> float:
        if len(rest) * heads < WAVES * machines:
            every = Blocks(np.append(np.repeat(first, heads), np.tile(rest, heads)))
            return every.end(each, fixed, 1, machines, least=least)
        early = first * each + fixed
        late = Blocks(rest).end(each, fixed, heads, machines, least=least)
        spread = late + float(early.sum()) * heads / machines
        return max(spread, float(early.max(initial=0)))

    busy = end(tile.busy, c.wg_row_clk * shape.warpgroups, facts.sm_count)
    queries, keys = shape.m * shape.dim_qk, shape.n * (shape.dim_qk + shape.dim_v)
    filling = 2 * (queries + keys) / (_l2_share(of) * c.wg_first)  # what comes later is hidden
    alone = end(tile.alone, c.wg_row_clk, running) + c.block_clk + filling
    us = _blended(busy, alone, c) / rate.clocks
    if config.cut(p):
        us += c.combine_us + 8 * config.partial_floats(p) / (rate.l2_bytes * c.wg_l2)
    return Time(us, tile.bound if busy >= alone else "latency")


_TIMES: dict[str, Callable[[Any, Times, bool], Time]] = {
    "blockwise": _blockwise,
    "rowwise": _rowwise,
    "sm90": _sm90,
}
"""By `Candidate.kernel`."""
