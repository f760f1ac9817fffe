"""The engine room: a checkpoint in, hidden states or sentence vectors out."""

from __future__ import annotations

from stof_cupy.engine.core import TransformerEngine

__all__ = ["TransformerEngine"]
