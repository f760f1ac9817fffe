"""The few NVRTC calls that turn CUDA C++ into a cubin, bound with ctypes.

They need neither CuPy nor a driver. CuPy's own path is not used because it asks the driver even
when the architecture is given, and cannot name ``sm_90a``.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from stof_cupy import env
from stof_cupy.errors import CompileError, DeviceError, MissingDependencyError

__all__ = ["Library", "load"]

_CUDA_PATH = env.Variable("CUDA_PATH", "/usr/local/cuda", "Where a CUDA toolkit is installed.")
_SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
_WHEEL_DIRS = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib")
_SUCCESS, _COMPILATION_FAILED = 0, 6
_OWN_CACHE = (12, 9)
"""From this version on NVRTC keeps cubins itself, and a hit comes without the log we judge by."""


class Library:
    """One loaded libnvrtc.

    Parameters
    ----------
    path : str or Path
        The shared library, or a bare name for the loader to find.

    Attributes
    ----------
    path : str
    version : tuple of (int, int)
        E.g. ``(12, 9)``.
    archs : tuple of int
        What it compiles for, ascending: ``(75, 80, 86, ...)``.

    Raises
    ------
    OSError
        If the library cannot be loaded.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lib = ctypes.CDLL(self.path)
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", archs)
        self.archs = tuple(sorted(archs))

    def __repr__(self) -> str:
        return f"Library({self.path!r}, version {self.version[0]}.{self.version[1]})"

    def compile(self, source: str, name: str, options: Sequence[str]) -> tuple[bytes, str]:
        """Compile a translation unit for one real architecture.

        Parameters
        ----------
        source : str
            CUDA C++.
        name : str
            File name for messages.
        options : sequence of str
            They must name one ``-arch=sm_*``, and, for NVRTC up to 12.8, nothing twice.

        Returns
        -------
        tuple of (bytes, str)
            The cubin and the compiler's log.

        Raises
        ------
        CompileError
            If it does not compile; the message carries the log.
        """
        if self.version >= _OWN_CACHE:
            options = (*options, "--no-cache")
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.encode(),
            name.encode(),
            0,
            None,
            None,
        )
        try:
            args = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._lib.nvrtcCompileProgram(program, len(options), args)
            log = self._read(program, "nvrtcGetProgramLog").rstrip(b"\0\n").decode(errors="replace")
            if status != _SUCCESS:
                reason = "" if status == _COMPILATION_FAILED else f" ({self._error(status)})"
                raise CompileError(f"{name} does not compile{reason}\n{log}")
            return self._read(program, "nvrtcGetCUBIN"), log
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, getter: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{getter}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(getter, program, buffer)
        return buffer.raw

    def _error(self, status: int) -> str:
        text: bytes = self._lib.nvrtcGetErrorString(status)
        return text.decode()

    def _call(self, function: str, *args: object) -> None:
        status = getattr(self._lib, function)(*args)
        if status != _SUCCESS:
            raise DeviceError(f"{function} of {self.path}: {self._error(status)}")


def load(path: str | Path | None = None) -> Library:
    """Return the NVRTC to compile with, loaded once per path.

    Parameters
    ----------
    path : str or Path, optional
        The library. Default: ``STOF_NVRTC``, else what cuda.pathfinder names (CuPy asks it too),
        else the first found in the NVIDIA wheels, below ``CUDA_PATH``, or by the loader.

    Raises
    ------
    DeviceError
        If a library was named and cannot be loaded.
    MissingDependencyError
        If none was named and none is found.
    """
    return _load(str(path or env.NVRTC.get()))


@cache
def _load(path: str) -> Library:
    for candidate in (path,) if path else _candidates():
        try:
            return Library(candidate)
        except OSError as error:
            if path:
                raise DeviceError(f"cannot load the NVRTC named by the caller: {error}") from error
    raise MissingDependencyError(
        "no NVRTC found to compile kernels with; pip install 'stof-cupy[cuda13]' (or [cuda12] for "
        f"a CUDA 12 driver), or set {env.NVRTC.name} to the path of a libnvrtc"
    )


def _candidates() -> Iterator[str]:
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        pass
    else:
        try:
            found = load_nvidia_dynamic_lib("nvrtc").abs_path
        except DynamicLibNotFoundError:
            found = None
        if found:
            yield found
    folders = [Path(entry) / sub for entry in sys.path for sub in _WHEEL_DIRS]
    folders.append(Path(_CUDA_PATH.get()) / "lib64")
    for soname in _SONAMES:
        yield from (str(folder / soname) for folder in folders if (folder / soname).is_file())
    yield from _SONAMES
