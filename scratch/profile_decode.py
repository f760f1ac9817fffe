"""What a recorded token and a prefill of 8,192 tokens take, kernel by kernel, and what of it the host takes.

    PYTHONPATH=$PWD python3.12 scratch/profile_decode.py [smollm2 llama-1b prefill]
"""

from __future__ import annotations

import cProfile
import ctypes
import functools
import json
import os
import pstats
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict

try:
    import torch
    from torch.profiler import ProfilerActivity, profile
except ImportError as error:
    torch = None
    print("no torch:", error)
import cupy
import numpy as np

from scratch import decode_runs
from stof_cupy import masks
from stof_cupy.models.session import Runner, Session, capacity_for
from stof_cupy.runtime import bound





CALLS = []
BACK = [lambda: None]  # so that no more keys are read than said, and none is written beyond the cache
_recorded = bound._recorded


def keeping(call, recorder, changes):
    CALLS.append((call, recorder))
    return _recorded(call, recorder, changes)


bound._recorded = keeping


def guarded(part):
    @functools.wraps(part)
    def run(*args):
        try:
            return part(*args)
        except Exception:
            lines = traceback.format_exc().strip().splitlines()
            print(f"  FAILED {part.__name__}: {lines[-1][:150]} | {lines[-3].strip()[:100]}", flush=True)

    return run


def say(text, shown=True):
    """Print a line; lines that are not shown are in the file alone."""
    if shown:
        print(text[:164], flush=True)
    if os.environ.get("OUT"):
        with open(os.path.join(os.environ["OUT"], "profile_decode.txt"), "a") as file:
            file.write(text + "\n")


def sync():
    cupy.cuda.Device().synchronize()


def events_us(call, count, times=5):
    found = []
    for _ in range(times):
        BACK[0]()
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        found.append(cupy.cuda.get_elapsed_time(start, end) / count * 1e3)
    return f"{np.median(found):.1f} (least {min(found):.1f})"


def clock_us(call, count, wait_each):
    BACK[0]()
    sync()
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        if wait_each:
            sync()
        found.append(time.perf_counter() - begin)
    sync()
    return f"{np.median(found) * 1e6:.1f} (least {min(found) * 1e6:.1f})"


def recording_of(step):
    cells = dict(zip(step.__code__.co_freevars, step.__closure__ or ()))
    return cells["recording"].cell_contents


@guarded
def nodes(graph):
    cuda = ctypes.CDLL("libcuda.so.1")
    handle, count = ctypes.c_void_p(int(graph.graph)), ctypes.c_size_t(0)
    code = cuda.cuGraphGetNodes(handle, None, ctypes.byref(count))
    every = (ctypes.c_void_p * max(count.value, 1))()
    cuda.cuGraphGetNodes(handle, every, ctypes.byref(count))
    kinds = Counter()
    for i in range(count.value):
        kind = ctypes.c_int(-1)
        cuda.cuGraphNodeGetType(ctypes.c_void_p(every[i]), ctypes.byref(kind))
        kinds[{0: "kernel", 1: "memcpy", 2: "memset", 3: "host", 5: "empty"}.get(kind.value, kind.value)] += 1
    say(f"  nodes: {count.value} (rc {code}) {dict(kinds)}")
    number = ctypes.c_size_t(0)
    ask = cuda.cuGraphGetEdges_v2
    code = ask(handle, None, None, None, ctypes.byref(number))
    room = max(number.value, 1)
    a, b, data = (ctypes.c_void_p * room)(), (ctypes.c_void_p * room)(), (ctypes.c_uint8 * (8 * room))()
    ask(handle, a, b, data, ctypes.byref(number))
    say(f"  edges: {number.value} (rc {code}) by type {dict(Counter(data[8 * i + 2] for i in range(number.value)))} (1: programmatic)")


