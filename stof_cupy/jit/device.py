"""What is known of a GPU, and which architecture to compile for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from stof_cupy.errors import DeviceError, MissingDependencyError, UnsupportedError, mismatch
from stof_cupy.jit import clusters, nvrtc

__all__ = ["DeviceFacts", "arch_of", "current", "facts", "is_available"]

_OLDEST = (8, 0)


@dataclass(frozen=True)
class DeviceFacts:
    """A GPU in numbers.

    Attributes
    ----------
    name : str
        E.g. ``"NVIDIA H100 80GB HBM3"``.
    arch : str
        What to compile for: ``"90a"``, ``"80"``.
    compute_capability : tuple of (int, int)
    sm_count : int
    smem_per_block_optin : int
        Most shared memory a block can have, in bytes.
    smem_per_sm : int
        In bytes.
    l2_bytes : int
    clock_khz : int
        Peak SM clock.
    memory_bytes : int
    threads_per_sm : int
    memory_clock_khz, memory_bus_bits : int
        Their product, twice and over 8, is the memory's bandwidth in thousand bytes per second; 0
        where the driver does not say.
    driver : int
        Version of CUDA that the driver is for, e.g. 13000.
    clusters : tuple of int
        How many clusters of 1, 2, ... CTAs that have an SM each run at a time; empty where there
        are none, or the driver does not say.
    """

    name: str
    arch: str
    compute_capability: tuple[int, int]
    sm_count: int
    smem_per_block_optin: int
    smem_per_sm: int
    l2_bytes: int
    clock_khz: int
    memory_bytes: int
    threads_per_sm: int = 2048
    memory_clock_khz: int = 0
    memory_bus_bits: int = 0
    driver: int = 0
    clusters: tuple[int, ...] = ()

    def at_once(self, ctas: int) -> int:
        """Return how many clusters of so many CTAs, an SM each, run at a time.

        A cluster lies in one group of the GPU's SMs, and these do not divide by every size.
        """
        if 0 < ctas <= len(self.clusters):
            return self.clusters[ctas - 1]
        return max(1, self.sm_count // ctas)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> DeviceFacts:
        """Return what `dataclasses.asdict` made of facts, after JSON made lists of tuples."""
        found: dict[str, Any] = {
            name: tuple(x) if isinstance(x, list) else x for name, x in stored.items()
        }
        return cls(**found)


def arch_of(cc: tuple[int, int], supported: Iterable[int]) -> str:
    """Return the architecture to compile for a GPU of compute capability `cc`.

    A GPU runs code of a lower minor of its major, so one that NVRTC does not know yet gets the
    nearest lower one. 9.0 gets ``"90a"``, whose wgmma and setmaxnreg exist on no other.

    Parameters
    ----------
    cc : tuple of (int, int)
    supported : iterable of int
        What NVRTC compiles for (:attr:`stof_cupy.jit.nvrtc.Library.archs`).

    Raises
    ------
    UnsupportedError
        If `cc` is below 8.0, or NVRTC knows no architecture of its major.

    Examples
    --------
    >>> arch_of((9, 0), [80, 86, 89, 90]), arch_of((8, 9), [80, 86, 90])
    ('90a', '86')
    """
    if cc < _OLDEST:
        raise UnsupportedError(
            mismatch("GPU", f"compute capability {cc[0]}.{cc[1]}", "8.0 (Ampere) or newer")
        )
    known = [arch for arch in supported if arch // 10 == cc[0] and arch <= cc[0] * 10 + cc[1]]
    if not known:
        got = f"compute capability {cc[0]}.{cc[1]}"
        expected = "one that this NVRTC compiles for: " + ", ".join(map(str, sorted(supported)))
        raise UnsupportedError(mismatch("GPU", got, expected, "install a newer NVRTC"))
    return "90a" if cc == (9, 0) else str(max(known))


def is_available() -> bool:
    """Whether there is a GPU and a CuPy to use it with. Never raises."""
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except Exception:  # a broken driver or CuPy shows itself in many types; all of them mean no GPU
        return False


def current() -> int:
    """Return the number of CuPy's current device.

    Raises
    ------
    MissingDependencyError
        If CuPy is not installed.
    DeviceError
        If there is no device.
    """
    with _typed_errors("none"):
        from cupy.cuda import runtime

        return int(runtime.getDevice())


def facts(device_id: int | None = None) -> DeviceFacts:
    """Return the facts of a device, asked of the driver once.

    Parameters
    ----------
    device_id : int, optional
        Default: CuPy's current device.

    Raises
    ------
    MissingDependencyError
        If CuPy or NVRTC is not installed.
    DeviceError
        If there is no such device.
    UnsupportedError
        See :func:`arch_of`.
    """
    return _facts(current() if device_id is None else device_id)


@contextmanager
def _typed_errors(which: int | str) -> Iterator[None]:
    try:
        from cupy.cuda.runtime import CUDARuntimeError
    except ImportError as error:
        raise MissingDependencyError(
            "CuPy is needed for the CUDA backend; pip install 'stof-cupy[cuda13]' (or [cuda12])"
        ) from error
    try:
        yield
    except CUDARuntimeError as error:
        raise DeviceError(mismatch("device", which, "a CUDA device", str(error))) from error


@cache
def _facts(device_id: int) -> DeviceFacts:
    with _typed_errors(device_id):
        from cupy.cuda import Device, runtime

        properties = runtime.getDeviceProperties(device_id)
        attributes = Device(device_id).attributes
        driver = runtime.driverGetVersion()
        sm_count = attributes["MultiProcessorCount"]
        most = attributes["MaxSharedMemoryPerBlockOptin"]
        counts: tuple[int, ...] = ()
        if properties["major"] >= 9:
            with Device(device_id):
                counts = clusters.active_clusters(sm_count, most)
    cc = (properties["major"], properties["minor"])
    return DeviceFacts(
        name=properties["name"].decode(),
        arch=arch_of(cc, nvrtc.load().archs),
        compute_capability=cc,
        sm_count=sm_count,
        smem_per_block_optin=most,
        smem_per_sm=attributes["MaxSharedMemoryPerMultiprocessor"],
        l2_bytes=attributes["L2CacheSize"],
        clock_khz=attributes["ClockRate"],
        memory_bytes=properties["totalGlobalMem"],
        threads_per_sm=attributes["MaxThreadsPerMultiProcessor"],
        memory_clock_khz=attributes.get("MemoryClockRate", 0),
        memory_bus_bits=attributes.get("GlobalMemoryBusWidth", 0),
        driver=driver,
        clusters=counts,
    )
