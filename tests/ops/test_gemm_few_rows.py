"""The GEMM of few rows: when it is used, and its code, compiled for the CPU, on odd sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError
from stof_cupy.jit.decoder_kernels import FEW_ROWS
from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.ops import gemm_few_rows, reference, reference_decoder
from stof_cupy.ops import normed_gemm as module
from stof_cupy.ops.epilogue import Epilogue, Rotary
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.gemm_args import Problem, validate
from stof_cupy.ops.gemm_few_rows import Config, config_for, of_sixteen
from stof_cupy.ops.normed_gemm import _launch as normed_gemm_launch
from stof_cupy.ops.normed_gemm import normed_gemm
from stof_cupy.ops.rms_norm import rms_norm
from stof_cupy.testing import assert_close, poison, random_array, rng
from tests.masks import on_host
from tests.ops.conftest import OnHost

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


def earlier_writes(x: Any, *, over: bool = False) -> on_host.Written:
    """Let an earlier kernel write an array, or NaN over it."""
    whole = x if x.base is None else x.base
    bad = poison(whole.shape, whole.dtype)
    return (whole, whole.copy(), bad) if over else (whole, bad, whole.copy())


def compare(
    config: Config,
    problem: Problem,
    seed: int,
    *,
    normed: bool = False,
    constant: bool = False,
) -> Any:
    a, b, bias, residual = arrays(problem, seed)
    norm = random_array(rng(seed), (problem.k,), problem.dtype) if normed else None
    out = poison((problem.m, problem.n + 3), a.dtype)[:, : problem.n]
    scale = 0.5 if problem.epilogue.scale else 1.0
    fields = gemm_few_rows.fields(problem, a, b, out, bias, residual, scale)
    if config.rows <= FEW_ROWS[-1]:
        fields |= {"norm": 0 if norm is None else norm.ctypes.data, "eps": 1e-5}
    spec = config.spec(problem, normed=normed, constant=constant)
    given = (a, residual) if constant else (a, b, bias, residual, norm)
    earlier = []
    if spec.waits:
        earlier = [earlier_writes(x) for x in given if x is not None and x.size]
    on_host.launch(spec, (config.blocks(problem), 1), seed=seed, earlier=earlier, **fields)
    if normed:
        exact_a, low_a = (
            reference_decoder.rms_norm(a, norm, eps=1e-5, precision=each)
            for each in (None, problem.dtype)
        )
        low = expected(problem, low_a, b, bias, residual, precision=problem.dtype)
        assert_close(out, expected(problem, exact_a, b, bias, residual), low)
        return out
    exact = expected(problem, a, b, bias, residual)
    assert_close(out, exact, expected(problem, a, b, bias, residual, precision=problem.dtype))
    assert np.isnan(out.base[:, problem.n :].astype(np.float32)).all()
    return out


@pytest.mark.parametrize(("rows", "slices"), [(1, 1), (1, 4), (2, 2), (4, 4)])
def test_the_code_computes_products(rows: int, slices: int) -> None:
    sizes = ((1, 1), (7, 8), (16, 256), (33, 576), (5, 1000), (40, 2051), (2, 5000))
    for seed, (n, k) in enumerate(sizes):
        m = 1 + (seed + rows - 1) % rows
        compare(Config(rows, slices), Problem("float16", m, n, k), seed)


@pytest.mark.parametrize(("rows", "slices"), [(8, 1), (8, 16), (16, 2), (16, 8)])
def test_the_code_of_sixteen_rows(rows: int, slices: int) -> None:
    sizes = ((1, 1), (7, 8), (16, 256), (33, 576), (5, 1000), (300, 83), (2, 5000))
    for seed, (n, k) in enumerate(sizes):
        m = 1 + (5 * seed + rows - 1) % rows
        compare(Config(rows, slices), Problem("float16", m, n, k), seed)


@pytest.mark.parametrize("kind", [EVERY, GATED], ids=["every", "gated"])
def test_the_code_of_sixteen_rows_and_every_stage(kind: EpilogueKind) -> None:
    for rows, slices, m, n, k in ((8, 4, 5, 24, 700), (16, 1, 11, 43, 301), (16, 16, 16, 90, 576)):
        compare(Config(rows, slices), Problem("bfloat16", m, n, k, kind), seed=rows)


@pytest.mark.parametrize("kind", [EVERY, GATED], ids=["every", "gated"])
def test_the_code_of_every_stage(kind: EpilogueKind) -> None:
    for rows, slices, m, n, k in ((1, 4, 1, 24, 700), (4, 1, 3, 40, 1100)):
        compare(Config(rows, slices), Problem("bfloat16", m, n, k, kind), seed=rows)


def test_the_code_normalises_rows_first() -> None:
    for rows, slices, m, n, k in ((1, 4, 1, 25, 700), (4, 1, 3, 40, 1100), (2, 2, 2, 16, 64)):
        compare(Config(rows, slices), Problem("float16", m, n, k, GATED), rows, normed=True)
    compare(Config(1, 4), Problem("bfloat16", 1, 9, 576), 3, normed=True)


@pytest.mark.parametrize("kind", [PLAIN, EVERY, GATED], ids=["plain", "every", "gated"])
@pytest.mark.parametrize(("rows", "slices"), [(1, 1), (1, 4), (2, 2), (4, 1), (4, 4)])
def test_when_weights_are_read_changes_no_sum(kind: EpilogueKind, rows: int, slices: int) -> None:
    sizes = ((1, 1), (7, 8), (17, 576), (5, 1000), (3, 5000), (3, 17000))
    for seed, (n, k) in enumerate(sizes):
        problem = Problem("float16", 1 + (seed + rows - 1) % rows, n, k, kind)
        config, normed = Config(rows, slices), kind is not EVERY and seed % 2 == 0
        late = compare(config, problem, seed, normed=normed)
        early = compare(config, problem, seed, normed=normed, constant=True)
        assert np.array_equal(late.view(np.uint16), early.view(np.uint16))


def test_what_registers_hold_is_not_read_again() -> None:
    for rows, slices, k, kind in ((1, 1, 1024, PLAIN), (1, 4, 4096, GATED), (4, 2, 1024, PLAIN)):
        problem = Problem("float16", rows, 9, k, kind)
        a, b, bias, residual = arrays(problem, rows)
        out = poison((rows, 9), a.dtype)
        config = Config(rows, slices)
        fields = gemm_few_rows.fields(problem, a, b, out, bias, residual, 1.0)
        norm = np.ones(k, a.dtype)
        fields |= {"norm": norm.ctypes.data, "eps": 0.0}
        gone = earlier_writes(b, over=True)  # which none may do: it tells when B is read
        spec = config.spec(problem, normed=True, constant=True)
        on_host.launch(spec, (config.blocks(problem), 1), earlier=[gone], **fields)
        b = gone[1][:, :k]
        exact, low = (
            reference_decoder.rms_norm(a, np.ones(k), eps=0.0, precision=precision)
            for precision in (None, "float16")
        )
        low = expected(problem, low, b, bias, residual, precision="float16")
        assert_close(out, expected(problem, exact, b, bias, residual), low)


def test_rows_too_long_to_be_near() -> None:
    problem, long = Problem("float16", 4, 8, 2048), Problem("float16", 4, 8, 4200)
    assert Config(4, 2).spec(problem).smem_bytes == 16384 + 4 * 8 * 4
    assert Config(4, 2).spec(problem, normed=True).smem_bytes > 20480
    assert Config(4, 2).spec(long).smem_bytes == 4 * 8 * 4


def test_an_empty_sum() -> None:
    compare(Config(1, 4), Problem("float16", 1, 10, 0, EpilogueKind(bias=True)), 0)


def test_when_it_is_used() -> None:
    def config(m: int, n: int, k: int, kind: EpilogueKind = PLAIN) -> Config | None:
        a = np.zeros((m, k), np.float16)
        b = np.zeros((n * kind.halves, k), np.float16)
        return config_for(Problem("float16", m, n, k, kind), a, b, 132)

    assert config(1, 49152, 576) == config(1, 576, 576) == config(1, 960, 64) == Config(1, 1)
    assert config(1, 8192, 2048, GATED) == Config(1, 2) and config(1, 2048, 8192) == Config(1, 4)
    assert config(2, 2048, 8192) == Config(2, 2)
    assert config(4, 2048, 2048) == Config(4, 2) == config(4, 960, 576)
    assert config(4, 49152, 576) == config(3, 8192, 2048, GATED) == Config(4, 1)
    assert config(5, 960, 576) is None and config(0, 960, 576) is None
    a, b = np.zeros((1, 64), np.float16), np.zeros((64, 96), np.float16)
    problem = Problem("float16", 1, 96, 64)
    assert config_for(problem, a, np.ascontiguousarray(b.T), 132) is not None
    assert config_for(problem, a, b.T, 132) is None  # along the other axis
    odd = np.zeros((96, 65), np.float16)[:, :64]
    assert config_for(problem, a, odd, 132) is None  # rows that are not aligned


def test_when_sixteen_rows_are() -> None:
    def config(m: int, n: int, k: int, kind: EpilogueKind = PLAIN) -> Config | None:
        return of_sixteen(Problem("float16", m, n, k, kind), 132)

    assert config(5, 16384, 2048) == Config(8, 4)
    assert config(16, 3072, 2048) == Config(16, 8)
    assert config(9, 576, 576, GATED) == Config(16, 8)
    assert config(17, 576, 576) is None and config(0, 576, 576) is None
    assert config(8, 576, 576, EpilogueKind(statistics=True)) is None


def test_norm_and_product_on_numpy_are_the_two_in_turn() -> None:
    g = rng(4)
    x, w = random_array(g, (2, 3, 40)), random_array(g, (18, 40))
    norm, bias = random_array(g, (40,)), random_array(g, (18,))
    how = Epilogue(bias, "silu", gated=True)
    got = normed_gemm(x, norm, w.T, eps=1e-5, epilogue=how)
    assert np.array_equal(got, gemm(rms_norm(x, norm, eps=1e-5), w.T, epilogue=how))
    with pytest.raises(ShapeError, match="weight"):
        normed_gemm(x, norm[:-1], w.T, eps=1e-5)


def test_the_launching_code_of_norm_and_product(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stof_cupy.jit.device.facts", lambda _: SimpleNamespace(sm_count=132))
    g = rng(5)
    for shape in ((1, 1, 576), (3, 1, 576), (5, 1, 576)):
        x, w = (random_array(g, s, "float16").view(OnHost) for s in (shape, (96, 576)))
        norm = random_array(g, (576,), "float16").view(OnHost)
        problem = Problem("float16", shape[0], 96, 576)
        out = normed_gemm_launch(problem, x, norm, w.T, 1e-5, Epilogue(), None)
        if shape[0] > 4:
            assert out is None
            continue
        exact = reference.gemm(reference_decoder.rms_norm(x, norm, eps=1e-5), w.T)
        low = reference_decoder.rms_norm(x, norm, eps=1e-5, precision="float16")
        assert_close(np.asarray(out), exact, reference.gemm(low, w.T, precision="float16"))
    assert launched == [
        "gemm_few_rows_f16_1x1_normed_near3072",
        "gemm_few_rows_f16_4x2_normed_near5120",
    ]


def test_what_is_turned_after_is_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of 20 take a kernel of their own, which that of norm and product does not launch."""
    monkeypatch.setattr(module, "validate", lambda *how: ("cuda", validate(*how)[1]))
    monkeypatch.setattr(module, "_launch", lambda *how: np.zeros((2, 60)))
    g = rng(7)
    x, w, norm = random_array(g, (2, 40)), random_array(g, (60, 40)), random_array(g, (40,))
    turn = Rotary(np.array([3, 8]), np.ones(10, np.float32), 3, 20)
    how = Epilogue(rotary=turn)
    got = normed_gemm(x, norm, w.T, eps=1e-5, epilogue=how)
    assert np.array_equal(got, gemm(rms_norm(x, norm, eps=1e-5), w.T, epilogue=how))
    assert not normed_gemm(x, norm, w.T, eps=1e-5).any()  # which is the one kernel's


