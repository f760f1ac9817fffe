"""Stub -> cubin, and the rules a cubin must meet: no register spills, no serialised wgmma."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stof_cupy.errors import CompileError, UnsupportedError, mismatch
from stof_cupy.jit import nvrtc
from stof_cupy.jit.source import cuda_root, stub
from stof_cupy.jit.spec import KernelSpec

__all__ = ["FLAGS", "Cubin", "compile_cubin"]

FLAGS = ("-std=c++17", "-default-device", "-ftz=true", "-lineinfo", "--ptxas-options=-v")
"""Options of every kernel, besides the architecture and the include path.

None may be given twice (NVRTC up to 12.8 refuses that). ``-v`` is what puts registers and spills
into the log.
"""

_REGISTERS = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")
_SERIALISED = re.compile(r"\bC75\d\d\b")


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel.

    Attributes
    ----------
    image : bytes
        The ELF that the driver loads.
    log : str
        What NVRTC and ptxas said.
    registers : int
        Per thread.
    spill_bytes : int
        Spill stores and loads.
    smem_bytes : int
        Shared memory of a block: what the kernel declares plus the spec's dynamic part.
    """

    image: bytes
    log: str
    registers: int
    spill_bytes: int
    smem_bytes: int


def compile_cubin(
    spec: KernelSpec,
    arch: str,
    library: nvrtc.Library | None = None,
    *,
    root: Path | None = None,
    strict: bool = True,
) -> Cubin:
    """Compile one kernel for one architecture; needs neither a GPU nor a driver.

    Parameters
    ----------
    spec : KernelSpec
    arch : str
        E.g. ``"80"``, ``"90a"``.
    library : nvrtc.Library, optional
        Default: ``nvrtc.load()``.
    root : Path, optional
        The device code. Default: :func:`~stof_cupy.jit.source.cuda_root`.
    strict : bool
        Whether a kernel that spills registers, or whose wgmma ptxas serialises (a C75xx note), is
        an error. It is slow, not wrong: we do not release one, but a user whose NVRTC makes one out
        of a kernel of ours is served.

    Raises
    ------
    UnsupportedError
        If `spec` is not for `arch`, or this NVRTC does not know `arch`.
    CompileError
        If it does not compile, or does so badly and that matters.
    """
    library = library or nvrtc.load()
    if not spec.supports(arch):
        raise UnsupportedError(mismatch(f"arch of {spec.name}", f"sm_{arch}", f"sm_{spec.arch}"))
    if int(arch.rstrip("af")) not in library.archs:
        known = ", ".join(map(str, library.archs))
        version = ".".join(map(str, library.version))
        raise UnsupportedError(mismatch("arch", f"sm_{arch}", f"one of NVRTC {version}: {known}"))
    options = (f"-arch=sm_{arch}", *FLAGS, f"-I{root or cuda_root()}")
    image, log = library.compile(stub(spec, root), f"{spec.name}.cu", options)
    return _checked(spec, arch, image, log, strict)


def _checked(spec: KernelSpec, arch: str, image: bytes, log: str, strict: bool) -> Cubin:
    """Read the ptxas report in `log` and enforce the rules."""
    registers = _REGISTERS.findall(log)
    spills = sum(map(int, _SPILLS.findall(log)))
    if not registers:
        raise CompileError(
            f"{spec.name} for sm_{arch}: no register count in the log of NVRTC\n{log}"
        )
    if strict and spills:
        raise CompileError(f"{spec.name} for sm_{arch}: spills registers, {spills} bytes\n{log}")
    if strict and _SERIALISED.search(log):
        raise CompileError(f"{spec.name} for sm_{arch}: ptxas serialised wgmma (C75xx)\n{log}")
    static_smem = max(map(int, _SMEM.findall(log)), default=0)
    return Cubin(image, log, max(map(int, registers)), spills, static_smem + spec.smem_bytes)
