"""The choice of attention's kernel, on the facts of GPUs that are not here."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, DeviceError
from stof_cupy.jit.attention_kernels import ScoreKind
from stof_cupy.masks import BsrMask, MaskStack
from stof_cupy.ops import attention_calibration as calibration
from stof_cupy.ops import attention_model
from stof_cupy.ops.attention import attention
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_blocks import Blocks, makespan
from stof_cupy.ops.attention_candidates import KINDS, Candidate, candidates, legal
from stof_cupy.ops.attention_constants import NAMES, Constants
from stof_cupy.ops.attention_demand import Case, Demand
from stof_cupy.ops.attention_eq1 import stof_eq1
from stof_cupy.ops.attention_model import choose, explain, predict
from stof_cupy.testing import rng
from tests.ops.gpus import A100, GPUS, H100, Copied, OnGpu, case

each_gpu = pytest.mark.parametrize("facts", GPUS, ids=lambda facts: facts.name)


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


# ---------------------------------------------------------------- what is chosen


@each_gpu
@pytest.mark.parametrize("seq", [1024, 4096])
def test_rowwise_at_a_thousandth_and_blockwise_where_tiles_fill(facts, seq):
    def kernel(mask: Any, heads: int = 12) -> str:
        return choose(case(seq, mask, facts, heads=heads), select="sm80").kernel

    assert kernel(random(seq, 0.001)) == "rowwise" and kernel(random(seq, 0.3)) == "blockwise"
    for mask in built(seq).values():
        for heads in (12, 96):
            assert kernel(mask, heads) == "blockwise"


@each_gpu
def test_density_crosses_over_once(facts):
    kernels = [
        choose(case(1024, random(1024, d), facts), select="sm80").kernel
        for d in (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
    ]
    assert kernels == sorted(kernels, reverse=True) and len(set(kernels)) == 2


@each_gpu
@pytest.mark.parametrize("dim", [64, 128])
def test_large_dense_problems_get_large_tiles(facts, dim):
    of = case(4096, None, facts, dim=dim, batch=16)
    found: Any = choose(of, select="sm80")
    most = max(each.shape.warp_rows for each in candidates(of) if each.kernel == "blockwise")
    assert not found.long_slots and found.shape.rows >= 64
    if facts is H100:  # elsewhere tensor cores or shared memory leave them no lead
        assert found.shape.warp_rows == most == 32


@each_gpu
def test_keys_are_cut_where_query_tiles_are_few(facts):
    for heads, group in ((32, 4), (8, 1)):
        sizes: Any = {"heads": heads, "kv_heads": heads // group, "seq_q": 1}
        found: Any = choose(case(65536, None, facts, dim=128, **sizes), select="sm80")
        assert found.pack == group and found.shape.rows <= 64
        assert found.items(case(65536, seq_q=1).problem) * 8 >= facts.sm_count
        if facts is H100:
            assert found.shape.rows == 16


def test_the_one_long_row_of_a_sparse_mask_is_cut():
    of = case(8192, built(8192)["longformer"], dim=128, heads=4)
    found: Any = choose(of, select="sm80")
    assert 1 <= found.long_slots * found.shape.rows <= 128


@each_gpu
@pytest.mark.parametrize("dim", [8, 64, 100, 128, 192, 256])
def test_every_candidate_is_legal_and_there_are_at_least_six(facts, dim):
    for mask in (None, random(1024, 0.001), OnGpu((500, 400)), Copied(random(1024, 0.01))):
        for scores in (ScoreKind(), ScoreKind(softcap=True, bias="float32", alibi=True)):
            of = case(1024, mask, facts, dim=dim, scores=scores)
            found = explain(of)
            for each in found:
                assert legal(each.candidate, of) == ""
                assert each.candidate.resident(facts) >= 1
                assert 0 < each.us < math.inf
            assert len({each.candidate for each in found}) == len(found) >= 6
            assert [e.us for e in found] == sorted(e.us for e in found)


# ---------------------------------------------------------------- the model


@each_gpu
def test_more_work_takes_longer(facts):
    """Of one candidate: more batches, longer sequences, denser masks."""
    every = [
        each
        for each in candidates(case(1024, random(1024, 0.001), facts))
        if each.kernel == "rowwise" or not each.long_slots
    ]
    for candidate in every:

        def us(of: Case, c: Any = candidate) -> float:
            return predict(c, of).us

        one, sparse = random(1024, 0.01), (0.0005, 0.001, 0.01, 0.1)
        by_batch = [us(case(1024, one, facts, batch=n)) for n in (1, 2, 3, 8, 64)]
        # Block-wise all of these have the same tiles, and fewer keys only mean more second looks.
        densities = sparse if candidate.kernel == "rowwise" else ()
        by_density = [us(case(1024, random(1024, d), facts)) for d in densities]
        by_window = [
            us(case(1024, masks.sliding_window(1024, window=w).tobsr(), facts))
            for w in (8, 150, 300)
        ]
        by_length = [us(case(n, masks.causal(n).tobsr(), facts)) for n in (512, 1024, 2048)]
        for times in (by_batch, by_density, by_window, by_length):
            assert all(a <= b * 1.001 for a, b in pairwise(times)), candidate
        assert by_batch[-1] > 4 * by_batch[0] and by_length[-1] > by_length[0]


@each_gpu
def test_a_faster_gpu_is_not_slower(facts):
    mask = built(2048)["causal"]
    faster = (
        replace(facts, sm_count=2 * facts.sm_count, memory_clock_khz=2 * facts.memory_clock_khz),
        replace(facts, clock_khz=2 * facts.clock_khz),
    )
    for candidate in candidates(case(2048, mask, facts)):
        now = predict(candidate, case(2048, mask, facts)).us
        for other in faster:
            assert predict(candidate, case(2048, mask, other)).us <= now * 1.001


def test_makespan_is_near_that_of_a_greedy_machine():
    import heapq

    g = rng(0)
    for size, repeats, machines in ((3, 1, 10), (64, 12, 132), (17, 100, 264), (5, 7, 4)):
        times = np.sort(g.exponential(size=size))[::-1] + 0.2
        free = [0.0] * machines
        for each in np.tile(times, repeats):
            heapq.heapreplace(free, free[0] + each)
        got = makespan(times, repeats, machines)
        assert 0.95 * max(free) <= got <= 1.2 * max(free)
    assert makespan(np.ones(1), 265, 132) == 3.0 and makespan(np.zeros(0), 3, 2) == 0.0


def test_no_block_ends_sooner_than_the_bound_says():
    g = rng(1)
    for size, repeats, machines in ((1, 9, 4), (3, 1, 10), (64, 12, 132), (17, 100, 264)):
        tiles = np.sort(g.exponential(size=size))[::-1]
        for each, fixed in ((3.0, 0.0), (1.0, 5.0), (0.0, 1.0)):
            end, least = (
                Blocks(tiles).end(each, fixed, repeats, machines, least=only)
                for only in (False, True)
            )
            longest = tiles.max() * each + fixed
            assert least <= end * (1 + 1e-12) and end <= 1.1 * (least + longest)
    assert Blocks(np.zeros(0)).end(1, 1, 3, 2, least=True) == 0.0


@each_gpu
@pytest.mark.parametrize("select", ["model", "stof-eq1", "stof-eq1-64", "sm80"])
def test_what_is_chosen_is_the_first_of_all(facts, select):
    every: tuple[Any, ...] = (*built(2048).values(), random(2048, 0.001), random(2048, 0.05))
    stack = MaskStack.from_dense(rng(2).random((2, 1, 2048, 2048)) < 0.01)
    for mask in (*every, OnGpu((300, 200)), stack):
        for dim, heads in ((64, 3), (128, 24)):
            of = case(2048, mask, facts, dim=dim, heads=heads, batch=2)
            assert choose(of, select=select) == explain(of, select=select)[0].candidate


def test_a_choice_takes_little_time():
    taken = math.inf
    for mask in built(4096).values():
        explain(case(4096, mask))  # counts its tiles
    for _ in range(5):
        start = time.thread_time()
        for mask in built(4096).values():
            attention_model._fastest(case(4096, mask), Constants(), "model")
        taken = min(taken, time.thread_time() - start)
    assert taken / len(built(4096)) < 10e-3  # 2 to 3 ms where nothing else runs


def test_counts_are_those_of_the_mask_times_the_heads():
    stacked = masks.stack([masks.causal(300), masks.sliding_window(300, window=5)])
    p = case(300, heads=2, batch=3).problem
    for mask in (stacked, Copied(stacked)):
        tiles, stats = Demand(p, mask).tiles((64, 128)), stacked.schedule((64, 128)).stats
        assert tiles.lengths.sum() * 6 == pytest.approx(3 * stats.visited)
        assert Demand(p, mask).visited((64, 128)) == pytest.approx(3 * stats.visited)
        assert tiles.part == stats.part / stats.visited and len(tiles.most) == 5
        rows = Demand(p, mask).rows()
        assert rows.kept == 3 * stacked.nnz and rows.longest == 300
        assert rows.long_rows == 3 * 44 and rows.long_kept == 3 * sum(range(257, 301))


def test_without_a_mask_every_key_is_seen():
    demand = Demand(case(100, heads=2, seq_k=300).problem, None)
    assert demand.rows().kept == 2 * 100 * 300 and demand.visited((64, 64)) == 2 * 2 * 5


@each_gpu
def test_a_mask_on_the_gpu_is_judged_by_its_capacity_alone(facts):
    source = built(2048)["sliding"]
    stats = source.schedule().stats
    for select, kernels in (("model", {"blockwise", "sm90"}), ("sm80", {"blockwise"})):
        on_gpu = explain(case(2048, OnGpu((stats.visited, stats.part)), facts), select=select)[0]
        known = explain(case(2048, source, facts), select=select)[0]
        assert on_gpu.candidate.kernel in kernels
        assert known.us / 2 < on_gpu.us < 2 * known.us
    for capacity in ((32 * 32, 32 * 32), (0, 0)):
        of = case(2048, OnGpu(capacity), facts)
        assert legal(choose(of), of) == ""


def test_a_copied_mask_is_chosen_for_as_its_source():
    for density in (0.001, 0.3):
        mask = random(1024, density)
        assert choose(case(1024, Copied(mask))) == choose(case(1024, mask))


def test_a_choice_that_was_made_costs_less_than_20_us():
    for mask in (random(4096, 0.01), None, OnGpu((5, 5))):
        of = case(4096, mask)
        first = choose(of)
        best = math.inf
        for _ in range(10):
            start = time.thread_time()
            for _ in range(100):
                assert choose(Case(of.problem, mask, H100)) is first
            best = min(best, (time.thread_time() - start) / 100)
        assert best < 20e-6
    assert choose(case(4096, None, A100)) is not choose(case(4096))


def test_explain_without_a_gpu_to_run_on():
    q = np.ones((1, 1, 8, 8), np.float32)
    with pytest.raises(ArgumentError, match="explain: got NumPy arrays"):
        attention(q, q, q, explain=True)
    with pytest.raises(ArgumentError, match="select: got 'fast'"):
        attention(q, q, q, select="fast")  # type: ignore[arg-type]
    assert np.array_equal(attention(q, q, q, select="stof-eq1"), attention(q, q, q))


# ---------------------------------------------------------------- Eq. 1 of the paper


def test_eq1_as_printed_never_takes_rowwise_for_the_papers_masks():
    for seq in (128, 512, 1024):
        for mask in (
            masks.causal(seq),
            masks.longformer(seq, window=32, global_tokens=16),
            masks.bigbird(seq, block=16),
        ):
            assert stof_eq1(case(seq).problem, mask.tobsr(), 16) == "blockwise"
    sliding = masks.sliding_window(4096, window=32).tobsr()
    assert stof_eq1(case(4096).problem, sliding, 16) == "blockwise"
    bigbird = masks.bigbird(4096, block=64).tobsr()
    assert stof_eq1(case(4096).problem, bigbird, 64) == "rowwise"


def test_eq1_counts_blocks_of_one_mask():
    n, dense = 256 // 16, np.zeros((256, 256), bool)
    dense[::16, ::16] = True
    dense[:, 128:] = False
    listed, p = n * n // 2, case(256, heads=3).problem
    assert listed / n**2 - 1.2 / math.log2(n) ** 2 > 0
    assert stof_eq1(p, BsrMask(dense), 16) == "blockwise"
    assert stof_eq1(p, BsrMask(dense), 16, tau=8.1) == "rowwise"
    assert stof_eq1(p, BsrMask(dense), 16, tau=7.9) == "blockwise"


@pytest.mark.parametrize("seq", [512, 4096])
def test_eq1_of_a_mask_on_the_gpu_counts_blocks_of_its_size(seq):
    for source in (masks.sliding_window(seq, window=32), masks.causal(seq)):
        mask = source.tobsr()
        stats, problem = mask.schedule().stats, case(seq).problem
        on_gpu = OnGpu((stats.visited, stats.part))
        for block in (16, 64):
            assert stof_eq1(problem, on_gpu, block) == stof_eq1(problem, mask, block)


@each_gpu
def test_no_heads_are_no_work(facts):
    of = Case(Problem("float16", 1, 0, 1, 100, 100, 64, 64), None, facts)
    assert legal(choose(of), of) == ""


def test_selection_by_eq1_picks_the_best_of_its_kind():
    of = case(1024, random(1024, 0.001))
    assert choose(of, select="sm80").kernel == "rowwise"
    printed = explain(of, select="stof-eq1")
    wanted = stof_eq1(of.problem, of.mask, 16)
    assert choose(of, select="stof-eq1") == printed[0].candidate
    kinds = [KINDS[each.candidate.kernel].rule == wanted for each in printed]
    assert kinds == sorted(kinds, reverse=True) and len(printed) == len(explain(of))
    assert printed[0] == next(e for e in explain(of) if KINDS[e.candidate.kernel].rule == wanted)
    window = case(mask=built(2048)["sliding"])
    assert choose(window, select="stof-eq1-64").kernel == "rowwise"
    with pytest.raises(ArgumentError, match="select: got 'eq1'"):
        choose(of, select="eq1")  # type: ignore[arg-type]


# ---------------------------------------------------------------- calibration


SECRET = replace(
    Constants(), launch_us=5.0, tensor=0.6, score_clk=3.0, l2=0.5, tile_clk=600.0, chunk_clk=2500.0
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path))
    calibration.calibrated.cache_clear()
    yield tmp_path
    calibration.calibrated.cache_clear()


def test_calibration_finds_the_constants_that_made_the_times(folder):
    asked = []

    def timer(candidate: Candidate, of: Case) -> float:
        asked.append(candidate)
        return predict(candidate, of, SECRET).us

    assert calibration.calibrated(H100) == Constants()
    found = calibration.calibrate(H100, timer)
    assert {candidate.kernel for candidate in asked} == {"blockwise", "rowwise", "sm90"}
    assert 40 < len(asked) < 200

    def off(constants: Constants) -> float:
        return max(
            abs(math.log(predict(c, of, constants).us / predict(c, of, SECRET).us))
            for c, of in calibration.probes(H100)
        )

    assert off(found) < 0.1 < 0.25 < off(Constants())

    count = len(asked)
    assert calibration.calibrate(H100, timer) == calibration.calibrated(H100) == found
    assert len(asked) == count, "measured though it was kept"
    assert calibration.calibrated(replace(H100, driver=1)) == Constants()
    assert calibration.calibrated(A100) == Constants()


def test_what_the_model_said_is_not_computed_again(monkeypatch):
    """Constants that are equal in all that a time depends on give the same; terms read none."""
    measured = [calibration._Measured(*each, 10.0) for each in calibration.probes(H100)[::9]]
    said = [each.error(Constants()) for each in measured]
    monkeypatch.setattr(calibration, "time_of", None)
    for name in ("term_clk", "wg_term_clk"):
        other = Constants().scaled(name, 2.0)
        assert [each.error(other) for each in measured] == said
    assert all(set(NAMES) >= names for each in measured for names in each.said)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        json.dumps({"version": calibration._VERSION, "constants": {}}),
        json.dumps({"version": calibration._VERSION, "constants": None}),
        "null",
        "[" * 100_000,
        json.dumps({"version": calibration._VERSION, "constants": dict.fromkeys(NAMES, 10**400)}),
    ],
    ids=lambda text: text[:40],
)
def test_a_file_that_is_not_one_is_passed_over(folder, text, monkeypatch):
    path = calibration.path_of(H100)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert calibration.calibrated(H100) == Constants()
    monkeypatch.setattr(calibration, "fit", lambda measured: SECRET)  # which takes long
    found = calibration.calibrate(H100, lambda candidate, of: predict(candidate, of, SECRET).us)
    assert calibration.calibrated(H100) == found == SECRET != Constants()


@pytest.mark.parametrize("us", [0.0, -1.0, math.inf, math.nan])
def test_times_without_sense_fit_nothing(folder, us):
    with pytest.raises(DeviceError, match=f"got {us}, expected positive microseconds"):
        calibration.calibrate(H100, lambda candidate, of: us)
    assert not calibration.path_of(H100).exists()


def test_constants_of_another_model_or_without_sense_are_passed_over(folder):
    path = calibration.path_of(H100)
    path.parent.mkdir(parents=True)
    values = {name: 0.5 for name in NAMES}
    current = calibration._VERSION
    for version, tensor in ((current - 1, 0.5), (current, -1.0), (current, float("nan"))):
        record = {"version": version, "constants": {**values, "tensor": tensor}}
        path.write_text(json.dumps(record))
        calibration.calibrated.cache_clear()
        assert calibration.calibrated(H100) == Constants()
    path.write_text(json.dumps({"version": current, "constants": values}))
    calibration.calibrated.cache_clear()
    assert calibration.calibrated(H100) == Constants(**values)
