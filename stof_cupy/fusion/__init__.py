"""The fusion room: which operators run as one."""

from __future__ import annotations

from stof_cupy.fusion.exact import fuse, structured
from stof_cupy.fusion.rewrites import fuse_epilogues

__all__ = ["fuse", "fuse_epilogues", "structured"]
