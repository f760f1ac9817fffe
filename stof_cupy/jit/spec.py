"""What one kernel is: a template instance, its parameters, and what the host assumes of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, mismatch

__all__ = ["TENSOR_MAP", "KernelSpec"]

TENSOR_MAP = "V128"
"""Code of a field that is a tensor map, ``stof::ptx::TensorMap``, aligned to 64 bytes."""

_TENSOR_MAP_ALIGNMENT = 64

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ARCH = re.compile(r"\d{2,3}(\+|-\d{2,3}|[af]?)")


@dataclass(frozen=True)
class KernelSpec:
    """One instance of a kernel template, as the host sees it.

    When the kernel is compiled, `threads`, `smem_bytes`, and the size of ``Params`` with the name,
    offset and size of each field, and whether it is a float or a signed integer, are checked
    against the C++ type (see :func:`stof_cupy.jit.source.stub`). The grid of a launch, and what the
    fields hold, are the caller's: nothing checks them.

    Attributes
    ----------
    name : str
        Lower-case identifier, e.g. ``"attention_sm80_f16_d64"``; the symbol is ``stof_<name>``.
    header : str
        Where the template is, relative to ``cuda/``.
    type : str
        The instance: a C++ type with ``Params``, ``kThreads``, ``kSmemBytes``, ``kMinBlocks`` and
        ``static __device__ void run(const Params&, char* smem)``.
    params : tuple of (str, str)
        The fields of ``Params`` in order, each with its NumPy code: pointers are ``"u8"``, ``int``
        ``"i4"``, ``long long`` ``"i8"``, ``float`` ``"f4"``, an array member ``"(4,)i8"``, a tensor
        map :data:`TENSOR_MAP`.
    threads : int
        Threads of a block.
    smem_bytes : int
        Dynamic shared memory of a block.
    arch : str
        ``"80+"`` for every architecture from sm_80 on, ``"80-90"`` for a range, or just one:
        ``"90a"``.
    prelude : str
        C++ between the header and `type`, which may name what it declares: code that is only known
        at run time, such as a user's formula.
    nvrtc : tuple of int
        The oldest NVRTC release, major and minor, that finds registers for it.
    cluster : int
        Blocks of a cluster, along the first axis of the grid, which is a multiple of it.
    waits : bool
        Whether the kernel itself waits for the kernels before it (``cuda/ptx/grid.cuh``), because
        there is something that it may do earlier; else it begins with that.

    Raises
    ------
    ArgumentError
        If the name is no lower-case identifier, there are no params, or `arch` is malformed.

    Examples
    --------
    >>> spec = KernelSpec("scale_f32", "scale.cuh", "stof::Scale<float>",
    ...                   (("x", "u8"), ("n", "i4"), ("factor", "f4")), threads=256, smem_bytes=0)
    >>> spec.symbol, spec.params_dtype().itemsize, spec.supports("90a")
    ('stof_scale_f32', 16, True)
    """

    name: str
    header: str
    type: str
    params: tuple[tuple[str, str], ...]
    threads: int
    smem_bytes: int
    arch: str = "80+"
    prelude: str = ""
    nvrtc: tuple[int, int] = (0, 0)
    cluster: int = 1
    waits: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ArgumentError(mismatch("name", repr(self.name), "a lower-case identifier"))
        if not self.params:
            raise ArgumentError(mismatch(f"{self.name}: params", "none", "at least one field"))
        if not _ARCH.fullmatch(self.arch):
            expected = "a minimum '80+', a range '80-90' or one target '90a'"
            raise ArgumentError(mismatch(f"{self.name}: arch", repr(self.arch), expected))

    @property
    def symbol(self) -> str:
        """The kernel's symbol in the cubin, which is also its name in a profiler."""
        return f"stof_{self.name}"

    def params_dtype(self) -> np.dtype[Any]:
        """Return the NumPy struct with the layout of ``Params``."""
        if all(code != TENSOR_MAP for _, code in self.params):
            return np.dtype(list(self.params), align=True)
        # NumPy knows no alignment beyond that of its numbers.
        offsets, at = [], 0
        for _, code in self.params:
            one = np.dtype(code)
            at = _up(at, _TENSOR_MAP_ALIGNMENT if code == TENSOR_MAP else one.alignment)
            offsets.append(at)
            at += one.itemsize
        names, codes = zip(*self.params, strict=True)
        size = _up(at, _TENSOR_MAP_ALIGNMENT)
        layout: Any = {"names": names, "formats": codes, "offsets": offsets, "itemsize": size}
        made: np.dtype[Any] = np.dtype(layout)
        return made

    def supports(self, arch: str) -> bool:
        """Whether the kernel can be compiled for `arch`, e.g. ``"89"`` or ``"90a"``."""
        if self.arch.endswith("+"):
            return int(arch.rstrip("af")) >= int(self.arch[:-1])
        if "-" in self.arch:
            oldest, newest = map(int, self.arch.split("-"))
            return oldest <= int(arch.rstrip("af")) <= newest
        return arch == self.arch


def _up(size: int, step: int) -> int:
    """Return the smallest multiple of `step` from `size` on."""
    return -(-size // step) * step