def uploaded(x: Any) -> Any:
    """Copy an array to the GPU with the pitch of its rows, which the kernel reads 16 bytes of."""
    import cupy

    if x is None or x.ndim == 1:
        return None if x is None else cupy.asarray(x)
    rows, width = x.shape
    wide = poison((rows, x.strides[0] // x.itemsize), x.dtype, cupy)
    wide[:, :width] = cupy.asarray(x)
    return wide[:, :width]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", [PLAIN, EVERY, GATED], ids=["plain", "every", "gated"])
def test_on_the_gpu(kind: EpilogueKind, dtype: str) -> None:
    import cupy

    for rows in (1, 2, 4, 8, 16):
        for m, n, k in ((rows, 576, 1536), (rows, 31, 70), (max(rows - 1, 1), 5000, 576)):
            problem = Problem(dtype, m, n, k, kind)
            host = arrays(problem, rows)
            exact, low = expected(problem, *host), expected(problem, *host, precision=dtype)
            a, b, bias, residual = map(uploaded, host)
            for slices in (1, 2, 4) if rows <= 4 else (1, 2, 4, 8, 16):
                out = cupy.full((m, n), np.nan, np.float32).astype(a.dtype)
                gemm_few_rows.launch(
                    Config(rows, slices), problem, a, b, out, bias=bias, residual=residual,
                    scale=0.5 if kind.scale else 1.0,
                )  # fmt: skip
                assert_close(out, exact, low)


@pytest.mark.gpu
def test_what_the_one_kernel_of_norm_and_product_refuses() -> None:
    import cupy

    x, w = (cupy.zeros(shape, np.float16) for shape in ((1, 64), (40, 64)))
    norm = cupy.ones(64, np.float16)
    with pytest.raises(DTypeError, match="weight: got numpy array"):
        normed_gemm(x, np.ones(64, np.float16), w.T, eps=1e-5)
    with pytest.raises(ArgumentError, match="eps: got 0"):
        normed_gemm(x, norm, w.T, eps=0)
    with pytest.raises(ArgumentError, match="out: got memory possibly shared with norm"):
        normed_gemm(x, norm, w.T, eps=1e-5, out=norm[None, :40])


@pytest.mark.gpu
def test_norm_and_product_on_the_gpu() -> None:
    import cupy

    g = rng(6)
    for m, n, k in ((1, 960, 576), (3, 40, 2048), (9, 40, 64)):
        x, norm, w = (random_array(g, s, "float16") for s in ((m, k), (k,), (n, k)))
        on = [cupy.asarray(each) for each in (x, norm, w)]
        got = normed_gemm(on[0], on[1], on[2].T, eps=1e-5)
        exact = reference.gemm(reference_decoder.rms_norm(x, norm, eps=1e-5), w.T)
        low = reference_decoder.rms_norm(x, norm, eps=1e-5, precision="float16")
        assert_close(got, exact, reference.gemm(low, w.T, precision="float16"))
