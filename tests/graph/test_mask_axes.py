"""Masks per batch, per head or both, run as inputs of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy import masks, testing
from stof_cupy.errors import DTypeError, GraphError, MaskError, ShapeError
from stof_cupy.fusion import fuse_epilogues
from stof_cupy.graph import Executor, Graph, feeds, meaning
from stof_cupy.ops import reference

BATCH, HEADS, KV_HEADS, DIM = 3, 6, 2, 5
LEADS = [(1,), (HEADS,), (1, HEADS), (BATCH, 1), (BATCH, HEADS), (1, 1)]
Exact = Any


def weights() -> dict[str, Any]:
    rng = testing.rng(1)
    rows = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM}
    return {name: rng.standard_normal((n, 7)).astype(np.float32) for name, n in rows.items()}


def cross(w: dict[str, Any]) -> Graph:
    """Return grouped-query attention of x over y; the mask is declared before the arrays."""
    g = Graph("cross", ("batch", "seq", "memory"))
    mask = g.input("mask", ("seq", "memory"), "mask")
    lengths = g.input("lengths", ("batch",), "lengths")
    x = g.input("x", ("batch", "seq", 7), "float")
    y = g.input("y", ("batch", "memory", 7), "float")
    q = g.split_heads(g.gemm(x, g.constant("q", w["q"])), heads=HEADS)
    k, v = (g.split_heads(g.gemm(y, g.constant(n, w[n])), heads=KV_HEADS) for n in "kv")
    bias = g.constant("bias", np.linspace(-1, 1, HEADS * DIM, dtype=np.float32))
    one = g.constant("one", np.eye(HEADS * DIM, dtype=np.float32))
    attended = g.merge_heads(g.attention(q, k, v, mask, lengths))
    g.output("out", g.gelu(g.add(g.gemm(attended, one), bias)))
    return g


def arrays(seq: int, memory: int) -> dict[str, Any]:
    rng = testing.rng(2)
    x, y = (rng.standard_normal((BATCH, n, 7)).astype(np.float32) for n in (seq, memory))
    return {"x": x, "y": y, "lengths": np.array([memory, 0, memory // 2])}


def dense(lead: tuple[int, ...], seq: int, memory: int) -> Any:
    mask = testing.rng(3).random((*lead, seq, memory)) < 0.2
    mask[..., 0, :] = False
    return mask


def expected(
    w: dict[str, Any], inputs: dict[str, Any], mask: Any, precision: str | None = None
) -> Exact:
    how: dict[str, Any] = {"precision": precision}

    def heads(x: Any, name: str) -> Exact:
        y = reference.gemm(x, w[name].T, **how)
        return y.reshape(*y.shape[:2], -1, DIM).transpose(0, 2, 1, 3)

    q, (k, v) = heads(inputs["x"], "q"), (heads(inputs["y"], name) for name in "kv")
    out = reference.attention(q, k, v, mask, kv_lengths=inputs.get("lengths"), **how)
    rows = out.transpose(0, 2, 1, 3).reshape(*inputs["x"].shape[:2], -1)
    return reference.gelu(reference.add(rows, np.linspace(-1, 1, HEADS * DIM), **how), **how)


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize(("seq", "memory"), [(1, 1), (70, 131)])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_leading_axes_broadcast(lead: Any, seq: int, memory: int, with_lengths: bool) -> None:
    w, inputs, mask = weights(), arrays(seq, memory), dense(lead, seq, memory)
    if not with_lengths:
        del inputs["lengths"]
    exact, low = (expected(w, inputs, mask, precision) for precision in (None, "float32"))
    for graph in (cross(w), fuse_epilogues(cross(w))):
        np.testing.assert_allclose(
            meaning.evaluate(graph, {**inputs, "mask": mask})["out"], exact, atol=1e-6
        )
        run = Executor(graph, backend="numpy").run
        for given in (mask, masks.MaskStack.from_dense(mask)):
            got = run({**inputs, "mask": given})["out"]
            testing.assert_close(got, exact, low)


def test_one_mask_for_all_is_what_it_was() -> None:
    w, inputs = weights(), arrays(70, 70)
    run = Executor(cross(w), backend="numpy").run
    pattern = masks.sliding_window(70, window=5)
    want = run({**inputs, "mask": pattern.tobsr()})["out"]
    exact, low = (expected(w, inputs, pattern.toarray(), each) for each in (None, "float32"))
    testing.assert_close(want, exact, low)
    equal = np.broadcast_to(pattern.toarray(), (BATCH, 1, 70, 70))
    for same in (pattern, pattern.toarray(), equal, masks.stack([pattern] * HEADS)):
        assert np.array_equal(run({**inputs, "mask": same})["out"], want)


def test_a_mask_of_several_inputs_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph("three")
    y = g.input("x", ("batch", "seq", 12), "float")
    for name, count in (("a", 2), ("b", 2), ("c", 3)):
        q = g.split_heads(y, heads=count)
        y = g.merge_heads(g.attention(q, q, q, g.input(name, ("seq", "seq"), "mask")))
    g.output("y", y)
    looked, look = [], feeds._mask

    def watched(node: Any, *how: Any) -> Any:
        looked.append(node.name)
        return look(node, *how)

    monkeypatch.setattr(feeds, "_mask", watched)
    run = Executor(g, backend="numpy").run
    x, mask = testing.rng(4).standard_normal((2, 9, 12)), np.tri(9, dtype=bool)
    got = run({"x": x, **dict.fromkeys("abc", mask)})["y"]
    assert looked == ["a", "c"]  # of other heads
    np.testing.assert_array_equal(run({"x": x, "a": mask, "b": mask.copy(), "c": mask})["y"], got)
    assert looked == ["a", "c", "a", "b", "c"]
    two = np.stack([mask, ~mask])  # as many as the first have heads
    with pytest.raises(ShapeError, match=r"input 'c': got \(2, 9, 9\), expected \(2, 3, 9, 9\)"):
        run({"x": x, **dict.fromkeys("abc", two)})


@pytest.mark.parametrize("lead", [(2,), (BATCH,), (2, 1), (BATCH, 2), (HEADS, BATCH), (1, 1, 1)])
def test_a_wrong_number_of_batches_or_heads_is_named_before_any_work(lead: Any) -> None:
    executor, ran = Executor(cross(weights()), backend="numpy"), []
    mask = dense(lead, 4, 9)
    shape = ", ".join(map(str, mask.shape))
    match = rf"input 'mask': got \({shape}\), expected \({BATCH}, {HEADS}, 4, 9\); .*\(batch, heads"
    for given in (mask, masks.MaskStack.from_dense(mask)):
        with pytest.raises(ShapeError, match=match):
            executor.run({**arrays(4, 9), "mask": given}, observe=lambda n, y: ran.append(n))
    assert not ran


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (np.ones((HEADS, 9, 4), bool), ShapeError, r"got \(6, 9, 4\), expected \(seq, memory\); "),
        (np.ones(9, bool), ShapeError, r"got \(9,\), expected \(seq, memory\)"),
        (np.ones((0, 1, 4, 9), bool), ShapeError, r"got \(0, 1, 4, 9\), expected \(3, 6, 4, 9\)"),
        (np.ones((HEADS, 4, 9)), MaskError, r"'mask'.*float64.*bool"),
        ([[True]], DTypeError, r"input 'mask': got list, expected .*boolean NumPy array"),
    ],
)
def test_what_is_no_mask_of_this_run(given: Any, error: Any, message: str) -> None:
    executor = Executor(cross(weights()), backend="numpy")
    with pytest.raises(error, match=message):
        executor.run({**arrays(4, 9), "mask": given})


def test_every_attention_that_reads_a_mask_is_asked() -> None:
    g = Graph("two")
    x = g.input("x", ("batch", "seq", 8), "float")
    mask = g.input("mask", ("seq", "seq"), "mask")
    for heads in (2, 4):
        q = g.split_heads(x, heads=heads)
        g.output(f"y{heads}", g.merge_heads(g.attention(q, q, q, mask)))
    run = Executor(g, backend="numpy").run
    inputs = {"x": testing.rng(4).standard_normal((3, 5, 8)).astype(np.float32)}
    for lead, heads in (((2,), 4), ((4,), 2), ((3, 4), 2)):
        with pytest.raises(ShapeError, match=rf"expected \(3, {heads}, 5, 5\)"):
            run({**inputs, "mask": dense(lead, 5, 5)})
    got = run({**inputs, "mask": dense((3, 1), 5, 5)})
    for heads in (2, 4):
        q = inputs["x"].reshape(3, 5, heads, -1).transpose(0, 2, 1, 3)
        exact = reference.attention(q, q, q, dense((3, 1), 5, 5))
        exact = exact.transpose(0, 2, 1, 3).reshape(3, 5, 8)
        np.testing.assert_allclose(got[f"y{heads}"], exact, atol=1e-5)


def test_a_mask_that_nothing_reads_is_still_a_mask() -> None:
    g = Graph("unread")
    x = g.input("x", ("batch", "seq"), "float")
    g.input("mask", ("seq", "seq"), "mask")
    g.output("y", g.gelu(x))
    run = Executor(g, backend="numpy").run
    inputs = {"x": np.ones((2, 5), np.float32)}
    for lead in ((), (7,), (3, 7)):
        assert run({**inputs, "mask": np.ones((*lead, 5, 5), bool)})["y"].shape == (2, 5)
    with pytest.raises(MaskError, match=r"'mask'.*float64"):
        run({**inputs, "mask": np.ones((7, 5, 5))})
    with pytest.raises(ShapeError, match=r"expected \(seq, seq\); seq is 5 in 'x'"):
        run({**inputs, "mask": np.ones((7, 6, 6), bool)})


def test_no_batch_needs_no_mask() -> None:
    inputs = {name: array[:0] for name, array in arrays(4, 9).items()}
    run = Executor(cross(weights()), backend="numpy").run
    for lead in ((0, 1), (1, HEADS), (HEADS,)):
        assert run({**inputs, "mask": dense(lead, 4, 9)})["out"].shape == (0, 4, HEADS * DIM)


def test_leading_axes_are_not_declared() -> None:
    g = Graph("four")
    with pytest.raises(GraphError, match="expected 2 dims for mask; a run's mask may have leading"):
        g.input("mask", ("batch", HEADS, "seq", "seq"), "mask")


@pytest.mark.gpu
@pytest.mark.parametrize("lead", LEADS)
def test_leading_axes_on_cuda(lead: Any) -> None:
    import cupy

    w, inputs, mask = weights(), arrays(70, 131), dense(lead, 70, 131)
    w = {name: array.astype(np.float16) for name, array in w.items()}
    inputs |= {name: inputs[name].astype(np.float16) for name in "xy"}
    rounded = Executor(fuse_epilogues(cross(w)), backend="numpy").run(
        {**inputs, "mask": mask},
        observe=lambda _, y: y.astype(np.float16).astype(np.float32),
    )["out"]
    on_device = {name: cupy.asarray(array) for name, array in inputs.items()}
    run = Executor(fuse_epilogues(cross(w)), backend="cuda", dtype="float16").run
    for given in (mask, masks.MaskStack.from_dense(mask)):
        got = run({**on_device, "mask": given})["out"]
        testing.assert_close(got, expected(w, inputs, mask), rounded.astype(np.float16))
