"""Rotary position embedding (Su et al., arXiv 2104.09864)."""

from __future__ import annotations

from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, mismatch
from stof_cupy.jit.decoder_kernels import rotary as spec_of
from stof_cupy.ops._arrays import (
    Array,
    aligned,
    backend,
    check_dtype,
    check_no_overlap,
    check_out,
    check_shape,
    device_dtype,
    empty_in_order_of,
    pointer,
    unit_last,
)

__all__ = ["arguments", "check_turn", "positions_of", "rotary"]


def rotary(
    x: Array,
    positions: Array,
    frequency: Array,
    *,
    interleaved: bool = False,
    magnitude: float = 1.0,
    out: Array | None = None,
) -> Array:
    """Turn pairs of elements of each head by ``position * frequency``.

    Parameters
    ----------
    x : ndarray
        Queries or keys, shape ``(batch, heads, seq, head_dim)``; NumPy or CuPy. On CUDA float16 or
        bfloat16, on NumPy any float.
    positions : ndarray of int
        Shape ``(batch, seq)``.
    frequency : float32 ndarray
        Radians a position, shape ``(half,)`` with ``2 * half <= head_dim``; elements of a head from
        ``2 * half`` on are left as they are.
    interleaved : bool
        Whether a pair is ``(2i, 2i + 1)``, as in the paper, or ``(i, i + half)``.
    magnitude : float
        Factor of what is turned.
    out : ndarray, optional
        Where to write the result: shape and dtype of `x`, contiguous last axis. It may be `x`
        itself.

    Returns
    -------
    ndarray
        Shape and dtype of `x`, axes laid out in memory in the order of `x`'s. Angles are float32.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError
        If an argument does not fit; nothing has been computed then.
    UnsupportedError
        If there is no kernel for the dtype.

    Examples
    --------
    >>> x = np.ones((1, 1, 2, 2), np.float32)
    >>> rotary(x, np.array([[0, 1]]), np.float32([np.pi])).round(3)
    array([[[[ 1.,  1.],
             [-1., -1.]]]], dtype=float32)
    """
    where = backend(x=x, positions=positions, frequency=frequency, out=out)
    check_turn(x, positions, frequency, magnitude)
    check_out(out, x.shape, x)
    check_no_overlap(out, x, x=x, positions=positions, frequency=frequency)
    how: dict[str, Any] = {"interleaved": interleaved, "magnitude": magnitude}
    if where == "numpy":
        from stof_cupy.ops import cpu_decoder

        return cpu_decoder.rotary(x, positions, frequency, **how, out=out)
    return _launch(x, positions, frequency, **how, out=out)


def check_turn(x: Array, positions: Array, frequency: Array, magnitude: float) -> None:
    """Raise unless `x` can be turned so, as `rotary` says."""
    check_dtype("x", x)
    check_shape("x", x, ("batch", "heads", "seq", "head_dim"))
    check_positions(positions, x)
    if frequency.dtype != np.float32:
        raise DTypeError(mismatch("frequency", frequency.dtype.name, "float32"))
    check_shape("frequency", frequency, ("half",))
    if 2 * frequency.shape[0] > x.shape[3]:
        expected = f"at most {x.shape[3] // 2}, half of head_dim {x.shape[3]}"
        raise ShapeError(mismatch("frequency", tuple(frequency.shape), expected))
    if not np.isfinite(magnitude):
        raise ArgumentError(mismatch("magnitude", magnitude, "a finite number"))


def check_positions(positions: Array, x: Array) -> None:
    """Raise unless `positions` are integers, one for each token of `x`."""
    if positions.dtype.kind not in "iu":
        raise DTypeError(mismatch("positions", positions.dtype.name, "an integer array"))
    check_shape("positions", positions, (x.shape[0], x.shape[2]))


def positions_of(positions: Array) -> Array:
    """Return positions as the kernels read them: int32 with a contiguous last axis."""
    import cupy

    if positions.dtype != np.int32:
        positions = positions.astype(np.int32)
    return positions if positions.strides[1] == 4 else cupy.ascontiguousarray(positions)


def _launch(
    x: Array,
    positions: Array,
    frequency: Array,
    *,
    interleaved: bool,
    magnitude: float,
    out: Array | None,
) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    from stof_cupy.jit.launch import kernel

    device = x.device.id
    with cupy.cuda.Device(device):
        run = kernel(spec_of(device_dtype("x", x), interleaved), device)
        if out is None:
            out = empty_in_order_of(x, x.shape)
        if not out.size:
            return out
        # Named, because a copy has to live until the kernel has been launched.
        given, places, steps = unit_last(x), positions_of(positions), unit_last(frequency)
        blocks, fields = arguments(given, places, steps, out, magnitude)
        run((blocks,), run.pack(**fields))
    return out


def arguments(
    x: Array, positions: Array, frequency: Array, out: Array, magnitude: float
) -> tuple[int, dict[str, Any]]:
    """Return the blocks and the kernel's parameters."""
    batch, heads, seq, head_dim = x.shape
    half = frequency.shape[0]
    steps = [[s // y.itemsize for s in y.strides[:3]] for y in (x, out)]
    axes = ("batch", "head", "seq")
    fields: dict[str, Any] = {
        "x": pointer(x),
        "positions": pointer(positions),
        "frequency": pointer(frequency),
        "out": pointer(out),
        **{f"x_{axis}": step for axis, step in zip(axes, steps[0], strict=True)},
        **{f"out_{axis}": step for axis, step in zip(axes, steps[1], strict=True)},
        "position_batch": positions.strides[0] // positions.itemsize,
        "rows": batch * heads * seq,
        "heads": heads,
        "seq": seq,
        "half": half,
        "head_dim": head_dim,
        "wide": aligned(x, 16, *steps[0], half) and aligned(out, 16, *steps[1]),
        "magnitude": magnitude,
    }
    chunks = -(-half // 8) + -(-(head_dim - 2 * half) // 16)
    return -(-batch * heads * seq * chunks // 128), fields
