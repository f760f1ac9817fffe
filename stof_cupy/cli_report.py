"""The command ``stof-cupy report``: benchmark results as tables and pictures; what moved."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.report import (
    compare,
    read_directory,
    read_file,
    report_text,
    rewritten,
    write_report,
)
from stof_cupy.report.document import draw_figures
from stof_cupy.terminal import show_fields

__all__ = ["add_command"]

_RESULTS = Path("benchmarks/results")

_WORSE = 3
"""Exit status where a ratio became worse; 1 and 2 are errors."""


def add_command(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = commands.add_parser(
        "report",
        help="benchmark results as tables and pictures, and what moved between two of them",
        description="Show what results files of pytest-benchmark say. Ratios are of times from one "
        "run, cells of several runs are joined, and losses are shown. No GPU is needed.",
    )
    parser.add_argument(
        "--results", type=Path, default=_RESULTS, metavar="DIR", help=f"default: {_RESULTS}"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--view", default="", metavar="NAME", help="one table alone")
    what.add_argument("--out", type=Path, metavar="DIR", help="write report.md, .txt and figures")
    what.add_argument(
        "--update",
        type=Path,
        nargs="+",
        metavar="FILE.md",
        help="write anew what stands between markers, and the figures beside the results",
    )
    what.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("OLD.json", "NEW.json"),
        help=f"what moved beyond noise, in ratios to peers; status {_WORSE} if one became worse",
    )
    parser.add_argument(
        "--least",
        type=float,
        default=0.03,
        metavar="SHARE",
        help="with --compare: what is not worth a look (default: 0.03)",
    )
    parser.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> int:
    if args.compare is not None:
        found = compare(*map(read_file, args.compare), least=args.least)
        print(found.table.text)
        return _WORSE if found.worse else 0
    results = read_directory(args.results)
    if args.out is not None:
        written = write_report(results, args.out)
        show_fields({"written": f"{', '.join(written)} in {args.out}"})
    elif args.update is not None:
        _update(args, results)
    else:
        print(report_text(results, args.view))
    return 0


def _update(args: argparse.Namespace, results: Any) -> None:
    for path in args.update:
        if not path.is_file():
            raise ArgumentError(mismatch("--update", repr(str(path)), "an existing file"))
    figures = args.results.resolve().parent / "figures"
    for path in args.update:
        where = Path(os.path.relpath(figures, path.resolve().parent)).as_posix()
        text = path.read_text(encoding="utf-8")
        path.write_text(rewritten(text, results, where), encoding="utf-8")
        show_fields({"written": str(path)})
    show_fields({"drawn": ", ".join(draw_figures(results, figures)) or "nothing"})
