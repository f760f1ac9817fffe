"""bfloat16 through DLPack, as uint16.

NumPy and CuPy do not take part in DLPack for bfloat16, so it travels as uint16: the type code in
the tensor descriptor is rewritten between producer and consumer, and this side reads the bits as
``ml_dtypes.bfloat16``.
"""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["Bits"]

# DLDataTypeCode: int, uint, float, bool, which NumPy and CuPy read, and bfloat.
_UINT, _BFLOAT = 1, 4
_CODES = (0, _UINT, 2, 6, _BFLOAT)

# Byte offset of DLTensor.dtype.code from the pointer in a capsule. DLTensor is {data, device{type,
# id}, ndim, dtype, ...}; the versioned struct puts {version, manager_ctx, deleter, flags} before
# it.
_CODE_OFFSET = {b"dltensor": 20, b"dltensor_versioned": 52}


class Bits:
    """A DLPack producer that passes another one through, with bfloat16 relabelled on the way.

    From a foreign array bfloat16 goes out as uint16, noted in `is_bfloat16`; an array of ours that
    `is_bfloat16`, given as its uint16 bits, goes out as bfloat16. A capsule's descriptor is made
    for that capsule alone, so changing it is safe.
    """

    def __init__(self, array: Any, *, is_bfloat16: bool = False) -> None:
        self._array = array
        self._new_code = _BFLOAT if is_bfloat16 else None
        self.is_bfloat16 = is_bfloat16

    def __dlpack_device__(self) -> tuple[int, int]:
        device_type, device_id = self._array.__dlpack_device__()
        return int(device_type), int(device_id)

    def __dlpack__(self, **how: Any) -> Any:
        capsule = self._array.__dlpack__(**how)
        code = _type_code(capsule)
        if code.value not in _CODES:  # CuPy 13 crashes on those it does not know
            raise BufferError(f"elements of DLPack type code {code.value}")
        if self._new_code is not None:
            code.value = self._new_code
        elif code.value == _BFLOAT:
            code.value = _UINT
            self.is_bfloat16 = True
        return capsule


def _type_code(capsule: Any) -> ctypes.c_uint8:
    """Return the type code in a DLPack capsule's descriptor, writable in place."""
    api = ctypes.pythonapi
    get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", api)
    )
    name = get_name(capsule)
    return ctypes.c_uint8.from_address(get_pointer(capsule, name) + _CODE_OFFSET[name])
