"""Every candidate that could be chosen computes what the oracle says; on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy import attention, masks
from stof_cupy.jit import device
from stof_cupy.ops import attention_cuda, reference
from stof_cupy.ops import attention_sm90 as sm90
from stof_cupy.ops.attention_args import Scores, validate
from stof_cupy.ops.attention_candidates import candidates
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_fields import Args, kind_of
from stof_cupy.ops.attention_model import explain
from stof_cupy.testing import assert_close, poison, random_array, rng

pytestmark = pytest.mark.gpu

SCATTERED = rng(3).random((200, 700)) < 0.3
SCATTERED[5:9] = False
SCATTERED[:, 64:192] = True
RARE = rng(4).random((200, 700)) < 0.01
EACH = rng(5).random((2, 4, 200, 700)) < rng(6).choice([0.01, 0.4], (2, 4, 1, 1))
TERMS: dict[str, Any] = {
    "softcap": 3.0,
    "bias": random_array(rng(7), (4, 1, 700), "float16"),
    "alibi": np.float32([0.5, -0.1, 0, 0.2]),
    "sinks": np.float32([1, -np.inf, 0, 3]),
}


def on_gpu(x: Any) -> Any:
    import cupy

    return cupy.asarray(x) if isinstance(x, np.ndarray) and x.dtype != bool else x


def check_all(
    mask: Any,
    *,
    dim: int = 64,
    queries: int = 200,
    kv_heads: int = 4,
    kv_lengths: Any = None,
    dtype: str = "float16",
    **terms: Any,
) -> set[str]:
    """Run each candidate into poisoned memory, twice; return their kernels."""
    import cupy

    dense = mask if isinstance(mask, np.ndarray) or mask is None else mask.toarray()
    g, keys = rng(dim + queries), (2, kv_heads, 700, dim)
    arrays = [random_array(g, shape, dtype) for shape in ((2, 4, queries, dim), keys, keys)]
    q, k, v = (cupy.asarray(x) for x in arrays)
    scores = Scores(**{name: on_gpu(x) for name, x in terms.items()})
    given = mask.to("cuda") if isinstance(mask, masks.Pattern) else mask
    _, problem, bsr, complete = validate(q, k, v, given, scores, on_gpu(kv_lengths), None)
    wanted = Args(problem, q, k, v, None, None, bsr, complete, on_gpu(kv_lengths))
    case = Case(problem, bsr, device.facts(), kind_of(complete), given=sm90.given(wanted))
    how = {**terms, "kv_lengths": kv_lengths}
    exact, exact_lse = reference.attention(*arrays, dense, **how, return_lse=True)
    low = reference.attention(*arrays, dense, **how, precision=dtype)
    every = list(candidates(case))
    for candidate in every:
        bits = []
        for _ in range(2):
            out = poison(q.shape, q.dtype, cupy)
            args = Args(problem, q, k, v, out, None, bsr, complete, on_gpu(kv_lengths))
            got, lse = attention_cuda.run(args, True, candidate=candidate)
            bits.append(got.get().tobytes())
        assert bits[0] == bits[1], candidate
        assert_close(got, exact, low)
        np.testing.assert_allclose(
            lse.get(), exact_lse, rtol=2e-6, atol=2e-5, err_msg=candidate.name
        )
    assert len(every) >= 6
    return {each.kernel for each in every}


@pytest.mark.parametrize(
    "mask", [None, SCATTERED, RARE, EACH], ids=["full", "some", "rare", "each"]
)
def test_every_candidate_of_a_mask(mask: Any) -> None:
    assert check_all(mask) >= {"blockwise", "rowwise"}


@pytest.mark.parametrize("mask", [None, SCATTERED, EACH], ids=["full", "some", "each"])
def test_every_candidate_with_all_score_modifications(mask: Any) -> None:
    check_all(mask, **TERMS)


def test_every_candidate_with_lengths_and_keys_that_heads_share() -> None:
    check_all(SCATTERED, kv_heads=2, kv_lengths=np.array([0, 333]), dtype="bfloat16")


@pytest.mark.parametrize("queries", [1, 7])
def test_every_candidate_of_few_queries(queries: int) -> None:
    check_all(None, queries=queries, kv_heads=1, kv_lengths=np.array([700, 650]))
    check_all(SCATTERED[:queries], queries=queries, kv_heads=2)


def test_every_candidate_of_a_mask_that_the_gpu_built() -> None:
    pattern = masks.sliding_window(200, 700, window=40, align="bottom-right")
    check_all(pattern | masks.block_layout(np.eye(4, 11, dtype=bool), shape=(200, 700)))


@pytest.mark.parametrize("dim", [64, 128])
def test_every_candidate_of_a_hopper(dim: int) -> None:
    if device.facts().arch != "90a":
        pytest.skip(f"{device.facts().name} is no Hopper")
    for mask in (None, SCATTERED, RARE, EACH):
        assert check_all(mask, dim=dim) == {"blockwise", "rowwise", "sm90"}
    check_all(SCATTERED, dim=dim, kv_heads=2, kv_lengths=np.array([0, 333]), dtype="bfloat16")
    check_all(EACH, dim=dim, **TERMS)


def test_every_candidate_of_wide_heads() -> None:
    check_all(SCATTERED, dim=128)


@pytest.mark.parametrize("built", [False, True], ids=["cpu", "gpu"])
def test_a_captured_call_runs_again_with_what_the_arrays_hold_then(built: bool) -> None:
    import cupy

    pattern = masks.longformer(300, window=20, global_tokens=3)
    mask = pattern.to("cuda") if built else pattern.tobsr()
    arrays = [random_array(rng(n), (1, 4, 300, 64), "float16") for n in range(3)]
    q, k, v = (cupy.asarray(x) for x in arrays)
    out = cupy.empty_like(q)
    attention(q, k, v, mask, out=out)
    want = out.copy()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        cupy.cuda.Device().synchronize()
        stream.begin_capture()
        if built:
            mask.rebuild()
        attention(q, k, v, mask, out=out)
        graph = stream.end_capture()
        out.fill(cupy.nan)
        graph.launch()
        stream.synchronize()
    assert cupy.array_equal(out, want)


def test_explain_says_what_runs() -> None:
    import cupy

    q, k, v = (cupy.asarray(random_array(rng(n), (1, 4, 200, 64), "float16")) for n in range(3))
    mask = masks.causal(200).tobsr()
    found = attention(q, k, v, mask, explain=True)
    assert [e.us for e in found] == sorted(e.us for e in found) and "us" in str(found[0])
    _, problem, bsr, _ = validate(q, k, v, mask, Scores(), None, None)
    assert found == explain(Case(problem, bsr, device.facts()), among=[e.candidate for e in found])
    for select in ("stof-eq1", "stof-eq1-64"):
        assert attention(q, k, v, mask, select=select).shape == q.shape  # type: ignore[arg-type]
