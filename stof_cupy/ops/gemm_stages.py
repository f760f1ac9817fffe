"""The stages of an epilogue that read or write more than a bias and a residual, and C as heads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, mismatch
from stof_cupy.jit.epilogues import EPILOGUE_PARAMS
from stof_cupy.ops._arrays import Array, check_shape, is_cupy, pointer
from stof_cupy.ops.epilogue import SLAB, Epilogue, Rotary

__all__ = [
    "HeadsOf",
    "Stages",
    "arrays_of",
    "check_stages",
    "result_shape",
    "stage_fields",
    "stages_of",
    "turn_after",
]


class Stages(NamedTuple):
    """What a kernel reads and writes for them, contiguous and on the GPU; None where not."""

    row_statistics: Array | None
    column_sums: Array | None
    positions: Array | None
    frequency: Array | None
    statistics: Array | None
    magnitude: float
    turned: int  # columns
    half: int
    head_dim: int


class HeadsOf(NamedTuple):
    """C as ``(batch, heads, seq, head_dim)``; strides in elements.

    Examples
    --------
    >>> HeadsOf.of(np.zeros((2, 3, 64, 8), np.float16))
    HeadsOf(batch=2, heads=3, seq=64, head_dim=8, batch_step=1536, head_step=512, step=8)
    >>> HeadsOf.of(np.zeros((5, 3, 1, 8), np.float16))  # a step of decoding: rows are the batch
    HeadsOf(batch=1, heads=3, seq=5, head_dim=8, batch_step=0, head_step=8, step=24)
    """

    batch: int
    heads: int
    seq: int
    head_dim: int
    batch_step: int
    head_step: int
    step: int

    @classmethod
    def of(cls, c: Array) -> HeadsOf | None:
        """Return how `c` lies; None if it is a matrix."""
        if c.ndim == 2:
            return None
        batch, heads, seq, head_dim = c.shape
        of_batch, of_head, of_row = (s // c.itemsize for s in c.strides[:3])
        if seq == 1:
            return cls(1, heads, batch, head_dim, 0, of_head, of_batch)
        return cls(batch, heads, seq, head_dim, of_batch, of_head, of_row)

    @property
    def pairs(self) -> bool:
        """Whether steps are multiples of two elements."""
        return all(step % 2 == 0 for step in (self.batch_step, self.head_step, self.step))


def result_shape(a: Array, n: int, epilogue: Epilogue) -> tuple[int, ...]:
    """Return the shape of a product's result; raise if there are no such heads."""
    heads = epilogue.heads
    if heads is None:
        return (*a.shape[:-1], n)
    if a.ndim != 3:
        raise ShapeError(mismatch("a", tuple(a.shape), "(batch, seq, K), because of heads"))
    if heads < 1 or n % (2 * heads):
        raise ShapeError(mismatch("heads", heads, f"heads of an even size of {n} columns"))
    return a.shape[0], heads, a.shape[1], n // heads


