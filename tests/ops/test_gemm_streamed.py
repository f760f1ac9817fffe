"""The GEMM of few rows that streams weights through shared memory: when it is used, and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import UnsupportedError
from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.jit.gemm_streamed import gemm_streamed
from stof_cupy.ops import gemm_streamed as streamed
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_streamed import Config, config_for
from stof_cupy.testing import assert_close, poison
from tests.ops.test_gemm_few_rows import EVERY, GATED, arrays, expected, uploaded
from tests.ops.test_gemm_model import A100, H100

SIZES = ((16, 3072, 2048), (1, 1, 8), (3, 31, 72), (7, 100, 1000), (9, 576, 40), (16, 1000, 8192))
"""(M, N, K)"""


def test_when_it_is_used() -> None:
    def config(m: int, n: int, k: int = 576, kind: EpilogueKind = PLAIN) -> Config | None:
        return config_for(Problem("float16", m, n, k, kind), H100)

    assert config(1, 1024) == Config(8, 8) and config(9, 2048) == Config(16, 16)
    assert config(16, 3072) == Config(16, 24) and config(16, 16384) == Config(16, 32)
    assert config(16, 16384, kind=GATED) == Config(16, 16)
    assert config(17, 576) is None and config(0, 576) is None and config(1, 0) is None
    assert config(1, 576, 0) is None
    assert config(1, 576, kind=EpilogueKind(statistics=True)) is None
    assert config_for(Problem("float16", 1, 1024, 576), A100) is None


@pytest.mark.parametrize(("rows", "columns"), [(4, 8), (16, 12), (16, 40), (8, 0)])
def test_what_there_is_no_kernel_for(rows: int, columns: int) -> None:
    with pytest.raises(UnsupportedError, match=rf"rows and columns: got \({rows}, {columns}\)"):
        gemm_streamed("float16", rows, columns)


def test_two_of_every_kernel_fit_an_sm() -> None:
    for rows in (8, 16):
        for columns in (8, 16, 24, 32):
            spec = gemm_streamed("float16", rows, columns)
            assert 2 * (spec.smem_bytes + 1024) <= H100.smem_per_sm
            assert 2 * 8 * (rows + columns) * 128 < spec.smem_bytes  # two loads of each warp


def test_operands_that_lie_otherwise_are_refused() -> None:
    a, b = np.zeros((1, 64), np.float16), np.zeros((64, 96), np.float16)
    problem, out = Problem("float16", 1, 96, 64), np.zeros((1, 96), np.float16)
    with pytest.raises(UnsupportedError, match="strides of a, b: got"):
        streamed.launch(Config(8, 8), problem, a, b.T, out)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", [PLAIN, EVERY, GATED], ids=["plain", "every", "gated"])
def test_on_the_gpu(kind: EpilogueKind, dtype: str, hopper: Any) -> None:
    import cupy

    report = cupy.cuda.alloc_pinned_memory(16)
    for m, n, k in SIZES:
        problem = Problem(dtype, m, n, k, kind)
        host = arrays(problem, m)
        exact, low = expected(problem, *host), expected(problem, *host, precision=dtype)
        a, b, bias, residual = map(uploaded, host)
        for columns in (8, 16, 24, 32)[: 4 // kind.halves]:
            config = Config(8 if m <= 8 else 16, columns)
            out = poison((m, n + 5), as_dtype(dtype), cupy)[:, :n]
            streamed.launch(
                config, problem, a, b, out, bias=bias, residual=residual,
                scale=0.5 if kind.scale else 1.0, report=report.ptr,
            )  # fmt: skip
            assert_close(out, exact, low)
            assert bool(cupy.isnan(out.base[:, n:].astype(np.float32)).all())


@pytest.mark.gpu
def test_it_gives_the_same_again_when_there_are_more_ctas_than_places(hopper: Any) -> None:
    import cupy

    problem = Problem("float16", 16, 16384, 2048)
    host: tuple[Any, ...] = arrays(problem, 3)
    a, b = map(uploaded, host[:2])
    first = poison((16, 16384), np.float16, cupy)
    streamed.launch(Config(16, 8), problem, a, b, first)
    rows = slice(None), slice(None, None, 97)
    exact = expected(problem, *host)[rows]
    assert_close(first[rows], exact, expected(problem, *host, precision="float16")[rows])
    for _ in range(20):
        out = poison((16, 16384), np.float16, cupy)
        streamed.launch(Config(16, 8), problem, a, b, out)
        assert bool((out == first).all())


@pytest.mark.gpu
def test_a_captured_launch_reads_what_is_there_when_it_runs(hopper: Any) -> None:
    import cupy

    problem = Problem("bfloat16", 5, 300, 520)
    hosts = [arrays(problem, seed) for seed in (1, 2)]
    a, b = map(uploaded, hosts[0][:2])
    out = poison((5, 300), as_dtype("bfloat16"), cupy)
    config = config_for(problem, H100)
    assert config is not None
    streamed.launch(config, problem, a, b, out)  # it is compiled
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        streamed.launch(config, problem, a, b, out)
        graph = stream.end_capture()
        for host in hosts:
            a[...], b[...] = cupy.asarray(host[0]), cupy.asarray(host[1])
            out[...] = poison(out.shape, out.dtype, cupy)
            graph.launch(stream)
            stream.synchronize()
            exact, low = expected(problem, *host), expected(problem, *host, precision="bfloat16")
            assert_close(out, exact, low)