def top(call, count, title, lines=12, shown=12):
    BACK[0]()
    call()
    sync()
    watch = cProfile.Profile()
    watch.enable()
    for _ in range(count):
        call()
    watch.disable()
    sync()
    stats = pstats.Stats(watch).stats
    total = sum(each[2] for each in stats.values())
    say(f"  cProfile {title}, us each: {total / count * 1e6:.0f} in all (slower while watched)")
    ranked = sorted(stats.items(), key=lambda item: -item[1][2])[:lines]
    told = [
        f"{v[2] / count * 1e6:7.1f} own {v[3] / count * 1e6:7.1f} with {v[0] / count:5.1f} x {os.path.basename(k[0])}:{k[1]} {k[2]}"[:80]
        for k, v in ranked
    ]
    for i in range(0, len(told), 2):
        say(f"    {told[i]:80} {told[i + 1] if i + 1 < len(told) else ''}", i < shown)


@guarded
def kernels(call, count, lines, title):
    """Kernels, copies and the time between them; `call` counts as one token."""
    BACK[0]()
    call()
    sync()
    with profile(activities=[ProfilerActivity.CUDA]) as told:
        for _ in range(count):
            call()
        sync()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        told.export_chrome_trace(path)
        with open(path) as file:
            every = json.load(file)["traceEvents"]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    found = [
        (float(e["ts"]), float(e["dur"]), e)
        for e in every
        if e.get("ph") == "X" and e.get("cat") in kinds
    ]
    found.sort(key=lambda item: item[:2])
    if not found:
        say(f"  {title}: no kernels seen of {len(every)} events: {Counter(e.get('cat') for e in every)}")
        return
    by, gaps, over = defaultdict(list), [], 0.0
    after = defaultdict(list)
    end = None
    size = len(found) // count
    for i, (start, took, e) in enumerate(found):
        args = e.get("args", {})
        name = e["name"].removeprefix("stof_")
        name = name[:84] if len(name) < 85 else name[:58] + ".." + name[-24:]
        dots = "x".join(map(str, args.get("grid", ()))) + "/" + "x".join(map(str, args.get("block", ())))
        key = (name, dots, args.get("registers per thread"), args.get("shared memory"))
        by[key].append(took)
        if end is not None and i % size:
            gaps.append(start - end)
            after[key].append(start - end)
        end = start + took if end is None else max(end, start + took)
    busy = sum(max(g, 0) for g in gaps) / count
    over = sum(min(g, 0) for g in gaps) / count
    firsts = [found[i * size][0] for i in range(count)]
    spans = [max(s + d for s, d, _ in found[i * size : (i + 1) * size]) - firsts[i] for i in range(count)]
    between = np.diff(firsts) if count > 1 else [0]
    say(f"  {title}: {len(found)} / {count} = {len(found) / count:.1f} kernels; us: sum {sum(map(sum, by.values())) / count:.1f}, "
        f"span {np.median(spans):.1f}, start to start {np.median(between):.1f}; gaps {busy:.1f}, median {np.median(gaps or [0]):.2f}, overlap {over:.1f}")
    ranked = sorted(by.items(), key=lambda item: -sum(item[1]))
    for i, ((name, dots, registers, shared), took) in enumerate(ranked):
        gap = np.mean(after[name, dots, registers, shared] or [0])
        say(f"    {sum(took) / count:9.1f} = {len(took) / count:5.1f} x {np.mean(took):8.2f} (least {min(took):7.2f}, gap before {gap:5.2f}) {dots:18} r{registers} s{shared} {name}", i < lines)
    rest = sum(sum(took) for _, took in ranked[lines:]) / count
    if rest:
        say(f"    {rest:9.1f} rest of {len(ranked) - lines} kinds")
    if lines:
        for start, took, e in found[:60] + found[size - 12 : size + 3]:
            say(f"      at {start - found[0][0]:9.2f} took {took:8.2f} {e['args'].get('grid')} {e['name']}", False)