def check_stages(epilogue: Epilogue, a: Array, columns: int, n: int) -> None:
    """Raise unless the operands of the stages fit ``a (..., M, K)`` and `columns` of B."""
    rows = a.size // a.shape[-1] if a.shape[-1] else int(np.prod(a.shape[:-1]))
    if epilogue.normed is not None:
        _check_float("normed.statistics", epilogue.normed.statistics, (rows, 2))
        _check_float("normed.sums", epilogue.normed.sums, (columns,))
    if epilogue.statistics is not None:
        _check_float("statistics", epilogue.statistics, (rows, -(-n // SLAB), 2))
        if not epilogue.statistics.flags.c_contiguous:
            got = f"strides {epilogue.statistics.strides}"
            raise ArgumentError(mismatch("statistics", got, "a contiguous array"))
        if not is_cupy(epilogue.statistics) and not epilogue.statistics.flags.writeable:
            got, expected = "a read-only array", "one that can be written"
            raise ArgumentError(mismatch("statistics", got, expected))
    turn = epilogue.rotary
    if turn is None:
        return
    if turn.positions is None:
        raise DTypeError(mismatch("rotary.positions", None, "integers"))
    if turn.positions.dtype.kind not in "iu":
        raise DTypeError(mismatch("rotary.positions", turn.positions.dtype.name, "integers"))
    check_shape("rotary.positions", turn.positions, a.shape[:-1])
    _check_float("rotary.frequency", turn.frequency, ("half",))
    if turn.head_dim < 2 or turn.head_dim % 2 or not 0 <= turn.heads <= n // turn.head_dim:
        expected = f"heads of an even size within {n} columns"
        raise ShapeError(mismatch("rotary", f"{turn.heads} of {turn.head_dim}", expected))
    if 2 * len(turn.frequency) > turn.head_dim:
        expected = f"at most {turn.head_dim // 2}"
        raise ShapeError(mismatch("rotary.frequency", len(turn.frequency), expected))
    if epilogue.heads is not None and n // epilogue.heads != turn.head_dim:
        raise ShapeError(mismatch("rotary.head_dim", turn.head_dim, n // epilogue.heads))
    after = (epilogue.activation, epilogue.residual, epilogue.statistics)
    if epilogue.turned_after and any(x is not None for x in after):
        got = "halves that are turned in a second kernel"
        expected = "no activation, residual or statistics after it"
        raise UnsupportedError(mismatch("rotary", got, expected))


def _check_float(name: str, x: Array | None, shape: tuple[int | str, ...]) -> None:
    if x is None or x.dtype != np.float32:
        got = None if x is None else x.dtype.name if x.dtype.isnative else x.dtype.str
        raise DTypeError(mismatch(name, got, "float32"))
    check_shape(name, x, shape)


def arrays_of(epilogue: Epilogue) -> dict[str, Array]:
    """Return all arrays of the stages by name."""
    normed, turn = epilogue.normed, epilogue.rotary
    found = {"statistics": epilogue.statistics}
    if normed is not None:
        found |= {"normed.statistics": normed.statistics, "normed.sums": normed.sums}
    if turn is not None:
        found |= {"rotary.positions": turn.positions, "rotary.frequency": turn.frequency}
    return {name: x for name, x in found.items() if x is not None}


def stages_of(epilogue: Epilogue) -> Stages | None:
    """Return what a kernel reads and writes, copied where it could not; None for nothing."""
    if epilogue.kind.rows_alone:
        return None
    import cupy

    normed, turn = epilogue.normed, epilogue.rotary
    if turn is None or turn.kind is None:
        turn = Rotary(None, (), 0, 2)
    positions = turn.positions
    if positions is not None:
        positions = cupy.ascontiguousarray(positions.astype(np.int32, copy=False)).ravel()
    return Stages(
        None if normed is None else cupy.ascontiguousarray(normed.statistics),
        None if normed is None else cupy.ascontiguousarray(normed.sums),
        positions,
        None if positions is None else cupy.ascontiguousarray(turn.frequency),
        epilogue.statistics,
        turn.magnitude,
        turn.heads * turn.head_dim,
        len(turn.frequency),
        turn.head_dim,
    )


def stage_fields(stages: Stages | None, c: Array) -> dict[str, Any]:
    """Return the parameters of both kernels that only some epilogues read."""
    if stages is None:
        return dict.fromkeys(EPILOGUE_PARAMS, 0)
    heads = HeadsOf.of(c)
    arrays = ("row_statistics", "column_sums", "positions", "frequency", "statistics")
    return {
        **{name: pointer(getattr(stages, name)) for name in arrays},
        "c_batch": 0 if heads is None else heads.batch_step,
        "c_head": 0 if heads is None else heads.head_step,
        "turned": stages.turned,
        "half": stages.half,
        "head_dim": stages.head_dim if heads is None else heads.head_dim,
        "seq": 1 if heads is None else heads.seq,
        "magnitude": stages.magnitude,
    }


def turn_after(turn: Rotary, out: Array) -> None:
    """Turn the leading heads of a result in place: rows, or ``(batch, heads, seq, head_dim)``."""
    from stof_cupy.ops.rotary import rotary

    if out.ndim == 4:
        x, positions = out[:, : turn.heads], turn.positions
    else:
        rows = out[None, :, : turn.heads * turn.head_dim]
        x = rows.reshape(1, len(out), turn.heads, turn.head_dim).swapaxes(1, 2)
        positions = turn.positions.reshape(1, -1)
    rotary(
        *(x, positions, turn.frequency),
        interleaved=turn.interleaved,
        magnitude=turn.magnitude,
        out=x,
    )
