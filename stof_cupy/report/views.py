"""What a view of the results is, and what most of them are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stof_cupy.report.cells import Cell, Summary, joined
from stof_cupy.report.machines import by_machine, machine_column, titled
from stof_cupy.report.pictures import Panel, Picture, Series
from stof_cupy.report.results import Results, Timing
from stof_cupy.report.tables import Table, number, ordered

__all__ = [
    "View",
    "bars_picture",
    "caption",
    "cell_table",
    "command",
    "grid_table",
    "percent",
    "ratio_picture",
    "stamps",
    "summary_picture",
    "summary_table",
    "value_table",
]


@dataclass(frozen=True)
class View:
    """One question, and what the results say to it.

    Attributes
    ----------
    name : str
        In file names and between markers.
    title : str
    command : str
        What measures it again.
    table : callable
        ``Results -> Table``, or None where nothing was measured.
    picture : callable
        ``Results -> Picture``, or None.
    """

    name: str
    title: str
    command: str
    table: Callable[[Results], Table | None]
    picture: Callable[[Results], Picture | None] = lambda results: None


def stamps(things: Iterable[Cell | Timing]) -> tuple[str, ...]:
    """Return a sentence for each run that something comes from, or for runs that differ in none."""
    runs = sorted({each.run for each in things}, key=lambda run: (run.time, run.file, run.commit))
    return tuple(dict.fromkeys(f"{run.stamp} ({run.file})." for run in runs))


def cell_table(results: Results, benches: Sequence[str], ours: str = "") -> Table | None:
    """Return a row for each cell: what it is, everyone's ms, and the ratio to the best peer."""
    cells = joined(results.of(*benches))
    if not cells:
        return None
    names = [*_varying(cells), *machine_column(cells)]
    if len({cell.bench for cell in cells}) > 1:
        names.insert(0, "benchmark")
    ways = ordered(each.way for cell in cells for each in cell.timings)
    ways.sort(key=lambda way: way not in ("ours", ours))
    rows = []
    for cell in cells:
        times = (cell.timing(way) for way in ways)
        row = [cell[name] for name in names]
        row += [_ms(each) for each in times]
        rows.append((*row, _ratio(cell, ours)))
    columns = (*names, *(f"{way}, ms" for way in ways), "ratio to the best peer")
    if all(cell.ratio(ours) is None for cell in cells):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(columns, tuple(rows), (*_starred(cells), *stamps(cells)))


def _ms(timing: Timing | None) -> str:
    if timing is None:
        return ""
    return f"{number(timing.p50)}{'*' if timing.with_host else ''}"


