"""What the device code of mask leaves says of boxes and words, without the kernel around it."""

from __future__ import annotations

import ctypes
from dataclasses import fields
from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks import BsrMask, DeviceSchedule, MaskStack, Pattern
from stof_cupy.masks.device import lowering, nodes
from stof_cupy.masks.device.program import Builder, Program
from stof_cupy.masks.device.uploads import Offset, Uploads
from tests.masks import on_host

_SOURCE = """
#include "on_host_ptx.hpp"
#include "mask/program.cuh"
using namespace stof;
using namespace stof::mask;

extern "C" {{

// For a look from Python.
int kinds[] = {{{kinds}}}, payloads[] = {{{payloads}}};
int sizes[] = {{sizeof(Node), sizeof(Array), sizeof(Program)}};
int limits[] = {{kMaxNodes, kMaxArrays, kMaxDepth}};
int joins[] = {{kReplace, kAnd, kOr, kXor, kLeaf, kResult}};

void program_states(const Program* program, int count, int outer, int inner, int lead_inner,
                    int queries, int keys, int rows, int cols, u8* states) {{
  u64 aside[kMaxDepth];
  const Lead lead = {{outer, inner}};
  for (int q0 = 0; q0 < queries; q0 += rows) {{
    const int q1 = smaller(q0 + rows, queries);
    Facts facts[kMaxNodes];
    for (int n = 0; n < count; ++n) {{
      facts[n] = kNoFacts;
      if (has_bounds(program->nodes[n]))
        for (int q = q0; q < q1; ++q)
          facts[n] = joined(facts[n], row_facts(program->nodes[n], lead, q));
    }}
    for (int k0 = 0; k0 < keys; k0 += cols)
      *states++ = box_state<NoFormulas>(*program, count, facts, lead, lead_inner,
                                        {{q0, q1, k0, smaller(k0 + cols, keys)}}, aside, 1);
  }}
}}

void program_words(const Program* program, int count, int outer, int inner, int lead_inner,
                   int queries, int keys, u64* words) {{
  u64 aside[kMaxDepth];
  for (int q = 0; q < queries; ++q)
    for (int k = 0; k < keys; k += 64)
      *words++ = row_word<NoFormulas>(*program, count, {{outer, inner}}, lead_inner, q, k, keys,
                                      aside, 1);
}}

}}
"""


class HostUploads(Uploads):
    """Arrays stay in host memory, which ends after each."""

    def add(self, array: NDArray[Any]) -> Offset:
        self._pieces.append(on_host.fenced(array))
        return Offset(self._pieces[-1].ctypes.data)

    def finish(self) -> tuple[int, Any]:
        return 0, self._pieces


def program_of(pattern: Pattern) -> Program:
    """Lower a pattern; leaves of arrays, which are CuPy's on a GPU, may have NumPy's."""
    on_host.compiler()
    builder = partial(Builder, uploads=HostUploads())
    with (
        mock.patch.object(lowering, "Builder", builder),
        mock.patch.object(lowering, "_address", lambda array: array.ctypes.data),
    ):
        return lowering.program_of(pattern)


def on_device(mask: BsrMask | MaskStack, overflow: Any = None) -> Any:
    """Return what a mask on a GPU shows of itself to those who take it as an operand."""
    names = (each.name for each in fields(DeviceSchedule))
    lists = DeviceSchedule(**{name: getattr(mask.schedule(), name, overflow) for name in names})
    lead = mask.lead if isinstance(mask, MaskStack) else ()
    return SimpleNamespace(sides=mask.shape[-2:], lead=lead, schedule=lambda: lists)


def program_from(*steps: nodes.Node, lead: tuple[int, int] = (1, 1)) -> Program:
    """Return a program of nodes that were made by hand."""
    packed = np.frombuffer(nodes.pack_program(steps, []), np.uint8)
    kinds = sum({1 << nodes.KINDS[node.kind] for node in steps})
    return Program(packed, len(steps), (), kinds, lead, (), ())


@cache
def library() -> ctypes.CDLL:
    names = [kind.capitalize() for kind in nodes.KINDS]
    types = {"Push": "0", "Pop": "0", "Formula": "sizeof(FormulaOf)"}
    return on_host.library(
        _SOURCE.format(
            kinds=", ".join(f"k{name}" for name in names),
            payloads=", ".join(types.get(name, f"sizeof({name})") for name in names),
        )
    )


def constants(name: str, count: int) -> list[int]:
    """Return numbers of the C++ side."""
    return list((ctypes.c_int * count).in_dll(library(), name))


def _arguments(program: Program, shape: tuple[int, int], at: tuple[int, int]) -> tuple[Any, ...]:
    packed = ctypes.c_char_p(program.packed.tobytes())
    return (packed, program.count, *at, program.lead[1], *shape)


def states(
    program: Program,
    shape: tuple[int, int],
    tile: tuple[int, int] = (64, 64),
    at: tuple[int, int] = (0, 0),
) -> NDArray[np.uint8]:
    """Return the states of all tiles of the mask at `at` of the leading axes."""
    counts = tuple(-(-size // step) for size, step in zip(shape, tile, strict=True))
    found = np.full(counts, 255, np.uint8)
    pointer = ctypes.c_void_p(found.ctypes.data)
    library().program_states(*_arguments(program, shape, at), *tile, pointer)
    return found


def elements(
    program: Program, shape: tuple[int, int], at: tuple[int, int] = (0, 0)
) -> NDArray[np.bool_]:
    """Return all elements of the mask at `at` of the leading axes."""
    words = np.full((shape[0], -(-shape[1] // 64)), 2**63 + 5, np.uint64)
    pointer = ctypes.c_void_p(words.ctypes.data)
    library().program_words(*_arguments(program, shape, at), pointer)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(bool)
    assert not bits[:, shape[1] :].any(), "bits beyond the last key"
    return bits[:, : shape[1]]
