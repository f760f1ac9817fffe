"""All shapes that are benchmarked, in one place."""

from __future__ import annotations

MINILM_BATCHES = {
    "cpu": ((1, 16), (8, 64), (4, 256)),
    "gpu": ((1, 16), (32, 64), (64, 256), (8, 512)),
}
"""(batch, seq) of token ids for all-MiniLM-L6-v2; "cpu" is sized for two cores."""

MASKS = (None, "sliding:w=32", "longformer:w=32,g=4")
"""Mask specs, one for all sequences of a batch."""
