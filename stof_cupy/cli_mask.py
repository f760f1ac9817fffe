"""The command ``stof-cupy mask``: what an attention mask keeps and costs, and its picture."""

from __future__ import annotations

import argparse
import re
import textwrap
import time
from pathlib import Path
from typing import Any

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.masks import from_spec, save_plot, spec_help
from stof_cupy.masks.drawing import check_picture, check_zoom
from stof_cupy.terminal import show_fields, title

__all__ = ["add_command", "check_output"]


def add_command(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    mask = commands.add_parser(
        "mask",
        help="what an attention mask keeps and costs, and its picture",
        description="Build an attention mask and show what it keeps; --plot draws its tiles.",
        epilog=f"masks:\n{textwrap.indent(spec_help(), '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mask.add_argument("spec", metavar="SPEC", help="e.g. longformer:w=256,g=64")
    mask.add_argument("--seq", type=int, required=True, metavar="N", help="sequence length")
    mask.add_argument("--plot", type=Path, metavar="X.png", help="picture to write, or .svg, .pdf")
    mask.add_argument(
        "--zoom", metavar="Q0:Q1,K0:K1", help="draw the elements of these queries and keys"
    )
    mask.set_defaults(run=_mask)


def _mask(args: argparse.Namespace) -> None:
    if args.zoom is not None and args.plot is None:
        raise ArgumentError(mismatch("--zoom", args.zoom, "--plot beside it"))
    zoom = None if args.zoom is None else _ranges(args.zoom)
    if args.plot is not None:
        check_output("--plot", args.plot)
        check_picture(args.plot)
        check_zoom(zoom, (args.seq, args.seq))
    start = time.perf_counter()
    pattern = from_spec(args.spec, args.seq)
    mask = pattern.tobsr()
    took = (time.perf_counter() - start) * 1e3
    stats, full = mask.schedule().stats, len(mask.full_col_idx)
    title(f"{args.spec}, {args.seq} tokens")
    empty = (-(-args.seq // 64)) ** 2 - mask.ntiles
    show_fields(
        {
            "pattern": repr(pattern),
            "kept": f"{mask.nnz:,} pairs, density {mask.density:.3g}",
            "tiles": f"{full:,} full, {mask.ntiles - full:,} part, {empty:,} empty, of 64x64",
            "waste": f"{stats.waste:.1%} of the elements visited are masked",
            "stored": f"{len(mask.bitmaps):,} bitmaps, {mask.nbytes:,} bytes",
            "built": f"in {took:.1f} ms",
        }
    )
    if args.plot is not None:
        save_plot(mask, args.plot, zoom=zoom)
        show_fields({"plot": str(args.plot)})


def check_output(option: str, path: Path) -> None:
    """Refuse a file that could not be written when all the work is done.

    Raises
    ------
    ArgumentError
        If it is a directory, or in none that exists.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        expected = "the path of a file in an existing directory"
        raise ArgumentError(mismatch(option, repr(str(path)), expected))


def _ranges(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    found = re.fullmatch(r"(\d+):(\d+),(\d+):(\d+)", text)
    if found is None:
        raise ArgumentError(mismatch("--zoom", repr(text), "Q0:Q1,K0:K1, e.g. 0:256,128:512"))
    top, bottom, left, right = map(int, found.groups())
    return (top, bottom), (left, right)
