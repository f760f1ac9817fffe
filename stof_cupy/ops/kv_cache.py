"""Keys and values of earlier tokens, kept for those that follow."""

from __future__ import annotations

from typing import Any

from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.jit.decoder_kernels import kv_cache as spec_of
from stof_cupy.ops._arrays import (
    Array,
    aligned,
    backend,
    check_dtype,
    check_no_overlap,
    check_shape,
    device_dtype,
    pointer,
    unit_last,
)
from stof_cupy.ops.rotary import check_positions, positions_of

__all__ = ["arguments", "write_cache"]


def write_cache(x: Array, cache: Array, positions: Array, *, ring: bool = False) -> Array:
    """Write keys or values into a cache, each at its position, and return the cache.

    Parameters
    ----------
    x : ndarray
        Shape ``(batch, heads, seq, head_dim)``; NumPy or CuPy. On CUDA float16 or bfloat16, on
        NumPy any float.
    cache : ndarray
        Shape ``(batch, heads, keys, head_dim)``, dtype of `x`, contiguous last axis. Changed in
        place.
    positions : ndarray of int
        Shape ``(batch, seq)``: the key that each token becomes.
    ring : bool
        Whether a position beyond the cache takes the place of an earlier one, ``position % keys``:
        such a cache holds the last `keys` tokens.

    Returns
    -------
    ndarray
        `cache`.

    Raises
    ------
    ArgumentError
        If a position lies outside the cache. On CUDA that would need a synchronisation, so there
        the token is not written.
    ShapeError, DTypeError, DeviceError
        If an argument does not fit, or there are more tokens than a ring has keys; nothing has been
        written then.
    UnsupportedError
        If there is no kernel for the dtype.

    Examples
    --------
    >>> import numpy as np
    >>> cache = np.zeros((1, 1, 3, 2), np.float32)
    >>> write_cache(np.ones((1, 1, 1, 2), np.float32), cache, np.array([[1]]))[0, 0].tolist()
    [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    """
    where = backend(x=x, cache=cache, positions=positions)
    check_dtype("x", x)
    check_shape("x", x, ("batch", "heads", "seq", "head_dim"))
    check_dtype("cache", cache, x, "x")
    check_shape("cache", cache, (*x.shape[:2], "keys", x.shape[3]))
    check_positions(positions, x)
    check_no_overlap(cache, x=x, positions=positions)
    if ring and x.shape[2] > cache.shape[2]:
        got, expected = f"{x.shape[2]} tokens", f"at most {cache.shape[2]}, the keys of a ring"
        raise ShapeError(mismatch("x", got, expected))
    if where == "numpy":
        keys = cache.shape[2]
        low, high = (positions.min(), positions.max()) if positions.size else (0, 0)
        if low < 0 or (high >= keys and not ring):
            expected = "0 or more" if ring else f"from 0 to {keys - 1}"
            raise ArgumentError(mismatch("positions", int(low if low < 0 else high), expected))
        for one, at, row in zip(cache, positions, x, strict=True):
            one[:, at % keys] = row
        return cache
    return _launch(x, cache, positions, ring)


def _launch(x: Array, cache: Array, positions: Array, ring: bool = False) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    from stof_cupy.jit.launch import kernel

    device = x.device.id
    with cupy.cuda.Device(device):
        run = kernel(spec_of(device_dtype("x", x)), device)
        if x.size:
            # Named, because a copy has to live until the kernel has been launched.
            given, places = unit_last(x), positions_of(positions)
            blocks, fields = arguments(given, cache, places, ring)
            run((blocks,), run.pack(**fields))
    return cache


def arguments(
    x: Array, cache: Array, positions: Array, ring: bool = False
) -> tuple[int, dict[str, Any]]:
    """Return the blocks and the kernel's parameters."""
    batch, heads, seq, head_dim = x.shape
    from_steps = [s // x.itemsize for s in x.strides[:3]]
    to_steps = [s // x.itemsize for s in cache.strides[:3]]
    fields: dict[str, Any] = {
        "x": pointer(x),
        "positions": pointer(positions),
        "cache": pointer(cache),
        **dict(zip(("x_batch", "x_head", "x_seq"), from_steps, strict=True)),
        **dict(zip(("cache_batch", "cache_head", "cache_key"), to_steps, strict=True)),
        "position_batch": positions.strides[0] // positions.itemsize,
        "rows": batch * heads * seq,
        "heads": heads,
        "seq": seq,
        "keys": cache.shape[2],
        "head_dim": head_dim,
        "wide": aligned(x, 16, *from_steps) and aligned(cache, 16, *to_steps),
        "ring": ring,
    }
    return -(-batch * heads * seq * -(-head_dim // 8) // 128), fields
