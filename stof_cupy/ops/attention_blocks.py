"""When the last of a kernel's blocks is done, of blocks that the GPU hands out as it can."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["WAVES", "Blocks", "crowded", "makespan"]

WAVES = 4
"""Times that all machines are full: blocks that start earlier have no part in how evenly the work
ends."""


def makespan(times: NDArray[np.float64], repeats: int, machines: int) -> float:
    """Return when the last of many blocks is done.

    Each block starts where one is done first; some blocks at a time, which is nearly that.

    Parameters
    ----------
    times : float array
        Of the blocks of a head, in the order in which they start.
    repeats : int
        Heads, one after another.
    machines : int
        Blocks that run at a time.

    Examples
    --------
    >>> makespan(np.array([3.0, 1.0, 1.0]), 2, 2)
    5.0
    """
    count = len(times) * repeats
    if not count:
        return 0.0
    if count <= machines or len(times) == 1:
        return float(times.max()) * -(-count // machines)
    last = count if count <= WAVES * machines else WAVES * machines + count % machines
    ending = np.tile(times, -(-last // len(times)))[-last:]
    free = np.full(machines, (times.sum() * repeats - ending.sum()) / machines)
    step = max(machines // 2, 1)
    whole = last - last % step
    first = free[:step]
    for wave in ending[:whole].reshape(-1, step):
        first += wave
        free.sort(kind="stable")  # it is made of sorted runs
    free[: last - whole] += ending[whole:]
    return float(free.max())


def crowded(blocks: int, sm_count: int, resident: int) -> float:
    """Return the blocks of the SM that has most of them, by those of an SM on average.

    Blocks that all run at once are not spread evenly if they need more than half of the places:
    while the kernel before ends, the next one's come where one of its has ended, to some SMs one
    more than to others. Of more blocks than can run at once the later ones make up for it.

    Examples
    --------
    >>> crowded(384, 128, 4), crowded(384, 128, 3), crowded(600, 128, 4), crowded(200, 128, 4)
    (1.3333333333333333, 1.0, 1.0, 1.0)
    """
    average = blocks / sm_count
    if not max(resident / 2, 1) < average <= resident:
        return 1.0
    return min(math.ceil(average) + 1, resident) / average


class Blocks:
    """The blocks of a head, in the order in which they start.

    Attributes
    ----------
    tiles : float array
        The key tiles of each.
    cut : int
        How many of the blocks are slices of query tiles.
    """

    def __init__(self, tiles: NDArray[np.float64], cut: int = 0) -> None:
        self.tiles, self.cut = tiles, cut
        self._total, self._most = float(tiles.sum()), float(tiles.max(initial=0.0))
        self._shared: dict[int, Blocks] = {}

    def shared(self, groups: int) -> Blocks:
        """Return the turns that groups take of each block's tiles."""
        if groups == 1:
            return self
        if groups not in self._shared:
            self._shared[groups] = Blocks(np.ceil(self.tiles / groups), self.cut)
        return self._shared[groups]

    def end(
        self, each: float, fixed: float, repeats: int, machines: int, *, least: bool = False
    ) -> float:
        """Return the `makespan` of blocks that take `each` a tile and `fixed` beside.

        With `least` a time below which it does not fall, without a look at their order.

        Examples
        --------
        >>> blocks = Blocks(np.array([2.0, 1.0, 0.0, 0.0]))
        >>> blocks.end(3, 1, 2, 3), blocks.end(3, 1, 2, 3, least=True)
        (9.0, 8.666666666666666)
        """
        count = len(self.tiles)
        if not least or not count:
            return makespan(self.tiles * each + fixed, repeats, machines)
        longest = self._most * each + fixed
        if count * repeats <= machines or count == 1:
            return longest * -(-count * repeats // machines)
        even = self.even(each, fixed, repeats, machines)
        return even if count * repeats > WAVES * machines else max(even, longest)

    def even(self, each: float, fixed: float, repeats: int, machines: int) -> float:
        """Return what every machine has to do if all of them have as much; as in `end`."""
        return (self._total * each + len(self.tiles) * fixed) * repeats / machines
