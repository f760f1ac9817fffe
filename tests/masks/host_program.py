"""The device code of mask leaves, compiled for the CPU: what a program says of boxes and words."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.jit.source import cuda_root
from stof_cupy.masks import Pattern
from stof_cupy.masks.device import lowering
from stof_cupy.masks.device.nodes import pack_program
from stof_cupy.masks.device.program import Builder, Program
from stof_cupy.masks.device.uploads import Uploads

COMPILER = shutil.which("g++") or shutil.which("clang++")

_SOURCE = """
#define __device__
#define __forceinline__ inline
#include "mask/program.cuh"
using namespace stof;
using namespace stof::mask;

static_assert(sizeof(Program) == PROGRAM_BYTES);

extern "C" void host_program(const Program* program, int count, int outer, int inner,
                             int lead_inner, int queries, int keys, int rows, int cols,
                             u8* states, u64* words) {
  u64 aside[kMaxDepth];
  const Lead lead = {outer, inner};
  const int across = (keys + cols - 1) / cols, word_cols = (keys + 63) / 64;
  for (int q0 = 0; q0 < queries; q0 += rows) {
    const int q1 = smaller(q0 + rows, queries);
    Facts common[kMaxNodes];
    for (int n = 0; n < count; ++n) {
      common[n] = kNoFacts;
      if (has_bounds(program->nodes[n]))
        for (int q = q0; q < q1; ++q)
          common[n] = joined(common[n], row_facts(program->nodes[n], lead, q));
    }
    for (int col = 0; col < across; ++col)
      *states++ = box_state<NoFormulas>(*program, count, common, lead, lead_inner,
                                        {q0, q1, col * cols, smaller(col * cols + cols, keys)},
                                        aside, 1);
  }
  for (int q = 0; q < queries; ++q)
    for (int col = 0; col < word_cols; ++col)
      *words++ = row_word<NoFormulas>(*program, count, lead, lead_inner, q, 64 * col, keys, aside, 1);
}
"""


@dataclass
class HostUploads(Uploads):
    """Arrays stay in host memory."""

    _kept: list[Any] = field(default_factory=list)

    def finish(self) -> tuple[int, Any]:
        together = np.empty(self._size + 16, np.uint8)
        at = skip = -together.ctypes.data % 16
        for piece in self._pieces:
            together[at : at + piece.nbytes] = piece.reshape(-1).view(np.uint8)
            at += -(-piece.nbytes // 16) * 16
        return together.ctypes.data + skip, together


def program_of(pattern: Pattern) -> Program:
    builder = Builder((1, 1), lowering._lower, uploads=HostUploads())
    builder.load(pattern)
    return builder.finish()


@cache
def library() -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp(prefix="stof-host-"))
    source, output = folder / "host.cpp", folder / "host.so"
    source.write_text(_SOURCE)
    subprocess.run(
        [
            *(str(COMPILER), "-std=c++17", "-O1", "-Wall", "-Werror", "-Wno-unknown-pragmas"),
            *("-fsanitize=undefined", "-fno-sanitize-recover=undefined"),
            *(
                f"-DPROGRAM_BYTES={len(pack_program([], []))}",
                "-shared",
                "-fPIC",
                f"-I{cuda_root()}",
            ),
            *(str(source), "-o", str(output)),
        ],
        check=True,
    )
    return ctypes.CDLL(str(output))


def evaluate(
    program: Program, shape: tuple[int, int], tile: tuple[int, int] = (64, 64)
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the states of all tiles, and all elements, of a program."""
    rows, cols = (-(-size // step) for size, step in zip(shape, tile, strict=True))
    states = np.full((rows, cols), 255, np.uint8)
    words = np.full((shape[0], -(-shape[1] // 64)), 2**63 + 5, np.uint64)
    packed = np.array(program.packed)
    pointer = ctypes.c_void_p
    library().host_program(
        *(pointer(packed.ctypes.data), program.count, 0, 0, program.lead[1], *shape, *tile),
        *(pointer(states.ctypes.data), pointer(words.ctypes.data)),
    )
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(bool)
    assert not bits[:, shape[1] :].any(), "bits beyond the last key"
    return states, bits[:, : shape[1]]
