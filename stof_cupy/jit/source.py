"""The source that NVRTC sees: where ``cuda/`` is, what a header includes, and the stub."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from stof_cupy.errors import CompileError
from stof_cupy.jit.spec import KernelSpec

__all__ = ["WAIT", "closure_digest", "cuda_root", "include_closure", "stub"]

WAIT = """\
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
"""
"""With what a kernel begins that is launched early, see `jit.dependent`; ``cuda/ptx/grid.cuh``."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)

_Stamps: TypeAlias = "list[tuple[int, int, int] | None]"
_digests: dict[tuple[str, Path], tuple[_Stamps, tuple[Path, ...], str]] = {}
"""By header and root: the files behind the digest, and what they were like when it was made."""


def cuda_root() -> Path:
    """Return the directory of the device code: inside an installed package, else beside it."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_cuda"
    return installed if installed.is_dir() else package.parent / "cuda"


def include_closure(header: str, root: Path | None = None) -> tuple[Path, ...]:
    """Return `header` and every file below `root` that it includes, directly or not.

    Conditional includes count as included. Headers that are not below `root`, the toolkit's, are
    left out.

    Parameters
    ----------
    header : str
        Relative to `root`.
    root : Path, optional
        Default: :func:`cuda_root`.

    Returns
    -------
    tuple of Path
        Absolute and sorted.

    Raises
    ------
    CompileError
        If `header` does not exist.
    """
    root = (root or cuda_root()).resolve()
    first = (root / header).resolve()
    if not first.is_file():
        raise CompileError(f"kernel header {header} not found below {root}")
    closure, pending = {first}, [first]
    while pending:
        file = pending.pop()
        for name in _INCLUDE.findall(file.read_text(encoding="utf-8")):
            # The order in which NVRTC looks: beside the including file, then below -I.
            candidates = ((file.parent / name).resolve(), (root / name).resolve())
            found = next((c for c in candidates if c.is_file() and c.is_relative_to(root)), None)
            if found is not None and found not in closure:
                closure.add(found)
                pending.append(found)
    return tuple(sorted(closure))


def closure_digest(header: str, root: Path | None = None) -> str:
    """Return the SHA-256 (hex) of names and contents of :func:`include_closure`.

    It does not depend on where `root` lies, so a wheel and a checkout of one commit agree. Files
    are read again when one of them has changed: every kernel of a model asks for this.
    """
    root = (root or cuda_root()).resolve()
    kept = _digests.get((header, root))
    if kept and kept[0] == _stamps(kept[1]):
        return kept[2]
    files = include_closure(header, root)
    stamps, digest = _stamps(files), hashlib.sha256()  # stamps first: what changes now is seen
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    _digests[header, root] = stamps, files, digest.hexdigest()
    return digest.hexdigest()


def _stamps(files: tuple[Path, ...]) -> _Stamps:
    """Return for each file what tells that it is not what it was; None for one that is gone."""
    return [_stamp(file) for file in files]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def stub(spec: KernelSpec, root: Path | None = None) -> str:
    """Return the translation unit of `spec`: checks of the host's claims and one kernel.

    The closure digest stands in it, so the text changes whenever any header behind it does.

    Raises
    ------
    CompileError
        If the header does not exist.
    """
    names = ", ".join(name for name, _ in spec.params)
    dtype = spec.params_dtype()
    fields: Mapping[str, Any] = dtype.fields or {}
    checks = "\n".join(_field_check(name, code, *fields[name][:2]) for name, code in spec.params)
    prelude = f"{spec.prelude}\n" if spec.prelude else ""
    cluster = f" __cluster_dims__({spec.cluster}, 1, 1)" if spec.cluster > 1 else ""
    wait = "" if spec.waits else WAIT
    # Angle brackets, because quotes would look in the current directory first. __INTADDR__, because
    # NVRTC 12 has neither offsetof nor __builtin_offsetof. The structured binding compiles only if
    # it names as many members as there are.
    return f"""\
// {spec.name} ({spec.header}, closure {closure_digest(spec.header, root)})
#include <{spec.header}>
{prelude}using Kernel = {spec.type};
using Params = Kernel::Params;
static_assert(Kernel::kThreads == {spec.threads}, "host: {spec.threads} threads");
static_assert(Kernel::kSmemBytes == {spec.smem_bytes}, "host: {spec.smem_bytes} B of smem");
static_assert(sizeof(Params) == {dtype.itemsize}, "host: Params has {dtype.itemsize} B");
#define OFFSET(field) __INTADDR__(&((Params*)0)->field)
{checks}
[[maybe_unused]] static void fields([[maybe_unused]] const Params& all_of_them) {{
    [[maybe_unused]] const auto& [{names}] = all_of_them;
}}
extern "C" __global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks){cluster}
{spec.symbol}(const __grid_constant__ Params params) {{
    extern __shared__ __align__(1024) char smem[];
{wait}    Kernel::run(params, smem);
}}
"""


def _field_check(name: str, code: str, field: np.dtype[Any], offset: int) -> str:
    """Assert where a field is, how big it is, and whether it is a float or a signed integer."""
    conditions = [f"OFFSET({name}) == {offset}", f"sizeof(Params::{name}) == {field.itemsize}"]
    one = f"decltype(Params::{name})(1)"
    if field.kind == "f":
        conditions.append(f"{one} / 2 != 0")
    elif field.kind == "i":
        conditions.append(f"{one} / 2 == 0 && -{one} < 0")
    return f'static_assert({" && ".join(conditions)}, "host: {name} is {code} at {offset}");'
