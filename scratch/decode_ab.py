"""A recorded token of SmolLM2 and of the LLaMA-1B shape under combinations of switches: right tokens, ms a token, in turn.

    PYTHONPATH=$PWD python3 scratch/compile_specs.py scratch/decode_ab_specs.pkl.xz                 # on all cores, first
    PYTHONPATH=$PWD python3 scratch/decode_ab.py [smollm2 llama-1b] [--set COMBO ...] [--knob NAME=MODULE:ATTRIBUTE ...]
                                                 [--rounds 9] [--launches 30] [--keys 128] [--trace COMBO ...] [--specs]

A COMBO is `ahead=2,early=1,...` of `ops.token_switches.SWITCHES` or of names given by --knob, or "base"; `all` is ALL below, and
`all,near=0` is that without one. Default: COMBOS. Each combo has a session and a recording of its own; rounds go through all of
them, so that none has the cool or the warm GPU alone. Columns: median and least us a token by graph launches, what of base's
time that is, how many of 32 greedy tokens are base's, whether the logits of the first step are base's bit by bit or how far
off (of the largest logit; a normalised row is rounded once more with `normed`: up to about 2^-10). OUT/decode_ab.txt has it all.
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
from stof_cupy.fusion import token
from stof_cupy.ops import gemm_choice, greedy
from stof_cupy.ops.token_switches import SWITCHES

ALL = "ahead=2,early=1,alone=1,near=1,normed=1,whole=1,greedy=1,token=1"
COMBOS = [
    "base", "token=1", "token=1,greedy=1", "token=1,greedy=1,alone=1", "alone=1", "ahead=1", "ahead=2", "early=1", "near=1", "whole=1", "normed=1", "carveout=1", "greedy=1", "once=1", "stay=1",
    "ahead=1,early=1", "ahead=2,early=1", "ahead=2,early=1,near=1,whole=1", "ahead=2,early=1,alone=1", "normed=1,alone=1",
    "all", "all,ahead=1", "all,ahead=0", "all,early=0", "all,alone=0", "all,alone=2", "all,near=0", "all,normed=0", "all,whole=0", "all,greedy=0", "all,token=0", "all,once=1", "all,stay=1", "all,once=1,stay=1",
    "all,normed=0,carveout=1", "all,only=few", "all,only=streamed",
]
KNOBS = {"token": (token, "TOKEN_KERNEL"), "greedy": (greedy, "SEVERAL_BLOCKS")}  # of others: name -> (object, attribute)
MODELS = {"smollm2": decode_runs.SMOL, "llama-1b": decode_runs.LLAMA_1B}
TOKENS = 32


def say(text):
    print(text[:164], flush=True)
    if os.environ.get("OUT"):
        with open(os.path.join(os.environ["OUT"], "decode_ab.txt"), "a") as file:
            file.write(text + "\n")


def place(name):
    return KNOBS.get(name, (SWITCHES, name))


def settings(combo):
    """What a combination sets, by name; what it does not stays as it was at first."""
    found = dict(FIRST)
    for part in combo.replace("all", ALL, 1).split(",") if combo != "base" else ():
        name, value = part.split("=")
        assert name in found, f"no switch {name}: {sorted(found)}"
        kind = type(found[name])
        found[name] = value if kind is str else kind(int(value))
    return found


def set_(combo):
    for name, value in settings(combo).items():
        setattr(*place(name), value)
    gemm_choice.choices.cache_clear()  # what it says depends on some


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
        self.graph = cells["recording"].cell_contents._graph
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

    def engine_for(combo):  # what runs as one is settled when a graph is made ready
        set_(combo)
        which = settings(combo)["token"]
        if which not in engines:
            engines[which] = decode_runs.engine_of(MODELS[name], weights)
        return engines[which]

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
    parser.add_argument("--knob", nargs="+", default=[])
    parser.add_argument("--trace", nargs="+", default=[])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--launches", type=int, default=30)
    parser.add_argument("--keys", type=int, default=128)
    parser.add_argument("--specs", action="store_true", help="only ask for the kernels")
    args = parser.parse_args()
    for each in args.knob:
        name, where = each.split("=")
        module, attribute = where.split(":")
        KNOBS[name] = importlib.import_module(module), attribute
    FIRST = {name: getattr(SWITCHES, name) for name in vars(SWITCHES)}
    FIRST |= {name: getattr(*where) for name, where in KNOBS.items()}
    if "base" not in args.set[:1]:
        args.set = ["base", *args.set]
    say(f"{cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()} CuPy {cupy.__version__} {args.rounds} rounds of {args.launches}")
    for each in args.models or MODELS:
        model(each, args)
