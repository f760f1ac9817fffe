"""What the Hopper attention takes, and where it is chosen."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import UnsupportedError
from stof_cupy.jit.attention_sm90 import SM90_CONFIGS, SM90_DIMS, Sm90Config, sm90_dim
from stof_cupy.masks.schedule import Schedule
from stof_cupy.ops import attention_sm90
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_candidates import candidates
from stof_cupy.ops.attention_demand import Given
from stof_cupy.ops.attention_model import choose, explain, predict
from stof_cupy.ops.attention_sm90 import Config, legal, shapes
from stof_cupy.ops.attention_sm90_launches import _order
from stof_cupy.testing import rng
from tests.ops import gpus
from tests.ops.hopper_case import (
    BIG,
    IN_SEQUENCE,
    PACKED,
    SMALL,
    THREE,
    Case,
)


def test_every_configuration_is_one() -> None:
    assert [c.name for c in SM90_CONFIGS if not c.overlaps] == [IN_SEQUENCE.name]
    assert [config.fault() for config in SM90_CONFIGS] == [None] * len(SM90_CONFIGS)
    assert len({config.name for config in SM90_CONFIGS}) == len(SM90_CONFIGS)
    for dim in range(1, 257):
        found = list(shapes(gpus.case(9, dim=dim)))
        assert found and all(shape.dim_qk == sm90_dim(dim) for shape in found)


@pytest.mark.parametrize("dims", [(a, b) for a in SM90_DIMS for b in SM90_DIMS])
def test_every_pair_of_head_dims_has_a_configuration(dims: tuple[int, int]) -> None:
    case = gpus.case(9, dim_qk=dims[0], dim_v=dims[1])
    found = list(attention_sm90.configs(case))
    assert found and all(legal(config, case) == "" for config in found)


@pytest.mark.parametrize(
    "change, named",
    [
        ({"n": 256, "warpgroups": 3}, "registers"),
        ({"scores": ("Additive<stof::bf16>",)}, "64 keys"),
        ({"scores": ("Alibi", "Additive<float>")}, "64 keys"),
        ({"scores": ("Softcap", "Relative")}, "64 keys"),
        ({"scores": ("Alibi", "Additive<float>"), "n": 64, "dim_v": 256, "queries": 1}, "no array"),
        ({"scores": ("Alibi", "Relative"), "n": 64}, "scores"),
        ({"scores": ("Alibi",), "n": 112, "dim_qk": 192, "dim_v": 64, "queries": 1}, "64 does not"),
        ({"scores": ("Alibi",), "n": 64, "packed": True}, "packed"),
        ({"n": 120}, "n:"),
        ({"stages": 4}, "shared memory"),
        ({"halves": True, "n": 112}, "halves"),
        ({"halves": True, "dim_qk": 64, "dim_v": 192, "queries": 1}, "halves"),
        ({"halves": True, "packed": True}, "halves"),
        ({"blocks": 2}, "registers|shared memory"),
        ({"dim_v": 80}, "head dims"),
        ({"warpgroups": 4}, "warpgroups"),
        ({"warpgroups": 1}, "blocks"),
        ({"stages": 1}, "stages"),
    ],
)
def test_what_is_no_configuration(change: dict[str, int], named: str) -> None:
    wrong = replace(Sm90Config(128, 128, n=128, warpgroups=2), **change).fault()
    assert wrong is not None
    assert any(name in wrong for name in named.split("|"))


@pytest.mark.parametrize(
    "change, named",
    [
        ({"facts": gpus.A100}, "sm_90a alone"),
        ({"facts": gpus.L4}, "sm_90a alone"),
        ({"facts": gpus.B200}, "sm_90a alone"),
        ({"dim": 36}, "a multiple of 8"),
        ({"seq_k": 0}, "empty"),
        ({"dim": 80}, "head dims"),
        ({"given": Given(boxes=False)}, "positive strides"),
        ({"given": Given(negative=True)}, "negative"),
        ({"scores": gpus.ScoreKind(softcap=True)}, "scores made by"),
        ({"mask": gpus.OnGpu((5, 5))}, "no mask is built"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_it_cannot_run(change: dict[str, Any], named: str) -> None:
    given = change.pop("given", Given())
    case = replace(gpus.case(100, **change), given=given)
    assert named in legal(Config(THREE), case)


def test_the_error_says_why_not() -> None:
    case = replace(gpus.case(100), given=Given(negative=True))
    for run in (choose, explain):
        with pytest.raises(UnsupportedError, match=r"^select: got 'sm90'.*: a negative scale$"):
            run(case, select="sm90")


@pytest.mark.parametrize("axis", ["batch", "heads", "seq_q", "seq_k"])
def test_without_queries_or_keys_another_kernel_runs(axis: str) -> None:
    sizes = {"seq_q": 100, "seq_k": 100, "kv_heads": 12} | {axis: 0}
    for mask in (None, masks.BsrMask(np.ones((sizes["seq_q"], sizes["seq_k"]), bool))):
        case = gpus.case(100, mask, **sizes)
        assert choose(case, select="sm90") == choose(case, select="sm80")
        assert explain(case, select="sm90") == explain(case, select="sm80")
        with pytest.raises(UnsupportedError, match="sm_90a alone"):
            choose(replace(case, facts=gpus.A100), select="sm90")


@pytest.mark.parametrize("dims", [(a, b) for a in SM90_DIMS for b in SM90_DIMS])
def test_which_terms_every_pair_of_head_dims_takes(dims: tuple[int, int]) -> None:
    for softcap, distances, bias in product(
        (False, True), (None, "alibi", "distances"), (None, "float16", "bfloat16", "float32")
    ):
        terms = {"softcap": softcap, "bias": bias} | ({distances: True} if distances else {})
        scores = gpus.ScoreKind(**terms)
        case = gpus.case(300, dim_qk=dims[0], dim_v=dims[1], scores=scores)
        beside = softcap if dims == (256, 256) else False
        taken = not (bias and dims[1] == 256 and (distances or beside))
        assert any(attention_sm90.configs(case)) == taken
        assert not taken or choose(case, select="sm90").kernel == "sm90"


@pytest.mark.parametrize("term", [{"softcap": True}, {"alibi": True}, {"distances": True}])
@pytest.mark.parametrize("dim", [64, 128])
def test_what_modifies_scores_takes_time_in_every_kernel(term: Any, dim: int) -> None:
    """On an H200 the other kernel takes twice as long for each of them, and more."""
    scores = gpus.ScoreKind(**term)
    for size in (512, 2048):
        for mask in (None, masks.causal(size).tobsr(), masks.sliding_window(size, window=64)):
            mask = mask.tobsr() if hasattr(mask, "tobsr") else mask
            how = {"heads": 96, "dim": dim, "facts": gpus.H200}
            plain = explain(gpus.case(size, mask, **how))
            modified = explain(gpus.case(size, mask, scores=scores, **how))
            assert modified[0].candidate.kernel == "sm90"
            least = {}
            for name, found in (("plain", plain), ("modified", modified)):
                for kernel in ("sm90", "blockwise"):
                    us = (each.us for each in found if each.candidate.kernel == kernel)
                    least[name, kernel] = min(us)
            for kernel in ("sm90", "blockwise"):
                assert least["modified", kernel] > least["plain", kernel]
            assert least["modified", "blockwise"] > 1.4 * least["modified", "sm90"]


@pytest.mark.parametrize(
    "dims, terms",
    [
        ((256, 256), {"softcap": True, "distances": True, "bias": "float32"}),
        ((64, 256), {"alibi": True, "bias": "bfloat16"}),
        ((64, 64), {"alibi": True, "distances": True}),
    ],
)
def test_another_kernel_is_chosen_where_it_has_no_registers(
    dims: tuple[int, int], terms: Any
) -> None:
    scores = gpus.ScoreKind(**terms)
    for facts in (gpus.H100, gpus.H200):
        case = gpus.case(300, dim_qk=dims[0], dim_v=dims[1], scores=scores, facts=facts)
        assert not list(attention_sm90.configs(case))
        assert choose(case).kernel in ("blockwise", "rowwise")
        with pytest.raises(UnsupportedError, match=r"^select: got 'sm90'"):
            choose(case, select="sm90")


def test_packed_keys_need_a_mask_that_the_cpu_knows() -> None:
    some = masks.BsrMask(rng(0).random((100, 100)) < 0.05)
    assert legal(Config(PACKED), gpus.case(100, some)) == ""
    for mask in (None, gpus.OnGpu((5, 5))):
        assert "packed" in legal(Config(replace(PACKED, n=64)), gpus.case(100, mask))
    lengths = replace(gpus.case(100, some), given=Given(lengths=True))
    assert "packed" in legal(Config(PACKED), lengths)
    rare = masks.BsrMask(rng(0).random((1024, 1024)) < 0.001)
    assert any(config.packed for config in attention_sm90.configs(gpus.case(1024, rare)))
    band = masks.sliding_window(1024, window=100).tobsr()
    assert not any(config.packed for config in attention_sm90.configs(gpus.case(1024, band)))


@pytest.mark.parametrize("dim", [64, 128])
def test_keys_are_packed_where_that_saves_work(dim: int) -> None:
    size, g = 4096, rng(3)
    blocks = np.kron(g.random((size // 8, size // 8)) < 0.05, np.ones((8, 8), bool))
    columns = np.zeros((size, size), bool)
    columns[:, g.choice(size, 64, replace=False)] = True
    for dense in (blocks, columns):
        assert choose(gpus.case(size, masks.BsrMask(dense), heads=16, dim=dim)).packed
    # 64 queries side by side use all groups of 8 keys: there is nothing to pack.
    dilated = masks.dilated(size, window=1024, dilation=8).tobsr()
    assert dilated.group_share() == 1
    assert not choose(gpus.case(size, dilated, heads=16, dim=dim)).packed


@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
def test_to_choose_makes_no_lists(dim: int) -> None:
    for kept in (0.001, 0.3):
        mask = masks.BsrMask(rng(0).random((1000, 1100)) < kept)
        case = gpus.case(1000, mask, dim=dim, seq_k=1100)
        assert any(each.candidate.kernel == "sm90" for each in explain(case)) and choose(case)
        assert not [each for each in mask._schedules.values() if isinstance(each, Schedule)]


def test_slices_that_are_too_many() -> None:
    case = gpus.case(1000, dim=64)
    assert "slices" in legal(Config(THREE, 7, 2), case)
    assert "slices" in legal(Config(THREE, 1, 65), case)
    assert "bytes" in legal(
        Config(THREE, 6, 64), replace(case, problem=replace(case.problem, batch=200))
    )


def test_where_rows_begin() -> None:
    x = np.zeros((1, 2, 50, 72), np.float16)
    views = (
        *((x, True), (x[..., :70], True), (x[..., 1:9], False)),
        *((x[..., ::2], False), (x[..., :64:2], True)),  # copied
        *((x[:, :, ::-1], False), (x[:, ::-1], False)),  # reversed
        (np.broadcast_to(x[:, :1], x.shape), False),
    )
    for q, boxes in views:
        args = Case(q, q, x[..., :64]).args(None)
        assert attention_sm90.given(args) == Given(boxes)
    args = Case(x, x, x, None, -1.0, np.array([3])).args(None)
    assert attention_sm90.given(args) == Given(True, True, True)


def test_more_work_takes_longer() -> None:
    def us(config: Config, **change: Any) -> float:
        return predict(config, gpus.case(change.pop("seq", 2048), dim=128, **change)).us

    causal = masks.causal(2048).tobsr()
    near, far = (masks.sliding_window(2048, window=w).tobsr() for w in (100, 500))
    every = list(candidates(gpus.case(2048, causal, dim=128), ("sm90",)))
    assert {each.splits > 1 for each in every} == {True, False}
    for config in every:
        by_batch = [us(config, mask=causal, batch=n) for n in (1, 2, 8, 64)]
        by_mask = [us(config, mask=mask) for mask in (near, far, None)]
        by_length = [us(config, seq=n, mask=None) for n in (1024, 2048, 4096)]
        for times in (by_batch, by_mask, by_length):
            assert all(a <= b * 1.001 for a, b in pairwise(times)), config.name
        assert by_batch[-1] > 16 * by_batch[0]
        slower = replace(gpus.H100, clock_khz=gpus.H100.clock_khz // 2)
        assert us(config, mask=causal, facts=slower) > us(config, mask=causal)


def test_it_is_chosen_on_a_hopper_alone() -> None:
    case = gpus.case(4096, masks.causal(4096).tobsr(), dim=128)
    assert choose(case).kernel == choose(case, select="sm90").kernel == "sm90"
    found = explain(case, select="sm90")
    assert {each.candidate.kernel for each in found} == {"sm90"} and found[0].us > 0
    for facts in (gpus.A100, gpus.L4, gpus.B200):
        with pytest.raises(UnsupportedError, match="sm_90a alone"):
            choose(replace(case, facts=facts), select="sm90")
    assert {each.candidate.kernel for each in explain(case)} == {"blockwise", "rowwise", "sm90"}
    assert explain(case)[0].candidate.kernel == "sm90"
    assert explain(case, select="stof-eq1")[0].candidate.kernel == "sm90"
    for facts in (gpus.A100, gpus.L4, gpus.B200):
        kernels = {each.candidate.kernel for each in explain(replace(case, facts=facts))}
        assert kernels == {"blockwise", "rowwise"}


def test_the_others_are_chosen_on_a_hopper_when_asked() -> None:
    case = gpus.case(4096, masks.causal(4096).tobsr(), dim=128)
    found = explain(case, select="sm80")
    assert {each.candidate.kernel for each in found} == {"blockwise", "rowwise"}
    assert choose(case, select="sm80") == found[0].candidate != choose(case)
    assert explain(case, select="sm80", among=list(candidates(case))) == found
    for facts in (gpus.A100, gpus.L4, gpus.B200):
        elsewhere = replace(case, facts=facts)
        assert explain(elsewhere, select="sm80") == explain(elsewhere)


def test_candidates_are_legal_and_have_names() -> None:
    some = masks.BsrMask(rng(1).random((2048, 2048)) < 0.002)
    long = masks.longformer(2048, window=64, global_tokens=64).tobsr()
    for mask in (None, some, long, gpus.OnGpu((500, 400)), gpus.Copied(some)):
        for dim in (40, 64, 96, 128, 192, 256):
            for scores in (gpus.ScoreKind(), gpus.ScoreKind(softcap=True, bias="float32")):
                case = gpus.case(2048, mask, dim=dim, scores=scores)
                found = list(attention_sm90.configs(case))
                assert len({config.name for config in found}) == len(found)
                assert found or (dim > 128 and scores != gpus.ScoreKind())
                for config in found:
                    assert legal(config, case) == "" and config.spec(case.problem)


def test_small_cases_have_no_candidate_twice() -> None:
    for seq in (65, 130, 256, 500):
        for mask in (None, masks.longformer(seq, window=20, global_tokens=9).tobsr()):
            found = list(attention_sm90.configs(gpus.case(seq, mask, heads=2)))
            assert len(set(found)) == len(found)


def test_what_is_long_and_what_is_cut() -> None:
    def of(mask: Any, heads: int, seq: int = 8192) -> list[Config]:
        case = gpus.case(seq, mask, dim=128, heads=heads)
        every = attention_sm90.configs(case)
        return [c for c in every if c.tile == (128, 128) and not c.shape.halves]

    long = masks.longformer(8192, window=256, global_tokens=64).tobsr()
    assert of(long, 32)[0] == Config(BIG, 1)
    assert of(None, 32) == [Config(BIG)]
    window = masks.sliding_window(8192, window=256).tobsr()
    assert of(window, 32)[0].long_slots == 0
    assert of(masks.causal(8192).tobsr(), 1)[0].long_slots > 32
    cut = [each for each in of(long, 4) if each.splits > 1]
    assert cut and all(each.long_slots == 1 for each in cut)
    decode = gpus.case(65536, dim=128, heads=8, seq_q=1)
    assert max(each.splits for each in attention_sm90.configs(decode)) >= 16


@pytest.mark.parametrize("kv_heads", [32, 8, 1])
@pytest.mark.parametrize("seq", [512, 2048, 8192, 32768])
def test_a_section_stays_in_l2(seq: int, kv_heads: int) -> None:
    """Or is what shares its keys; and what all heads need together is one section."""
    problem = Problem("float16", 4, 32, kv_heads, seq, seq, 128, 128)
    group = 32 // kv_heads
    touched = 2 * 256 * seq * (1 + group)  # by heads that share keys
    for l2_bytes in (4 << 20, 50 << 20, 10**12):
        first, section = _order(Config(BIG, 3), problem, None, 132, l2_bytes)
        assert first == 3 and section % group == 0
        assert section == group or section / group * touched < l2_bytes
        assert section == 128 or section / group * touched > l2_bytes / 4 - touched
    assert section == 128


def test_a_section_is_larger_or_long_lists_come_first_where_they_would_end_last() -> None:
    problem, l2_bytes = Problem("float16", 16, 12, 12, 2048, 2048, 64, 64), 50 << 20

    def of(longest: int, others: int, long_slots: int = 1, splits: int = 1) -> tuple[int, int]:
        lengths = np.array([longest] + 31 * [others])
        return _order(Config(SMALL, long_slots, splits), problem, lengths, 396, l2_bytes)

    assert of(8, 8) == (0, 16) and of(32, 9) == (0, 39)
    assert of(320, 9) == (1, 16)  # it alone takes longer than what 66 heads have beside
    assert of(32, 9, 1, 2) == (1, 16)  # what is cut comes first
    assert of(320, 9, 0) == (0, 66) and of(0, 0) == (0, 16)
