"""Engine on a GPU: eager vs recorded, ragged vs padded, tuning time, peak memory. Run in a checkout of branch `all` of /tmp/hE (or main after the merge):
    python /tmp/gpu_scripts/engine_runs.py            (prints a table; no network, random weights)
First run the tests:  pytest -m gpu --require-gpu tests/runtime tests/fusion tests/graph tests/engine -x -q
"""
import os, sys, tempfile, time
os.environ.setdefault("STOF_CACHE_DIR", os.path.join(tempfile.gettempdir(), "stof-cache"))
sys.path.insert(0, os.getcwd())
import cupy, numpy as np
from stof_cupy import TransformerEngine, models

def config(layers, hidden, heads, inner, positions=2048):
    return {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_hidden_layers": layers,
            "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": inner, "vocab_size": 30522,
            "max_position_embeddings": positions, "type_vocab_size": 2}

def p50(run, n=30):
    for _ in range(4): run()
    cupy.cuda.Device().synchronize()
    times = []
    for _ in range(n):
        t = time.perf_counter(); run(); cupy.cuda.Device().synchronize(); times.append(time.perf_counter() - t)
    return float(np.median(times)) * 1e3

rng = np.random.default_rng(0)
for name, c in (("minilm", config(6, 384, 12, 1536)), ("bert-base", config(12, 768, 12, 3072))):
    w = models.random_weights(c)
    eager = TransformerEngine(w, config=c, backend="cuda", dtype="bfloat16", cuda_graphs=False)
    graph = TransformerEngine(w, config=c, backend="cuda", dtype="bfloat16")
    for b, s, mask in ((1, 16, None), (1, 128, None), (1, 100, None), (8, 512, "longformer:w=32,g=32"), (16, 2048, "bigbird")):
        ids = cupy.asarray(rng.integers(0, 30522, (b, s), dtype=np.int32))
        a, g = p50(lambda: eager.run(ids, mask=mask)), p50(lambda: graph.run(ids, mask=mask))
        d = float(cupy.abs(eager.run(ids, mask=mask).astype("f4") - graph.run(ids, mask=mask).astype("f4")).max())
        plan = graph._program.plan({"ids": ids, "token_types": ids})
        print(f"{name:10} {b:3}x{s:<5}{mask or 'full':22} eager {a:8.3f} ms  graph {g:8.3f} ms  max diff {d:.3g}  {plan}", flush=True)
    lens = rng.integers(10, 513, 64)
    seqs = [cupy.asarray(rng.integers(0, 30522, n, dtype=np.int32)) for n in lens]
    padded = cupy.zeros((64, 512), np.int32)
    for i, q in enumerate(seqs): padded[i, :len(q)] = q
    dl = cupy.asarray(lens.astype(np.int32))
    pk, pd = p50(lambda: graph.run(seqs), 10), p50(lambda: graph.run(padded, lengths=dl), 10)
    err = max(float(cupy.abs(x.astype("f4") - y[:len(x)].astype("f4")).max()) for x, y in zip(graph.run(seqs), graph.run(padded, lengths=dl)))
    print(f"{name:10} ragged 10-512 (mean {lens.mean():.0f}): packed {pk:.3f} ms, padded {pd:.3f} ms = {pd / pk:.2f}x, max diff {err:.3g}", flush=True)
    print(str(graph.profile(cupy.asarray(rng.integers(0, 30522, (8, 512), dtype=np.int32)))).split("\n  ", 1)[0])
    print("\n".join(str(graph.profile(cupy.zeros((8, 512), np.int32))).splitlines()[:6]))
    t = time.perf_counter()
    tuned = TransformerEngine(w, config=c, backend="cuda", dtype="bfloat16", tune="fast")
    tuned.run(cupy.zeros((8, 512), np.int32)); cupy.cuda.Device().synchronize()
    print(f"{name:10} tune=fast, first result after {time.perf_counter() - t:.2f} s")
    print(tuned._program.tuned({"ids": cupy.zeros((8, 512), np.int32), "token_types": cupy.zeros((8, 512), np.int32)}))
    print(graph.explain().splitlines()[-1])

# Families of hD (branch `all`): eager, recorded, tuned; the stacks of anchors.md.
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 2048,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
LLAMA = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 32000,
         "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True}
for name, c, b, s, mask in (("gpt2", GPT2, 1, 128, None), ("gpt2", GPT2, 16, 2048, None),
                            ("llama-1b", LLAMA, 1, 128, None), ("llama-1b", LLAMA, 1, 8192, "sliding:w=512")):
    w = models.random_weights(c)
    ids = cupy.asarray(rng.integers(0, 30000, (b, s), dtype=np.int32))
    times, outs = {}, {}
    for how, options in (("eager", {"cuda_graphs": False}), ("graph", {}), ("tuned", {"tune": "fast"})):
        with TransformerEngine(w, config=c, backend="cuda", dtype="bfloat16", **options) as engine:
            times[how] = p50(lambda: engine.run(ids, mask=mask), 15)
            outs[how] = engine.run(ids, mask=mask).astype("f4")
            if how == "tuned": print(str(engine._program.explain()).splitlines()[-30:])
    err = max(float(cupy.abs(outs["eager"] - outs[k]).max()) for k in ("graph", "tuned"))
    print(f"{name:10} {b:3}x{s:<5}{mask or 'own':22} " + "  ".join(f"{k} {v:8.3f} ms" for k, v in times.items()) + f"  max diff {err:.3g}", flush=True)
with TransformerEngine(models.random_weights(GPT2), config=GPT2, backend="cuda") as engine:
    for n in (8, 72):
        t = time.perf_counter(); engine.generate([[5, 6, 7]], max_new_tokens=n); dt = time.perf_counter() - t
        print(f"generate {n} tokens: {dt * 1e3:.1f} ms")
