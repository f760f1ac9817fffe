"""Checks of ids, int32 embeddings, lists for the host on a GPU: python scratch/inputs_gpu.py   (about 30 s on an H100)

Prints errors that must be raised, and microseconds a run back to back.
"""

import os, sys, time

sys.path.insert(0, os.getcwd())
import cupy, numpy as np
from stof_cupy import TransformerEngine, models

c = {
    "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_hidden_layers": 6,
    "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536, "vocab_size": 30522,
    "max_position_embeddings": 512, "type_vocab_size": 2,
}  # fmt: skip
w = models.random_weights(c)
for graphs in (False, True):
    e = TransformerEngine(w, config=c, backend="cuda", dtype="bfloat16", cuda_graphs=graphs)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 30522, (4, 128))
    expected = e.run(ids)
    for dtype in ("int32", "int64", "uint16", "uint32"):
        got = e.run(cupy.asarray(ids.astype(dtype))).get()
        print(graphs, dtype, "equal" if np.array_equal(got, expected) else "DIFFERS")
    for value, dtype in ((30522, "int64"), (-1, "int32"), (-1, "int16"), (2**32, "int64")):
        bad = (ids % 100).astype(dtype)
        bad[2, 5] = value
        for x in (cupy.asarray(bad), [cupy.asarray(row) for row in bad]):
            try:
                e.run(x)
                print("NOT RAISED", value, dtype)
            except Exception as error:
                print(type(error).__name__, error)
    try:
        e.run(cupy.asarray(ids), lengths=cupy.asarray([1, 2, 129, 4]))
        print("NOT RAISED: lengths")
    except Exception as error:
        print(type(error).__name__, error)
    assert np.array_equal(e.run(ids), expected)
    lists = [rng.integers(0, 30522, n) for n in rng.integers(10, 200, 32)]
    there = [cupy.asarray(each) for each in lists]
    for name, x in (
        ("1x128 there", cupy.asarray(ids[:1])), ("4x128 there", cupy.asarray(ids)),
        ("4x128 here", ids), ("list there", there), ("list here", lists),
    ):  # fmt: skip
        for _ in range(5):
            e.run(x)
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        for _ in range(100):
            e.run(x)
        cupy.cuda.Device().synchronize()
        print(f"graphs {graphs!s:5} {name:12} {(time.perf_counter() - start) * 1e4:8.1f} us a run")
