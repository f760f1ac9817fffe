"""What attention with modified scores is compared with, on NumPy in CuPy's place."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import attention_cells
import bench_attention
import numpy as np
import pytest
import score_cells
from attention_ways import NotForError

from stof_cupy import masks
from stof_cupy.testing import rng

SHAPE = (2, 4, 4, 300, 300, 16)


class Copied(np.ndarray):
    """An array that says it is copied from a GPU."""

    def get(self) -> Any:
        return np.asarray(self)


def placed(array: Any, dtype: Any = None, **how: Any) -> Any:
    return np.asarray(array, dtype, **how).view(Copied)


def modified(term: str, monkeypatch: pytest.MonkeyPatch) -> score_cells.Modified:
    """Return a causal problem; ours has been found equal to the oracle in some rows."""
    mask = masks.causal(SHAPE[3])
    told = SimpleNamespace(ours=mask, dense=placed(mask.tobsr().toarray()), name="causal")
    q, k, v = (placed(rng(i).standard_normal((*SHAPE[:2], 300, 16), np.float32)) for i in range(3))
    cell = SimpleNamespace(shape=SHAPE, q=q, k=k, v=v, mask=told)
    monkeypatch.setattr(attention_cells, "cell", lambda shape, name: cell)
    cupy = SimpleNamespace(asarray=placed, empty_like=np.empty_like)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    # By itself attention takes arrays, and neither this class nor a module that stands in for CuPy.
    ours = score_cells.attention

    def plain(*arrays: Any, out: Any, **how: Any) -> None:
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "cupy")
            how = {n: x.get() if isinstance(x, Copied) else x for n, x in how.items()}
            arrays = tuple(x.get() if isinstance(x, Copied) else x for x in arrays)
            out[...] = ours(*arrays, **how)

    monkeypatch.setattr(score_cells, "attention", plain)
    return score_cells.modified.__wrapped__(SHAPE, "causal", term)


@pytest.mark.parametrize("term", ["alibi", "relative"])
def test_biases_of_ours_are_those_that_peers_get(
    term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if term == "relative":
        pytest.importorskip("torch")  # beside which its definition is
    made = modified(term, monkeypatch)
    at = np.arange(300)
    dense = made.by_distance[:, at - at[:, None] + 299]
    if term == "alibi":
        wanted = -made.how["alibi"][:, None, None] * abs(at - at[:, None])
    else:
        wanted = made.how["bias"].toarray(300, 300)
    np.testing.assert_array_equal(dense, wanted)
    made.how.clear()
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        score_cells.ours(made)  # plain scores are found out


def test_what_sdpa_is_no_peer_of(monkeypatch: pytest.MonkeyPatch) -> None:
    made = modified("softcap", monkeypatch)
    with pytest.raises(NotForError, match="biases alone"):
        score_cells.sdpa_bias(made)


def fails(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda: lambda: np.zeros((1, 1, 3, 2)), ""),
        (lambda: lambda: np.float64([[[[0, 0], [9, 9], [0, 0]]]]), ""),  # where nothing is seen
        (lambda: lambda: np.ones((1, 1, 3, 2)), "A: not what ours gives"),
        (lambda: fails(NotForError("windows alone")), "A: windows alone"),
        (lambda: lambda: fails(RuntimeError("no\nmemory")), "A: RuntimeError: no memory"),
    ],
)
def test_a_peer_is_timed_if_it_gives_what_ours_does(
    prepare: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None)
    close = SimpleNamespace(assert_close=np.testing.assert_allclose)
    torch = SimpleNamespace(no_grad=lambda: lambda run: run, cuda=nothing, testing=close)
    monkeypatch.setitem(sys.modules, "torch", torch)
    want, seen = np.zeros((1, 1, 3, 2)), np.array([True, False, True])
    if why:
        with pytest.raises(pytest.skip.Exception, match=why):
            bench_attention.agreeing("A", prepare, want, seen)
    else:
        assert bench_attention.agreeing("A", prepare, want, seen)().shape == want.shape
