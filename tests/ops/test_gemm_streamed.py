"""The GEMM of few rows that streams weights through shared memory: when it is used, and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import UnsupportedError
from stof_cupy.jit import tensormap
from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.jit.gemm_streamed import gemm_streamed
from stof_cupy.ops import gemm
from stof_cupy.ops import gemm_streamed as streamed
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_streamed import Config, config_for
from stof_cupy.testing import assert_close, poison
from tests.ops import on_hopper
from tests.ops.conftest import OnHost
from tests.ops.test_gemm_few_rows import (
    EVERY,
    GATED,
    arrays,
    earlier_writes,
    expected,
    uploaded,
)
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


def test_one_that_is_alone_leaves_room_for_another() -> None:
    for rows in (8, 16):
        for columns in (8, 16, 24, 32):
            taken = gemm_streamed("float16", rows, columns, alone=True).smem_bytes + 1024
            assert 2 * taken > H100.smem_per_sm
            other = gemm_streamed("float16", 16, columns).smem_bytes + 1024
            assert taken + other <= H100.smem_per_sm


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


def compare(
    config: Config, problem: Problem, seed: int, monkeypatch: pytest.MonkeyPatch, constant: bool
) -> Any:
    """Run the kernel on the CPU, compare what it gives, and return that."""
    monkeypatch.setattr(tensormap, "tensor_map", on_hopper.encode)
    a, b, bias, residual = arrays(problem, seed)
    out = poison((problem.m, problem.n + 3), a.dtype)[:, : problem.n]
    scale = 0.5 if problem.epilogue.scale else 1.0
    fields = streamed.fields(config, problem, a, b, out, bias, residual, scale)
    fields |= {"report": 0, "constant": constant}
    written = (a, residual) if constant else (a, b, bias, residual)
    earlier = [earlier_writes(x) for x in written if x is not None]
    blocks = config.blocks(problem)
    spec = config.spec(problem, alone=constant)
    on_hopper.launch(spec, blocks, fields, seed=seed, earlier=earlier)
    low = expected(problem, a, b, bias, residual, precision=problem.dtype)
    assert_close(out, expected(problem, a, b, bias, residual), low)
    assert np.isnan(out.base[:, problem.n :].astype(np.float32)).all()
    return np.array(out)


ODD = ((1, 5, 8), (3, 31, 72), (8, 17, 1000), (11, 40, 584), (16, 9, 100), (1, 24, 4200))


@pytest.mark.parametrize("kind", [PLAIN, EVERY, GATED], ids=["plain", "every", "gated"])
def test_the_code_when_weights_are_read_early(
    kind: EpilogueKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, (m, n, k) in enumerate(ODD):
        problem = Problem(("float16", "bfloat16")[seed % 2], m, n, k, kind)
        columns = (8, 16, 24, 32)[seed % (4 // kind.halves)]
        config = Config(8 if m <= 8 else 16, columns)
        late, early = (
            compare(config, problem, seed, monkeypatch, constant) for constant in (False, True)
        )
        assert np.array_equal(late.view(np.uint16), early.view(np.uint16))


def test_what_buffers_hold_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensormap, "tensor_map", on_hopper.encode)
    problem = Problem("float16", 2, 19, 640, GATED)
    a, b, bias, residual = arrays(problem, 1)
    config, out = Config(8, 16), poison((2, 19), a.dtype)
    fields = streamed.fields(config, problem, a, b, out, bias, residual, 1.0)
    fields |= {"report": 0, "constant": True}
    # Which none may do: it tells when they are read.
    gone = [earlier_writes(x, over=True) for x in (b, bias)]
    on_hopper.launch(config.spec(problem), config.blocks(problem), fields, earlier=gone)
    b, bias = gone[0][1][:, :640], gone[1][1]
    exact = expected(problem, a, b, bias, residual)
    assert_close(out, exact, expected(problem, a, b, bias, residual, precision="float16"))


def test_a_bias_that_is_copied_is_not_read_early(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(gemm, "_ways", lambda *how: (Config(8, 8),))
    monkeypatch.setattr(streamed, "launch", lambda *how, constant, **_: told.append(constant))
    a, w, wide = (np.ones(x, np.float16).view(OnHost) for x in ((1, 64), (32, 64), (65,)))
    for bias in (None, wide[:32], wide[:64:2], wide[1:33]):
        problem = Problem("float16", 1, 32, 64, EpilogueKind(bias=bias is not None))
        gemm._launch(problem, a, w.T, Epilogue(bias), None, constant=True)
    assert told == [True, True, False, False]


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
            early = columns % 16 == 0
            config = Config(8 if m <= 8 else 16, columns)
            out = poison((m, n + 5), as_dtype(dtype), cupy)[:, :n]
            streamed.launch(
                config, problem, a, b, out, bias=bias, residual=residual,
                scale=0.5 if kind.scale else 1.0, report=report.ptr, constant=early,
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
