"""Leaves that name CuPy arrays: the GPU alone can look into them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from stof_cupy.errors import DeviceError, mismatch
from stof_cupy.masks.bitmap import Words
from stof_cupy.masks.expression import Leaf
from stof_cupy.masks.runs import Runs
from stof_cupy.masks.tiles import Int64s

if TYPE_CHECKING:
    from stof_cupy.masks.device.mask import DeviceMask
    from stof_cupy.masks.mask_stack import MaskStack

__all__ = [
    "DenseArray",
    "DeviceLeaf",
    "DocumentIds",
    "KeyFlags",
    "Stacked",
    "StoredOnDevice",
    "refuse_cpu",
]


def refuse_cpu(label: str) -> NoReturn:
    """Raise the DeviceError of a pattern that the CPU cannot build."""
    hint = "`.to('cuda')` builds it, and `.to('cuda').to('cpu')` brings it back"
    raise DeviceError(mismatch(label, "CuPy arrays", "NumPy arrays, to build it on the CPU", hint))


class DeviceLeaf(Leaf):
    """A leaf that holds validated arguments, CuPy arrays among them, for the kernels."""

    needs_cuda = True

    def _classify(self) -> Runs:
        refuse_cpu(self._label)

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        refuse_cpu(self._label)


class DenseArray(DeviceLeaf):
    """A dense mask, bool ``(*lead, queries, keys)`` of any strides."""

    def __init__(self, array: Any) -> None:
        super().__init__(tuple(array.shape[-2:]), f"dense(<{' x '.join(map(str, array.shape))}>)")
        self.array, self.lead = array, tuple(array.shape[:-2])


class KeyFlags(DeviceLeaf):
    """Keys that every query sees, bool ``(keys,)``."""

    def __init__(self, flags: Any, queries: int) -> None:
        super().__init__((queries, len(flags)), f"key_padding(<of {len(flags)}>)")
        self.flags = flags


class DocumentIds(DeviceLeaf):
    """Documents by the number of each token's, an integer ``(tokens,)``."""

    def __init__(self, ids: Any, causal: bool) -> None:
        label = f"document_ids(<{len(ids)} tokens>{', causal=True' if causal else ''})"
        super().__init__((len(ids), len(ids)), label)
        self.ids, self.causal = ids, causal


class Stacked(DeviceLeaf):
    """Masks of the CPU with leading axes, as an operand of what the GPU builds."""

    def __init__(self, stack: MaskStack) -> None:
        super().__init__(stack.masks[0].shape, "stack")
        self.stack, self.lead = stack, stack.lead


class StoredOnDevice(DeviceLeaf):
    """A mask that has its lists on the device already, as an operand of an expression."""

    def __init__(self, mask: DeviceMask) -> None:
        super().__init__(mask.sides, "mask")
        self.mask, self.lead = mask, mask.lead