def _starred(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return what the star is for, if there is one."""
    there = any(each.with_host for cell in cells for each in cell.timings)
    text = "A star: the host's time is in it, as the call could not be captured as a CUDA graph."
    return (text,) if there else ()


def _varying(cells: Sequence[Cell]) -> list[str]:
    """Return the names of parameters that not all cells have alike."""
    names = list(dict.fromkeys(name for cell in cells for name, _ in cell.key))
    return [name for name in names if len({cell[name] for cell in cells}) > 1] or names[:1]


def _ratio(cell: Cell, ours: str) -> str:
    ratio, best = cell.ratio(ours), cell.best()
    if ratio is None or best is None:
        return ""
    return f"{ratio:.2f}x {best.way}{'*' if best.with_host else ''}"


def grid_table(
    cells: Sequence[Cell], rows: Mapping[str, str], across: str, ours: str = ""
) -> Table | None:
    """Return ours in ms with the ratio to the best peer, one parameter across.

    Parameters
    ----------
    cells : sequence of Cell
    rows : mapping of str to str
        Parameter to heading.
    across : str
        The parameter of the other columns.
    ours : str
        Which way of ours.
    """
    if not cells:
        return None
    rows = {**rows, **machine_column(cells)}
    columns = ordered(cell[across] for cell in cells)
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for cell in cells:
        text = f"{_ms(cell.mine(ours))} {_ratio(cell, ours)}".strip()
        found.setdefault(tuple(cell[name] for name in rows), {})[cell[across]] = text
    body = tuple((*key, *(texts.get(x, "") for x in columns)) for key, texts in found.items())
    return Table((*rows.values(), *columns), body, (*_starred(cells), *stamps(cells)))


def summary_table(groups: Mapping[str, Sequence[Cell]], ours: str = "") -> Table | None:
    """Return for groups of cells the geomean to the best peer, the worst cell, and single peers.

    A row is of one machine.
    """
    used = [cell for cells in groups.values() for cell in cells if cell.ratio(ours) is not None]
    if not used:
        return None
    peers = dict.fromkeys(t.way for cell in used for t in cell.timings if not t.is_ours)
    rows = []
    several = machine_column(used)
    for name, machine, cells in _parts(groups):
        every = Summary.of(cells, ours)
        if every is None:
            continue
        single = (Summary.of(cells, ours, (peer,)) for peer in peers)
        rows.append(
            (
                name,
                *(machine for _ in several),
                str(every.count),
                f"{every.geomean:.2f}x",
                f"{every.worst:.2f}x",
                str(every.lost),
                *("" if each is None else f"{each.geomean:.2f}x" for each in single),
            )
        )
    columns = ("", *several, "cells", "best peer, geomean", "worst", "slower in", *peers)
    note = () if len(peers) < 2 else ("A peer's own geomean is over the cells that it ran in.",)
    return Table(columns, tuple(rows), (*note, *stamps(used)))


def _parts(groups: Mapping[str, Sequence[Cell]]) -> Iterator[tuple[str, str, list[Cell]]]:
    """Yield names of groups, machines, and the cells that a group has of a machine."""
    for name, cells in groups.items():
        for machine, part in by_machine(cells).items():
            yield name, machine, part


def summary_picture(groups: Mapping[str, Sequence[Cell]], ours: str = "") -> Picture | None:
    """Return for groups of cells the geomean to each peer, a panel for a machine."""
    used = [cell for cells in groups.values() for cell in cells if cell.ratio(ours) is not None]
    panels = []
    for machine, here in by_machine(used).items():
        bars = []
        for peer in dict.fromkeys(t.way for cell in here for t in cell.timings if not t.is_ours):
            found = {
                name: Summary.of(cells, ours, (peer,))
                for name, at, cells in _parts(groups)
                if at == machine
            }
            points = tuple((name, round(s.geomean, 4)) for name, s in found.items() if s)
            bars.append(Series(peer, points))
        bars.sort(
            key=lambda series: -len(series.points)
        )  # the first says in which order groups are
        panels.append(Panel(titled("", machine, used), tuple(bars)))
    if not panels:
        return None
    height = "times as fast, geometric mean"
    return Picture("bars", tuple(panels), "", height, even=True, caption=caption(used))


def value_table(
    timings: Sequence[Timing], columns: Mapping[str, str | Callable[[Timing], Any]]
) -> Table | None:
    """Return a row for each timing, with its machine in the second column if there are several.

    Parameters
    ----------
    timings : sequence of Timing
    columns : mapping of str to str or callable
        Heading to a parameter's or a noted value's name, or to a function of the timing.
    """
    if not timings:
        return None
    reads: list[tuple[str, str | Callable[[Timing], Any]]] = list(columns.items())
    reads[1:1] = [(name, lambda each: each.run.machine) for name in machine_column(timings)]
    rows = tuple(
        tuple(_shown(read(each) if callable(read) else each[read]) for _, read in reads)
        for each in timings
    )
    return Table(tuple(name for name, _ in reads), rows, stamps(timings))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else str(value)


def ratio_picture(
    cells: Sequence[Cell],
    *,
    panel: str,
    across: str,
    series: str,
    labels: tuple[str, str],
    ours: str = "",
) -> Picture | None:
    """Return the ratio to the best peer over a parameter, a panel and a colour by two others."""
    measured = [cell for cell in cells if cell.ratio(ours) is not None]
    if not measured:
        return None
    found: dict[str, list[Cell]] = {}
    for cell in measured:
        found.setdefault(titled(cell[panel], cell.run.machine, measured), []).append(cell)
    panels = []
    for title, here in found.items():
        lines = []
        for name in ordered(cell[series] for cell in measured):
            at = {cell[across]: cell.ratio(ours) or 0.0 for cell in here if cell[series] == name}
            points = tuple((x, round(at[x], 4)) for x in ordered(at))
            lines += [Series(f"{labels[1]} {name}".strip(), points)] if points else []
        panels.append(Panel(title, tuple(lines)))
    return Picture(
        "lines",
        tuple(panels),
        labels[0],
        "times as fast as the best peer",
        log=True,
        even=True,
        caption=caption(measured),
    )


def bars_picture(
    cells: Sequence[Cell], series: str, over: Callable[[Cell], str], height: str
) -> Picture | None:
    """Return the ratio to the best peer as bars, a colour by a parameter and a panel a machine."""
    measured = [cell for cell in cells if cell.ratio() is not None]
    panels = []
    for machine, here in by_machine(measured).items():
        bars = []
        for name in ordered(cell[series] for cell in here):
            mine = [cell for cell in here if cell[series] == name]
            points = tuple((over(cell), round(cell.ratio() or 0, 4)) for cell in mine)
            bars.append(Series(name, points))
        panels.append(Panel(titled("", machine, measured), tuple(bars)))
    if not panels:
        return None
    return Picture("bars", tuple(panels), "", height, even=True, caption=caption(measured))


def caption(things: Sequence[Cell | Timing]) -> str:
    """Return machines and dates in a line."""
    runs = dict.fromkeys(f"{each.run.machine}, {each.run.date}" for each in things)
    return "; ".join(runs)


def percent(name: str) -> Callable[[Timing], str]:
    """Return what reads a noted share as per cent; nothing where it was not noted."""

    def read(each: Timing) -> str:
        value = each[name]
        return "" if value is None else f"{100 * float(value):.1f}%"

    return read


def command(name: str, more: str = "") -> str:
    """Return what runs ``benchmarks/bench_NAME.py``, with more arguments."""
    return f"pytest benchmarks/bench_{name}.py{more} --benchmark-json=out.json"
