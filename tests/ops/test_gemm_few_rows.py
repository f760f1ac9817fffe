"""The GEMM of few rows: when it is used, and its code, compiled for the CPU, on odd sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.ops import gemm_few_rows, reference
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_few_rows import Config, config_for
from stof_cupy.testing import assert_close, poison, random_array, rng
from tests.masks import on_host

EVERY = EpilogueKind(scale=True, bias=True, activation="gelu", residual=True)
GATED = EpilogueKind(bias=True, activation="silu", gated=True, residual=True)


def arrays(problem: Problem, seed: int) -> tuple[Any, ...]:
    g, p, kind = rng(seed), problem, problem.epilogue
    pitch = -(-max(p.k, 1) // 8) * 8 + 8
    a = random_array(g, (p.m, pitch), p.dtype)[:, : p.k]
    b = random_array(g, (p.columns, pitch), p.dtype, max(p.k, 1) ** -0.5)[:, : p.k]
    bias = random_array(g, (p.columns,), p.dtype) if kind.bias else None
    residual = random_array(g, (p.m, p.n), p.dtype) if kind.residual else None
    return a, b, bias, residual


def expected(problem: Problem, a: Any, b: Any, bias: Any, residual: Any, **how: Any) -> Any:
    kind = problem.epilogue
    scale = 0.5 if kind.scale else None
    return reference.gemm(
        a, b.T, bias=bias, residual=residual, gated=kind.gated, activation=kind.activation,
        scale=scale, **how,
    )  # fmt: skip


def compare(config: Config, problem: Problem, seed: int) -> None:
    a, b, bias, residual = arrays(problem, seed)
    out = poison((problem.m, problem.n + 3), a.dtype)[:, : problem.n]
    scale = 0.5 if problem.epilogue.scale else 1.0
    fields = gemm_few_rows.fields(problem, a, b, out, bias, residual, scale)
    on_host.launch(config.spec(problem), (config.blocks(problem), 1), seed=seed, **fields)
    exact = expected(problem, a, b, bias, residual)
    assert_close(out, exact, expected(problem, a, b, bias, residual, precision=problem.dtype))
    assert np.isnan(out.base[:, problem.n :].astype(np.float32)).all()


@pytest.mark.parametrize(("rows", "slices"), [(1, 1), (1, 4), (2, 2), (4, 4)])
def test_the_code_computes_products(rows: int, slices: int) -> None:
    sizes = ((1, 1), (7, 8), (16, 256), (33, 576), (5, 1000), (40, 2051), (2, 5000))
    for seed, (n, k) in enumerate(sizes):
        m = 1 + (seed + rows - 1) % rows
        compare(Config(rows, slices), Problem("float16", m, n, k), seed)


@pytest.mark.parametrize("kind", [EVERY, GATED], ids=["every", "gated"])
def test_the_code_of_every_stage(kind: EpilogueKind) -> None:
    for rows, slices, m, n, k in ((1, 4, 1, 24, 700), (4, 1, 3, 40, 1100)):
        compare(Config(rows, slices), Problem("bfloat16", m, n, k, kind), seed=rows)


def test_an_empty_sum() -> None:
    compare(Config(1, 4), Problem("float16", 1, 10, 0, EpilogueKind(bias=True)), 0)


def test_when_it_is_used() -> None:
    def config(m: int, n: int, k: int, kind: EpilogueKind = PLAIN) -> Config | None:
        a = np.zeros((m, k), np.float16)
        b = np.zeros((n * kind.halves, k), np.float16)
        return config_for(Problem("float16", m, n, k, kind), a, b, 132)

    assert config(1, 49152, 576) == Config(1, 1)
    assert config(3, 8192, 2048, GATED) == Config(4, 1)
    assert config(2, 2048, 8192) == Config(2, 4)
    assert config(1, 960, 64) == Config(1, 1)
    assert config(5, 960, 576) is None and config(0, 960, 576) is None
    a, b = np.zeros((1, 64), np.float16), np.zeros((64, 96), np.float16)
    problem = Problem("float16", 1, 96, 64)
    assert config_for(problem, a, np.ascontiguousarray(b.T), 132) is not None
    assert config_for(problem, a, b.T, 132) is None  # along the other axis
    odd = np.zeros((96, 65), np.float16)[:, :64]
    assert config_for(problem, a, odd, 132) is None  # rows that are not aligned


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", [PLAIN, EVERY, GATED], ids=["plain", "every", "gated"])
def test_on_the_gpu(kind: EpilogueKind, dtype: str) -> None:
    import cupy

    for rows in (1, 2, 4):
        for slices in (1, 2, 4):
            for m, n, k in ((rows, 576, 1536), (rows, 31, 70), (max(rows - 1, 1), 5000, 576)):
                problem = Problem(dtype, m, n, k, kind)
                host = arrays(problem, rows)
                a, b, bias, residual = (None if x is None else cupy.asarray(x) for x in host)
                out = cupy.full((m, n), np.nan, np.float32).astype(a.dtype)
                gemm_few_rows.launch(
                    Config(rows, slices), problem, a, b, out, bias=bias, residual=residual,
                    scale=0.5 if kind.scale else 1.0,
                )  # fmt: skip
                low = expected(problem, *host, precision=dtype)
                assert_close(out, expected(problem, *host), low)
