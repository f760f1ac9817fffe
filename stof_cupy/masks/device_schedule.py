"""The work lists of a kernel on a device."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from stof_cupy.errors import ShapeError, mismatch

__all__ = ["DeviceSchedule", "mask_strides"]


@dataclass(frozen=True, eq=False)
class DeviceSchedule:
    """The arrays of a `Schedule` as CuPy arrays of one device.

    Built on the device, there may be more room in them than is listed.

    Attributes
    ----------
    row_ptr, full_ptr, cols, bitmap_id, bitmaps, order, work, mask_of : cupy.ndarray
        As in `Schedule`.
    groups, halves : cupy.ndarray or None
        As in `Schedule`; those that are built on the device have none.
    overflow : int32 cupy.ndarray (1,) or None
        Not 0: the lists are cut off because they did not fit; kernels answer with NaN.
    """

    row_ptr: Any
    full_ptr: Any
    cols: Any
    bitmap_id: Any
    bitmaps: Any
    order: Any
    work: Any
    mask_of: Any
    groups: Any
    halves: Any = None
    overflow: Any = None

    def on_device(self) -> DeviceSchedule:
        """Return itself, as `Schedule.on_device` does for a schedule of the CPU."""
        return self

    def mask_strides(self, batch: int, heads: int) -> tuple[int, int]:
        """Return the strides of `mask_of`, see `Schedule.mask_strides`."""
        return mask_strides(self.mask_of.shape, batch, heads)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (getattr(self, each.name) for each in fields(self))
        return sum(int(array.nbytes) for array in arrays if array is not None)


def mask_strides(lead: tuple[int, ...], batch: int, heads: int) -> tuple[int, int]:
    """Return the strides of an array of masks' numbers, see `Schedule.mask_strides`."""
    if not all(got in (1, size) for got, size in zip(lead, (batch, heads), strict=True)):
        hint = "leading axes are (batch, heads), 1 where one mask serves all"
        raise ShapeError(mismatch("mask", f"leading axes {lead}", (batch, heads), hint))
    return (0 if lead[0] == 1 else lead[1]), (0 if lead[1] == 1 else 1)
