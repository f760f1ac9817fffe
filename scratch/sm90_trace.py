"""Where the clocks of the Hopper attention go: kernels that note the time of what they do, and kernels that leave something out.

    PYTHONPATH=$PWD:$PWD/benchmarks python3 scratch/sm90_trace.py [trace] [without] [new]      all by default: about 27 s on an H100 with 16 cores; `new` alone 12 s

A copy of cuda/ is patched (PATCHES; a text that is not found is an error) and compiled; the tree itself has nothing of it. `trace`: one lane of the producer, the
scheduler and each multiplying warpgroup of all CTAs of six SMs notes clock and event. Two kinds: `rows` notes only what happens once a row, `tiles` everything.
For each event: how often a row, clocks since the event before it in the same warp (mean; so the time belongs to the event that ends it; about 105 of them are the note's own), and clocks a row.
`without`: times of kernels that lack a part: what it costs. `new`: what might be faster (right outputs but for "no rare ways"). Everything as JSON in $OUT/sm90_trace.json.
Without a GPU: PYTHONPATH=. python3 scratch/sm90_trace.py compile | emulate
"""
import json, os, shutil, sys, time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
OUT = Path(os.environ.get("OUT", "/tmp"))
WORK = Path("/tmp/sm90_trace")
RING = 32768  # bytes of an actor's events, 8 each
ACTORS = 5  # producer, scheduler, three warpgroups
SHAPES = {128: (1, 32, 8192), 64: (16, 12, 2048)}
C, E, P, S, SHAPE = (f"attention/sm90_{name}.cuh" for name in ("consumer", "epilogue", "producer", "scheduler", "shape"))

EVENTS = """Smid
RowWait RowKnown QFull K0Full Q0Turn QK0Issued QReleased S0Ready Weights0
KFull Turn QKIssued VFull PVIssued SReady Weights ODone StepEnd
LastVFull LastPVIssued LastODone Normed Synced Staged Sent
PRowWait PRow PQWait PQGot PQSent PKWait PKGot PKSent PVWait PVGot PVSent
STicket SFound SListed SGot SSent""".split()
ID = {name: i for i, name in enumerate(EVENTS)}

TRACE = """#pragma once
#include "types.cuh"
namespace stof::attention::sm90 {
#ifndef __CUDA_ARCH__
static u32 host_clock;
#endif
enum Event { %s };
template <int kN>
__device__ __forceinline__ void hold(u32 (&x)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+r"(x[i]));
}
// Notes events of one lane, if it is `chosen` and its SM is among those that are looked at.
template <class Params>
struct Tracer {
  const Params& p;
  u32 at = ~0u;
  __device__ __forceinline__ Tracer(const Params& params, int actor, bool chosen) : p(params) {
    u32 sm = 3;
#ifdef __CUDA_ARCH__
    asm volatile("mov.u32 %%0, %%%%smid;" : "=r"(sm));
#endif
    if (!chosen || sm %% 22 != 3 || p.report == nullptr) return;
    at = (blockIdx.x * %d + actor) * %d;
    note(Smid, sm);
  }
  __device__ __forceinline__ void note(u32 what, u32 more = 0) {
    if (at == ~0u) return;
#ifdef __CUDA_ARCH__
    u32 now;
    asm volatile("mov.u32 %%0, %%%%clock;" : "=r"(now) :: "memory");
    asm volatile("st.global.v2.u32 [%%0], {%%1, %%2};" :: "l"(reinterpret_cast<u64>(p.report) + at), "r"(now), "r"(what | more << 8) : "memory");
#else
    u32* to = p.report + at / 4;
    to[0] = ++host_clock, to[1] = what | more << 8;
#endif
    if (at %% %d != %d) at += 8;
  }
  __device__ __forceinline__ void tile(u32 what) { if (%s) note(what); }
};
}
"""


def trace_header(tiles):
    return TRACE % (", ".join(EVENTS), ACTORS, RING, RING, RING - 8, "true" if tiles else "false")


