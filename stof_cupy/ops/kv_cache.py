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
    is_cupy,
    pointer,
    unit_last,
)
from stof_cupy.ops.rotary import check_positions, positions_of

__all__ = ["arguments", "check_cache", "write_cache", "write_caches"]


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
    where = check_cache(x, cache, positions, ring)
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


def write_caches(
    k: Array,
    v: Array,
    cache: Array,
    value_cache: Array,
    positions: Array,
    *,
    ring: bool = False,
) -> None:
    """Write keys and values as `write_cache` does, where they and their caches fit in one launch.

    Raises
    ------
    ArgumentError, ShapeError, DTypeError, DeviceError, UnsupportedError
        As `write_cache`.
    """
    same = k.shape == v.shape and cache.shape == value_cache.shape
    if not is_cupy(k) or not same or cache.strides != value_cache.strides:
        write_cache(k, cache, positions, ring=ring)
        write_cache(v, value_cache, positions, ring=ring)
        return
    for x, to in ((k, cache), (v, value_cache)):
        check_cache(x, to, positions, ring)
    check_no_overlap(cache, value_cache=value_cache, v=v)
    check_no_overlap(value_cache, k=k)
    _launch(k, cache, positions, ring, v, value_cache)


def check_cache(x: Array, cache: Array, positions: Array, ring: bool) -> str:
    """Check all that `write_cache` takes but the positions' values; return the backend."""
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
    return where


def _launch(
    x: Array,
    cache: Array,
    positions: Array,
    ring: bool = False,
    values: Array | None = None,
    value_cache: Array | None = None,
) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    from stof_cupy.jit.launch import kernel

    device = x.device.id
    with cupy.cuda.Device(device):
        run = kernel(spec_of(device_dtype("x", x)), device)
        if x.size:
            # Named, because a copy has to live until the kernel has been launched.
            given, places = unit_last(x), positions_of(positions)
            second = None if values is None else unit_last(values)
            blocks, fields = arguments(given, cache, places, ring, second, value_cache)
            run((blocks,), run.pack(**fields))
    return cache


def arguments(
    x: Array,
    cache: Array,
    positions: Array,
    ring: bool = False,
    values: Array | None = None,
    value_cache: Array | None = None,
) -> tuple[int, dict[str, Any]]:
    """Return the blocks and the kernel's parameters."""
    batch, heads, seq, head_dim = x.shape
    others = [(x, cache)] if values is None else [(x, cache), (values, value_cache)]
    steps = [[s // x.itemsize for s in given.strides[:3]] for given, _ in others]
    to_steps = [s // x.itemsize for s in cache.strides[:3]]
    axes = ("batch", "head", "seq")
    fields: dict[str, Any] = {
        "x": pointer(x),
        "values": pointer(values),
        "positions": pointer(positions),
        "cache": pointer(cache),
        "value_cache": pointer(value_cache),
        **{f"x_{axis}": step for axis, step in zip(axes, steps[0], strict=True)},
        **{f"values_{axis}": step for axis, step in zip(axes, steps[-1], strict=True)},
        **dict(zip(("cache_batch", "cache_head", "cache_key"), to_steps, strict=True)),
        "position_batch": positions.strides[0] // positions.itemsize,
        "rows": batch * heads * seq,
        "heads": heads,
        "seq": seq,
        "keys": cache.shape[2],
        "head_dim": head_dim,
        "wide": all(
            aligned(given, 16, *step) and aligned(to, 16, *to_steps)
            for (given, to), step in zip(others, steps, strict=True)
        ),
        "ring": ring,
    }
    return -(-len(others) * batch * heads * seq * -(-head_dim // 8) // 128), fields
