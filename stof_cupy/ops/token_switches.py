"""Ways to run what a token consists of that no GPU has compared yet: each may be set by itself.

What wins becomes the only way, and goes from here.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SWITCHES", "Switches"]


@dataclass
class Switches:
    """What is set counts from the next launch, or choice: `alone`, `only`, `stay` and `whole`.

    Attributes
    ----------
    ahead : int
        What a kernel reads of weights before earlier kernels have ended, if its caller says that
        none of these writes them. 0: nothing. 1: what registers or buffers hold. 2: and it asks L2
        for the rest.
    early : bool
        Whether the next kernel may be launched before earlier ones have ended: as soon as all CTAs
        of this one are there.
    alone : int
        Whether streamed kernels of no more CTAs than SMs are made so that an SM has no two of
        them. 0: none, 1: those that do not normalise, 2: all.
    near : bool
        Whether rows of A that kernels of at most four rows multiply come through shared memory: at
        once, and once a CTA.
    carveout : bool
        Whether kernels of at most four rows ask for SMs with as much shared memory as can be, so
        that streamed ones find room beside them before they end.
    only : str
        ``"few"`` or ``"streamed"``: of those two the only kernels to choose from. Else any.
    once : bool
        Whether streamed kernels tell L2 that weights are read once: what is asked for ahead of the
        next kernels then stays.
    stay : bool
        Whether streamed kernels have no more CTAs than are there at once, that stay.
    normed : bool
        Whether RMSNorm and a product are one streamed kernel where there is one.
    whole : bool
        Whether kernels of at most four rows cut K so that a warp loads all that it has of it at
        once, as one row liked best, rather than for as many warps as keep memory busy.
    """

    ahead: int = 0
    early: bool = False
    alone: int = 0
    near: bool = False
    carveout: bool = False
    only: str = ""
    once: bool = False
    stay: bool = False
    normed: bool = False
    whole: bool = False


SWITCHES = Switches()
"""Those of this process."""