NOTES = [  # file, text, what it becomes; %: the text itself
    (C, '#include "attention/sm90_shape.cuh"', '%\n#include "attention/sm90_trace.cuh"'),
    (C, "  RingPosition<K::kRows> rows;", "  mutable Tracer<Params> trace;\n%"),
    (C, "        wait(params.report) {}", "        wait(params.report),\n        trace(params, 2 + warpgroup, threadIdx.x % 128 == 0) {}"),
    (C, "      wait(K::full(smem, K::kRowBarriers, rows.buffer()), rows.full(), kRowFull);", "      trace.note(RowWait);\n%\n      trace.note(RowKnown);"),
    (C, "      wait(K::full(smem, K::kQBarriers, queries.buffer()), queries.full(), kQFull);", "%\n      trace.note(QFull);"),
    (C, "    multiply_qk(s, part);\n    load_bits(bits, 0, part);\n    release_q();\n    ptx::wgmma_wait<0>();\n    ptx::pin(s);",
     "    trace.note(K0Full);\n    multiply_qk(s, part);\n    trace.note(QK0Issued);\n    load_bits(bits, 0, part);\n    release_q();\n    trace.note(QReleased);\n    ptx::wgmma_wait<0>();\n    ptx::pin(s);\n    trace.note(S0Ready);"),
    (C, "    take_weights<true, true>(s, bits, 0);\n    pack(s);", "%\n    hold(weights);\n    trace.note(Weights0);"),
    (C, "    if (kTurns) ptx::barrier_sync(kTurn + group, 256);\n    multiply_qk(s, now);\n", "    trace.tile(KFull);\n    if (kTurns) ptx::barrier_sync(kTurn + group, 256);\n    trace.tile(Turn);\n    multiply_qk(s, now);\n    trace.tile(QKIssued);\n"),
    (C, "    start_pv(before);\n    part = now;", "    start_pv<false>(before);\n    trace.tile(PVIssued);\n    part = now;"),
    (C, "    ptx::wgmma_wait<K::kTerms ? 0 : 1>();  // P leaves registers for what makes scores\n    ptx::pin(s);", "%\n    trace.tile(SReady);"),
    (C, "    if (!K::kTerms) ptx::wgmma_wait<0>();\n    ptx::pin(o);\n    release_v(before);", "    ptx::pin(s);\n    trace.tile(Weights);\n    if (!K::kTerms) ptx::wgmma_wait<0>();\n    ptx::pin(o);\n    trace.tile(ODone);\n    release_v(before);"),
    (C, "kRescaleFirst) rescale_output();\n  }\n\n  // The same with one", "kRescaleFirst) rescale_output();\n    hold(weights);\n    trace.tile(StepEnd);\n  }\n\n  // The same with one"),
    (C, "    start_pv(tiles);\n    softmax.finish();\n    finish_pv();", "    start_pv<true>(tiles);\n    trace.note(LastPVIssued);\n    softmax.finish();\n    finish_pv();\n    trace.note(LastODone);"),
    (C, "  __device__ __forceinline__ void start_pv(RingPosition<K::kStages> position) {", "  template <bool kLast = false>\n%"),
    (C, "    wait(K::full(smem, K::kVBarriers, position.buffer()), position.full(), kVFull);", "%\n    if (kLast) trace.note(LastVFull); else trace.tile(VFull);"),
    (C, "      sync_warpgroup();  // nobody reads the queries any more", "      ptx::pin(o);\n      trace.note(Normed);\n%\n      trace.note(Synced);"),
    (C, "      finite = epilogue.stage(o);", "%\n      trace.note(Staged);"),
    (C, "      if (K::kQueries == 1) release_q();\n    }", "%\n    trace.note(Sent);"),
    (P, '#include "attention/sm90_shape.cuh"', '%\n#include "attention/sm90_trace.cuh"'),
    (P, "  RingPosition<K::kRows> rows;", "  mutable Tracer<Params> trace;\n%"),
    (P, "        wait(params.report) {}", "        wait(params.report),\n        trace(params, 0, leader) {}"),
    (P, "      wait(full, rows.full(), kRowFull);", "      trace.note(PRowWait);\n%\n      trace.note(PRow);"),
    (P, "    wait(K::empty(smem, K::kQBarriers, buffer), queries.empty(), kQEmpty);", "    trace.note(PQWait);\n%\n    trace.note(PQGot);"),
    (P, "    queries.advance();", "    trace.note(PQSent);\n%"),
    (P, "    wait(K::empty(smem, K::kKBarriers, buffer), keys.empty(), kKEmpty);", "    trace.note(PKWait);\n%\n    trace.note(PKGot);"),
    (P, "    keys.advance();", "    trace.note(PKSent);\n%"),
    (P, "    wait(K::empty(smem, K::kVBarriers, buffer), values.empty(), kVEmpty);", "    trace.note(PVWait);\n%\n    trace.note(PVGot);"),
    (P, "    values.advance();", "    trace.note(PVSent);\n%"),
    (S, '#include "attention/sm90_shape.cuh"', '%\n#include "attention/sm90_trace.cuh"'),
    (S, "  RingPosition<K::kRows> position;", "  mutable Tracer<Params> trace;\n%"),
    (S, "lane(threadIdx.x % 32), wait(params.report) {}", "lane(threadIdx.x % 32), wait(params.report), trace(params, 1, threadIdx.x % 32 == 0) {}"),
    (S, "      const u32 buffer = position.buffer();", "      trace.note(STicket);\n%"),
    (S, "      const bool listed = lane < row.tiles;", "      trace.note(SFound, row.tiles);\n%"),
    (S, "      wait(K::empty(smem, K::kRowBarriers, buffer), position.empty(), kRowEmpty);", "      trace.note(SListed);\n%\n      trace.note(SGot);"),
    (S, "      if (!more) break;", "      trace.note(SSent);\n%"),
]

