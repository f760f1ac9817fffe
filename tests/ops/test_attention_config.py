"""Block-wise configurations for GPUs that are not here: what is legal, and how lists are cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import UnsupportedError
from stof_cupy.jit.attention_kernels import FEW_ROWS, PLAIN, SHAPES, ScoreKind
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops.attention_candidates import candidates, legal
from stof_cupy.ops.attention_config import Config, configs, kind_for, slices
from stof_cupy.ops.attention_demand import Given
from stof_cupy.ops.attention_model import explain
from tests.ops.gpus import B200, GPUS, H100, L4, RTX_4090, OnGpu, case

each_gpu = pytest.mark.parametrize("facts", GPUS, ids=lambda facts: facts.name)
TWO = ScoreKind(softcap=True, bias="float16", alibi=True)


@each_gpu
def test_every_config_is_legal_and_covers_the_problem(facts: DeviceFacts) -> None:
    for dim, sq, sk, group, batch, kind in product(
        (8, 64, 96, 128, 192, 256), (1, 7, 65, 1000), (1, 500, 8192), (1, 4), (1, 64), (PLAIN, TWO)
    ):
        how: Any = {"dim": dim, "seq_q": sq, "seq_k": sk, "kv_heads": 8 // group, "batch": batch}
        for mask in (None, masks.sliding_window(sq, sk, window=9, align="top-left").tobsr()):
            of = case(1, mask, facts, heads=8, scores=kind, **how)
            found = list(configs(of))
            assert found and len(set(found)) == len(found)
            assert len({each.name for each in found}) == len(found)
            for config in found:
                assert legal(config, of) == ""
                packed = config.pack > 1
                assert config.head_dim >= dim
                assert packed or config.mask_rows % config.shape.rows == 0
                assert config.slots(of.problem) * config.shape.rows >= sq * config.pack
                assert 0 <= config.long_slots <= config.slots(of.problem)
                assert kind == PLAIN or config.shape.warp_rows == 16
                assert config.pack in (1, group)
                assert config.spec(of.problem).supports(facts.arch)
                assert config.scores == kind_for(of)


@each_gpu
@pytest.mark.parametrize("dim", SHAPES)
def test_every_head_dim_has_shapes_for_every_gpu(facts: DeviceFacts, dim: int) -> None:
    rows = {each.shape.rows for each in configs(case(2048, None, facts, dim=dim))}
    assert {16, 64} <= rows
    modified = case(2048, None, facts, dim=dim, scores=ScoreKind(softcap=True))
    assert {16, 64} <= {each.shape.rows for each in configs(modified)}


def test_lists_are_cut_as_the_kernel_cuts_them() -> None:
    config = Config(64, SHAPES[64][0], long_slots=4, splits=3, slice=8)
    lengths = np.array([0, 1, 8, 12, 13, 16, 17, 24, 25, 100])
    assert slices(config, lengths).tolist() == [1, 1, 1, 1, 2, 2, 3, 3, 3, 3]


def test_only_long_lists_are_cut() -> None:
    s = 8192
    mask = masks.longformer(s, window=256, global_tokens=64).tobsr()
    found = [c for c in configs(case(s, mask, dim=128, heads=32)) if c.long_slots]
    assert found and all(c.long_slots * c.shape.rows <= 128 for c in found if c.slice > 8)
    assert all(c.splits * c.slice >= 128 for c in found)
    short = masks.sliding_window(64, window=9).tobsr()
    assert not any(c.long_slots for c in configs(case(64, short)))


def test_an_old_compiler_and_new_gpus_get_warps_of_fewer_rows() -> None:
    def warp_rows(of: Any) -> set[int]:
        return {c.shape.warp_rows for c in configs(of)}

    assert warp_rows(case(dim=128)) == {16, 32}
    assert warp_rows(case(dim=128, nvrtc=(12, 4))) == {16}
    assert warp_rows(case(dim=128, facts=B200)) == {16}
    assert warp_rows(case(dim=64, facts=B200, nvrtc=(12, 4))) == {16, 32}
    assert warp_rows(case(dim=64, scores=TWO)) == {16}


def test_heads_are_packed_that_share_keys_and_mask() -> None:
    def packs(mask: Any, **how: Any) -> set[int]:
        sizes: Any = {"heads": 8, "kv_heads": 2, "seq_q": 1, "seq_k": 500, **how}
        return {c.pack for c in configs(case(1, mask, **sizes))}

    dense = np.random.default_rng(0).random((1, 8, 1, 500)) < 0.5
    assert packs(None) == {1, 4}
    assert packs(None, kv_heads=8) == {1} and packs(None, seq_q=65) == {1}
    assert packs(masks.MaskStack.from_dense(dense)) == {1}
    assert packs(masks.MaskStack.from_dense(dense[:, :1])) == {1, 4}
    assert packs(OnGpu((8, 8), (1, 1))) == {1, 4} and packs(OnGpu((64, 64), (8,))) == {1}


def test_what_needs_registers_shares_the_sm_with_fewer_blocks() -> None:
    tight = {s for s in SHAPES[64] if s.min_blocks * s.threads > 256}
    assert tight and tight <= {c.shape for c in configs(case(200))}
    for of in (case(200, scores=ScoreKind(softcap=True)), case(1, heads=8, kv_heads=2)):
        shapes = {c.shape for c in configs(of) if c.pack > 1 or c.scores != PLAIN}
        assert shapes and all(each.min_blocks * each.threads <= 256 for each in shapes)


def test_two_terms_become_one_where_registers_are_few() -> None:
    both = ScoreKind(softcap=True, alibi=True, distances=True)
    assert kind_for(case(dim=128, scores=both)) == both
    assert kind_for(case(dim=129, scores=both)) == ScoreKind(softcap=True, distances=True)
    both = ScoreKind(bias="float16", alibi=True)
    assert kind_for(case(dim=129, scores=both)) == ScoreKind(bias="float32")


def test_the_sum_of_two_terms_takes_its_share_of_memory_and_no_more() -> None:
    both = ScoreKind(bias="float16", alibi=True)
    for facts in (H100, L4):
        most = facts.memory_bytes // 16
        for dim, folded in ((192, most), (192, most + 1), (128, most + 1)):
            of = replace(case(dim=dim, scores=both, facts=facts), given=Given(folded=folded))
            kernels = {each.kernel for each in candidates(of)}
            assert ("blockwise" in kernels) == (dim == 128 or folded <= most)
            assert "rowwise" in kernels  # it needs no sum
            config = next(configs(replace(of, given=Given())))
            assert ("bytes: at most" in legal(config, of)) == (dim == 192 and folded > most)


def test_what_is_not_legal() -> None:
    plain = case()
    config = Config(64, SHAPES[64][0], mask_rows=128)
    wide = Config(256, SHAPES[256][0], mask_rows=64)
    assert legal(config, plain) == ""
    assert "at most 32" in legal(replace(config, head_dim=32, shape=SHAPES[32][0]), plain)
    large = replace(wide, shape=replace(wide.shape, stages=2))
    for facts in (RTX_4090, L4):
        assert legal(wide, case(dim=256, facts=facts)) == ""
        assert "bytes of shared memory" in legal(large, case(dim=256, facts=facts))
    assert legal(large, case(dim=256)) == ""
    assert "a multiple of 128" in legal(replace(config, mask_rows=64), plain)
    assert "multiples of 64" in legal(
        replace(config, shape=FEW_ROWS[64], mask_rows=16), case(mask=OnGpu((9, 9)))
    )
    assert "not of one mask" in legal(replace(config, pack=4, mask_rows=64), plain)
    assert "not so many" in legal(replace(config, long_slots=17, splits=2), plain)
    assert "not so many" in legal(replace(config, long_slots=1, splits=129), plain)
    assert "partial" in legal(replace(config, long_slots=16, splits=128), case(batch=64))
    assert "other rows" in legal(replace(config, scores=TWO), plain)
    assert "2^31 tiles of 128" in legal(config, case(1024, batch=2**16, heads=2**13))
    assert "2^31 - 128" in legal(config, case(seq_k=2**31))


def test_no_kernel_at_all() -> None:
    with pytest.raises(UnsupportedError, match="head_dim: got 257"):
        explain(case(dim=257))
    with pytest.raises(UnsupportedError, match=r"2\^31 tiles"):
        explain(case(1024, batch=2**18, heads=2**13))
    with pytest.raises(UnsupportedError, match="queries or keys"):
        explain(case(seq_k=2**31))


def test_residents_are_what_registers_and_shared_memory_allow() -> None:
    shape = SHAPES[64][0]
    assert Config(64, shape).resident(H100) == shape.min_blocks
    small = replace(H100, smem_per_sm=shape.smem_bytes(64) + 1024)
    assert Config(64, shape).resident(small) == 1
