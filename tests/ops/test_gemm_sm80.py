"""The GEMM on mma.sync against the oracle: its code on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.jit.catalogue import GEMM_TILES, GemmTile
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.ops import gemm_sm80, reference
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.testing import assert_close, poison, random_array, rng
from tests.masks import on_host

EVERY = EpilogueKind(scale=True, bias=True, activation="relu", residual=True)
GATED = EpilogueKind(bias=True, activation="silu", gated=True, residual=True)


def laid(g: Any, shape: tuple[int, int], along: str, scale: float = 1.0) -> Any:
    """Return a matrix in poison that lies as `gemm_sm80.layout` says."""
    rows, k = shape if along != "rows" else shape[::-1]
    pitch = -(-k // 8) * 8 + (16 if along != "any" else 15)
    first = 8 if along != "any" else 7
    wide = on_host.fenced(poison((rows, pitch), random_array(g, (1,), "bfloat16").dtype))
    view = wide[:, first : first + k]
    view[...] = random_array(g, (rows, k), "bfloat16", scale)
    return view.T if along == "rows" else view


def compare(
    tile: GemmTile,
    problem: Problem,
    along: tuple[str, str] = ("k", "k"),
    *,
    pitch: int = 0,
    seed: int = 0,
) -> None:
    g, p, kind = rng(seed), problem, problem.epilogue
    a = laid(g, (p.m, p.k), along[0])
    b = laid(g, (p.columns, p.k), along[1], max(p.k, 1) ** -0.5)
    bias = random_array(g, (p.columns,), p.dtype) if kind.bias else None
    residual = random_array(g, (p.m, p.n), p.dtype) if kind.residual else None
    out = poison((p.m, pitch or p.n), a.dtype)[:, : p.n]
    scale = 0.5 if kind.scale else 1.0
    config = gemm_sm80.Config(tile)
    found = (gemm_sm80.layout(a), gemm_sm80.layout(b, kind.halves))
    assert found == along or (kind.gated and p.n % 8 and found[1] == "any")
    fields = gemm_sm80.fields(problem, a, b, out, bias, residual, scale)
    on_host.launch(config.spec(problem, found), (config.blocks(problem), 1), seed=seed, **fields)
    how: dict[str, Any] = {"bias": bias, "residual": residual, "gated": kind.gated}
    how |= {"activation": kind.activation, "scale": scale if kind.scale else None}
    exact = reference.gemm(a, b.T, **how)
    assert_close(out, exact, reference.gemm(a, b.T, **how, precision=p.dtype))
    if pitch:
        assert np.isnan(out.base[:, p.n :].astype(np.float32)).all()


@pytest.mark.parametrize("tile", GEMM_TILES, ids=lambda t: f"{t.m}x{t.n}x{t.k}")
def test_the_code_computes_products(tile: GemmTile) -> None:
    sizes = ((1, 72, 40), (17, 100, 1000), (127, 72, 136), (200, 300, 64), (5, 3, 8))
    for seed, size in enumerate(sizes):
        compare(tile, Problem("bfloat16", *size), seed=seed, pitch=0 if seed % 2 else 304)


@pytest.mark.parametrize(
    "along", [("k", "rows"), ("rows", "k"), ("any", "rows"), ("rows", "any")], ids=str
)
def test_the_code_on_other_layouts(along: tuple[str, str]) -> None:
    for seed, size in enumerate(((70, 72, 72), (9, 100, 130))):
        compare(GEMM_TILES[2], Problem("bfloat16", *size), along, seed=seed)


def test_the_code_of_large_tiles_on_another_layout() -> None:
    compare(GEMM_TILES[0], Problem("bfloat16", 140, 264, 72), ("rows", "rows"))


def test_the_code_of_every_stage() -> None:
    compare(GEMM_TILES[2], Problem("bfloat16", 70, 75, 100, EVERY), pitch=80)


@pytest.mark.parametrize("along", ["k", "rows", "any"])
def test_the_code_of_gates(along: str) -> None:
    for seed, size in enumerate(((70, 136, 72), (9, 8, 200), (3, 100, 64))):
        compare(GEMM_TILES[2], Problem("bfloat16", *size, GATED), ("k", along), seed=seed)


def test_an_empty_sum() -> None:
    bias = EpilogueKind(bias=True)
    compare(GEMM_TILES[2], Problem("bfloat16", 9, 16, 0, bias), ("k", "k"))