SEND = (C, "      if (row.partial < 0) epilogue.send(first_row, row);\n", "")
STATIC = (S, "      if (lane == 0) ticket = next(total);", "      if (lane == 0) ticket += gridDim.x;")
HOT = (P, "64 * slab, of.col * K::kN,\n                      of.kv_head, of.batch, ptx::L2::kAgain);", "64 * slab, 0, 0, 0, ptx::L2::kAgain);")
HOT_Q = (P, "row.q_tile * K::kM, row.head, row.batch, ptx::L2::kOnce", "0, 0, 0, ptx::L2::kAgain")
FIND = "      const Row row = more ? find(ticket, q_tiles) : Row{0, 0, 0, 0, -1};\n"
LISTED = """      const int entry = row.entry(lane);
      const int tile = listed ? tile_at(entry) : 0;
      const int id = listed && lane < row.parts ? p.bitmap_id[entry] : 0;
"""
TURN_FIRST = [(C, "    multiply_qk(s, part);\n    load_bits(bits, 0, part);", "    if (kTurns) ptx::barrier_sync(kTurn + group, 256);\n    multiply_qk(s, part);\n    if (kTurns) ptx::barrier_arrive(kTurn + (group + 1) % K::kWarpgroups, 256);\n    load_bits(bits, 0, part);")]
TURN_LAST = [(C, "    start_pv(tiles);\n    softmax.finish();", "    if (kTurns) ptx::barrier_sync(kTurn + group, 256);\n    start_pv(tiles);\n    if (kTurns) ptx::barrier_arrive(kTurn + (group + 1) % K::kWarpgroups, 256);\n    softmax.finish();")]
NO_COPY = [
    (P, "      ptx::mbarrier_arrive_expect(full, K::kBytesQ);\n#pragma unroll\n      for (int slab = 0; slab < K::kSlabsQk; ++slab)", "      ptx::mbarrier_arrive_expect(full, queries.count < K::kQueries ? K::kBytesQ : 0);\n      if (queries.count < K::kQueries)\n#pragma unroll\n      for (int slab = 0; slab < K::kSlabsQk; ++slab)"),
    (P, "      ptx::mbarrier_arrive_expect(full, K::kBytesK + ", "      ptx::mbarrier_arrive_expect(full, (keys.count < K::kStages ? K::kBytesK : 0) + "),
    (P, "    copy<K::kSlabsQk>(K::kK", "    if (keys.count < K::kStages) copy<K::kSlabsQk>(K::kK"),
    (P, "    if (leader) ptx::mbarrier_arrive_expect(barrier, K::kBytesV);", "    if (leader) ptx::mbarrier_arrive_expect(barrier, values.count < K::kStages ? K::kBytesV : 0);"),
    (P, "    copy<K::kSlabsV>(K::kV", "    if (values.count < K::kStages) copy<K::kSlabsV>(K::kV"),
]
KNOWN = [
    STATIC,
    (S, "    int ticket = blockIdx.x;\n", "    int ticket = blockIdx.x;\n    Row kept{0, 0, 0, 0, -1};\n    int kept_col = 0, kept_id = 0;\n"),
    (S, FIND, "      if (more && position.count == 0) kept = find(ticket, q_tiles);\n      Row row{0, 0, 0, 0, -1};\n      if (more) row = kept;\n      if (more) row.q_tile = ticket % q_tiles, row.head = ticket / q_tiles % p.heads, row.batch = ticket / q_tiles / p.heads;\n"),
    (S, LISTED, "      const int entry = row.entry(lane);\n      if (position.count == 0) {\n        kept_col = listed ? tile_at(entry) : 0;\n        kept_id = listed && lane < row.parts ? p.bitmap_id[entry] : 0;\n      }\n"
     "      const int tile = max(0, min((p.seq_k - 1) / K::kN, kept_col + row.q_tile - kept.q_tile)), id = kept_id;\n"),
]
EPILOGUE = [(C, "    // Again, not to keep it in registers.\n", """    ptx::pin(o);
    if (leader) {
      ptx::mbarrier_arrive(K::empty(smem, K::kRowBarriers, rows.buffer()));
      leaving = K::empty(smem, K::kQBarriers, queries.buffer());
      if (K::kQueries == 1) release_q();
    }
    if (p.heads > 0) return;
%""")]
NO_BITS = [(C, "    load_bits(bits, 0, part);", "    bits.keep_all();"), (C, "for (int i = 1; i < row.masked; ++i) step<true>(i);", "for (int i = 1; i < 0; ++i) step<true>(i);"),
           (C, "for (int i = max(1, row.masked); i", "for (int i = 1; i")]
