"""The stacks of benchmarks/bench_engine.py are the same for us and for PyTorch."""

from __future__ import annotations

from dataclasses import replace

import engine_stacks as stacks
import numpy as np
import pytest
from engine_stacks import ANCHORS, GRID, MASKS, STACKS, Cell

from stof_cupy.ops.relative_bias import RelativeBias
from stof_cupy.runtime import Program


def small(name: str, mask: str) -> Cell:
    stack = STACKS[name]
    shared = stack.heads // stack.kv_heads
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4 // shared or 1, "inner": 96}
    return Cell(replace(stack, **sizes), 2, 192, mask)


def test_cells_are_named_and_read() -> None:
    assert len(GRID) == 72 and len({str(cell) for cell in GRID}) == 72
    assert [Cell.parse(str(cell)) for cell in (*GRID, *ANCHORS)] == [*GRID, *ANCHORS]
    with pytest.raises(ValueError, match="mask 'none'"):
        Cell.parse("gpt2:1x128:none")


@pytest.mark.parametrize("seq", [128, 1056])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["bert-base", "gpt2"])
def test_our_mask_is_the_rule(name: str, mask: str, seq: int) -> None:
    cell = Cell(STACKS[name], 1, seq, mask)
    ours, dense = stacks.pattern(cell), stacks.dense(cell)
    if name == "bert-base" and mask == "full":
        assert ours is None and dense is None
    else:
        np.testing.assert_array_equal(ours.toarray(), dense)


@pytest.mark.parametrize("name", STACKS)
def test_results_are_those_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    import engine_peers as peers

    monkeypatch.setattr("torch.compile", lambda model, **_: model)
    for mask in MASKS if name == "t5" else ("full", "longformer"):
        cell = small(name, mask)
        weights, x = stacks.weights(cell.stack, "float32"), stacks.hidden_states(cell, "float32")
        got = Program(stacks.graph(cell.stack, weights)).run(stacks.inputs(cell, x))["y"]
        placed = peers.placed(weights, "cpu", torch.float32)
        for way in ("eager", "flex"):
            want = peers.model(cell, way, placed, torch.float32)(torch.from_numpy(x))
            np.testing.assert_allclose(got, want.numpy(), atol=2e-5)
        exact = peers.exact(cell, placed, torch.from_numpy(x))
        np.testing.assert_allclose(got, exact.numpy(), atol=2e-5)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_relative_biases_are_those_of_torch(side: str) -> None:
    torch = pytest.importorskip("torch")
    import engine_attends as attends

    cell = Cell(STACKS["t5"], 1, 512, "full")
    table = np.random.default_rng(0).standard_normal((cell.stack.buckets, 12), np.float32)
    bias = RelativeBias(table, bidirectional=side == "encoder", max_distance=stacks.FAR)
    got = attends.by_distance(cell, side, torch.from_numpy(table)).numpy()
    at = np.arange(512)
    np.testing.assert_array_equal(got[:, at - at[:, None] + 511], bias.toarray(512, 512))


def test_operations_are_counted_by_hand() -> None:
    """Of BERT at 8x512 and of T5, whose decoder sees the past, and all that its encoder says."""
    hidden, tokens = 768, 8 * 512
    layer = hidden * (3 * hidden + hidden + 2 * 3072)
    attention = 4 * tokens * 512 * hidden
    bert = 12 * (2 * tokens * layer + attention)
    assert stacks.operations(Cell.parse("bert-base:8x512:full")) == bert
    causal = attention * (512 + 1) / (2 * 512)
    decoder = 12 * (2 * tokens * (layer + 4 * hidden * hidden) + causal + attention)
    assert stacks.operations(Cell.parse("t5:8x512:full")) == pytest.approx(bert + decoder)
