"""What was measured of selection's cells, and what a choice costs: no GPU needed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from regret_cells import BATCHES, HEADS, LENGTHS, MASKS, Cell

from stof_cupy.jit.device import DeviceFacts
from stof_cupy.masks.schedule import ScheduleStats
from stof_cupy.masks.statistics import RowStats
from stof_cupy.ops.attention_candidates import SM80, Candidate, candidates, name_of
from stof_cupy.ops.attention_constants import NAMES, Constants
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_model import Select, explain
from stof_cupy.ops.attention_times import time_of

__all__ = ["MaskStats", "Measured", "improve", "report"]

SELECTS = tuple(each for each in get_args(Select) if each != "sm90")
EQ1_TILES = {"stof-eq1": (16, 16), "stof-eq1-64": (64, 64)}


class MaskStats:
    """Counts of a mask, in its place: as much of it as the model asks for."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record, self.nnz = record, record["rows"][0]
        self._schedules: dict[Any, Any] = {}

    @classmethod
    def of(cls, mask: Any, tiles: Iterable[tuple[tuple[int, int], bool]]) -> MaskStats | None:
        """Count what `tiles`, packed or not, list, and Eq. 1's."""
        if mask is None:
            return None
        record: dict[str, Any] = {"rows": [*asdict(mask.row_stats()).values()], "tiles": {}}
        record["groups"] = mask.group_share()
        for tile, packed in sorted({*tiles, *((each, False) for each in EQ1_TILES.values())}):
            stats, every = mask.tile_stats(tile, packed), mask.tile_lengths(tile, packed)
            lengths, counts = np.unique(every, return_counts=True)
            runs = [] if tile == (16, 16) else [lengths.tolist(), counts.tolist()]
            record["tiles"][_key(tile, packed)] = [*asdict(stats).values(), runs]
        return cls(record)

    def joined(self, known: dict[str, Any] | None) -> dict[str, Any]:
        """Return the record with what another one knows of the same mask."""
        tiles = (known or {"tiles": {}})["tiles"] | self.record["tiles"]
        return self.record | {"tiles": dict(sorted(tiles.items()))}

    def tile_stats(self, tile: tuple[int, int], packed: bool = False) -> ScheduleStats:
        return ScheduleStats(*self.record["tiles"][_key(tile, packed)][:5])

    def tile_lengths(self, tile: tuple[int, int], packed: bool = False) -> Any:
        runs = self.record["tiles"][_key(tile, packed)][5]
        if not runs:  # Eq. 1 asks for their sum alone
            return np.array([self.tile_stats(tile).visited])
        return np.repeat(*map(np.array, runs))[::-1]

    def group_share(self) -> float:
        return float(self.record.get("groups", 1.0))

    def row_stats(self) -> RowStats:
        return RowStats(*self.record["rows"])


def _key(tile: tuple[int, int], packed: bool) -> str:
    return "{}x{}".format(*tile) + (" packed" if packed else "")