TOTAL = "    const int total = (q_tiles"
STORE_ONCE = [("ptx/tma.cuh", """      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::
          "l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
""", """      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], %6;" ::
          "l"(&map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(L2::kOnce)
""")]
KV_NORMAL = [(P, "of.col * K::kN,\n                      of.kv_head, of.batch, ptx::L2::kAgain);", "of.col * K::kN,\n                      of.kv_head, of.batch, ptx::L2::kNormal);")]
Q_NORMAL = [(P, "row.q_tile * K::kM, row.head, row.batch, ptx::L2::kOnce", "row.q_tile * K::kM, row.head, row.batch, ptx::L2::kNormal")]
NO_RARE = [(C, "else if (!looked && !softmax.fit(added)) {", "else if (false) {"), (C, "      here.compute_again(softmax, first_row, row);\n", ""), (C, "    if (row.partial >= 0) {", "    if (false) {")]
FIRST_NAMES = ("no rare ways", "in order of numbers")
NO_ORDER = [(S, "  return p.work ? p.work[mask * q_tiles + slot] : make_uint4(slot, 0, 0, 0);", """  for (int i = 0; p.work && i < q_tiles; ++i)
    if (p.work[mask * q_tiles + i].x == slot) return p.work[mask * q_tiles + i];
  return make_uint4(slot, 0, 0, 0);""")]
PATCHES = {  # what a kernel leaves out or does otherwise
    "base": [],
    "rows traced": NOTES,
    "tiles traced": NOTES,
    "no store": [SEND],
    "no staging, no store": [SEND, (C, "      finite = epilogue.stage(o);", "      ptx::pin(o);")],
    "no test of finiteness": [(C, "      finite = epilogue.stage(o);", "      epilogue.stage(o);")],
    "no epilogue": EPILOGUE,
    "rows known, in order": KNOWN,
    "static tickets": [STATIC],
    "K, V from one place": [HOT],
    "Q, K, V from one place": [HOT, HOT_Q],
    "no copies": NO_COPY,
    "no copies, no epilogue": NO_COPY + EPILOGUE,
    "no copies, no epi, rows": NO_COPY + EPILOGUE + KNOWN,
    "no bits": NO_BITS,
    "6 rows ahead": [(SHAPE, "kRows = 3;", "kRows = 6;"), (S, "      wait(K::asked(smem), position.count & 1, kAsked);\n", "")],
    "first QK in turn": TURN_FIRST,
    "first QK, last PV in turn": TURN_FIRST + TURN_LAST,
    "no rare ways": NO_RARE,
    "in order of numbers": NO_ORDER,
    "output once": STORE_ONCE,
    "K, V normal": KV_NORMAL,
    "output once, K, V normal": STORE_ONCE + KV_NORMAL,
    "all normal": KV_NORMAL + Q_NORMAL,
    "rows taken 3 ahead": [(S, "      wait(K::asked(smem), position.count & 1, kAsked);\n", "")],
    "rows taken 1 ahead": [(SHAPE, "kEarly = 4;", "kEarly = 1 << 30;")],
    "rows taken 2 tiles early": [(SHAPE, "kEarly = 4;", "kEarly = 2;")],
    "rows taken 8 tiles early": [(SHAPE, "kEarly = 4;", "kEarly = 8;")],
    "a row for each CTA": [(S, TOTAL, "    const int total = min(1, p.heads) * gridDim.x + 0 * (q_tiles")],
    "no rows": [(S, TOTAL, "    const int total = 0 * (q_tiles")],
}
NEW = {*FIRST_NAMES, "output once", "K, V normal", "output once, K, V normal", "all normal", "first QK in turn", "first QK, last PV in turn", "6 rows ahead"}
MORE_SMEM = {"6 rows ahead": 3 * (48 + 256 + 16)}


