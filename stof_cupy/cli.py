"""The command ``stof-cupy``.

``demo`` shows the whole system at work, ``encode`` turns text into vectors, ``generate`` continues
it, ``features`` turns images into vectors, ``mask`` draws an attention mask, ``cache`` keeps
kernels and schemes, ``calibrate`` fits the choice of kernels to a GPU, ``report`` shows benchmark
results, ``info`` describes the installation.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stof_cupy import (
    __version__,
    cli_cache,
    cli_calibrate,
    cli_mask,
    cli_models,
    cli_named,
    cli_report,
    env,
)
from stof_cupy.errors import ArgumentError, StofError, mismatch
from stof_cupy.jit import device as gpu
from stof_cupy.masks import as_mask, from_spec, spec_help
from stof_cupy.masks.spec import check_spec
from stof_cupy.models import samples
from stof_cupy.models.extras import require
from stof_cupy.models.similarity import nearest_pairs
from stof_cupy.terminal import WIDTH, plain_warnings, show_fields, title

if TYPE_CHECKING:
    from stof_cupy.engine import TransformerEngine

__all__ = ["main"]

_MASKS = ("full", "causal", "sliding:w=64", "longformer:w=32,g=1")
_REPEATS = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (default: the process's) and return its exit status."""
    args = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # texts may be more than its encoding can say
        sys.stdout.reconfigure(errors="backslashreplace")
    status: int | None = None
    with plain_warnings():
        try:
            status = args.run(args)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, `head` say, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (StofError, OSError) as error:
            print(f"stof-cupy: error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    return status or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stof-cupy",
        description="Sparse-Transformer inference on CuPy and NumPy: any attention mask, "
        "no deep-learning framework.",
    )
    parser.add_argument("--version", action="version", version=f"stof-cupy {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--backend", default="auto", help="auto, cuda or numpy (default: auto)")
    where.add_argument("--dtype", help="float16, bfloat16 or float32 (default: by backend)")
    where.add_argument("--device", type=int, help="number of the CUDA device")

    demo = commands.add_parser("demo", parents=[where], help="real sentences, end to end")
    demo.set_defaults(run=_demo)

    encode = commands.add_parser(
        "encode",
        parents=[where],
        help="one vector for each line of a text file",
        description="Turn each line of a text file into a vector of length 1. Blank lines are\n"
        "dropped: row i is the i-th line that is left. Without -o the nearest pairs are shown.",
        epilog=f"masks:\n{textwrap.indent(spec_help(), '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    encode.add_argument("model", metavar="MODEL", help="checkpoint, or 'minilm'")
    encode.add_argument("file", metavar="FILE", help="UTF-8 text, or '-' for standard input")
    encode.add_argument("--mask", help="attention mask, e.g. sliding:w=64 (default: full)")
    encode.add_argument(
        "--batch-size", type=int, default=32, help="lines run together (default: 32)"
    )
    encode.add_argument(
        "-o", "--output", type=Path, metavar="OUT.npy", help="float32 (lines, hidden)"
    )
    encode.set_defaults(run=_encode)

    cli_models.add_commands(commands, where)
    cli_mask.add_command(commands)
    cli_cache.add_command(commands)
    cli_calibrate.add_command(commands)
    cli_report.add_command(commands)

    info = commands.add_parser("info", help="device, versions, caches")
    info.set_defaults(run=_info)
    return parser


def _engine(model: str, args: argparse.Namespace) -> TransformerEngine:
    for name in ("safetensors", "tokenizers"):  # before a download, not after it
        require(name)
    return cli_named.open_engine(model, args, cli_named.TEXTS)


def _demo(args: argparse.Namespace) -> None:
    start = time.perf_counter()
    engine = _engine("minilm", args)
    title(f"stof_cupy {__version__}")
    show_fields(
        {
            "model": f"all-MiniLM-L6-v2, {engine.explain().splitlines()[0]}",
            "device": _device_line(engine.device),
            "ready": f"in {time.perf_counter() - start:.2f} s",
        }
    )
    _demo_sentences(engine)
    _demo_masks(engine)
    title("what ran")
    show_fields({"graph": _operators(engine)})
    if engine.backend == "cuda":
        from stof_cupy.jit.launch import loaded

        show_fields({"kernels": ", ".join(loaded())})


def _demo_sentences(engine: TransformerEngine) -> None:
    texts = samples.SENTENCES
    vectors, first, again = _timed(lambda: engine.encode(texts))
    title(f"{len(texts)} sentences, full attention: {again:.1f} ms (first time {first:.0f} ms)")
    _show_pairs(texts, vectors, count=6)


def _demo_masks(engine: TransformerEngine) -> None:
    """Show one passage under several masks: what each keeps and costs, and how the vector moves."""
    whole = engine.config["max_position_embeddings"]
    seq = len(engine.tokenize([samples.PASSAGE], max_length=whole)[0])
    title(f"one passage of {seq} tokens, four masks")
    print(f"  {'mask':20} {'kept':>7} {'tiles visited':>16} {'cosine to full':>15} {'ms':>8}")
    tiles = (-(-seq // 64)) ** 2
    reference = None
    for spec in _MASKS:
        mask = as_mask(from_spec(spec, seq), (seq, seq))

        def encode(spec: str = spec) -> np.ndarray[Any, Any]:
            return engine.encode([samples.PASSAGE], mask=spec, max_length=whole)

        vectors, _, again = _timed(encode)
        reference = vectors[0] if reference is None else reference
        visited = f"{mask.ntiles} of {tiles}"
        cosine = float(vectors[0] @ reference)
        print(f"  {spec:20} {mask.density:7.1%} {visited:>16} {cosine:15.4f} {again:8.1f}")


def _encode(args: argparse.Namespace) -> None:
    _check_encode_options(args)
    texts = cli_models.read_lines(args.file)
    engine = _engine(args.model, args)
    start = time.perf_counter()
    vectors = engine.encode(texts, mask=args.mask, batch_size=args.batch_size, progress=True)
    seconds = time.perf_counter() - start
    where = engine.explain().splitlines()[0]
    title(f"{len(texts)} texts in {seconds:.2f} s ({len(texts) / seconds:.0f} a second)")
    show_fields({"model": where, "mask": args.mask or "full"})
    if args.output is None:
        title("nearest pairs")
        distinct = {text: row for row, text in enumerate(texts)}
        if len(distinct) == 1:
            print("  one text has no other to be near; -o OUT.npy writes its vector")
        _show_pairs(list(distinct), vectors[list(distinct.values())], count=8)
        return
    with args.output.open("wb") as file:
        np.save(file, vectors)
    show_fields({"saved": f"{args.output}: {vectors.dtype} {vectors.shape}"})


def _check_encode_options(args: argparse.Namespace) -> None:
    """Refuse what would otherwise fail when all the work is done."""
    if args.output is not None:
        cli_mask.check_output("--output", args.output)
    if args.mask is not None:
        check_spec(args.mask)
    if args.batch_size < 1:
        raise ArgumentError(mismatch("--batch-size", args.batch_size, "a positive integer"))


def _info(args: argparse.Namespace) -> None:
    del args
    title(f"stof_cupy {__version__}, Python {platform.python_version()}, {platform.platform()}")
    show_fields(
        {"device": _device_line(None if not gpu.is_available() else 0), "NVRTC": _nvrtc_line()}
    )
    title("packages")
    names = (
        "numpy",
        "scipy",
        "ml_dtypes",
        "cupy-cuda12x",
        "cupy-cuda13x",
        "safetensors",
        "tokenizers",
        "gguf",
        "onnx",
    )
    show_fields({name: _version(name) for name in names})
    title("caches")
    show_fields(
        {room: _cache_line(env.cache_dir(room)) for room in ("kernels", "schemes", "models")}
    )
    title("environment")
    show_fields({v.name: v.get() or "(not set)" for v in env.VARIABLES})


def _show_pairs(texts: Sequence[str], vectors: np.ndarray[Any, Any], count: int) -> None:
    for cosine, i, j in nearest_pairs(vectors, count):
        print(f"  {cosine:6.3f}  {textwrap.shorten(texts[i], WIDTH - 10, placeholder=' ...')}")
        print(f"          {textwrap.shorten(texts[j], WIDTH - 10, placeholder=' ...')}")


def _timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result, and the ms of a first run (which may compile) and the median of others."""
    times = []
    for _ in range(1 + _REPEATS):
        start = time.perf_counter()
        result = run()
        times.append((time.perf_counter() - start) * 1e3)
    return result, times[0], sorted(times[1:])[_REPEATS // 2]


def _operators(engine: TransformerEngine) -> str:
    count = Counter(node.op for node in engine.graph.nodes() if node.kind in ("CI", "MI"))
    return ", ".join(f"{n} x {op}" for op, n in count.most_common())


def _device_line(device: int | None) -> str:
    if device is None:
        found = "" if gpu.is_available() else " (no GPU, or no CuPy, found)"
        return f"CPU, {platform.machine()}{found}"
    facts = gpu.facts(device)
    return f"{device}: {facts.name}, sm_{facts.arch}, {facts.memory_bytes / 2**30:.0f} GiB"


def _nvrtc_line() -> str:
    from stof_cupy.jit import nvrtc

    try:
        library = nvrtc.load()
    except StofError as absent:
        return str(absent)
    return ".".join(map(str, library.version))


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cache_line(path: Path) -> str:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else []
    entries = len(list(path.iterdir())) if files else 0
    return f"{path} ({entries} entries, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB)"
