"""The kernel that puts sequences one after another, as a spec, and the numbers of its table."""

from __future__ import annotations

from functools import cache

from stof_cupy.jit.spec import KernelSpec

__all__ = ["COPIES", "NARROWED", "POSITION", "SEQUENCE", "THREADS", "packing"]

POSITION, SEQUENCE, NARROWED = range(3)
COPIES = {width: NARROWED + 1 + power for power, width in enumerate((1, 2, 4, 8, 16))}
"""``Packing::Kind``: copies are by how many bytes they move at a time."""

THREADS = 256


@cache
def packing() -> KernelSpec:
    """Return what puts sequences one after another; see cuda/packing.cuh for its table."""
    return KernelSpec(
        name="packing",
        header="packing.cuh",
        type="stof::Packing",
        params=(("table", "u8"), ("size", "i8"), ("sequences", "i4")),
        threads=THREADS,
        smem_bytes=0,
    )