def say(*words):
    print(*words, flush=True)


def configs():
    from stof_cupy.jit.attention_sm90 import Sm90Config
    return {128: Sm90Config(128, 128, n=128, warpgroups=2), 64: Sm90Config(64, 64, n=64, warpgroups=1, blocks=3)}


CELLS = [(128, "sliding"), (128, "document"), (128, "causal"), (128, "block10"), (64, "sliding"), (64, "block10")]


def patched(name):
    """Return a copy of cuda/ with the patches of `name`."""
    from stof_cupy.jit.source import cuda_root
    to = WORK / name.replace(" ", "_").replace(",", "")
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(cuda_root(), to)
    (to / "attention" / "sm90_trace.cuh").write_text(trace_header(name.startswith("tiles")))
    for file, old, new in PATCHES[name]:
        text = (to / file).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{name}: {file} has {text.count(old)} of {old!r}")
        (to / file).write_text(text.replace(old, new.replace("%", old, 1) if new.startswith("%") or "\n%" in new else new))
    return to


def spec_of(shape, name):
    from stof_cupy.jit.attention_sm90 import attention_sm90
    spec = attention_sm90("bfloat16", shape)
    return replace(spec, smem_bytes=spec.smem_bytes + MORE_SMEM.get(name, 0))


def compiled(names, shapes):
    """Return {(name, dim): entry of a store}."""
    from stof_cupy.jit.cache import Store
    start, found = time.time(), {}
    folders = {name: patched(name) for name in names}

    def build(job):
        name, dim = job
        try:
            found[job] = Store(WORK / "cache", folders[name]).get(spec_of(shapes[dim], name), "90a")
        except Exception as error:
            say("BAD", *job, repr(error)[:1500])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, [(name, dim) for dim in shapes for name in names]))
    for (name, dim), entry in found.items():
        cubin = entry.cubin
        if cubin.spill_bytes or "C75" in cubin.log:
            say("note:", name, dim, f"{cubin.spill_bytes} B of spills", *{line for line in cubin.log.splitlines() if "C75" in line})
    say(f"{len(found)} kernels in {time.time() - start:.1f} s")
    return found


