"""The frequencies of a rotary embedding: an attribute, because they are float32 whatever runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.ops._arrays import lasting

__all__ = ["Frequencies", "array_of"]


class Frequencies(tuple[float, ...]):
    """Radians a position of each pair, rounded to float32; hashable, short when printed.

    Raises
    ------
    ValueError
        If one is not finite, or there is none.

    Examples
    --------
    >>> Frequencies([1.0, 0.25])
    <2 frequencies 1 to 0.25, 183127f1>
    """

    __slots__ = ()

    def __new__(cls, values: Iterable[float]) -> Frequencies:
        """Round `values`."""
        rounded = np.asarray([*values], np.float32)
        if not rounded.size or not np.isfinite(rounded).all():
            raise ValueError("no finite numbers")
        return super().__new__(cls, map(float, rounded))

    def __repr__(self) -> str:
        digest = hashlib.sha256(np.asarray(self, np.float32).tobytes()).hexdigest()[:8]
        return f"<{len(self)} frequencies {self[0]:g} to {self[-1]:g}, {digest}>"


@cache
def array_of(frequency: Frequencies, device: int | None) -> Any:
    """Return frequencies as a float32 array, of NumPy or on a device.

    Made once and never dropped, because captured runs read it.
    """
    host: NDArray[np.float32] = np.asarray(frequency, np.float32)
    return host if device is None else lasting(host, device)
