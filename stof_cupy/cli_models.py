"""The commands ``stof-cupy generate`` and ``stof-cupy features``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy.cli_mask import check_output
from stof_cupy.cli_named import IMAGES, TALKERS, open_engine
from stof_cupy.engine import TransformerEngine
from stof_cupy.errors import ArgumentError, ConfigError, StofError, mismatch
from stof_cupy.models.checkpoint import read_object
from stof_cupy.models.extras import require
from stof_cupy.models.progress import bar
from stof_cupy.models.sampling import Sampler
from stof_cupy.terminal import show_fields, title

__all__ = ["add_commands", "read_lines"]


def add_commands(commands: Any, where: argparse.ArgumentParser) -> None:
    """Add the commands to argparse's `commands`; `where` has the options of all engines."""
    generate = commands.add_parser(
        "generate",
        parents=[where],
        help="what a language model says after a text",
        description="Continue a text, token by token, or each line of a file.",
    )
    names = ", ".join(map(repr, TALKERS))
    generate.add_argument("model", metavar="MODEL", help=f"checkpoint, or one of {names}")
    generate.add_argument("prompt", nargs="?", metavar="TEXT", help="what to continue")
    generate.add_argument("--file", metavar="FILE", help="UTF-8 text, or '-' for standard input")
    generate.add_argument("-n", "--max-new-tokens", type=int, default=64, help="default: 64")
    generate.add_argument("--temperature", type=float, default=0.0, help="default: 0, the best")
    generate.add_argument("--top-p", type=float, default=1.0, help="default: 1, all tokens")
    generate.add_argument("--seed", type=int, default=0, help="of what is drawn (default: 0)")
    generate.set_defaults(run=_generate)

    features = commands.add_parser(
        "features",
        parents=[where],
        help="one vector for each image",
        description="Turn images into vectors. Without -o their cosines are shown.",
    )
    features.add_argument("model", metavar="MODEL", help="checkpoint, or 'dinov2'")
    features.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="picture files")
    features.add_argument("--config", type=Path, help="config.json for an .onnx file")
    features.add_argument("--size", type=int, help="pixels along a side (default: 16 patches)")
    features.add_argument("--batch-size", type=int, default=8, help="default: 8")
    features.add_argument(
        "-o", "--output", type=Path, metavar="OUT.npy", help="float32 (images, hidden)"
    )
    features.set_defaults(run=_features)


def read_lines(name: str) -> list[str]:
    """Return the lines of a file, or of standard input, that are not blank.

    Raises
    ------
    ArgumentError
        If there is none, or the file is not UTF-8.
    """
    what = "standard input" if name == "-" else name
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as bad:
        got = f"bytes that are not UTF-8 ({bad})"
        raise ArgumentError(mismatch(what, got, "UTF-8")) from bad
    texts = list(filter(None, map(str.strip, lines)))
    if not texts:
        raise ArgumentError(mismatch(what, "no text", "at least one line that is not blank"))
    return texts


def _generate(args: argparse.Namespace) -> None:
    if (args.prompt is None) == (args.file is None):
        got = "both TEXT and --file" if args.file else "nothing to continue"
        raise ArgumentError(mismatch("generate", got, "TEXT or --file"))
    # Before a download, not after it:
    Sampler(args.temperature, args.top_p, args.seed)
    if args.max_new_tokens < 1:
        raise ArgumentError(mismatch("--max-new-tokens", args.max_new_tokens, "at least 1"))
    require("tokenizers")
    prompts = [args.prompt] if args.file is None else read_lines(args.file)
    engine = open_engine(args.model, args, TALKERS)
    start = time.perf_counter()
    many = len(prompts) > 1
    writer = _Writer(engine, prompts[0])
    with bar(len(prompts) * args.max_new_tokens, many, unit="token") as shown:
        said = engine.generate(
            prompts,
            max_new_tokens=args.max_new_tokens,
            temperature=args.temperature,
            top_p=args.top_p,
            seed=args.seed,
            emit=(lambda _, token: shown.update()) if many else writer.emit,
        )
    seconds = time.perf_counter() - start
    if many:
        for prompt, text in zip(prompts, said, strict=True):
            print(json.dumps({"prompt": prompt, "text": text}, ensure_ascii=False))
        return
    writer.end()
    count = len(writer.tokens)
    title(f"{count} tokens in {seconds:.2f} s ({count / seconds:.1f} a second)")
    show_fields({"model": engine.explain().splitlines()[0]})


class _Writer:
    """Prints a prompt and the text of tokens as they come, whole characters only."""

    def __init__(self, engine: TransformerEngine, prompt: str) -> None:
        self._engine = engine
        # What an encoder has read is not continued.
        self._prompt = prompt + "\n" * ("decoder_start_token_id" in engine.config)
        self._printed = ""
        self.tokens: list[int] = []

    def emit(self, _: int, token: int) -> None:
        if not self.tokens:  # not before: an error would stand behind it
            print(self._prompt, end="", flush=True)
        self.tokens.append(token)
        text = self._engine.detokenize([self.tokens])[0]
        # A character of several tokens is shown as U+FFFD until the last of them is there.
        if not text.endswith("\ufffd") and text.startswith(self._printed):
            print(text[len(self._printed) :], end="", flush=True)
            self._printed = text

    def end(self) -> None:
        print("" if self.tokens else self._prompt.rstrip("\n"))


def _features(args: argparse.Namespace) -> None:
    if args.output is not None:
        check_output("--output", args.output)
    for path in args.images:  # before a download, not after it
        with _opened(path):
            pass
    config = None if args.config is None else read_object(args.config, ConfigError)
    engine = open_engine(args.model, args, IMAGES, config)
    start = time.perf_counter()
    how: dict[str, Any] = {"size": args.size, "batch_size": args.batch_size}
    vectors = engine.features(map(_read_image, args.images), **how, progress=True)
    seconds = time.perf_counter() - start
    title(f"{len(vectors)} images in {seconds:.2f} s")
    show_fields({"model": engine.explain().splitlines()[0]})
    if args.output is not None:
        with args.output.open("wb") as file:
            np.save(file, vectors)
        show_fields({"saved": f"{args.output}: {vectors.dtype} {vectors.shape}"})
        return
    if len(vectors) == 1:
        print("  one image has no other to be like; -o OUT.npy writes its vector")
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    for i, j in combinations(range(len(unit)), 2):
        pair = f"{args.images[i].name} and {args.images[j].name}"
        print(f"  {float(unit[i] @ unit[j]):6.3f}  {pair}")


def _read_image(path: Path) -> np.ndarray[Any, Any]:
    """Return a picture as people see it: turned as its camera was, transparency left out."""
    with _opened(path) as picture:
        upright = require("PIL.ImageOps", "images").exif_transpose(picture)
        return np.asarray(upright.convert("RGB"))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a picture, whose pixels are not read yet."""
    image = require("PIL.Image", "images")
    try:
        with image.open(path) as picture:
            # Made one of 8 bits, these would be white, or black.
            if picture.mode.startswith(("I", "F")):
                got, expected = f"pixels of mode {picture.mode!r}", "8 bits a channel"
                raise ArgumentError(mismatch(str(path), got, expected, "convert it first"))
            yield picture
    except (OSError, image.DecompressionBombError, ValueError, SyntaxError) as bad:
        # No such file, say, which names it; and ArgumentError is a ValueError.
        if getattr(bad, "errno", None) is not None or isinstance(bad, StofError):
            raise
        raise ArgumentError(mismatch(str(path), f"unreadable ({bad})", "a picture")) from bad