@guarded
def token(engine, length, whole, room=128):
    session = Session(
        engine._model, Runner(engine._run, engine._bind), engine._target, 1, capacity_for(engine._model, length + room)
    )
    session.take_best(session.prefill(np.ones((1, length), np.int32), np.array([length], np.int32)))

    def back():
        session._positions[...], session._lengths[...] = length, length + 1

    BACK[0] = back
    step = functools.partial(session.step, greedy=True)
    for _ in range(5):
        step()
    if not whole:
        say(f"  {length} keys of room for {capacity_for(engine._model, length + room)}: step, events x20 {events_us(step, 20)}")
        kernels(step, 8, 3, f"{length} keys")
        return
    recording = recording_of(session._steps[True])
    graph, null = recording._held.graph, cupy.cuda.get_current_stream()
    nodes(graph)
    launch = functools.partial(graph.launch, null)
    say(f"  graph.launch x50, events: {events_us(launch, 50)} us a token; x1: {events_us(launch, 1, 15)}; x5: {events_us(launch, 5)}")
    own = cupy.cuda.Stream(non_blocking=True)
    sync()
    with own:
        say(f"  the same on a stream of its own: {events_us(functools.partial(graph.launch, own), 50)}")
    own.synchronize()
    say(f"  host, graph.launch alone: {clock_us(launch, 50, False)}; with sync each {clock_us(launch, 50, True)}; sync alone {clock_us(sync, 50, False)}")
    say(f"  session.step: events x20 {events_us(step, 20)}; x50 {events_us(step, 50, 3)}; host {clock_us(step, 100, False)}; with sync each {clock_us(step, 50, True)}")
    four_tokens()
    guarded(top)(step, 100, "100 steps", 14, 8)
    kernels(step, 8, 9, f"{length} keys, session.step")
    kernels(launch, 8, 0, "graph.launch alone")


@guarded
def four_tokens():
    call, recorder = CALLS[-1]
    recording, _ = recorder.record(lambda: [call() for _ in range(4)][-1])
    stream = cupy.cuda.get_current_stream()
    say(f"  four tokens a graph, events x10: {events_us(lambda: recording._held.graph.launch(stream), 10)} us a graph, / 4 a token")


@guarded
def generate(engine):
    BACK[0] = lambda: None
    told = []
    for count in (64, 64, 256, 256, 64, 64, 256):
        made, begin = len(CALLS), time.perf_counter()
        engine.generate([[1] * 128], max_new_tokens=count, stop=())
        told.append(f"{count}: {(time.perf_counter() - begin) * 1e3:.1f} ms ({len(CALLS) - made} recorded)")
    say("  generate() " + ", ".join(told))
    top(lambda: engine.generate([[1] * 128], max_new_tokens=256, stop=()), 1, "one generate() of 256", 16, 6)


@guarded
def decoder(name, config):
    begin = time.perf_counter()
    engine = decode_runs.engine_of(config, decode_runs.drawn(config))
    say(f"== {name}: made in {time.perf_counter() - begin:.1f} s")
    with engine._target.active():
        token(engine, 128, True)
        token(engine, 2048, False)
        token(engine, 7000, False)
        token(engine, 128, False, 1800)
    generate(engine)
    engine.close()


@guarded
def prefill():
    engine = decode_runs.engine_of(decode_runs.LLAMA_1B, decode_runs.drawn(decode_runs.LLAMA_1B), cuda_graphs=False)
    ids = cupy.ones((1, 8192), np.int32)
    say("== prefill, 8192 tokens, LLaMA-1B")
    for name, mask in (("causal", masks.causal(8192)), ("window 1024", masks.sliding_window(8192, window=1023, causal=True))):
        mask = mask.tobsr()

        def run(mask=mask, **how):
            engine.run(ids, mask=mask, **how)

        guarded(lambda: [run() for _ in range(3)])()
        say(f"  {name}: events {events_us(run, 1)} us; x4 {events_us(run, 4, 3)}; host alone {clock_us(run, 3, False)}")
        kernels(run, 2, 10, name)
    guarded(top)(run, 3, "run() of the window", 12, 4)
    engine.close()


if __name__ == "__main__":
    say(f"{cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()} CuPy {cupy.__version__}")
    for part in sys.argv[1:] or ("smollm2", "llama-1b", "prefill"):
        start = time.perf_counter()
        if part == "prefill":
            prefill()
        else:
            decoder(part, {"smollm2": decode_runs.SMOL, "llama-1b": decode_runs.LLAMA_1B}[part])
        say(f"== {part}: {time.perf_counter() - start:.0f} s")
