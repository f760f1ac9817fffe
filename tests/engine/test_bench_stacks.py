"""The stacks of benchmarks/bench_engine.py are the same for us and for PyTorch."""

from __future__ import annotations

from dataclasses import replace

import engine_stacks as stacks
import numpy as np
import pytest
from engine_stacks import ANCHORS, GRID, MASKS, STACKS, Cell

from stof_cupy.runtime import Program


def small(name: str, mask: str) -> Cell:
    stack = STACKS[name]
    shared = stack.heads // stack.kv_heads
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4 // shared or 1, "inner": 96}
    return Cell(replace(stack, **sizes), 2, 192, mask)


def test_cells_are_named_and_read() -> None:
    assert len(GRID) == 60 and len({str(cell) for cell in GRID}) == 60
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
def test_results_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    import engine_peers as peers

    for mask in ("full", "longformer"):
        cell = small(name, mask)
        weights, x = stacks.weights(cell.stack, "float32"), stacks.hidden_states(cell, "float32")
        inputs = {"x": x, "mask": stacks.pattern(cell)}
        if cell.stack.rotary:
            at = np.arange(cell.seq, dtype=np.int32)
            inputs["positions"] = np.broadcast_to(at, (cell.batch, cell.seq))
        got = Program(stacks.graph(cell.stack, weights)).run(inputs)["y"]
        placed = peers.placed(weights, "cpu", torch.float32)
        want = peers.model(cell, "eager", placed, torch.float32)(torch.from_numpy(x))
        np.testing.assert_allclose(got, want.numpy(), atol=2e-5)
