"""A recorded token of SmolLM2 and of the LLaMA-1B shape in variants, in turn: right tokens, us a token.

    PYTHONPATH=$PWD python3 scratch/decode_ab.py [smollm2 llama-1b] [--set VARIANT ...] [--rounds 9] [--launches 30] [--keys 128] [--trace VARIANT ...]

A variant is a function in VARIANTS that changes modules; "base" nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections import Counter

import cupy
import numpy as np

from scratch import decode_runs
from stof_cupy.jit import launch
from stof_cupy.models.session import Runner, Session, capacity_for
from stof_cupy.ops import attention_token as op
from stof_cupy.ops import gemm_few_rows, gemm_streamed
from dataclasses import replace

FIRST = {"attention": op.attention_token, "few": gemm_few_rows.gemm_few_rows, "streamed": gemm_streamed.gemm_streamed, "splits": op.splits_for, "token": op.attend_token}


def back():
    op.attention_token, gemm_few_rows.gemm_few_rows, gemm_streamed.gemm_streamed, op.splits_for = (FIRST[n] for n in ("attention", "few", "streamed", "splits"))


def uncut():
    op.splits_for = lambda *a: (1, FIRST["splits"](*a)[1])  # an example: no splits


VARIANTS = {"base": lambda: None, "uncut": uncut}
COMBOS = ["base", "uncut", "base2", "uncut2"]  # the same twice: what memory they lie in matters too
MODELS = {"smollm2": decode_runs.SMOL, "llama-1b": decode_runs.LLAMA_1B}
TOKENS = 32


def say(text):
    print(text[:164], flush=True)
    if os.environ.get("OUT"):
        with open(os.path.join(os.environ["OUT"], "decode_ab.txt"), "a") as file:
            file.write(text + "\n")


def set_(combo):
    back()
    VARIANTS[combo.rstrip("2")]()


class Case:
    """A session that a combination has recorded."""

    def __init__(self, engine, combo, keys, launches):
        set_(combo)
        self.combo, self.keys = combo, keys
        room = capacity_for(engine._model, keys + max(launches, TOKENS) + 1)
        self.session = Session(engine._model, Runner(engine._run, engine._bind), engine._target, 1, room)
        self.prompt = np.random.default_rng(0).integers(0, 1000, (1, keys)).astype(np.int32)
        self.start = self.session.prefill(self.prompt, np.array([keys], np.int32)).copy()
        self.seen = Counter()
        call, launch.Kernel.__call__ = launch.Kernel.__call__, decode_runs.counted(self.seen)
        try:
            self.back()
            self.session.step(greedy=True)  # which records
        finally:
            launch.Kernel.__call__ = call
        step = self.session._steps[True]
        cells = dict(zip(step.__code__.co_freevars, step.__closure__ or ()))
        self.graph = cells["recording"].cell_contents._held.graph
        self.back()
        self.logits = self.session.step(greedy=True).get().astype(np.float32)
        self.said = [int(self.session.tokens[0])]
        for _ in range(TOKENS - 1):
            self.session.step(greedy=True)
            self.said.append(int(self.session.tokens[0]))
        self.us = []

    def back(self):
        """The state after the prompt, of which the first token is taken."""
        session = self.session
        session._positions[...], session._lengths[...] = self.keys - 1, self.keys
        session.take_best(self.start)

    def time(self, launches):
        self.back()
        stream = cupy.cuda.get_current_stream()
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        self.graph.launch(stream)
        start.record()
        for _ in range(launches):
            self.graph.launch(stream)
        end.record()
        end.synchronize()
        self.us.append(cupy.cuda.get_elapsed_time(start, end) / launches * 1e3)

    def close_to(self, base):
        same = sum(a == b for a, b in zip(self.said, base.said))
        if np.array_equal(self.logits, base.logits):
            return same, "equal"
        away = np.abs(self.logits - base.logits).max() / np.abs(base.logits).max()
        return same, f"{away:.1e}" + ("" if away < 4e-3 else " FAR")  # fp16: two roundings in each layer


def model(name, args):
    begin = time.perf_counter()
    weights, engines = decode_runs.drawn(MODELS[name]), {}

    def engine_for(combo):
        set_(combo)
        if not engines:
            engines[0] = decode_runs.engine_of(MODELS[name], weights)
        return engines[0]

    with engine_for("base")._target.active():
        cases = []
        for combo in args.set:
            try:
                cases.append(Case(engine_for(combo), combo, args.keys, args.launches - 1))
            except Exception as error:  # another combination may still work
                say(f"  FAILED {combo}: {type(error).__name__} {' '.join(str(error).split())[:110]}")
                if isinstance(error, cupy.cuda.driver.CUDADriverError) or "CUDA" in type(error).__name__:
                    raise
        if args.specs:
            return
        say(f"== {name}, {args.keys} keys: {len(cases)} recorded in {time.perf_counter() - begin:.0f} s; us a token")
        for _ in range(args.rounds):
            for case in cases:
                case.time(args.launches - 1)
        base = cases[0]
        for case in cases:
            same, how = case.close_to(base)
            median = np.median(case.us)
            say(f"  {median:8.1f} (least {min(case.us):8.1f}) {median / np.median(base.us):6.3f}  tokens {same}/{TOKENS}  logits {how:12} {case.combo}")
        if os.environ.get("OUT"):
            with open(os.path.join(os.environ["OUT"], "decode_ab.txt"), "a") as file:
                for case in cases:
                    print("   ", case.combo, [(n, k) for k, n in case.seen.most_common()], file=file)
        for combo in args.trace:
            from scratch import profile_decode

            case = next((each for each in cases if each.combo == combo), None) or Case(engine_for(combo), combo, args.keys, args.launches)
            profile_decode.BACK[0] = case.back
            stream = cupy.cuda.get_current_stream()
            profile_decode.kernels(lambda: case.graph.launch(stream), 8, 9, f"{name} {combo}")
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--set", nargs="+", default=COMBOS)
    parser.add_argument("--trace", nargs="+", default=[])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--launches", type=int, default=30)
    parser.add_argument("--keys", type=int, default=128)
    parser.add_argument("--specs", action="store_true", help="only ask for the kernels")
    args = parser.parse_args()
    if "base" not in args.set[:1]:
        args.set = ["base", *args.set]
    say(f"{cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()} CuPy {cupy.__version__} {args.rounds} rounds of {args.launches}")
    for each in args.models or MODELS:
        model(each, args)
