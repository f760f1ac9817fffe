"""The command ``stof-cupy calibrate``: fits the model that chooses attention's kernel to a GPU."""

from __future__ import annotations

import argparse
import time
from typing import Any

from stof_cupy.jit import device as gpu
from stof_cupy.ops import attention_calibration as calibration
from stof_cupy.terminal import show_fields, title

__all__ = ["add_command"]


def add_command(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = commands.add_parser(
        "calibrate",
        help="fit the choice of attention's kernel to this GPU, once",
        description="Time attention's kernels in some cases and fit the model to them that chooses "
        "among the kernels; what is found is kept on disk. Until then, it is one of an H100.",
    )
    parser.add_argument("--device", type=int, help="number of the CUDA device")
    parser.add_argument("--again", action="store_true", help="even if that was done before")
    parser.set_defaults(run=_calibrate)


def _calibrate(args: argparse.Namespace) -> None:
    facts = gpu.facts(args.device)
    path, start = calibration.path_of(facts), time.perf_counter()
    there = calibration.kept(facts) is not None and not args.again
    constants = calibration.calibrate_device(args.device, again=args.again)
    took = time.perf_counter() - start
    title(f"attention on {facts.name}")
    show_fields(
        {
            "fitted": "before; --again measures" if there else f"in {took:.0f} s",
            "kept in": str(path),
            **{name: f"{value:.4g}" for name, value in vars(constants).items()},
        }
    )
