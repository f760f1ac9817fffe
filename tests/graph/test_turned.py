"""A product that turns heads: what it means, and which kernels it asks for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stof_cupy.graph import meaning_decoder
from stof_cupy.graph.calls import CALLS
from stof_cupy.graph.frequencies import Frequencies
from stof_cupy.graph.turned import in_one
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_choice import Vendor, keep, key_of, name_of
from stof_cupy.ops.gemm_sm90 import Layout
from tests.runtime.cuda_path import H100

BATCH, SEQ, DEPTH = 2, 5, 7


def written_out(x: Any, w: Any, at: Any, bias: Any, how: dict[str, Any]) -> Any:
    """Compute it element by element, from nothing of the package."""
    heads, size, half = how["heads"], how["head_dim"], len(how["frequency"])
    y = np.einsum("bsk,nk->bsn", x, w) + (0 if bias is None else bias)
    turned = y.copy()
    for b, s, h, i in np.ndindex(*x.shape[:2], heads, half):
        step = float(np.float32(at[b, s]) * np.float32(how["frequency"][i]))
        c, d = (f(step) * how["magnitude"] for f in (math.cos, math.sin))
        one, two = (2 * i, 2 * i + 1) if how["interleaved"] else (i, i + half)
        one, two = h * size + one, h * size + two
        turned[b, s, one] = y[b, s, one] * c - y[b, s, two] * d
        turned[b, s, two] = y[b, s, two] * c + y[b, s, one] * d
    return turned


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("size", "half"), [(32, 16), (8, 3), (6, 3)])
@pytest.mark.parametrize("out", [False, True])
def test_turns_leading_heads(
    bias: bool, interleaved: bool, size: int, half: int, out: bool
) -> None:
    rng = np.random.default_rng(size + half)
    heads, columns = 3, 5 * size
    x = rng.standard_normal((BATCH, SEQ, DEPTH))
    w = rng.standard_normal((columns, DEPTH))
    b = rng.standard_normal(columns) if bias else None
    at = rng.integers(0, 900, (BATCH, SEQ))
    how: dict[str, Any] = {"frequency": Frequencies(rng.random(half)), "heads": heads}
    how |= {"head_dim": size, "interleaved": interleaved, "magnitude": 1.25}
    want = written_out(x, w, at, b, how)
    np.testing.assert_allclose(
        meaning_decoder.turned_gemm(x, w, at, b, **how), want, rtol=1e-12, atol=1e-12
    )
    low = [None if each is None else each.astype(np.float32) for each in (x, w, b)]
    to = np.empty((BATCH, SEQ, columns), np.float32) if out else None
    got = CALLS["turned_gemm"](low[0], low[1], at, low[2], **how, out=to)
    assert got.shape == want.shape and (to is None or got is to)
    # Seven products and a turn, each rounded to float32.
    budget = (DEPTH + 6) * np.finfo(np.float32).eps * 1.25 * 2 * np.abs(x).max() * np.abs(w).max()
    np.testing.assert_allclose(got, want, atol=budget * DEPTH)


SHAPE = ("bfloat16", 8192, 3072, 2048)


def test_one_kernel_where_it_is_faster_by_the_model() -> None:
    assert in_one(Problem(*SHAPE), 64, 2560, Layout(), H100)
    assert in_one(Problem("bfloat16", 16, 3072, 2048), "neighbours", 2560, Layout(), H100)
    # Tiles that hold whole heads of 128 are too few then.
    assert not in_one(Problem("bfloat16", 16, 3072, 8192), 128, 2560, Layout(), H100)
    assert not in_one(Problem("bfloat16", 0, 3072, 2048), 64, 2560, Layout(), H100)


def test_two_where_cublaslt_was_measured_to_be_the_fastest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path))
    problem = Problem("bfloat16", 8192, 3072, 2040, EpilogueKind(bias=True))
    keep(H100, key_of(problem, Layout()), {name_of(Vendor(0)): 1.0})
    in_one.cache_clear()
    assert not in_one(problem, 64, 2560, Layout(), H100)
    in_one.cache_clear()
