"""Which of Hopper's products are compiled before anybody asks for them."""

from __future__ import annotations

from dataclasses import replace

from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS, Sm90Gemm

__all__ = ["GEMM_SM90_AHEAD"]

_GELU = EpilogueKind(bias=True, activation="gelu")
_RESIDUAL = EpilogueKind(bias=True, residual=True)
_GATED = EpilogueKind(activation="silu", gated=True)
_QUERIES = EpilogueKind(bias=True, rotary=128, statistics=True, heads=True)
_FOLDED = EpilogueKind(normed=True, bias=True, activation="gelu")

GEMM_SM90_AHEAD = (
    ("bfloat16", GEMM_SM90_CONFIGS[0], PLAIN),
    ("float16", GEMM_SM90_CONFIGS[0], _GELU),
    ("float16", GEMM_SM90_CONFIGS[0], _GATED),
    ("float16", Sm90Gemm(128, 192, pingpong=True, across=4), _RESIDUAL),
    ("bfloat16", GEMM_SM90_CONFIGS[8], _GELU),
    ("float16", GEMM_SM90_CONFIGS[8], _RESIDUAL),
    ("float16", Sm90Gemm(128, 256, joined=4), _GELU),
    ("bfloat16", Sm90Gemm(128, 64, joined=8), _RESIDUAL),
    ("float16", replace(GEMM_SM90_CONFIGS[0], transposed_a=True, transposed_b=True), PLAIN),
    ("float16", Sm90Gemm(128, 64, swapped=True, split=True), _GATED),
    ("float16", Sm90Gemm(128, 256, across=8), _RESIDUAL),
    ("bfloat16", GEMM_SM90_CONFIGS[0], _QUERIES),
    ("float16", GEMM_SM90_CONFIGS[8], _FOLDED),
    ("float16", Sm90Gemm(128, 144, pingpong=True), _RESIDUAL),
)
"""What is compiled ahead: a few that need most registers, and what each can do once."""
