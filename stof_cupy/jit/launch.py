"""Kernels on a device: loaded once, launched with one by-value struct.

The only module that touches :class:`cupy.RawModule`.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy import env
from stof_cupy.errors import ArgumentError, UnsupportedError, mismatch
from stof_cupy.jit import device
from stof_cupy.jit.cache import Store
from stof_cupy.jit.dependent import DependentLaunch, Function
from stof_cupy.jit.spec import TENSOR_MAP, KernelSpec

__all__ = ["Kernel", "kernel", "loaded", "rehearsal", "store", "wants_near"]

_DEFAULT_SMEM_LIMIT = 48 * 1024
_OVERLAPS_FROM = 90
"""The architecture from which on a kernel may be launched before the one before has ended."""
_CODES = {"u8": "Q", "i8": "q", "i4": "i", "u4": "I", "f4": "f", TENSOR_MAP: "128s"}
"""Of `struct`, by those of `KernelSpec.params`."""

_kernels: dict[tuple[KernelSpec, int], Kernel] = {}
_lock = threading.Lock()
_rehearsed: ContextVar[dict[KernelSpec, None] | None] = ContextVar("_rehearsed", default=None)
_near: ContextVar[bool] = ContextVar("_near", default=False)


class Kernel:
    """A kernel loaded on one device; made by :func:`kernel`.

    Parameters
    ----------
    spec : KernelSpec
    function : callable
        The loaded symbol.
    """

    def __init__(self, spec: KernelSpec, function: Function) -> None:
        self.spec = spec
        self._function = function
        self._block = (spec.threads, 1, 1)
        self._dtype = spec.params_dtype()
        names = tuple(name for name, _ in spec.params)
        self._names = frozenset(names)
        self._values = itemgetter(*names) if len(names) > 1 else lambda x: (x[names[0]],)
        self._struct = _struct_of(spec, self._dtype)

    @property
    def handle(self) -> int:
        """The driver's ``CUfunction``."""
        return self._function.ptr

    def pack(self, **fields: Any) -> np.void:
        """Return `Params` with these fields.

        Parameters
        ----------
        **fields : int or float
            All fields of the spec; pointers as integers (``array.data.ptr``).

        Raises
        ------
        ArgumentError
            If a field is missing or unknown.
        OverflowError
            If a value does not fit its field.
        """
        if fields.keys() != self._names:
            name = f"params of {self.spec.name}"
            raise ArgumentError(mismatch(name, sorted(fields), sorted(self._names)))
        values = self._values(fields)
        # A void scalar: CuPy passes it by value, as it does a size-1 array, but faster.
        packed: np.void
        if self._struct is None:
            packed = np.array([values], self._dtype)[0]
            return packed
        stored = bytearray(self._dtype.itemsize)
        try:
            self._struct.pack_into(stored, 0, *values)
        except struct.error as error:
            raise OverflowError(f"params of {self.spec.name}: {error}") from error
        packed = np.frombuffer(stored, self._dtype)[0]
        return packed

    def __call__(self, grid: tuple[int, ...], params: np.void) -> None:
        """Launch on CuPy's current stream; the kernel's device must be the current one.

        Parameters
        ----------
        grid : tuple of int
            One to three block counts. A zero among them launches nothing.
        params : numpy.void
            From :meth:`pack`.
        """
        # CuPy would turn a zero into a one.
        if 0 not in grid:
            self._function(grid, self._block, (params,), shared_mem=self.spec.smem_bytes)


def _struct_of(spec: KernelSpec, dtype: np.dtype[Any]) -> struct.Struct | None:
    """Return what packs `Params` many times as fast as NumPy; None if a field is an array."""
    fields: Mapping[str, Any] = dtype.fields or {}
    codes, end = "=", 0
    for name, code in spec.params:
        if code not in _CODES:
            return None
        field, offset = fields[name][:2]
        codes += f"{offset - end}x{_CODES[code]}"
        end = offset + field.itemsize
    return struct.Struct(f"{codes}{dtype.itemsize - end}x")


def kernel(spec: KernelSpec, device_id: int | None = None) -> Kernel:
    """Return the kernel of `spec` on a device, compiling and loading it at the first call.

    Parameters
    ----------
    spec : KernelSpec
    device_id : int, optional
        Default: CuPy's current device.

    Raises
    ------
    DeviceError, MissingDependencyError
        If there is no such device, or no CuPy or NVRTC.
    UnsupportedError
        If the kernel is not for the device's architecture or needs more shared memory than it has.
    CompileError
        See :func:`~stof_cupy.jit.compile.compile_cubin`.
    """
    wanted = _rehearsed.get()
    if wanted is not None:
        wanted[spec] = None
        return Kernel(spec, _Nothing())
    if device_id is None:
        device_id = device.current()
    found = _kernels.get((spec, device_id))
    if found is None:
        with _lock:
            found = _kernels.get((spec, device_id))
            if found is None:
                found = _kernels[spec, device_id] = _load(spec, device_id)
    return found


def loaded() -> list[str]:
    """Return the names of the kernels that this process has loaded, sorted."""
    with _lock:
        return sorted({spec.name for spec, _ in _kernels})


@contextmanager
def rehearsal(*, near: bool = False) -> Iterator[dict[KernelSpec, None]]:
    """Give the kernels, as keys, that this thread asks for meanwhile; none is compiled or launched.

    What would have been computed is not: arrays hold what was in their memory before. So nothing
    may be run in it that keeps what it computes.

    Parameters
    ----------
    near : bool
        Whether who chooses among kernels is to ask for those too that are expected to take little
        longer, as another length may take them: see `wants_near`.

    Examples
    --------
    >>> from stof_cupy.jit import catalogue
    >>> with rehearsal() as wanted:
    ...     norm = kernel(catalogue.layer_norm("float16"), 0)
    >>> [spec.name for spec in wanted]
    ['layer_norm_f16']
    """
    wanted: dict[KernelSpec, None] = {}
    tokens = _rehearsed.set(wanted), _near.set(near)
    try:
        yield wanted
    finally:
        _rehearsed.reset(tokens[0])
        _near.reset(tokens[1])


def wants_near() -> bool:
    """Whether this is a rehearsal that asks for more kernels than would be run."""
    return _near.get()


class _Nothing:
    """In the place of a kernel's function in a rehearsal."""

    ptr = 0

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch nothing."""


def _load(spec: KernelSpec, device_id: int) -> Kernel:
    import cupy

    facts = device.facts(device_id)
    if spec.smem_bytes > facts.smem_per_block_optin:
        expected = f"at most {facts.smem_per_block_optin} on {facts.name}"
        raise UnsupportedError(mismatch(f"smem_bytes of {spec.name}", spec.smem_bytes, expected))
    entry = store().get(spec, facts.arch)
    with cupy.cuda.Device(device_id):
        raw = cupy.RawModule(path=str(entry.path)).get_function(spec.symbol)
        if spec.smem_bytes > _DEFAULT_SMEM_LIMIT:
            raw.max_dynamic_shared_size_bytes = spec.smem_bytes
        # RawKernel looks its function up by current device at every launch and would load a second
        # one, without the limit above, on another device; the function itself refuses that.
        overlaps = int(facts.arch.rstrip("af")) >= _OVERLAPS_FROM and env.OVERLAP.get() != "0"
        return Kernel(spec, DependentLaunch(raw.kernel) if overlaps else raw.kernel)


def store() -> Store:
    """Return the store that kernels are loaded from."""
    return _store(env.cache_dir("kernels"))


@cache
def _store(root: Path) -> Store:
    return Store(root)
