"""The choice of attention's kernel, on the facts of GPUs that are not here."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, UnsupportedError
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.masks import BsrMask
from stof_cupy.masks.device.built import BuiltMask, UploadedMask
from stof_cupy.ops import attention_calibration as calibration
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_candidates import Candidate, Kernels, candidates, head_dim_of, legal
from stof_cupy.ops.attention_constants import NAMES, Constants
from stof_cupy.ops.attention_demand import Demand
from stof_cupy.ops.attention_eq1 import stof_eq1
from stof_cupy.ops.attention_model import choose, explain, predict
from stof_cupy.testing import rng

A100 = DeviceFacts(
    *("NVIDIA A100-SXM4-80GB", "80", (8, 0), 108, 166912, 167936, 40 << 20, 1410000, 80 << 30),
    *(2048, 1593000, 5120),
)
H100 = DeviceFacts(
    *("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20, 1980000, 80 << 30),
    *(2048, 2619000, 5120),
)
RTX_4090 = DeviceFacts(
    *("NVIDIA GeForce RTX 4090", "89", (8, 9), 128, 101376, 102400, 72 << 20, 2520000, 24 << 30),
    *(1536, 10501000, 384),
)
L4 = DeviceFacts(
    *("NVIDIA L4", "89", (8, 9), 58, 101376, 102400, 48 << 20, 2040000, 24 << 30),
    *(1536, 6251000, 192),
)
B200 = DeviceFacts(
    *("NVIDIA B200", "100", (10, 0), 148, 232448, 233472, 126 << 20, 1965000, 180 << 30),
    *(2048, 3996000, 8192),
)
GPUS = (A100, H100, RTX_4090, L4, B200)
each_gpu = pytest.mark.parametrize("facts", GPUS, ids=lambda facts: facts.name)


def problem(
    seq: int = 2048, dim: int = 64, *, batch: int = 1, heads: int = 12, **other: Any
) -> Any:
    made = Problem("float16", batch, heads, heads, seq, seq, dim, dim)
    return replace(made, **other)


@cache
def random(seq: int, density: float) -> BsrMask:
    return BsrMask(rng(seq).random((seq, seq)) < density)


@cache
def built(seq: int) -> dict[str, Any]:
    """The masks whose tiles are kept whole or in bands."""
    return {
        "full": None,
        "causal": masks.causal(seq).tobsr(),
        "sliding": masks.sliding_window(seq, window=256).tobsr(),
        "longformer": masks.longformer(seq, window=256, global_tokens=64).tobsr(),
        "document": masks.document([seq // 2, seq // 2], causal=True).tobsr(),
    }


class OnGpu(BuiltMask):
    """As much of a mask that a GPU has built as may be looked at without waiting for it."""

    def __init__(self, capacity: tuple[int, int], lead: tuple[int, ...] = ()) -> None:
        self._capacity, self.lead = capacity, lead

    @property
    def capacity(self) -> tuple[int, int]:
        return self._capacity

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of a mask on the GPU was asked for")


class Copied(UploadedMask):
    def __init__(self, source: Any) -> None:
        self._source, self.lead = source, getattr(source, "lead", ())

    def to(self, device: str) -> Any:
        return self._source


# ---------------------------------------------------------------- what is chosen


@each_gpu
@pytest.mark.parametrize("seq", [1024, 4096])
def test_rowwise_at_a_thousandth_and_blockwise_where_tiles_fill(facts, seq):
    assert choose(problem(seq), random(seq, 0.001), facts).candidate.kernel == "rowwise"
    assert choose(problem(seq), random(seq, 0.3), facts).candidate.kernel == "blockwise"
    for mask in built(seq).values():
        for heads in (12, 96):
            found = choose(problem(seq, heads=heads), mask, facts)
            assert found.candidate.kernel == "blockwise"


@each_gpu
def test_density_crosses_over_once(facts):
    kernels = [
        choose(problem(1024), random(1024, d), facts).candidate.kernel
        for d in (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
    ]
    assert kernels == sorted(kernels, reverse=True) and len(set(kernels)) == 2


@each_gpu
def test_keys_are_split_where_query_tiles_are_few(facts):
    decode = problem(16384, 128, heads=8, seq_q=1)
    found = explain(decode, None, facts)
    blocks = [e.candidate for e in found if e.candidate.kernel == "blockwise"]
    assert blocks[0].splits > 1
    many = choose(problem(4096, batch=16), None, facts).candidate
    assert many.splits == 1


@each_gpu
@pytest.mark.parametrize("dim", [8, 64, 100, 128, 192, 256])
def test_every_candidate_is_legal_and_there_are_at_least_six(facts, dim):
    p = problem(2048, dim)
    for mask in (None, random(1024, 0.001), OnGpu((500, 400))):
        found = explain(p if mask is None else problem(1024, dim), mask, facts)
        for each in found:
            candidate = each.candidate
            assert legal(candidate, p, mask, facts) == ""
            smem = candidate.smem_bytes(head_dim_of(candidate, p))
            assert smem <= facts.smem_per_block_optin
            assert candidate.occupancy(head_dim_of(candidate, p), facts) >= 1
            assert 0 < each.us < math.inf
        assert len(found) >= 6
        assert [e.us for e in found] == sorted(e.us for e in found)


def test_what_is_not_legal():
    wide = problem(dim=256)
    assert "196608 bytes" in legal(Candidate("blockwise", (128, 128)), wide, None, RTX_4090)
    assert legal(Candidate("blockwise", (64, 64)), wide, None, RTX_4090) == ""
    assert "at most 256" in legal(Candidate("blockwise", (64, 64)), problem(dim=257), None, H100)
    assert "splits" in legal(Candidate("blockwise", (64, 64), 32), problem(512), None, H100)
    many = problem(64, heads=2**30)
    assert "blocks" in legal(
        Candidate("blockwise", (64, 64), 1), replace(many, batch=4), None, H100
    )
    assert "2^31" in legal(
        Candidate("blockwise", (64, 64)), problem(64, seq_k=2**31 - 1), None, H100
    )
    odd = Candidate("blockwise", (64, 112))
    assert "multiples of 64" in legal(odd, problem(), OnGpu((9, 9)), H100)
    with pytest.raises(UnsupportedError, match="head dims 257"):
        explain(problem(dim=257), None, H100)


# ---------------------------------------------------------------- the model


def everything(facts: DeviceFacts) -> list[Candidate]:
    return list(candidates(problem(1024), random(1024, 0.001), facts, Kernels()))


@each_gpu
def test_more_work_takes_longer(facts):
    """Of one candidate: more batches, longer sequences, denser masks, wider heads."""
    best = Constants()
    for candidate in everything(facts):

        def us(p: Problem, mask: Any, facts: DeviceFacts = facts, c: Any = candidate) -> float:
            return predict(c, Demand(p, mask), facts, best).us

        by_batch = [us(problem(1024, batch=n), random(1024, 0.01)) for n in (1, 2, 3, 8, 64)]
        by_density = [us(problem(1024), random(1024, d)) for d in (0.0005, 0.001, 0.01, 0.1)]
        by_window = [
            us(problem(1024), masks.sliding_window(1024, window=w).tobsr()) for w in (8, 150, 300)
        ]
        by_length = [us(problem(n), masks.causal(n).tobsr()) for n in (512, 1024, 2048)]
        for times in (by_batch, by_density, by_window, by_length):
            assert times == sorted(times), (candidate, times)
        assert by_batch[-1] > 4 * by_batch[0] and by_length[-1] > by_length[0]


@each_gpu
def test_a_faster_gpu_is_not_slower(facts):
    p, mask = problem(2048), built(2048)["causal"]
    faster = (
        replace(facts, sm_count=2 * facts.sm_count, memory_clock_khz=2 * facts.memory_clock_khz),
        replace(facts, clock_khz=2 * facts.clock_khz),
    )
    for candidate in everything(facts):
        now = predict(candidate, Demand(p, mask), facts, Constants()).us
        for other in faster:
            assert predict(candidate, Demand(p, mask), other, Constants()).us <= now * 1.001


def test_counts_are_those_of_the_mask_times_the_heads():
    stacked = masks.stack([masks.causal(300), masks.sliding_window(300, window=5)])
    p = problem(300, heads=2, batch=3)
    tiles = Demand(p, stacked).tiles((64, 128))
    stats = stacked.schedule((64, 128)).stats
    assert (tiles.visited, tiles.part) == (3 * stats.visited, 3 * stats.part)
    assert tiles.query_tiles == 3 * 2 * 5
    rows = Demand(p, Copied(stacked)).rows()
    assert rows.kept == 3 * stacked.nnz and rows.longest == 300
    assert rows.long_rows == 3 * 44 and rows.long_kept == 3 * sum(range(257, 301))


def test_without_a_mask_every_key_is_seen():
    demand = Demand(problem(100, heads=2, seq_k=300), None)
    assert demand.rows().kept == 2 * 100 * 300 and demand.tiles((64, 64)).visited == 2 * 2 * 5


@each_gpu
def test_a_mask_on_the_gpu_is_judged_by_its_capacity_alone(facts):
    p, source = problem(2048), built(2048)["sliding"]
    stats = source.schedule().stats
    on_gpu = choose(p, OnGpu((stats.visited, stats.part)), facts)
    known = choose(p, source, facts)
    assert on_gpu.candidate.kernel == "blockwise"
    assert known.us / 2 < on_gpu.us < 2 * known.us
    everything_fits = choose(p, OnGpu((32 * 32, 32 * 32)), facts)
    assert everything_fits.candidate.kernel == "blockwise"
    assert choose(p, OnGpu((0, 0)), facts).us > 0


def test_a_copied_mask_is_chosen_for_as_its_source():
    for density in (0.001, 0.3):
        mask = random(1024, density)
        assert choose(problem(1024), Copied(mask), H100) == choose(problem(1024), mask, H100)


def test_only_kernels_that_are_there_are_chosen():
    only = Kernels(tiles=((64, 64),), splits=(1,), rowwise=False)
    found = explain(problem(1024), random(1024, 0.001), H100, kernels=only)
    assert [e.candidate for e in found] == [Candidate("blockwise", (64, 64))]


def test_a_choice_that_was_made_costs_less_than_20_us():
    p, mask = problem(4096), random(4096, 0.01)
    for of in (mask, None, OnGpu((5, 5))):
        first = choose(p, of, H100)
        start = time.perf_counter()
        for _ in range(500):
            assert choose(p, of, H100) is first
        assert (time.perf_counter() - start) / 500 < 20e-6
    other = replace(H100, sm_count=20)
    assert choose(p, mask, other) is not choose(p, mask, H100)


# ---------------------------------------------------------------- Eq. 1 of the paper


def test_eq1_as_printed_never_takes_rowwise_for_the_papers_masks():
    for seq in (128, 512, 1024):
        for mask in (
            masks.causal(seq),
            masks.longformer(seq, window=32, global_tokens=16),
            masks.bigbird(seq, block=16),
        ):
            assert stof_eq1(problem(seq), mask.tobsr(), 16) == "blockwise"
    sliding = masks.sliding_window(4096, window=32).tobsr()
    assert stof_eq1(problem(4096), sliding, 16) == "blockwise"
    assert stof_eq1(problem(4096), masks.bigbird(4096, block=64).tobsr(), 64) == "rowwise"


def test_eq1_counts_blocks_of_one_mask():
    n, dense = 256 // 16, np.zeros((256, 256), bool)
    dense[::16, ::16] = True
    dense[:, 128:] = False
    listed = n * n // 2
    assert listed / n**2 - 1.2 / math.log2(n) ** 2 > 0
    assert stof_eq1(problem(256, heads=3), BsrMask(dense), 16) == "blockwise"
    assert stof_eq1(problem(256, heads=3), BsrMask(dense), 16, tau=8.1) == "rowwise"
    assert stof_eq1(problem(256, heads=3), BsrMask(dense), 16, tau=7.9) == "blockwise"


def test_selection_by_eq1_picks_the_best_of_its_kind():
    p, mask = problem(1024), random(1024, 0.001)
    assert choose(p, mask, H100).candidate.kernel == "rowwise"
    printed = choose(p, mask, H100, select="stof-eq1")
    assert printed.candidate.kernel == stof_eq1(p, mask, 16)
    of_kind = [e for e in explain(p, mask, H100) if e.candidate.kernel == printed.candidate.kernel]
    assert printed == of_kind[0]
    window = built(2048)["sliding"]
    assert choose(problem(), window, H100, select="stof-eq1-64").candidate.kernel == "rowwise"
    with pytest.raises(ArgumentError, match="select: got 'eq1'"):
        choose(p, mask, H100, select="eq1")


# ---------------------------------------------------------------- calibration


SECRET = replace(
    Constants(), launch_us=4.0, tensor=0.6, issue=0.9, l2=0.7, sync_clk=500.0, row_clk=2500.0
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path))
    calibration._read.cache_clear()
    return tmp_path


def test_calibration_finds_the_constants_that_made_the_times(folder):
    asked = []

    def timer(candidate: Candidate, p: Problem, mask: Any) -> float:
        asked.append(candidate)
        return predict(candidate, Demand(p, mask), H100, SECRET).us

    assert calibration.calibrated(H100) == Constants()
    found = calibration.calibrate(H100, timer)
    assert {candidate.kernel for candidate in asked} == {"blockwise", "rowwise"}
    assert found.launch_us == pytest.approx(4.0, rel=0.15)

    def off(constants: Constants) -> float:
        return max(
            abs(math.log(predict(c, Demand(p, m), H100, constants).us / timer(c, p, m)))
            for c, p, m in calibration.probes(H100, Kernels())
        )

    assert off(found) < 0.1 < 0.25 < off(Constants())

    count = len(asked)
    assert calibration.calibrate(H100, timer) == calibration.calibrated(H100) == found
    assert len(asked) == count, "measured though it was kept"
    assert calibration.calibrated(replace(H100, driver=1)) == Constants()
    assert calibration.calibrated(A100) == Constants()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"version": 1, "constants": {}}',
        '{"version": 0, "constants": null}',
        "null",
    ],
)
def test_a_file_that_is_not_one_is_passed_over(folder, text):
    path = calibration.path_of(H100)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert calibration.calibrated(H100) == Constants()


def test_constants_of_another_model_or_without_sense_are_passed_over(folder):
    path = calibration.path_of(H100)
    path.parent.mkdir(parents=True)
    values = {name: 0.5 for name in NAMES}
    for version, tensor in ((0, 0.5), (1, -1.0), (1, float("nan"))):
        record = {"version": version, "constants": {**values, "tensor": tensor}}
        path.write_text(json.dumps(record))
        calibration._read.cache_clear()
        assert calibration.calibrated(H100) == Constants()
    path.write_text(json.dumps({"version": 1, "constants": values}))
    calibration._read.cache_clear()
    assert calibration.calibrated(H100) == Constants(**values)
