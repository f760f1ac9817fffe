"""Decoding and prefill on a GPU, in one short table with the goals beside it; random weights, no network.

    PYTHONPATH=. python scratch/models_times.py                       # not run yet; about 80 s
    PYTHONPATH=. python scratch/models_times.py smollm2|llama-1b|t5|prefill   # one part of it

ms a token are replays of the recorded token by events, the median of five times twenty; generate() is the clock over
256 tokens less 64 of them, so that the prompt cancels out. The bound is weights and keys read once at the memory's speed.
"""

from __future__ import annotations

import sys
import time
import warnings

import cupy
import numpy as np

from scratch import decode_runs, t5_decode
from stof_cupy import TransformerEngine, models
from stof_cupy.jit import device
from stof_cupy.models.session import Runner, Session, capacity_for

rows: list[tuple[str, str, str]] = []


def tell(what: str, got: str, goal: str = "") -> None:
    rows.append((what, got, goal))
    print(f"  {what:34} {got:58} {goal}", flush=True)


def replay_ms(engine, length):
    """Return the median ms of a greedy token after `length` others."""
    session = Session(
        engine._model,
        Runner(engine._run, engine._bind),
        engine._target,
        1,
        capacity_for(engine._model, length + 128),
    )
    session.take_best(session.prefill(np.ones((1, length), np.int32), np.array([length], np.int32)))
    for _ in range(5):
        session.step(greedy=True)
    times = []
    for _ in range(5):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(20):
            session.step(greedy=True)
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) / 20)
    return float(np.median(times)), session


def decoder(name, config, goal_ms=None, goal_share=None):
    facts = device.facts()
    speed = 2 * facts.memory_clock_khz * 1e3 * facts.memory_bus_bits / 8
    begin = time.perf_counter()
    engine = decode_runs.engine_of(config, decode_runs.drawn(config))
    weights = 2 * sum(x.size for x in engine._model.graph.constants.values())
    tell(
        f"{name}: made",
        f"{time.perf_counter() - begin:.1f} s, {weights / 1e9:.2f} GB of weights",
        f"{speed / 1e12:.2f} TB/s",
    )
    with engine._target.active():
        for length in (128, 2048, 7800):
            ms, session = replay_ms(engine, length)
            keys = (
                4
                * config["num_hidden_layers"]
                * config["num_key_value_heads"]
                * config["head_dim"]
                * length
            )
            bound = (weights + keys) / speed * 1e3
            goal = f"<= {goal_ms} ms" if goal_ms else f">= {goal_share:.0%}"
            got = f"{ms:.4f} ms a token = {bound / ms:.1%} of {bound:.4f} ms"
            if length == 128:
                said = [
                    str(line)
                    for line in str(engine._program.profile(session._inputs)).splitlines()[:12]
                ]
                met = ms <= goal_ms if goal_ms else bound / ms >= goal_share
                tell(f"{name}: {length} keys", got, f"{goal}: {'met' if met else 'MISSED'}")
                print("\n".join("      " + line for line in said), flush=True)
            else:
                tell(f"{name}: {length} keys", got)
    taken = {}
    for count in (64, 256, 64, 256):
        begin = time.perf_counter()
        engine.generate([[1] * 128], max_new_tokens=count, stop=())
        taken[count] = time.perf_counter() - begin
    tell(f"{name}: generate()", f"{(taken[256] - taken[64]) / 192 * 1e3:.4f} ms a token")
    engine.close()


def smollm2():
    decoder("smollm2", decode_runs.SMOL, goal_ms=0.40)


def llama_1b():
    decoder("llama-1b", decode_runs.LLAMA_1B, goal_share=0.70)


def t5():
    weights = models.random_weights(t5_decode.SMALL, 0)
    said = {}
    for graphs in (True, False):
        how = {"config": t5_decode.SMALL, "backend": "cuda", "cuda_graphs": graphs}
        engine = TransformerEngine(weights, **how)
        prompts = [np.random.default_rng(0).integers(1, 32128, 50).tolist()]
        taken = {}
        for count in (129, 250, 129, 250):  # the same room for both
            begin = time.perf_counter()
            said[graphs] = engine.generate(prompts, max_new_tokens=count, stop=())
            taken[count] = time.perf_counter() - begin
        name = "recorded" if graphs else "launched"
        tell(
            f"flan-t5-small's shape, {name}",
            f"{(taken[250] - taken[129]) / 121 * 1e3:.4f} ms a token",
        )
    tell(
        "flan-t5-small's shape",
        "equal tokens" if said[True] == said[False] else "OTHER TOKENS recorded",
    )


def prefill():
    taken, predicted = decode_runs.prefill()
    saved, told = (each["causal"] - each["window 1024"] for each in (taken, predicted))
    got = f"{taken['causal']:.2f} ms, window {taken['window 1024']:.2f} ms: {saved:.2f} ms less"
    tell(
        "llama-1b: 8192 tokens, prefill",
        got,
        f"model: {told:.2f} ms less, got {saved / told:.0%} of it",
    )


if __name__ == "__main__":
    warnings.simplefilter("always")
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    for part in sys.argv[1:] or ("smollm2", "llama-1b", "t5", "prefill"):
        begin = time.perf_counter()
        globals()[part.replace("-", "_")]()
        print(f"== {part}: {time.perf_counter() - begin:.0f} s", flush=True)
    print(f"\n{name}, CuPy {cupy.__version__}, {time.strftime('%Y-%m-%d')}")
    for what, got, goal in rows:
        print(f"  {what:34} {got:58} {goal}")
