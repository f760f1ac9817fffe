"""Decoding on a GPU: right tokens, launches a token, ms a token. From a checkout:

    python -m pytest -m gpu --require-gpu -x -q tests/models/test_session.py tests/models/test_decoders.py \
        tests/ops/test_decoder_ops.py tests/ops/test_gemm_few_rows.py          # about 60 s
    PYTHONPATH=. python scratch/decode_runs.py                                 # about 120 s; random weights, no network
    PYTHONPATH=. python scratch/decode_runs.py tokens|times|products|prefill   # one part of it

Goals: SmolLM2 <= 0.40 ms a token; the LLaMA-1B shape >= 70 % of what reading its weights once takes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

import cupy
import numpy as np

from stof_cupy import TransformerEngine, masks, models
from stof_cupy.dtypes import as_dtype
from stof_cupy.graph import Executor
from stof_cupy.graph.cuda_recorder import CudaRecorder
from stof_cupy.jit import device, launch
from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.models.inputs import model_inputs
from stof_cupy.models.session import Runner, Session, capacity_for
from stof_cupy.models.weights import DrawnWeights
from stof_cupy.ops import attention, gemm_few_rows, gemm_model, gemm_sm80, gemm_sm90
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.testing import budget





LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "head_dim": 64}
SMOL = {**LLAMA, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "intermediate_size": 1536, "vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 1e5}
LLAMA_1B = {**LLAMA, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 16384, "rope_theta": 5e5}
GEMMA = {"model_type": "gemma3_text", "hidden_size": 640, "num_hidden_layers": 6, "num_attention_heads": 4,
         "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 2048, "vocab_size": 32768,
         "max_position_embeddings": 32768, "sliding_window": 512, "sliding_window_pattern": 3}


class OnDevice(DrawnWeights):
    """Weights drawn on the GPU in float16: a billion of them in a second."""

    def take(self, name, shape):
        array = cupy.random.standard_normal(shape, dtype=np.float32)
        array *= shape[-1] ** -0.5 if len(shape) > 1 else 0.1
        if len(shape) == 1 and name.endswith(".weight"):
            array += 1
        return self.drawn.setdefault(name, array.astype(np.float16).get())


def drawn(config):
    cupy.random.seed(0)
    weights = OnDevice(0)
    models._family(config).build(config, weights)
    return weights.drawn


def engine_of(config, weights, **how):
    return TransformerEngine(weights, config=config, **{"backend": "cuda", "dtype": "float16", "cuda_graphs": True, **how})


def tokens():
    """Recorded runs say what those that are not say, and what NumPy in float32 says wherever that is clear."""
    rng = np.random.default_rng(0)
    for name, config, lengths, new in (("smollm2", SMOL, (40, 7), 24), ("gemma3", GEMMA, (700, 300), 24)):
        weights = drawn(config)
        host = TransformerEngine({n: x.astype(np.float32) for n, x in weights.items()}, config=config, backend="numpy")
        prompts = [rng.integers(0, config["vocab_size"], n).tolist() for n in lengths]
        for dtype in ("float16", "bfloat16"):
            recorded, plain = (engine_of(config, weights, dtype=dtype, cuda_graphs=graphs) for graphs in (True, False))
            said = recorded.generate(prompts, max_new_tokens=new, stop=())
            again = recorded.generate(prompts, max_new_tokens=new, stop=())
            same = plain.generate(prompts, max_new_tokens=new, stop=())
            clear = wrong = 0
            for prompt, text in zip(prompts, said):
                row = np.array([prompt + text[:-1]])
                given = model_inputs(host._model, host._target, row, None, None, None, logits=True)
                rounded = lambda _, y: y.astype(as_dtype(dtype)).astype(np.float32)  # noqa: E731
                low = Executor(host.graph, backend="numpy").run(given, observe=rounded)["logits"][0, len(prompt) - 1 :]
                exact = host.run(row, output="logits")[0, len(prompt) - 1 :]
                allowed = 2 * budget(exact, low.astype(as_dtype(dtype)), as_dtype(dtype))
                gap = exact.max(axis=-1) - exact[np.arange(len(text)), text]
                top = np.sort(exact, axis=-1)[:, -2:]
                clear += int((top[:, 1] - top[:, 0] > allowed).sum())
                wrong += int((gap > allowed).sum())
            print(f"tokens {name:8} {dtype:9} recorded = again {said == again}, = not recorded {said == same}, "
                  f"{wrong} of {sum(map(len, said))} beyond the budget of NumPy's best ({clear} of them clear)", flush=True)


def times():
    """ms a token: replays alone by events, and generate() by the clock."""
    facts = device.facts()
    speed = 2 * facts.memory_clock_khz * 1e3 * facts.memory_bus_bits / 8
    for name, config in (("smollm2", SMOL), ("llama-1b", LLAMA_1B)):
        engine = engine_of(config, drawn(config))
        nbytes = 2 * sum(x.size for x in engine._model.graph.constants.values())
        for length in (128, 2048, 8000):
            capacity = capacity_for(engine._model, length + 64)
            seen: Counter[str] = Counter()
            with engine._target.active():
                session = Session(engine._model, Runner(engine._run, engine._bind), engine._target, 1, capacity)
                session.take_best(session.prefill(np.ones((1, length), np.int32), np.array([length], np.int32)))
                call, launch.Kernel.__call__ = launch.Kernel.__call__, counted(seen)
                session.step(greedy=True)
                launch.Kernel.__call__ = call
                for _ in range(4):
                    session.step(greedy=True)
                best = []
                for _ in range(5):
                    start, end = cupy.cuda.Event(), cupy.cuda.Event()
                    start.record()
                    for _ in range(10):
                        session.step(greedy=True)
                    end.record()
                    end.synchronize()
                    best.append(cupy.cuda.get_elapsed_time(start, end) / 10)
                if length == 128:
                    print(f"times  {name:9} kernels a token {sum(seen.values()) // 2}: "
                          + ", ".join(f"{count // 2} {kernel}" for kernel, count in seen.most_common()))
                    print("\n".join(str(engine._program.profile(session._inputs)).splitlines()[:14]))
            keys = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * 64 * length
            bound = (nbytes + keys) / speed * 1e3
            print(f"times  {name:9} {length:5} keys: {np.median(best):.4f} ms a token (least {min(best):.4f}), "
                  f"bound {bound:.4f} ms = {bound / np.median(best):.1%}", flush=True)
        engine.generate([[1] * 128], max_new_tokens=64, stop=())
        start = time.perf_counter()
        engine.generate([[1] * 128], max_new_tokens=256, stop=())
        engine.generate([[1] * 128], max_new_tokens=256, stop=())
        print(f"times  {name:9} generate(): {(time.perf_counter() - start) / 512 * 1e3:.4f} ms a token, prompts of 128 included",
              flush=True)


def counted(seen):
    call = launch.Kernel.__call__

    def counting(self, grid, params):
        seen[self.spec.name] += 1
        return call(self, grid, params)

    return counting


def products():
    """The GEMM of few rows against what was chosen before, weights out of DRAM: as many as two L2s hold."""
    facts, recorder = device.facts(), CudaRecorder(0)
    gate, added = EpilogueKind(activation="silu", gated=True), EpilogueKind(residual=True)
    shapes = [(960, 576, PLAIN), (576, 576, added), (1536, 576, gate), (576, 1536, added), (49152, 576, PLAIN),
              (3072, 2048, PLAIN), (2048, 2048, added), (8192, 2048, gate), (2048, 8192, added), (128256, 2048, PLAIN)]
    for m in (1, 4):
        for n, k, kind in shapes:
            problem = Problem("float16", m, n, k, kind)
            copies = max(1, 160_000_000 // (2 * problem.columns * k))
            a, c = cupy.ones((m, k), np.float16), cupy.empty((m, n), np.float16)
            weights = [cupy.ones((problem.columns, k), np.float16) for _ in range(copies)]
            residual = c if kind.residual else None
            ways = {f"{s} slices": gemm_few_rows.Config(m, s) for s in (1, 2, 4)}
            try:
                ways["before"] = gemm_model.choose(problem, gemm_sm90.layout(problem, a, weights[0]), facts)
            except Exception as changed:  # the choice may have moved since
                print(f"no choice to compare with: {changed}")
            chosen = gemm_few_rows.config_for(problem, a, weights[0], facts.sm_count)
            told = []
            for way, choice in ways.items():
                def run(choice=choice):
                    for w in weights:
                        if isinstance(choice, gemm_few_rows.Config):
                            gemm_few_rows.launch(choice, problem, a, w, c, residual=residual)
                        elif isinstance(choice, gemm_sm80.Config):
                            gemm_sm80.launch(choice, problem, a, w, c, residual=residual)
                        else:
                            gemm_sm90.prepare(choice, problem, a, w, c, bias=None, residual=residual, scale=1.0)()
                    return {}
                us = recorder.seconds(run) / copies * 1e6
                star = "*" if choice == chosen else ""
                told.append(f"{way}{star} {us:7.2f} us {2 * problem.columns * k / us / 1e6:5.2f} TB/s")
            print(f"product {m} x {n} x {k}{kind.name}: " + "; ".join(told), flush=True)


def prefill():
    """8k tokens with a window of 1,024 and without; the model's prediction of attention beside it."""
    engine = engine_of(LLAMA_1B, drawn(LLAMA_1B), cuda_graphs=True)
    ids = cupy.ones((1, 8192), np.int32)
    taken, predicted = {}, {}
    q = cupy.zeros((1, 32, 8192, 64), np.float16)
    k = cupy.zeros((1, 8, 8192, 64), np.float16)
    both = {"causal": masks.causal(8192).tobsr(), "window 1024": masks.sliding_window(8192, window=1023, causal=True).tobsr()}
    every = {name: [] for name in both}
    for name, mask in both.items():
        predicted[name] = 16 * attention.attention(q, k, k, mask, explain=True)[0].us / 1e3
        for _ in range(3):
            engine.run(ids, mask=mask)
    cupy.cuda.Device().synchronize()
    for _ in range(15):  # in turn: a GPU under load slows down
        for name, mask in both.items():
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            engine.run(ids, mask=mask)
            end.record()
            end.synchronize()
            every[name].append(cupy.cuda.get_elapsed_time(start, end))
    taken = {name: float(np.median(times)) for name, times in every.items()}
    saved, told = (each["causal"] - each["window 1024"] for each in (taken, predicted))
    print("replayed:", engine._program._recordings and engine._program._recordings.replayed, engine._program._recordings, [round(e.nbytes / 2**30, 2) for e in engine._program._recordings._entries.values()])
    print(f"prefill 8192: {taken}, saved {saved:.2f} ms; predicted for attention {predicted}, saved {told:.2f} ms")
    return taken, predicted


if __name__ == "__main__":
    print(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), "CuPy", cupy.__version__)
    for part in sys.argv[1:] or ("tokens", "times", "products", "prefill"):
        globals()[part]()
