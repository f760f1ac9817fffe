"""Two terms of scores as one: their sum, and the kernels that take it, on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stof_cupy import RelativeBias
from stof_cupy.jit.attention_kernels import ScoreKind
from stof_cupy.ops.attention_args import Problem, Scores
from stof_cupy.ops.attention_fields import kind_of
from stof_cupy.ops.attention_folded import folded, folded_bytes
from stof_cupy.ops.relative_bias import BEYOND
from stof_cupy.testing import rng
from tests.ops import test_attention_kernels as blockwise


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("lead", [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_an_array_and_alibi_are_added_up(lead: tuple[int, int], positions: bool) -> None:
    g = rng(1)
    bias = g.normal(size=(*lead, 5, 9)).astype(np.float16)
    bias[..., 2], bias[..., 3] = -np.inf, -65504
    slopes = g.random(4).astype(np.float32)
    problem = Problem("float16", 2, 4, 4, 5, 9, 192, 192)
    where = (g.integers(0, 30, 5), g.integers(0, 30, 9)) if positions else None
    wide = np.broadcast_to(bias, (2, 4, 5, 9))
    scores = Scores(bias=wide, alibi=slopes, positions=where)
    got: Any = folded(scores, problem, np).bias
    queries, keys = where or (np.arange(4, 9), np.arange(9))
    away = abs(keys - queries[:, None])
    exact = np.where(wide <= -65504, -np.inf, wide - slopes[:, None, None] * away)
    np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-6)
    assert folded_bytes(scores, problem) == 4 * lead[0] * 4 * 5 * 9
    assert got[:1].nbytes * ((got.strides[0] != 0 and 2) or 1) == folded_bytes(scores, problem)
    assert folded_bytes(replace(scores, alibi=None), problem) == 0


@pytest.mark.parametrize("far", [4, 7, 100])
def test_a_relative_bias_and_alibi_stay_a_table(far: int) -> None:
    g = rng(far)
    bias = RelativeBias(
        g.normal(size=(8, 3)).astype(np.float16), bidirectional=True, max_distance=far
    )
    slopes = g.random(3).astype(np.float32)
    problem = Problem("float16", 1, 3, 3, 5, 9, 192, 192)
    got: Any = folded(Scores(bias=bias, alibi=slopes), problem, np)
    assert got.alibi is None and kind_of(got) == ScoreKind(distances=True)
    exact = bias.toarray(5, 9) - slopes[:, None, None] * abs(
        np.arange(9) - np.arange(4, 9)[:, None]
    )
    alike, values = got.bias.for_kernels(14)
    middle = values.shape[1] // 2
    assert alike == 14 and values.shape == (3, 2 * (alike + BEYOND) + 1)
    away = np.arange(9) - np.arange(4, 9)[:, None]
    np.testing.assert_allclose(values[:, away + middle], exact, rtol=1e-6, atol=1e-6)
    assert folded_bytes(Scores(bias=bias, alibi=slopes), problem) == 0


@pytest.mark.parametrize("relative", [True, False])
def test_the_kernel_that_takes_one_term_computes_two(relative: bool, monkeypatch: Any) -> None:
    g = rng(3)
    table = RelativeBias(
        g.normal(size=(8, 2)).astype(np.float32), bidirectional=True, max_distance=20
    )
    array = g.normal(size=(2, 1, 70, 200)).astype(np.float16)
    array[..., 7] = -np.inf
    kind = ScoreKind(distances=True) if relative else ScoreKind(bias="float32")
    monkeypatch.setattr(blockwise, "kind_of", lambda _: kind)
    terms: Any = {"bias": table if relative else array, "alibi": np.float32([0.5, 0.1])}
    arrays = blockwise.inputs(batch=2, dims=(32, 32))
    blockwise.check(arrays, blockwise.SCATTERED, blockwise.SMALL, **terms)
