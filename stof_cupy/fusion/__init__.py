"""The fusion room: which operators run as one."""

from __future__ import annotations

from stof_cupy.fusion.rewrites import fuse_epilogues

__all__ = ["fuse_epilogues"]
