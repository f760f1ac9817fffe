"""The whole report, and the parts of documents that are written from results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.report.other_views import VIEWS, view
from stof_cupy.report.pictures import Picture, draw
from stof_cupy.report.results import Results
from stof_cupy.report.views import View

__all__ = [
    "blocks",
    "draw_figures",
    "drawn",
    "report_markdown",
    "report_text",
    "rewritten",
    "write_report",
]

_BLOCK = re.compile(
    r"^<!-- report: (?P<name>[a-z0-9-]+)(?P<only> (?:table|picture))? -->\n"
    r"(?P<text>.*?)^<!-- end -->$",
    re.M | re.S,
)
_UNKNOWN = "Nothing was measured yet."


def report_text(results: Results, name: str = "") -> str:
    """Return all tables, or one, as text.

    Raises
    ------
    ArgumentError
        If there is no view of that name.
    """
    parts = []
    for each in [_named(name)] if name else VIEWS:
        table = each.table(results)
        if table is not None or name:
            text = _UNKNOWN if table is None else table.text
            parts.append(f"{each.title}\n{'-' * len(each.title)}\n{text}\n\n$ {each.command}")
    return "\n\n\n".join(parts)


def report_markdown(results: Results, figures: str) -> str:
    """Return the whole report; pictures are where `figures` leads to."""
    parts = ["# Report", _contents(results)]
    for each in VIEWS:
        body = _body(each, results, figures, "")
        if body is not None:
            parts.append(f"## {each.title}\n\n{body}\n\nTo repeat: `{each.command}`")
    return "\n\n".join(parts) + "\n"


def _contents(results: Results) -> str:
    missing = [f"{v.title} (`{v.command}`)" for v in VIEWS if v.table(results) is None]
    lines = ["Written by `stof-cupy report` from results of pytest-benchmark."]
    if missing:
        lines.append(f"Not measured yet: {'; '.join(missing)}.")
    return "\n\n".join(lines)


def _body(each: View, results: Results, figures: str, only: str) -> str | None:
    table, picture = each.table(results), each.picture(results)
    parts = []
    if picture is not None and only != "table":
        parts.append(f"![{each.title}]({figures}/{each.name}.svg)")
    if table is not None and only != "picture":
        parts.append(table.markdown)
    elif table is not None:
        parts += table.notes
    return "\n\n".join(parts) or None


def drawn(results: Results) -> Iterator[tuple[str, Picture]]:
    """Yield the pictures of all views that have one, with their file names."""
    for each in VIEWS:
        picture = each.picture(results)
        if picture is not None:
            yield f"{each.name}.svg", picture


def write_report(results: Results, out: Path) -> list[str]:
    """Write report.md, report.txt and pictures to a directory; return what was written."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(report_markdown(results, "figures"))
    (out / "report.txt").write_text(report_text(results) + "\n")
    return ["report.md", "report.txt", *draw_figures(results, out / "figures")]


def draw_figures(results: Results, out: Path) -> list[str]:
    """Draw all pictures to a directory; return their names.

    Raises
    ------
    MissingDependencyError
        Without matplotlib, if there is a picture.
    """
    names = []
    for name, picture in drawn(results):
        out.mkdir(parents=True, exist_ok=True)
        draw(picture, out / name)
        names.append(f"{out.name}/{name}")
    return names


def blocks(text: str) -> list[tuple[str, str]]:
    r"""Return the parts of a document that are written from results, by view.

    Examples
    --------
    >>> blocks("a\n<!-- report: runs -->\nb\n<!-- end -->\n")
    [('runs', 'b\n')]
    """
    return [(found["name"], found["text"]) for found in _BLOCK.finditer(text)]


def rewritten(text: str, results: Results, figures: str) -> str:
    """Return a document with its parts written anew.

    A part begins with a line ``<!-- report: NAME -->``, or ``NAME table`` or ``NAME picture`` for
    only that, and ends with ``<!-- end -->``.

    Parameters
    ----------
    text : str
    results : Results
    figures : str
        The directory of pictures, from where the document is.

    Raises
    ------
    ArgumentError
        If a part names a view that there is none of.
    """

    def write(found: re.Match[str]) -> str:
        only = (found["only"] or "").strip()
        body = _body(_named(found["name"]), results, figures, only) or _UNKNOWN
        first = found[0].partition("\n")[0]
        return f"{first}\n{body}\n<!-- end -->"

    return _BLOCK.sub(write, text)


def _named(name: str) -> View:
    found = view(name)
    if found is None:
        raise ArgumentError(mismatch("view", repr(name), ", ".join(each.name for each in VIEWS)))
    return found
