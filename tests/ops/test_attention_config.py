"""What attention chooses for GPUs that are not here."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import UnsupportedError
from stof_cupy.jit.attention_kernels import FEW_ROWS, PLAIN, SHAPES, ScoreKind
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_config import choose, legal


def facts(name: str, cc: tuple[int, int], sms: int, block: int, sm: int) -> DeviceFacts:
    return DeviceFacts(name, f"{cc[0]}{cc[1]}", cc, sms, block, sm, 40 << 20, 1_700_000, 1 << 34)


GPUS = {
    "A100": facts("A100", (8, 0), 108, 166_912, 167_936),
    "RTX 4090": facts("RTX 4090", (8, 9), 128, 101_376, 102_400),
    "L4": facts("L4", (8, 9), 58, 101_376, 102_400),
    "H100": facts("H100", (9, 0), 132, 232_448, 233_472),
    "B200": facts("B200", (10, 0), 148, 232_448, 233_472),
}


def problem(
    batch: int = 1, heads: int = 8, kv_heads: int = 8, sq: int = 1024, sk: int = 1024, dim: int = 64
) -> Problem:
    return Problem("float16", batch, heads, kv_heads, sq, sk, dim, dim)


@pytest.mark.parametrize("gpu", GPUS)
def test_every_choice_is_legal_and_covers_the_problem(gpu: str) -> None:
    kinds = (PLAIN, ScoreKind(softcap=True, bias="float16"))
    for dim, sq, sk, group, batch, kind in product(
        (8, 64, 96, 128, 192, 256),
        (1, 7, 64, 65, 1000, 8192),
        (1, 500, 8192),
        (1, 4),
        (1, 64),
        kinds,
    ):
        one = problem(batch, 8, 8 // group, sq, sk, dim)
        for mask in (None, masks.sliding_window(sq, sk, window=9, align="top-left").tobsr()):
            config = choose(one, kind, mask, GPUS[gpu])
            packed = config.pack > 1
            assert legal(config.shape, config.head_dim, GPUS[gpu], packed)
            assert config.head_dim >= dim
            assert packed or config.mask_rows % config.shape.rows == 0
            assert config.slots(one) * config.shape.rows >= sq * config.pack
            assert config.long_slots <= config.slots(one)
            assert kind == PLAIN or config.shape.warp_rows == 16
            assert config.pack in (1, group)
            assert config.spec(one).supports(GPUS[gpu].arch)


def test_every_head_dim_has_shapes_for_a_gpu_with_little_shared_memory() -> None:
    for dim, shapes in SHAPES.items():
        fit = [shape for shape in (*shapes, FEW_ROWS[dim]) if legal(shape, dim, GPUS["L4"])]
        assert {16, 64} <= {shape.rows for shape in fit}
        assert any(shape.rows == 64 and shape.warp_rows == 16 for shape in fit)


def test_few_queries_fill_the_gpu_by_slices_of_the_keys() -> None:
    config = choose(problem(sq=1, sk=65_536, heads=32, kv_heads=8), PLAIN, None, GPUS["H100"])
    assert config.pack == 4 and config.shape.rows == 16
    assert config.splits * 8 >= 132 and config.long_slots == 1


def test_long_rows_of_a_sparse_mask_are_cut_and_others_are_not() -> None:
    s = 8192
    mask = masks.longformer(s, window=256, global_tokens=64).tobsr()
    config = choose(problem(heads=32, kv_heads=32, sq=s, sk=s, dim=128), PLAIN, mask, GPUS["H100"])
    assert config.splits > 1 and config.long_slots <= 2
    dense = choose(problem(heads=32, kv_heads=32, sq=s, sk=s, dim=128), PLAIN, None, GPUS["H100"])
    assert dense.splits == 1 and dense.shape.rows == 128


def test_an_old_compiler_gets_warps_of_fewer_rows() -> None:
    one = problem(heads=32, kv_heads=32, sq=8192, sk=8192, dim=128)
    assert choose(one, PLAIN, None, GPUS["H100"], True).shape.warp_rows == 16


def test_masks_that_differ_within_a_group_are_not_packed() -> None:
    dense = np.random.default_rng(0).random((1, 8, 1, 500)) < 0.5
    stack: Any = masks.MaskStack.from_dense(dense)
    assert choose(problem(sq=1, sk=500, kv_heads=2), PLAIN, stack, GPUS["H100"]).pack == 1
    shared: Any = masks.MaskStack.from_dense(dense[:, :1])
    assert choose(problem(sq=1, sk=500, kv_heads=2), PLAIN, shared, GPUS["H100"]).pack == 4


def test_what_the_kernels_cannot_index() -> None:
    with pytest.raises(UnsupportedError, match="head_dim: got 257"):
        choose(problem(dim=257), PLAIN, None, GPUS["H100"])
    with pytest.raises(UnsupportedError, match=r"2\^31 tiles of 128 queries"):
        choose(problem(batch=2**16, heads=2**13, kv_heads=1, sq=2**10), PLAIN, None, GPUS["H100"])
    with pytest.raises(UnsupportedError, match="each at most"):
        choose(problem(sk=2**31), PLAIN, None, GPUS["H100"])
