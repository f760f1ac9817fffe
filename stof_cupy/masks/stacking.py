"""Making stacks of masks, and taking whatever can be one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from stof_cupy.dtypes import is_cupy
from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.masks.bsr import BsrMask, as_mask
from stof_cupy.masks.coerce import require_shape
from stof_cupy.masks.dense import dense_on_device
from stof_cupy.masks.device.built import built
from stof_cupy.masks.device.mask import DeviceMask
from stof_cupy.masks.distinct import split
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.mask_stack import MaskStack

__all__ = ["AnyMask", "as_masks", "stack"]

AnyMask: TypeAlias = BsrMask | MaskStack | DeviceMask
"""What `as_masks` returns."""


def stack(masks: Iterable[Any], axis: int = 0) -> MaskStack:
    """Join masks of one shape along a new leading axis.

    Parameters
    ----------
    masks : iterable
        Masks of any kind that `as_mask` takes, or stacks with equal leading axes. Of what is on a
        GPU none: there, arrays and scores have leading axes of their own.
    axis : int
        Where the new axis lies among the leading ones.

    Raises
    ------
    ShapeError
        If shapes or leading axes differ.
    ArgumentError
        If there is no mask, or no such axis.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> per_head = masks.stack([masks.causal(64), masks.full(64)])
    >>> per_batch = masks.stack([masks.document([30, 34]), masks.full(64)])[:, None]
    >>> (per_head & per_batch).shape
    (2, 2, 64, 64)
    """
    every = [each if isinstance(each, MaskStack) else as_mask(each, name="masks") for each in masks]
    if not every:
        raise ArgumentError(mismatch("masks", "none", "at least one"))
    distinct: list[BsrMask] = []
    numbers = []
    for each in every:
        if each.shape != every[0].shape:
            raise ShapeError(mismatch("masks", each.shape, every[0].shape, "all of one shape"))
        own = each.masks if isinstance(each, MaskStack) else (each,)
        places = each.mask_of if isinstance(each, MaskStack) else np.int32(0)
        numbers.append(places + len(distinct))
        distinct.extend(own)
    dims = np.ndim(numbers[0]) + 1
    if not isinstance(axis, int | np.integer) or not -dims <= axis < dims:
        raise ArgumentError(mismatch("axis", axis, f"from {-dims} to {dims - 1}"))
    return MaskStack(distinct, np.stack(numbers, axis))


def as_masks(obj: Any, shape: tuple[int, int, int, int], name: str = "mask") -> AnyMask:
    """Return `obj` as what attention of `shape` takes: one mask, or masks that broadcast to it.

    Parameters
    ----------
    obj : object
        Anything `as_mask` takes, a MaskStack, a DeviceMask, or a boolean array, NumPy's or CuPy's,
        with leading axes or without. What names CuPy arrays is built on the GPU, on CuPy's current
        device.
    shape : tuple of int
        ``(batch, heads, queries, keys)``.
    name : str
        What errors call it.

    Raises
    ------
    MaskError, ShapeError, DTypeError, DeviceError
        If it is not boolean, does not broadcast to `shape`, is nothing that can be a mask, or
        cannot be built on this device.

    Examples
    --------
    >>> as_masks(np.ones((3, 1, 9, 9), bool), (3, 8, 9, 9)).shape  # equal masks: one for all
    (9, 9)
    """
    if hasattr(obj, "ndim") and obj.ndim > 2 and 0 in obj.shape[:-2]:
        _check_lead(tuple(obj.shape), shape, name)
        return BsrMask(shape[2:])  # no batch or head: no mask is ever looked at
    if is_cupy(obj):
        obj = dense_on_device(obj, name)
    on_device = isinstance(obj, DeviceMask) or (isinstance(obj, Pattern) and obj.needs_cuda)
    stacked = isinstance(obj, MaskStack) or (isinstance(obj, np.ndarray) and obj.ndim > 2)
    if not on_device and not stacked:
        return as_mask(obj, shape[2:], name)
    whole = (*obj.lead, *obj.shape) if isinstance(obj, Pattern) else tuple(obj.shape)
    _check_lead(whole, shape, name)
    if isinstance(obj, Pattern):
        return built(obj)
    if isinstance(obj, DeviceMask):
        return obj
    masks = obj if isinstance(obj, MaskStack) else MaskStack(*split(obj, name))
    return masks.masks[0] if len(masks.masks) == 1 else masks


def _check_lead(got: tuple[int, ...], shape: tuple[int, int, int, int], name: str) -> None:
    """Raise ShapeError unless the axes of a mask broadcast to `shape`."""
    if len(got) == 2:
        require_shape(got, shape[2:], name)
    lead = got[:-2]
    pairs = zip(reversed(lead), reversed(shape[:2]), strict=False)
    if got[-2:] != shape[2:] or len(lead) > 2 or any(have not in (1, n) for have, n in pairs):
        hint = "axes of size 1 broadcast; shapes are (batch, heads, queries, keys)"
        raise ShapeError(mismatch(name, got, shape, hint))
