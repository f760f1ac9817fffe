"""How each leaf of a pattern becomes a node: one function a kind of leaf."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from stof_cupy.dtypes import dtype_name
from stof_cupy.errors import DeviceError, UnsupportedError, mismatch
from stof_cupy.jit.mask_kernels import FormulaCode
from stof_cupy.masks.band import Band
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.block_arrays import DeviceScores
from stof_cupy.masks.device.leaf import (
    DenseArray,
    DocumentIds,
    KeyFlags,
    Stacked,
    StoredOnDevice,
)
from stof_cupy.masks.device.prepare import cut_scores, find_documents
from stof_cupy.masks.device.program import Builder, Fields, Program, TooLargeError
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.formula import Formula
from stof_cupy.masks.leaves import Blocks, Columns, Diagonals, Intervals, Stored
from stof_cupy.masks.lower import lower
from stof_cupy.masks.neighborhoods import Neighborhood
from stof_cupy.masks.predicates import FormulaPredicate
from stof_cupy.masks.schedule import Schedule
from stof_cupy.masks.segments import Segments
from stof_cupy.masks.tiles import grid

__all__ = ["program_of"]

_Lowered = tuple[str, Fields]


def program_of(pattern: Pattern) -> Program:
    """Return the program of a pattern, its arrays on CuPy's current device.

    An expression too large for the kernel is lowered on the CPU and becomes one leaf.

    Raises
    ------
    DeviceError
        If it names arrays of another device.
    TooLargeError
        If it is too large and names CuPy arrays.
    """
    lead = ((1,) * (2 - len(pattern.lead)) + pattern.lead)[-2:]
    builder = Builder((lead[0], lead[1]), _lower)
    try:
        builder.load(pattern)
        return builder.finish()
    except TooLargeError as too_large:
        try:
            tiles = lower(pattern)
        except DeviceError:
            raise too_large from None
    builder = Builder((1, 1), _lower)
    builder.load(Stored(tiles))
    return builder.finish()


def _lower(builder: Builder, leaf: Any) -> _Lowered:
    known = _LEAVES.get(type(leaf))
    # A leaf that the kernel does not know, a Python function say, is lowered on the CPU.
    return _stored(builder, Stored(lower(leaf))) if known is None else known(builder, leaf)


def _band(builder: Builder, leaf: Band) -> _Lowered:
    return "band", (
        *(leaf.offset, leaf.size, leaf.before, leaf.after, leaf.causal),
        *(leaf.key_start, leaf.key_stop, leaf.query_start, leaf.query_stop),
    )


def _intervals(builder: Builder, leaf: Intervals) -> _Lowered:
    start, stop = leaf.bounds()
    return "intervals", (builder.uploads.add(start), builder.uploads.add(stop), 0, 0)


def _segments(builder: Builder, leaf: Segments) -> _Lowered:
    arrays = (leaf.query_stop, leaf.key_start, leaf.key_stop, leaf.reach)
    at = (0 if each is None else builder.uploads.add(each.astype(np.int32)) for each in arrays)
    return "segments", (*at, len(leaf.query_stop))


def _columns(builder: Builder, leaf: Columns) -> _Lowered:
    return "columns", (builder.uploads.add(leaf.words),)


def _diagonals(builder: Builder, leaf: Diagonals) -> _Lowered:
    zero = grid(leaf.shape)[0] * TILE
    return "diagonals", (builder.uploads.add(leaf.words), zero, len(leaf.words))


def _blocks(builder: Builder, leaf: Blocks) -> _Lowered:
    return "blocks", (builder.uploads.add(leaf.listed), len(leaf.listed), *leaf.block, leaf.width)


def _neighborhood(builder: Builder, leaf: Neighborhood) -> _Lowered:
    one = (1, 1, 1, False)
    axes = [one] * (3 - len(leaf.axes)) + [
        (axis.size, axis.window, axis.step, axis.causal) for axis in leaf.axes
    ]
    return "neighborhood", tuple(int(each) for field in zip(*axes, strict=True) for each in field)


def _stored(builder: Builder, leaf: Stored) -> _Lowered:
    lists = Schedule.of(leaf.tiles)
    arrays = (builder.uploads.add(getattr(lists, name)) for name in _STORED)
    return "stored", (*arrays, 0, 0, 0)


def _stored_on_device(builder: Builder, leaf: StoredOnDevice) -> _Lowered:
    lists = leaf.mask.schedule()
    arrays = [getattr(lists, name) for name in (*_STORED, "overflow")]
    builder.kept += arrays
    return "stored", (
        *(0 if array is None else _address(array) for array in arrays),
        *_lead_strides(builder, leaf.lead, lists.mask_of.strides),
    )


def _stacked(builder: Builder, leaf: Stacked) -> _Lowered:
    lists = leaf.stack.schedule()
    return "stored", (
        *(builder.uploads.add(getattr(lists, name)) for name in _STORED),
        *(0, *_lead_strides(builder, leaf.lead, lists.mask_of.strides)),
    )


_STORED = ("row_ptr", "full_ptr", "cols", "bitmap_id", "bitmaps", "mask_of")


def _lead_strides(
    builder: Builder, lead: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[int, int]:
    """Return the strides, in elements, of a contiguous `mask_of`, whose leading axes are two."""
    steps = tuple(stride // 4 for stride in strides)
    return builder.strides(lead, steps[len(steps) - len(lead) :])


def _dense(builder: Builder, leaf: DenseArray) -> _Lowered:
    array = leaf.array
    *lead, row, col = array.strides
    builder.kept.append(array)
    return "dense", (_address(array), row, col, *builder.strides(leaf.lead, tuple(lead)))


def _key_flags(builder: Builder, leaf: KeyFlags) -> _Lowered:
    builder.kept.append(leaf.flags)
    return "dense", (_address(leaf.flags), 0, leaf.flags.strides[0], 0, 0)


def _documents(builder: Builder, leaf: DocumentIds) -> _Lowered:
    import cupy

    _here("ids", leaf.ids)
    bounds = cupy.empty((2, len(leaf.ids)), np.int32)
    builder.prepare.append(find_documents(leaf.ids, leaf.causal, bounds))
    builder.kept += [leaf.ids, bounds]
    address = bounds.data.ptr
    return "intervals", (address, address + bounds.strides[0], 0, 0)


_SCORE_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "bool": 3}


def _scores(builder: Builder, leaf: DeviceScores) -> _Lowered:
    scores, threshold = leaf.scores, leaf.threshold
    builder.kept.append(scores)
    address = _address(scores)
    strides = tuple(each // scores.itemsize for each in scores.strides)
    where = (*strides[-2:], *builder.strides(leaf.lead, strides[:-2]))
    cuts: Any = 0
    thresholds: Any = 0
    rows: tuple[int, ...] = (0, 0, 0)
    if leaf.top is not None:
        import cupy

        buffer = cupy.empty((*builder.lead, scores.shape[-2], 2), np.int32)
        builder.prepare.append(cut_scores(scores, builder.lead, leaf.top, buffer))
        builder.kept.append(buffer)
        cuts = buffer.data.ptr
    elif not isinstance(threshold, float):
        if isinstance(threshold, np.ndarray):
            threshold = np.ascontiguousarray(threshold)
            thresholds = builder.uploads.add(threshold)
        else:
            builder.kept.append(threshold)
            thresholds = _address(threshold)
        steps = tuple(each // 4 for each in threshold.strides)
        rows = (steps[-1], *builder.strides(leaf.lead, steps[:-1]))
    one = threshold if isinstance(threshold, float) else 0.0
    kind = _SCORE_TYPES[dtype_name(scores.dtype)]
    return "scores", (address, cuts, thresholds, *where, *rows, *leaf.block, kind, one)


def _formula(builder: Builder, leaf: FormulaPredicate) -> _Lowered:
    first = len(builder.arrays)
    at: Any
    for name in leaf.formula.names:
        value, kind = leaf.values[name], leaf.kinds[name]
        if isinstance(kind, str):  # of a scalar
            bits = np.float64(value) if kind == "float" else np.int64(value)
            builder.arrays.append((int(bits.view(np.uint64)), 0, 0))
        elif isinstance(value, np.ndarray):
            at = builder.uploads.add(value if value.size else np.zeros(1, value.dtype))
            builder.arrays.append((at, len(value), value.itemsize))
        else:
            builder.kept.append(value)
            at = _address(value) if value.size else builder.uploads.add(np.zeros(1, np.int64))
            step = value.strides[0]
            if not -(2**31) <= step < 2**31:
                got = f"a stride of {step} bytes"
                raise UnsupportedError(mismatch(f"arrays[{name!r}]", got, "less than 2**31"))
            builder.arrays.append((at, len(value), step))
    formula = _in_cuda(leaf.formula.text, tuple(leaf.kinds.items()), leaf.shape)
    if formula not in builder.formulas:
        builder.formulas.append(formula)
    return "formula", (builder.formulas.index(formula), first)


@lru_cache(maxsize=256)
def _in_cuda(text: str, kinds: tuple[tuple[str, Any], ...], shape: tuple[int, int]) -> FormulaCode:
    """Return a formula in C++; kept, because a mask is built more often than it is thought of."""
    formula, kind_of = Formula.parse(text), dict(kinds)
    value, state = formula.cuda(kind_of, shape), formula.cuda_state(kind_of, shape)
    return FormulaCode(value, state, len(formula.names))


_LEAVES: dict[type[Pattern], Callable[[Builder, Any], _Lowered]] = {
    Band: _band,
    Intervals: _intervals,
    Segments: _segments,
    Columns: _columns,
    Diagonals: _diagonals,
    Blocks: _blocks,
    Neighborhood: _neighborhood,
    Stored: _stored,
    StoredOnDevice: _stored_on_device,
    Stacked: _stacked,
    DenseArray: _dense,
    KeyFlags: _key_flags,
    DocumentIds: _documents,
    DeviceScores: _scores,
    FormulaPredicate: _formula,
}


def _address(array: Any) -> int:
    """Return where a CuPy array is, or raise DeviceError if that is another device."""
    _here("array", array)
    return int(array.data.ptr)


def _here(name: str, array: Any) -> None:
    import cupy

    current = cupy.cuda.runtime.getDevice()
    if array.device.id != current:
        hint = "CuPy's current device"
        raise DeviceError(mismatch(name, f"device {array.device.id}", f"device {current}", hint))