@dataclass
class Measured:
    """A file of times: of each cell those of some candidates by name, in microseconds."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    masks: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Measured:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def write(self, path: Path) -> None:
        aside = path.with_suffix(".tmp")
        aside.write_text(json.dumps(asdict(self), separators=(",", ":")))
        os.replace(aside, path)

    def facts(self) -> DeviceFacts:
        """Return those of the GPU of the last run."""
        stored = self.runs[-1]["facts"]
        return DeviceFacts.from_json(stored)

    def cases(self) -> Iterator[tuple[Cell, Case, list[Candidate], dict[str, float]]]:
        """Yield the cells, their candidates, and the times of those that were timed."""
        facts = self.facts()
        stats = {name: record and MaskStats(record) for name, record in self.masks.items()}
        for name, stored in self.cells.items():
            cell = Cell.of(name)
            case = cell.case(stats[f"{cell.mask}-{cell.seq}"], facts)
            # It has the counts that other kernels' candidates need only if some of them were timed.
            kinds = {name.partition(" ")[0] for name in stored["us"]}
            yield cell, case, list(candidates(case, sorted(kinds | {*SM80}))), stored["us"]


@dataclass(frozen=True)
class Regret:
    """Of a cell: the time of what was chosen over that of the best; None if it was not timed."""

    cell: Cell
    chosen: str
    best: str
    ratio: float | None


def regrets(measured: Measured, constants: Constants | None = None) -> dict[str, list[Regret]]:
    """Return what each way to select costs in each cell."""
    found: dict[str, list[Regret]] = {select: [] for select in SELECTS}
    for cell, case, every, us in measured.cases():
        for select in SELECTS:
            among = [n for n in us if select != "sm80" or n.partition(" ")[0] in SM80]
            best = min(among, key=lambda name: us[name])
            chosen = explain(case, constants, select=select, among=every)[0].name
            ratio = us[chosen] / us[best] if chosen in us else None
            found[select].append(Regret(cell, chosen, best, ratio))
    return found


def report(measured: Measured, constants: Constants | None = None, worst: int = 12) -> float:
    """Print mean and worst regret of each way to select; return the model's mean."""
    every = regrets(measured, constants)
    run, mean = measured.runs[-1], math.nan
    print(f"{run['gpu']}, {run['date']}, {run['commit']}: {len(measured.cells)} cells")
    for select, found in every.items():
        ratios = np.array([each.ratio for each in found if each.ratio is not None])
        if not ratios.size:
            continue
        p50, p95 = np.quantile(ratios, (0.5, 0.95))
        untimed = len(found) - len(ratios)
        print(
            f"{select:12} mean {ratios.mean():7.3f}  median {p50:6.3f}  95 % {p95:7.3f}  "
            f"worst {ratios.max():8.2f}" + (f"  ({untimed} choices not timed)" if untimed else "")
        )
        mean = ratios.mean() if select == "model" else mean
    table(every["model"])
    rated = [each for each in every["model"] if each.ratio is not None]
    for each in sorted(rated, key=lambda each: -(each.ratio or 0))[:worst]:
        print(f"  {each.cell.name:28} {each.ratio:6.2f}  {each.chosen}, best {each.best}")
    return float(mean)


def table(found: list[Regret]) -> None:
    """Print the mean of the model's regrets by each axis of the grid."""
    axes = {"mask": MASKS, "seq": LENGTHS, "batch": BATCHES, "dim": tuple(HEADS)}
    for axis, values in axes.items():
        means = []
        for value in values:
            ratios = [r.ratio for r in found if getattr(r.cell, axis) == value and r.ratio]
            if ratios:
                means.append(f"{value} {np.mean(ratios):.3f}/{max(ratios):.2f}")
        print(f"  {axis:5} " + "  ".join(means))


def improve(measured: Measured, cells: int, rounds: int = 3) -> Constants:
    """Return constants tuned to the regret of some cells, one at a time, coarse to fine.

    To their times they are fitted by `stof-cupy calibrate`: what is asked here is which is fastest.
    """
    every = list(measured.cases())
    order = np.random.default_rng(0).permutation(len(every))[:cells]
    timed = [
        (case, [(each, us[name_of(each)]) for each in all_of if name_of(each) in us])
        for _, case, all_of, us in (every[i] for i in order)
    ]
    best = Constants()
    least = _cost(timed, best)
    for step in (1.3, 1.12, 1.05)[:rounds]:
        for name in NAMES:
            for factor in (step, 1 / step):
                trial = best.scaled(name, factor)
                cost = _cost(timed, trial)
                if cost < least - 1e-6:
                    best, least = trial, cost
    print(f"tuned to a regret of {least:.4f}: {best}")
    return best


def _cost(timed: list[tuple[Case, list[tuple[Candidate, float]]]], constants: Constants) -> float:
    """Return the mean logarithm of the regret, and twice its square, for the worst."""
    logs = []
    for case, every in timed:
        chosen = min(every, key=lambda each: time_of(each[0], case, constants).us)
        logs.append(math.log(chosen[1] / min(us for _, us in every)))
    return float(np.mean(logs) + 2 * np.mean(np.square(logs)))