# ---------------------------------------------------------------- what the rings say
def read(ring, blocks):
    """Return {(block, actor): (smid, times, ids, more)}."""
    words, found = ring.reshape(blocks, ACTORS, RING // 8, 2), {}
    for block in range(blocks):
        for actor in range(ACTORS):
            now, what = words[block, actor].T
            n = np.flatnonzero(what == 0xffffffff)
            n = min(n[0] if n.size else len(what), RING // 8 - 1)
            if n < 8:
                continue
            times = (now[:n].astype(np.int64) - int(now[0])) & 0xffffffff
            found[block, actor] = int(what[0] >> 8), times + int(now[0]), (what[:n] & 255).astype(int), (what[:n] >> 8).astype(int)
    return found


def rows_of(ids, mark):
    return np.flatnonzero(ids == ID[mark])


def middle(ids, mark):
    """Return where the rows in the middle begin and end: without the first two and the last two."""
    at = rows_of(ids, mark)
    return (at[2], at[-2], len(at) - 4) if len(at) > 5 else (None, None, 0)


def table(found, actors, mark):
    """Print clocks by the event that ends them."""
    spent, often, waited, rows, clocks = defaultdict(float), defaultdict(int), defaultdict(int), 0, 0.0
    for (block, actor), (_, times, ids, _) in found.items():
        if actor not in actors:
            continue
        begin, end, count = middle(ids, mark)
        if not count:
            continue
        rows += count
        clocks += times[end] - times[begin]
        for i in range(begin + 1, end + 1):
            gap = times[i] - times[i - 1]
            spent[ids[i]] += gap
            often[ids[i]] += 1
            waited[ids[i]] += gap > 100
    if not rows:
        return say("    too few rows")
    say(f"    {rows} rows, {clocks / rows:.0f} clocks each")
    for what in sorted(spent):
        say(f"      {EVENTS[what]:14} {often[what] / rows:6.2f} a row  {spent[what] / often[what]:7.0f} each  {spent[what] / rows:7.0f} a row  {100 * waited[what] / often[what]:4.0f} % above 100")
    return clocks / rows


def nth(times, ids, *names):
    return times[np.isin(ids, [ID[name] for name in names])]


def story(found, groups):
    """When things happen at a row's change, seen from where warpgroup 0 is done with the last product of the row before."""
    offsets = defaultdict(list)
    for block in {block for block, _ in found}:
        parts = {actor: found.get((block, actor)) for actor in range(2 + groups)}
        if any(part is None for part in parts.values()):
            continue
        # Only rows that have tiles have these events: a row's number is that of its queries, whose tile count the scheduler knows.
        counts = parts[1][3][parts[1][2] == ID["SFound"]]
        counts = counts[counts < 1 << 20]
        seen = np.cumsum(counts) - counts  # tiles before
        full = counts > 0
        order = np.cumsum(full) - full  # rows with tiles before
        ends = {actor: nth(*parts[actor][1:3], "LastODone") for actor in parts if actor > 1}
        base = ends[2]
        for row in range(3, len(counts) - 2):
            if not full[row] or not full[row - 1] or order[row] >= len(base):
                continue
            t0 = base[order[row] - 1]

            def put(name, actor, event, index, *others):
                at = nth(*parts[actor][1:3], event, *others)
                if index < len(at):
                    offsets[name].append(at[index] - t0)
            put("scheduler: row sent", 1, "SSent", row)
            put("producer: row known", 0, "PRow", row)
            put("producer: queries asked", 0, "PQSent", row)
            put("producer: first keys: waits", 0, "PKWait", seen[row])
            put("producer: first keys: place", 0, "PKGot", seen[row])
            put("producer: first keys asked", 0, "PKSent", seen[row])
            put("producer: last values asked", 0, "PVSent", seen[row] - 1)
            put("producer: first values asked", 0, "PVSent", seen[row])
            for g in range(groups):
                put(f"wg{g}: last product done (row before)", 2 + g, "LastODone", order[row] - 1)
                put(f"wg{g}: output staged", 2 + g, "Staged", row - 1)
                put(f"wg{g}: output sent", 2 + g, "Sent", row - 1)
                put(f"wg{g}: row known", 2 + g, "RowKnown", row)
                put(f"wg{g}: queries there", 2 + g, "QFull", row)
                put(f"wg{g}: first keys there", 2 + g, "K0Full", order[row])
                put(f"wg{g}: earlier output read", 2 + g, "QReleased", order[row])
                put(f"wg{g}: first scores", 2 + g, "S0Ready", order[row])
                put(f"wg{g}: first weights", 2 + g, "Weights0", order[row])
    say("    at a row's change: clocks after wg0's last product of the row before is done (median, 10 %, 90 %)")
    for name, x in sorted(offsets.items(), key=lambda item: np.median(item[1])):
        say(f"      {name:40} {np.median(x):7.0f} {np.quantile(x, 0.1):7.0f} {np.quantile(x, 0.9):7.0f}")


def latencies(found, groups):
    """From asking for keys to them being there, where a warpgroup waited for them."""
    waits = defaultdict(list)
    for (block, actor), (_, times, ids, _) in found.items():
        if actor != 2 or (block, 0) not in found:
            continue
        _, made, what, _ = found[block, 0]
        for asked, got in (("PKSent", ("K0Full", "KFull")), ("PVSent", ("LastVFull", "VFull")), ("PQSent", ("QFull",))):
            sent, at = nth(made, what, asked), np.flatnonzero(np.isin(ids, [ID[name] for name in got]))
            for i, place in enumerate(at[:len(sent)]):
                if times[place] - times[place - 1] > 100:
                    waits[got[0]].append(times[place] - sent[i])
    say("    clocks from asked to there, where wg0 waited more than 100:", *(f"{name} {np.median(x):.0f} (median of {len(x)})" for name, x in waits.items()))


def busy(found, shape, groups):
    """How long nobody on an SM had a product under way. In a step the end of a product of values is not seen: it is put one product's time after its scores'."""
    alone = 64 * shape.n * shape.dim_v * 2 // 4096
    by_sm = defaultdict(list)
    for (block, actor), (sm, times, ids, _) in found.items():
        if actor < 2:
            continue
        begin, end, count = middle(ids, "RowWait")
        if not count:
            continue
        spans, ready = [], 0
        for i in range(1, len(ids)):
            what = EVENTS[ids[i]]
            if what in ("QK0Issued", "QKIssued"):
                start = times[i - 1]
            elif what in ("S0Ready", "SReady"):
                spans.append((start, times[i], False))
                ready = times[i]
            elif what == "PVIssued":
                start_v = times[i - 1]
            elif what == "ODone":
                spans.append((start_v, min(times[i], max(ready, start_v) + alone), False))
            elif what == "LastPVIssued":
                start_v = times[i - 1]
            elif what == "LastODone":
                spans.append((start_v, times[i], True))
        by_sm[sm].append((times[begin], times[end], count, spans))
    idle = at_change = window = rows = 0
    for parts in by_sm.values():
        low, high = max(p[0] for p in parts), min(p[1] for p in parts)
        if high <= low:
            continue
        window += high - low
        rows += sum(p[2] * (high - low) / (p[1] - p[0]) for p in parts) / groups
        reached, last = low, False
        for a, b, of_row in sorted(span for p in parts for span in p[3] if span[1] > low and span[0] < high):
            if a > reached:
                idle += a - reached
                at_change += (a - reached) * last
            if b > reached:
                reached, last = b, of_row
    if window:
        say(f"    tensor pipe of an SM: nobody had a product under way {100 * idle / window:.0f} % of the time: {idle / rows:.0f} clocks a row, of them {at_change / rows:.0f} after a row's last product")


def look(ring, blocks, shape):
    found, groups = read(ring, blocks), shape.warpgroups
    if any(ID["KFull"] in part[2] for part in found.values()):
        sms = len({part[0] for part in found.values()})
        say(f"    -- tiles traced: warpgroups of {len({b for b, _ in found})} CTAs on {sms} SMs")
        table(found, range(2, 5), "RowWait")
        latencies(found, groups)
        return busy(found, shape, groups)
    for what, actors, mark in (("warpgroups", range(2, 5), "RowWait"), ("producer", (0,), "PRowWait"), ("scheduler", (1,), "STicket")):
        say(f"    -- rows traced: {what}")
        table(found, actors, mark)
    story(found, groups)


# ---------------------------------------------------------------- on the GPU
def times_us(run, flush, count):
    import cupy
    run()
    pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(count)]
    for a, b in pairs:
        flush.fill(0)
        a.record()
        run()
        b.record()
    cupy.cuda.Device().synchronize()
    return 1e3 * min(float(cupy.cuda.get_elapsed_time(*pair)) for pair in pairs)


def main(asked):
    import cupy, ml_dtypes
    from regret_cells import make_mask
    from stof_cupy.jit import device, launch
    from stof_cupy.ops.attention_args import Scores, validate
    from stof_cupy.ops.attention_demand import Case
    from stof_cupy.ops.attention_fields import Args
    from stof_cupy.ops.attention_sm90 import whole
    from stof_cupy.ops.attention_sm90_launches import launches
    start, shapes, facts = time.time(), configs(), device.facts()
    group = lambda name: "trace" if "traced" in name else "new" if name in NEW else "without"
    names = [name for name in PATCHES if name == "base" or group(name) in asked]
    built, functions = compiled(names, shapes), {}
    for (name, dim), entry in built.items():
        spec = spec_of(shapes[dim], name)
        raw = cupy.RawModule(path=str(entry.path)).get_function(spec.symbol)
        raw.max_dynamic_shared_size_bytes = spec.smem_bytes
        functions[name, dim] = launch.Kernel(spec, raw.kernel)
    flush, kept, arrays = cupy.empty(64 * 2**20, np.int32), {}, {}
    g = np.random.default_rng(1)
    say(facts.name)
    for dim, mask_name in CELLS:
        b, h, s = SHAPES[dim]
        if dim not in arrays:
            one = [g.standard_normal((1, h, s, dim), np.float32).astype(ml_dtypes.bfloat16) for _ in range(3)]
            arrays[dim] = [cupy.ascontiguousarray(cupy.broadcast_to(cupy.asarray(x), (b, h, s, dim))) for x in one]
        q, k, v = arrays[dim]
        out = cupy.zeros_like(q)
        _, problem, mask, scores = validate(q, k, v, make_mask(mask_name, s), Scores(), None, out)
        args, config = Args(problem, q, k, v, out, None, mask, scores, None), whole(shapes[dim], Case(problem, mask, facts))
        most = facts.sm_count * config.shape.blocks
        ring = cupy.empty(most * ACTORS * RING // 4, np.uint32)
        every, used = launches(config, args)
        _, blocks, fields = every[0]
        rows, tiles = config.rows(problem), case_tiles(mask, shapes[dim], problem)
        say(f"\n=== ({b},{h},{s},{dim}) {mask_name} {config.name}: {rows} rows, {tiles / rows:.1f} tiles a row, {rows / most:.1f} rows a CTA")
        floor = 2 * config.shape.m * config.shape.n * 2 * dim * tiles / 4096 / facts.sm_count
        say(f"    products alone: {floor:.0f} clocks")
        base, right, line = None, None, {}
        for name in names:
            if (name, dim) not in functions:
                continue
            kernel, report = functions[name, dim], ring.data.ptr if "traced" in name else 0
            params = kernel.pack(**fields | {"report": report})
            out.fill(0)
            us = times_us(lambda: kernel((blocks,), params), flush, 5 if "traced" in name else 7)
            line[name] = us
            base = base or us
            right = out.copy() if right is None else right
            same = "" if cupy.array_equal(out, right) else " (other output)"
            say(f"  {name:28} {us:7.1f} us {us - base:+7.1f} {100 * us / base - 100:+6.1f} %{same}")
            if "traced" in name:
                ring.fill(0xffffffff)
                kernel((blocks,), params)
                look(ring.get(), most, shapes[dim])
        kept[f"{dim} {mask_name}"] = line
        (OUT / "sm90_trace.json").write_text(json.dumps(kept))
    say(f"{time.time() - start:.0f} s")


def case_tiles(mask, shape, problem):
    lists = mask.schedule((shape.m, shape.n), layout="accumulator")
    per = len(lists.cols) / max(1, len(lists.order) // (-(-problem.seq_q // shape.m)))
    return per * problem.heads * problem.batch


# ---------------------------------------------------------------- without a GPU
def emulate():
    """The traced kernels on the CPU: right output, and rings that can be read."""
    from unittest import mock
    sys.path.insert(0, str(HERE.parent))
    from stof_cupy import masks
    from stof_cupy.jit import tensormap
    from stof_cupy.ops import reference
    from stof_cupy.ops.attention_args import Scores, validate
    from stof_cupy.ops.attention_fields import Args
    from stof_cupy.ops.attention_sm90 import Config
    from stof_cupy.ops.attention_sm90_launches import launches
    from stof_cupy.testing import random_array, rng
    from tests.masks import on_host
    from tests.ops import on_hopper
    on_host._FLAGS.remove("-Werror")  # what a kernel no longer uses
    small = {dim: replace(shape, n=64) for dim, shape in configs().items()}
    for name in [n for n in PATCHES if not sys.argv[2:] or n in sys.argv[2:]]:
        on_host.library.cache_clear()
        on_hopper._compiled.cache_clear()
        folder = patched(name)
        for dim, shape in small.items():
            g, n = rng(1), 64 * 9 if dim == 64 else 128 * 9
            q, k, v = (random_array(g, (1, 2, n, dim), "bfloat16") for _ in range(3))
            out = np.zeros_like(q)
            _, problem, mask, scores = validate(q, k, v, masks.sliding_window(n, window=100).tobsr(), Scores(), None, out)
            args, ring = Args(problem, q, k, v, out, None, mask, scores, None), np.full(ACTORS * RING // 4, 0xffffffff, np.uint32)
            with mock.patch.object(tensormap, "tensor_map", on_hopper.encode), mock.patch.object(on_host, "cuda_root", lambda: folder):
                every, used = launches(Config(shape), args, ctas=1, section=2)
                spec, grid, fields = every[0]
                fields["report"] = ring.ctypes.data if "traced" in name else 0
                on_host.library.cache_clear()
                on_hopper._compiled.cache_clear()
                on_hopper.launch(replace(spec, smem_bytes=spec.smem_bytes + MORE_SMEM.get(name, 0)), grid, fields)
            assert used[0] == 0, "the counter"
            want = reference.attention(q, k, v, mask)
            say(name, dim, "error", float(np.abs(out.astype(np.float32) - want).max()))
            if "traced" in name:
                look(ring, 1, shape)


if __name__ == "__main__":
    asked = sys.argv[1:] or ["trace", "without", "new"]
    if asked[0] == "compile":
        compiled(sys.argv[2:] or list(PATCHES), configs())
    elif asked[0] == "emulate":
        emulate()
    else:
        main(asked)
