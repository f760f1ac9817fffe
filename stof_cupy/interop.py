"""Arrays in and out through DLPack, without a copy where the device allows.

Whatever a user holds comes in as a NumPy or a CuPy array and goes back as the same kind. The order
of work between streams is DLPack's: the producer makes CuPy's current stream wait for its own, and
on the way out CuPy does that for the consumer's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from stof_cupy.dlpack import Bits
from stof_cupy.dtypes import as_dtype, dtype_name, is_float
from stof_cupy.errors import DTypeError, MissingDependencyError, mismatch

__all__ = ["Origin", "cupy_origins", "export_array", "import_array", "to_device"]

# DLDeviceType: memory that NumPy can read, and memory that CuPy can.
_CPU, _CUDA = 1, 2
_HOST_DEVICES = (_CPU, 3)  # kDLCPU, kDLCUDAHost (pinned)
_CUDA_DEVICES = (_CUDA, 13)  # kDLCUDA, kDLCUDAManaged


@dataclass(frozen=True)
class Origin:
    """What an imported array was, so that a result can go back as the same kind.

    Attributes
    ----------
    kind : str
        ``"numpy"``, ``"cupy"``, ``"torch"``, ``"jax"``, or ``"dlpack"`` for any other producer.
    device : tuple of int
        DLPack's ``(device_type, device_id)``.
    """

    kind: str
    device: tuple[int, int] = (_CPU, 0)

    @property
    def on_cuda(self) -> bool:
        """Whether the array was in memory that CUDA kernels reach."""
        return self.device[0] in _CUDA_DEVICES


_origin = cache(Origin)  # lists have many arrays, and a run waits until all have been looked at


def import_array(x: Any, name: str = "x") -> tuple[Any, Origin]:
    """Take an array of any library as a NumPy or CuPy array.

    Parameters
    ----------
    x : object
        A NumPy or CuPy array, an object with ``__dlpack__`` (torch, JAX, ...) on the CPU or a CUDA
        device, or an array-like such as nested lists of numbers. Elements: bool, integers, float16,
        bfloat16, float32 or float64.
    name : str
        How the caller calls it; used in errors.

    Returns
    -------
    array : numpy.ndarray or cupy.ndarray
        The same memory as `x` (array-likes excepted), safe to use on CuPy's current stream. May be
        read-only.
    origin : Origin
        For :func:`export_array`.

    Raises
    ------
    DTypeError
        If `x` is no array, has elements of another type, or cannot be shared without a copy.
    MissingDependencyError
        If `x` is in CUDA memory and CuPy is not installed.

    Examples
    --------
    >>> array, origin = import_array([[101, 2023, 102]])
    >>> array.shape, origin.kind
    ((1, 3), 'numpy')
    """
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        array, origin = x, _origin("cupy", (_CUDA, x.device.id))
    elif isinstance(x, (np.ndarray, np.generic)) or not hasattr(x, "__dlpack__"):
        array, origin = _from_array_like(x, name), _origin("numpy")
    else:
        array, origin = _from_dlpack(x, name)
    if not _is_element(array.dtype):
        raise DTypeError(mismatch(name, array.dtype, _ELEMENTS))
    return array, origin


def cupy_origins(xs: Sequence[Any]) -> Sequence[Origin] | None:
    """Return what `import_array` would say of arrays, if all are CuPy's and none is refused.

    Looked at together they take a fraction of the time, which a run of many sequences waits for.
    """
    cupy = sys.modules.get("cupy")
    if cupy is None or {*map(type, xs)} != {cupy.ndarray}:
        return None
    if not all(map(_is_element, {x.dtype for x in xs})):
        return None
    devices = [x.device.id for x in xs]
    origins = {number: _origin("cupy", (_CUDA, number)) for number in {*devices}}
    return [origins[number] for number in devices]


def export_array(a: Any, origin: Origin) -> Any:
    """Give a result back as the kind of array that came in, on the device it came from.

    Parameters
    ----------
    a : numpy.ndarray or cupy.ndarray
        The result. Its memory is shared with the returned array if it already lies on the origin's
        device, can be written, and has strides the consumer takes; otherwise it is copied.
    origin : Origin
        From :func:`import_array`.

    Returns
    -------
    object
        A NumPy, CuPy, torch or JAX array; for ``"dlpack"`` origins the NumPy or CuPy array, which
        every consumer of DLPack takes. The consumer's current stream waits for the work queued on
        CuPy's.

    Examples
    --------
    >>> _, origin = import_array(np.zeros(3, np.float32))
    >>> export_array(np.arange(3), origin)
    array([0, 1, 2])
    """
    if origin.on_cuda:
        a = to_device(a, origin.device[1])
    elif not isinstance(a, np.ndarray):
        a = a.get()
    if origin.kind not in ("torch", "jax"):
        return a
    a = _shareable(a, strided=origin.kind == "torch")
    is_bfloat16 = dtype_name(a.dtype) == "bfloat16"
    bits = Bits(a.view(np.uint16) if is_bfloat16 else a, is_bfloat16=is_bfloat16)
    module = sys.modules[origin.kind]
    return (module if origin.kind == "torch" else module.numpy).from_dlpack(bits)


def to_device(a: Any, device: int) -> Any:
    """Return a NumPy or CuPy array as a CuPy array on a device, copied unless it is there already.

    Parameters
    ----------
    a : numpy.ndarray or cupy.ndarray
        A copy from another device waits for the work queued on that device's current stream, and
        work queued there later waits for the copy.
    device : int
        CUDA device.

    Returns
    -------
    cupy.ndarray
        Safe to use on its device's current stream.
    """
    if not isinstance(a, np.ndarray) and a.device.id == device:
        return a
    cupy = _cupy("a")
    if isinstance(a, np.ndarray):
        with cupy.cuda.Device(device):
            return cupy.asarray(a)
    with a.device:
        a = cupy.asarray(a, order="C")  # CuPy copies nothing else between devices
        source = cupy.cuda.get_current_stream()
        written = source.record()
        with cupy.cuda.Device(device):
            stream = cupy.cuda.get_current_stream()
            stream.wait_event(written)
            copy = a.copy()
            read = stream.record()
        # The memory of `a` may be overwritten, or be another array's, as soon as this returns.
        source.wait_event(read)
    return copy


_ELEMENTS = "bool, integers, float16, bfloat16, float32 or float64 in native byte order"


def _is_element(dtype: np.dtype[Any]) -> bool:
    return dtype.isnative and (dtype.kind in "biu" or is_float(dtype))


def _from_array_like(x: Any, name: str) -> np.ndarray[Any, Any]:
    """Take a NumPy array or what NumPy can make one of."""
    if isinstance(x, np.ma.MaskedArray):
        hint = "fill it first: x.filled()"
        raise DTypeError(mismatch(name, "a masked array", "a plain one", hint))
    if hasattr(x, "__cuda_array_interface__"):  # np.asarray would quietly copy it to the host
        kind = type(x).__name__
        raise DTypeError(mismatch(name, kind, "an array with __dlpack__", "use cupy.asarray(x)"))
    try:
        array = np.asarray(x)
    except (TypeError, ValueError) as error:
        ragged = isinstance(x, (list, tuple))
        hint = "its rows differ in shape" if ragged else str(error)
        raise DTypeError(mismatch(name, type(x).__name__, "an array", hint)) from error
    if array.dtype.kind not in "biuf" and not is_float(array.dtype):
        given = f"{type(x).__name__} (as an array: {array.dtype})"
        raise DTypeError(mismatch(name, given, f"an array of {_ELEMENTS}"))
    return array


def _from_dlpack(x: Any, name: str) -> tuple[Any, Origin]:
    """Take what another library produced, in place."""
    kind = _kind(x)
    given = f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}"
    if kind == "torch" and x.requires_grad:
        x = x.detach()  # inference: torch would refuse to hand out a tensor of its autograd graph
    try:
        device_type, device_id = map(int, x.__dlpack_device__())
        if device_type in _CUDA_DEVICES:
            consumer: Any = _cupy(name)
        elif device_type in _HOST_DEVICES:
            consumer = np
        else:
            memory = f"memory of DLPack device type {device_type}"
            raise DTypeError(mismatch(name, memory, "CPU or CUDA memory"))
        bits = Bits(x)
        array = consumer.from_dlpack(bits)
    except (DTypeError, MissingDependencyError):
        raise
    # Producers and consumers refuse in every way there is (BufferError, RuntimeError, TypeError,
    # ValueError, their own types); each of them means that this object is not one we can take.
    except Exception as error:
        given += f" of {x.dtype}" if hasattr(x, "dtype") else ""
        hint = f"DLPack: {error}"
        raise DTypeError(mismatch(name, given, f"an array of {_ELEMENTS}", hint)) from error
    if bits.is_bfloat16:
        array = array.view(as_dtype("bfloat16"))
    return array, Origin(kind, (device_type, device_id))


def _kind(x: Any) -> str:
    for kind, cls in (("torch", "Tensor"), ("jax", "Array")):
        module = sys.modules.get(kind)
        if module is not None and isinstance(x, getattr(module, cls)):
            return kind
    return "dlpack"


def _cupy(name: str) -> Any:
    try:
        import cupy
    except ImportError as error:
        hint = "for the former pip install 'stof-cupy[cuda12]' or 'stof-cupy[cuda13]'"
        message = mismatch(name, "an array in CUDA memory", "one in CPU memory", hint)
        raise MissingDependencyError(message) from error
    return cupy


def _shareable(a: Any, *, strided: bool) -> Any:
    """Return `a`, or a copy if another library must not or cannot use its memory.

    torch aborts the process on negative strides, and would write to read-only memory; JAX takes
    contiguous arrays only.
    """
    writable = getattr(a.flags, "writeable", True)  # CuPy arrays always are
    fits = min(a.strides, default=0) >= 0 if strided else a.flags.c_contiguous
    return a if writable and fits else a.copy()
