"""What a token's attention adds to a chain of kernels, us: the operators in turn and the kernel of one token. From a checkout, on a GPU:

    python -m pytest -m gpu --require-gpu -x -q tests/ops/test_attention_token.py tests/ops/test_decoder_ops.py      # first: right at all
    PYTHONPATH=. python scratch/token_times.py [small]                                                              # about 60 s
    PYTHONPATH=. python scratch/token_times.py session                                                              # SmolLM2, LLaMA-1B: us a token, off and on
    PYTHONPATH=. python scratch/token_times.py greedy

A graph has LAYERS times a product of one row (QKV) and the attention that reads it, each with its own weights and caches; what the same graph
without attention takes is subtracted. The first kernel is a memset of 256 MB, so that nothing is in L2.
"""
import sys
from dataclasses import replace

import cupy
import numpy as np

from stof_cupy.graph import meaning
from stof_cupy.ops import attention_token as op
from stof_cupy.ops.attention import attention
from stof_cupy.ops.attention_token import Token, Turn, attend_token
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.kv_cache import write_caches
from stof_cupy.ops.rotary import rotary

SMALL = "small" in sys.argv
LAYERS, REPEAT = (2, 2) if SMALL else (16, 10)
# heads, kv_heads, head_dim, hidden, batch, dtype
SHAPES = {
    "SmolLM2": (9, 3, 64, 576, 1, "float16"),
    "LLaMA-1B": (32, 8, 64, 2048, 1, "float16"),
    "LLaMA-8B": (32, 8, 128, 4096, 1, "float16"),
    "Gemma3-270m": (4, 1, 256, 640, 1, "float16"),
    "GPT-2": (12, 12, 64, 768, 1, "float16"),
    "LLaMA-1B x16": (32, 8, 64, 2048, 16, "float16"),
}
KEYS = (64, 200) if SMALL else (16, 128, 256, 512, 1000, 2048, 7800, 32000)
LEAST = (64, 96, 128, 192, 1 << 20)  # keys of a split, of several


def graph_us(run):
    flush = cupy.empty(1 << (20 if SMALL else 28), np.uint8)
    run()
    cupy.cuda.get_current_stream().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
        flush.fill(0)
        run()
        graph = stream.end_capture()
        times = []
        for _ in range(REPEAT):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end) * 1e3)
    return float(np.median(times))


class Layers:
    def __init__(self, shape, keys):
        self.heads, self.kv, self.dim, hidden, batch, dtype = shape
        rows = (self.heads + 2 * self.kv) * self.dim
        draw = lambda *s: (cupy.random.standard_normal(s, dtype=np.float32) * 0.1).astype(dtype)
        self.x = draw(batch, 1, hidden)
        self.w = [draw(rows, hidden) for _ in range(LAYERS)]
        self.caches = [[draw(batch, self.kv, keys + 8, self.dim) for _ in range(2)] for _ in range(LAYERS)]
        self.at = cupy.full((batch, 1), keys - 1, np.int32)
        self.lengths = cupy.full(batch, keys, np.int32)
        self.f = cupy.asarray((1e4 ** -(np.arange(self.dim // 2) / (self.dim // 2))).astype(np.float32))

    def products(self):
        for w in self.w:
            gemm(self.x, w.T)

    def parts(self, y):
        q, k = self.heads * self.dim, (self.heads + self.kv) * self.dim
        return [meaning.split_heads(y[..., a:b], heads=(b - a) // self.dim) for a, b in ((0, q), (q, k), (k, y.shape[-1]))]

    def in_turn(self):
        out = None
        for w, (ck, cv) in zip(self.w, self.caches):
            y = gemm(self.x, w.T)
            both = meaning.split_heads(y[..., : (self.heads + self.kv) * self.dim], heads=self.heads + self.kv)
            rotary(both, self.at, self.f, out=both)
            q, k, v = self.parts(y)
            write_caches(k, v, ck, cv, self.at)
            out = attention(q, ck, cv, kv_lengths=self.lengths)
        return out

    def in_one(self, settled=True):
        out = None
        for w, (ck, cv) in zip(self.w, self.caches):
            q, k, v = self.parts(gemm(self.x, w.T))
            out = attend_token(Token(q, k, v, ck, cv, self.at, Turn(self.f), None, self.lengths, None, None, False, settled))
        return out


def operators():
    print(f"{'':14} {'keys':>6} {'in turn':>8} | late         | " + " ".join(f"{x:>9}" for x in LEAST) + " | MB   us at 4.3 TB/s", flush=True)
    for name, shape in SHAPES.items():
        for keys in KEYS:
            size = 4 * shape[1] * shape[2] * keys * shape[4]
            if size * LAYERS > 20e9:
                continue
            layers = Layers(shape, keys)
            want, got = layers.in_turn().astype(np.float32), layers.in_one(False).astype(np.float32)
            off = float(abs(want - got).max() / abs(want).max())
            base = graph_us(layers.products)
            us = lambda run: (graph_us(run) - base) / LAYERS
            row = [us(layers.in_turn), us(lambda: layers.in_one(False))]
            before = op._LEAST
            for least in LEAST:
                op._LEAST = least
                row.append(us(layers.in_one))
            op._LEAST = before
            print(f"{name:14} {keys:6} {row[0]:8.2f} | {row[1]:12.2f} | " + " ".join(f"{x:9.2f}" for x in row[2:]) + f" | {size / 1e6:.2f} {size / 4.3e6:.2f} | differ {off:.1e}", flush=True)
            del layers
            cupy.get_default_memory_pool().free_all_blocks()


def session():
    from stof_cupy import TransformerEngine
    sys.path.insert(0, "scratch")
    import decode_runs as runs
    small = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 512} if SMALL else {}
    for name, config in (("LLaMA-1B", runs.LLAMA_1B), ("SmolLM2", runs.SMOL)):
        config = {**config, **small}
        weights = runs.drawn(config)
        for turn in range(4):
            engine = TransformerEngine(weights, config=config, backend="cuda", dtype="float16")
            text = engine.generate([list(range(1, 17))], max_new_tokens=8 if SMALL else 100)
            print(name, turn, text[0][:12], flush=True)


def best():
    from stof_cupy.ops import greedy
    for vocabulary in (49152, 128256, 262144):
        logits = cupy.random.standard_normal((1, vocabulary), dtype=np.float32).astype(np.float16)
        tokens, at, lengths = cupy.zeros(1, np.int64), cupy.zeros(1, np.int32), cupy.zeros(1, np.int32)
        for several in (False, True):
            greedy.SEVERAL_BLOCKS = several
            def run():
                for _ in range(20):
                    greedy.take_best(logits, tokens, at, lengths)
            us = (graph_us(run) - graph_us(lambda: None)) / 20
            print(vocabulary, "several" if several else "one", f"{us:.2f} us", int(tokens[0]) == int(logits[0].astype(np.float32).argmax()), flush=True)


{"session": session, "greedy": best}.get(next((a for a in sys.argv[1:] if a != "small"), ""), operators)()
