"""Tensors of files, by name, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["LazyTensors"]


class LazyTensors(Mapping[str, np.ndarray[Any, Any]]):
    """A mapping whose items are read when they are asked for, and not kept.

    Parameters
    ----------
    readers : mapping of str to callable
        What returns each array.

    Examples
    --------
    >>> LazyTensors({"a": lambda: np.zeros(2)})["a"]
    array([0., 0.])
    """

    def __init__(self, readers: Mapping[str, Callable[[], np.ndarray[Any, Any]]]) -> None:
        self._readers = dict(readers)

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)
