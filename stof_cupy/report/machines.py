"""What several machines measured stays apart: a column for rows, panels of pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from stof_cupy.report.cells import Cell
from stof_cupy.report.results import Skip, Timing

__all__ = ["by_machine", "machine_column", "titled"]

T = TypeVar("T", Cell, Timing, Skip)


def by_machine(things: Iterable[T]) -> dict[str, list[T]]:
    """Return things by the machine that they were measured on, in the order in which they come."""
    found: dict[str, list[T]] = {}
    for each in things:
        found.setdefault(each.run.machine, []).append(each)
    return found


def machine_column(things: Sequence[T]) -> dict[str, str]:
    """Return the name and heading of a column for the machine; none where there is one machine."""
    return {"machine": "machine"} if len(by_machine(things)) > 1 else {}


def titled(title: str, machine: str, things: Sequence[T]) -> str:
    """Return a panel's title, with its machine where `things` come from several.

    Examples
    --------
    >>> titled("causal", "a GPU", [])
    'causal'
    """
    return ", ".join(filter(None, (title, machine))) if machine_column(things) else title
