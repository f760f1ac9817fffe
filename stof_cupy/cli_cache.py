"""The command ``stof-cupy cache``: what is kept on disk, made ahead, shipped and thrown away."""

from __future__ import annotations

import argparse
import io
import json
import shutil
import time
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from stof_cupy import env
from stof_cupy.cli_mask import check_output
from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.files import UNUSABLE, write_whole
from stof_cupy.terminal import show_fields, title

if TYPE_CHECKING:
    from stof_cupy.engine import TransformerEngine

__all__ = ["add_command"]

_ROOMS = ("kernels", "schemes")
"""What can be made again, so that it can be shipped and thrown away; models are downloads."""

_MOST_PACKED = 64
"""How many times smaller than itself an exported cache may be: several times what is usual."""


def add_command(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    cache = commands.add_parser("cache", help="compiled kernels and tuned schemes on disk")
    actions = cache.add_subparsers(required=True, metavar="ACTION")

    show = actions.add_parser("list", help="what is there")
    show.set_defaults(run=_list)

    clear = actions.add_parser("clear", help="throw away kernels and schemes")
    clear.add_argument("rooms", nargs="*", metavar="ROOM", help="kernels, schemes or models")
    clear.set_defaults(run=_clear)

    export = actions.add_parser("export", help="kernels and schemes as one file, for `warm --from`")
    export.add_argument("file", type=Path, metavar="OUT.zip")
    export.set_defaults(run=_export)

    warm = actions.add_parser(
        "warm",
        help="compile and tune ahead, or take in an exported file",
        description="Run a model once for each length, so that its kernels are compiled and its\n"
        "schemes tuned; or take in what another machine exported.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    warm.add_argument("model", nargs="?", metavar="MODEL", help="checkpoint directory, or 'minilm'")
    warm.add_argument("--from", dest="file", type=Path, metavar="FILE.zip", help="exported file")
    warm.add_argument("--batch", type=int, default=1, help="sequences (default: 1)")
    warm.add_argument(
        "--seq",
        type=int,
        nargs="+",
        default=[128],
        help="lengths of text (default: 128)",
    )
    warm.add_argument("--mask", help="attention mask, e.g. sliding:w=64 (default: full)")
    warm.add_argument("--tune", default="fast", help="off, fast or full (default: fast)")
    warm.add_argument("--backend", default="auto", help="auto, cuda or numpy (default: auto)")
    warm.add_argument("--dtype", help="float16, bfloat16 or float32 (default: by backend)")
    warm.add_argument("--device", type=int, help="number of the CUDA device")
    warm.set_defaults(run=_warm)


def _files(room: str) -> list[Path]:
    root = env.cache_dir(room)
    return sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else []


def _list(args: argparse.Namespace) -> None:
    del args
    title(f"cache {env.cache_dir()}")
    for room in (*_ROOMS, "models"):
        root = env.cache_dir(room)
        entries = len(list(root.iterdir())) if root.is_dir() else 0
        size = _size(room) / 1e6
        show_fields({room: f"{entries} entries, {size:.1f} MB"})
    lines = [line for path in _files("schemes") if (line := _scheme(path))]
    if lines:
        title("schemes")
        print("\n".join(lines))


def _scheme(path: Path) -> str:
    """Return a scheme's file as a line; empty if it is none."""
    try:
        record = json.loads(path.read_bytes())
        problem = record["problem"]
        sizes = " x ".join(str(size) for size in problem["shapes"].values())
        return (
            f"  {problem['device']:24} {problem['dtype']:9} {sizes:>12}  {problem['mode']:5}"
            f"{record['scheme']:>18}  {record['seconds'] * 1e6:10.1f} us"
        )
    except UNUSABLE:
        return ""


def _clear(args: argparse.Namespace) -> None:
    rooms = args.rooms or _ROOMS
    for room in rooms:
        if room not in (*_ROOMS, "models"):
            raise ArgumentError(mismatch("room", repr(room), "kernels, schemes or models"))
    for room in rooms:
        size, root = _size(room), env.cache_dir(room)
        # A room may be a link to another disk, which stays one.
        for each in root.iterdir() if root.is_symlink() and root.is_dir() else [root]:
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            else:
                with suppress(OSError):  # what is left is told below
                    each.unlink()
        left = _size(room)
        rest = f", {left / 1e6:.1f} MB could not be" if left else ""
        show_fields({room: f"{(size - left) / 1e6:.1f} MB thrown away{rest}"})


def _size(room: str) -> int:
    return sum(path.stat().st_size for path in _files(room))


def _export(args: argparse.Namespace) -> None:
    root, made = env.cache_dir(), io.BytesIO()
    check_output("OUT.zip", args.file)
    files = [path for room in _ROOMS for path in _files(room)]
    # In memory: of an export that fails nothing is left, and none finds itself among the files.
    # Other files may be older than 1980, which a zip file cannot say.
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in files:
            archive.write(path, path.relative_to(root).as_posix())
    write_whole(args.file, made.getvalue())
    size = args.file.stat().st_size / 1e6
    show_fields({"exported": f"{len(files)} files, {size:.1f} MB: {args.file}"})


def _warm(args: argparse.Namespace) -> None:
    if (args.model is None) == (args.file is None):
        got = "both" if args.model else "neither"
        raise ArgumentError(mismatch("MODEL and --from", got, "one of the two"))
    if args.file is not None:
        _take_in(args.file)
        return
    if args.batch < 1 or min(args.seq) < 1:
        raise ArgumentError(mismatch("--batch and --seq", "less than 1", "positive integers"))
    from stof_cupy.engine import TransformerEngine
    from stof_cupy.models.packaged import minilm

    engine = TransformerEngine(
        minilm() if args.model == "minilm" else args.model,
        backend=args.backend,
        dtype=args.dtype,
        device=args.device,
        tune=args.tune,
        progress=True,
    )
    for name, x in _examples(engine, args.batch, args.seq).items():
        start = time.perf_counter()
        engine.run(x, mask=args.mask)
        show_fields({name: f"ready in {time.perf_counter() - start:.2f} s"})


def _examples(engine: TransformerEngine, batch: int, lengths: list[int]) -> dict[str, Any]:
    """Return what to run, by how it is called: tokens of each length; images have a size."""
    if "image_size" not in engine.config:
        return {f"{batch} x {seq}": np.zeros((batch, seq), np.int32) for seq in lengths}
    size = engine.config["image_size"]
    height, width = (size, size) if isinstance(size, int) else size
    shape = (batch, engine.config.get("num_channels", 3), height, width)
    return {f"{batch} x {height}x{width}": np.zeros(shape, np.float32)}


def _take_in(file: Path) -> None:
    """Unpack what is not there yet, or there for another version.

    What a kernel or scheme needs to be used is checked then.
    """
    root, count = env.cache_dir(), 0
    try:
        with zipfile.ZipFile(file) as archive:
            members = [each for each in archive.infolist() if not each.is_dir()]
            places = [_place(file, each.filename) for each in members]  # all, before any is written
            size, packed = sum(each.file_size for each in members), file.stat().st_size
            if size > _MOST_PACKED * packed:
                got = f"{packed} bytes that hold {size}"
                raise ArgumentError(mismatch(str(file), got, "an exported cache"))
            for member, place in zip(members, places, strict=True):
                to = root / place
                if not to.exists() or _is_stale(place, to):
                    write_whole(to, archive.read(member))
                    count += 1
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as bad:
        # RuntimeError: encrypted, or packed in a way that is not known.
        got = f"no zip file, or a damaged one ({bad})"
        raise ArgumentError(mismatch(str(file), got, "an exported cache")) from bad
    show_fields({"taken in": f"{count} files"})


def _is_stale(place: Path, to: Path) -> bool:
    """Whether a file is a scheme of another version, which has the name of its successor."""
    from stof_cupy.fusion.store import is_current

    return place.parts[0] == "schemes" and to.is_file() and not is_current(to.read_bytes())


def _place(file: Path, name: str) -> Path:
    """Return where a file of an export belongs, from the cache's directory."""
    parts = PurePosixPath(name).parts
    if len(parts) < 2 or parts[0] not in _ROOMS or ".." in parts:
        raise ArgumentError(mismatch(str(file), f"a file {name!r}", "an exported cache"))
    return Path(*parts)
