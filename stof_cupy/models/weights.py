"""Takes weights out of a checkpoint by name, and accounts for every one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from stof_cupy.dtypes import dtype_name, is_float
from stof_cupy.errors import WeightError, mismatch
from stof_cupy.models.warning import warn

__all__ = ["DrawnWeights", "Weights"]

_COMPARED = 10_000
"""Names that are looked through for one that is near: in far more that takes long."""

_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""How TensorFlow-era checkpoints spell two endings."""


class Weights:
    """The tensors of one checkpoint, seen under a family's own names.

    Parameters
    ----------
    tensors : mapping of str to ndarray
        The checkpoint.
    prefix : str
        Dropped from every name that has it, e.g. ``"bert."`` of a model saved with a head.
    dtype : dtype, optional
        What arrays of two axes or more are cast to as they are taken.
    taken : callable, optional
        Called after each weight that is taken.

    Raises
    ------
    WeightError
        If a name is no string, or two name the same weight.
    """

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray[Any, Any]],
        prefix: str = "",
        *,
        dtype: np.dtype[Any] | None = None,
        taken: Callable[[], object] | None = None,
    ) -> None:
        self._tensors = tensors
        self._dtype = dtype
        self._taken = taken
        self._names = _by_canonical_name(tensors, prefix)
        self._untaken = set(self._names)
        self._not_finite: list[str] = []

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return the weight `name`, which must be a float array of `shape`.

        Raises
        ------
        WeightError
            If it is missing, of another shape, or not floating point.
        """
        if name not in self._names:
            few = self._untaken if len(self._untaken) <= _COMPARED else ()
            near = difflib.get_close_matches(name, few, n=1)
            hint = f"nearest name in it: {near[0]!r}" if near else ""
            raise WeightError(mismatch("weights", "a checkpoint without it", repr(name), hint))
        first = name in self._untaken
        self._untaken.discard(name)
        array = np.asarray(self._tensors[self._names[name]])
        if array.shape != shape:
            raise WeightError(mismatch(f"weight {name!r}", array.shape, shape))
        if not is_float(array.dtype):
            raise WeightError(mismatch(f"weight {name!r}", dtype_name(array.dtype), "a float type"))
        if not _is_finite(array):
            self._not_finite.append(name)
        if self._dtype is not None and array.ndim > 1:
            with np.errstate(over="ignore"):  # infinite in float16, as it would be on the way there
                array = array.astype(self._dtype, copy=False)
        if first and self._taken is not None:
            self._taken()
        return array

    def has(self, name: str) -> bool:
        """Whether the checkpoint has the weight `name`."""
        return name in self._names

    def finish(self, unused: Iterable[str] = ()) -> None:
        """Check that all weights but `unused` were taken; warn once of those that are not finite.

        Parameters
        ----------
        unused : iterable of str
            Patterns (``fnmatch``) of weights that the family knows and has no use for.

        Raises
        ------
        WeightError
            If a weight is left that the family does not know.
        """
        patterns = tuple(unused)
        extra = sorted(n for n in self._untaken if not any(fnmatchcase(n, p) for p in patterns))
        if extra:
            more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
            raise WeightError(
                mismatch(
                    "weights",
                    f"unexpected {', '.join(map(repr, extra[:3]))}{more}",
                    "only the weights that the config calls for",
                )
            )
        if self._not_finite:
            bad = self._not_finite
            warn(
                f"weights: {len(bad)} of them hold NaN or infinite values, the first is "
                f"{bad[0]!r}; hidden states may not be finite"
            )


class DrawnWeights(Weights):
    """Weights that are drawn when they are taken, for :func:`stof_cupy.models.random_weights`.

    Attributes
    ----------
    drawn : dict of str to ndarray
        What was taken so far, float32.
    """

    def __init__(self, seed: int) -> None:
        super().__init__({})
        self.drawn: dict[str, np.ndarray[Any, Any]] = {}
        self._rng = np.random.default_rng(seed)

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Draw the weight `name`: matrices by their fan-in, scales around 1, biases around 0."""
        array = self._rng.standard_normal(shape, np.float32)
        array *= shape[-1] ** -0.5 if len(shape) > 1 else 0.1
        if len(shape) == 1 and name.endswith(".weight"):
            array += 1
        return self.drawn.setdefault(name, array)


def _is_finite(array: np.ndarray[Any, Any]) -> bool:
    """Whether all elements are finite: so if their sum is, which needs no array of booleans."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum(dtype=np.float64)) or np.isfinite(array).all())


def _by_canonical_name(tensors: Iterable[str], prefix: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in tensors:
        if not isinstance(name, str):
            raise WeightError(mismatch("weights", f"the name {name!r}", "names that are str"))
        canonical = _canonical(name, prefix)
        if canonical in names:
            raise WeightError(
                mismatch("weights", f"both {names[canonical]!r} and {name!r}", "one, they are one")
            )
        names[canonical] = name
    return names


def _canonical(name: str, prefix: str) -> str:
    name = name.removeprefix(prefix)
    for old, new in _OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
