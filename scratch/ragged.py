"""Packed against padded, recorded against launched, random weights of MiniLM's and BERT-base's shapes: python scratch/ragged.py   (about 40 s on an H100)"""

import os, sys, time

sys.path.insert(0, os.getcwd())
import cupy, numpy as np
from stof_cupy import TransformerEngine, models


def config(layers, hidden, heads, inner):
    return {
        "model_type": "bert",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "vocab_size": 30522,
        "max_position_embeddings": 2048,
        "type_vocab_size": 2,
    }


def p50(calls, n=40):
    for call in calls * 4:
        call()  # whatever is to be recorded is
    cupy.cuda.Device().synchronize()
    times = []
    for i in range(n):
        t = time.perf_counter()
        calls[i % len(calls)]()
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - t)
    return float(np.median(times)) * 1e3


def main():
    rng = np.random.default_rng(0)
    for name, c in (("minilm", config(6, 384, 12, 1536)), ("bert-base", config(12, 768, 12, 3072))):
        w = models.random_weights(c)
        for graphs in (False, True):
            e = TransformerEngine(w, config=c, backend="cuda", dtype="bfloat16", cuda_graphs=graphs)
            for b, s, mask in ((1, 128, None), (8, 512, "longformer:w=64,g=16")):
                ids = cupy.asarray(rng.integers(0, 30522, (b, s), dtype=np.int32))
                print(
                    f"{name:10} graphs {graphs!s:5} {b}x{s} {mask or 'full':22} {p50([lambda: e.run(ids, mask=mask)]):8.3f} ms",
                    flush=True,
                )
            packed, padded, mean, worst = [], [], 0.0, 0.0
            for _ in range(4):
                n = rng.integers(10, 513, 64)
                mean += n.mean() / 4
                seqs = [cupy.asarray(rng.integers(0, 30522, k, dtype=np.int32)) for k in n]
                whole = cupy.zeros((64, 512), np.int32)
                for i, q in enumerate(seqs):
                    whole[i, : len(q)] = q
                lengths = cupy.asarray(n.astype(np.int32))
                packed.append(lambda seqs=seqs: e.run(seqs))
                padded.append(lambda x=whole, n=lengths: e.run(x, lengths=n))
                for _ in range(4):
                    got, want = packed[-1](), padded[-1]()
                worst = max(
                    worst,
                    max(
                        float(cupy.abs(x.astype("f4") - y[: len(x)].astype("f4")).max())
                        for x, y in zip(got, want)
                    ),
                )
            a, b = p50(packed), p50(padded)
            print(
                f"{name:10} graphs {graphs!s:5} ragged 10-512, mean {mean:.0f}: packed {a:.3f} ms, padded {b:.3f} ms = {b / a:.2f}x, max diff {worst:.3g}",
                flush=True,
            )
            print("  ", e.explain().splitlines()[-1], "|", e._program.packed()._recordings)
            e.close()


if __name__ == "__main__":
    main()
