"""What runs of small models ask of CUDA, as JSON: `python -m tests.runtime.cuda_path`."""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np

from stof_cupy.dtypes import as_dtype
from stof_cupy.jit.device import DeviceFacts
from tests.runtime import fake_cuda

H100 = DeviceFacts(
    "NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20, 1980000, 80 << 30,
    2048, 2619000, 5120,
)  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_hidden_layers": 2,
    "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256, "vocab_size": 50,
    "max_position_embeddings": 512, "type_vocab_size": 2,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 2, "vocab_size": 50,
    "n_positions": 512, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 50,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
VIT = {
    "model_type": "vit", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 256, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "image_size": 32,
    "patch_size": 8, "num_channels": 3, "qkv_bias": True,
}  # fmt: skip
T5 = {
    "model_type": "t5", "d_model": 128, "d_kv": 64, "d_ff": 256, "num_layers": 2, "num_heads": 2,
    "vocab_size": 50, "relative_attention_num_buckets": 8, "feed_forward_proj": "relu",
    "relative_attention_max_distance": 20, "layer_norm_epsilon": 1e-6, "decoder_start_token_id": 0,
}  # fmt: skip

LONG = "longformer:w=64,g=16"
LENGTHS = (("bert", None), ("llama", None), ("gpt2", None), ("bert", LONG), ("gpt2", LONG))
"""Families and masks; a mask keeps what was chosen."""

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bert": (BERT, {}),
    "bert, lengths": (BERT, {"lengths": [64, 9]}),
    "bert, longformer": (BERT, {"mask": "longformer:w=8,g=2"}),
    "bert, layers": (BERT, {"layer_masks": {1: "longformer:w=8,g=2"}}),
    "bert, both": (BERT, {"mask": "causal", "layer_masks": {1: "longformer:w=8,g=2"}}),
    "gpt2": (GPT2, {}),
    "llama": (LLAMA, {}),
    "llama, neighbours": ({**LLAMA, "rope_interleaved": True}, {}),
    "vit": (VIT, {}),
    "t5": (T5, {}),
}


def told(config: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
    """Return what each of three runs asked for, and what was warned of."""
    import cupy

    from stof_cupy import TransformerEngine, models

    weights = models.random_weights(config)
    engine = TransformerEngine(
        weights, config=config, backend="cuda", dtype="bfloat16", cuda_graphs=True
    )
    if config["model_type"] == "vit":
        x: Any = np.zeros((2, 3, 32, 32), np.float32)
    else:
        x = cupy.asarray(np.zeros((2, 64), np.int64))
    runs = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            fake_cuda.LOG.clear()
            engine.run(x, **how)
            runs.append(list(fake_cuda.LOG))
    return {"runs": runs, "warnings": [str(each.message) for each in said]}


def program(masked: bool) -> dict[str, Any]:
    """Return the same of a user's own block, whose inputs are floats and a mask."""
    import cupy

    from stof_cupy import masks
    from stof_cupy.runtime import Options, Program
    from tests.fusion.stacks import WIDTH, paper_stack

    made = Program(paper_stack(2), backend="cuda", options=Options(record=True))
    inputs: dict[str, Any] = {"x": cupy.zeros((2, 64, WIDTH), np.float16)}
    if masked:
        inputs["mask"] = masks.causal(64).tobsr()
    runs = []
    for _ in range(3):
        fake_cuda.LOG.clear()
        made.run(inputs)
        runs.append(list(fake_cuda.LOG))
    return {"runs": runs, "warnings": []}


def masked(tune: str, array: bool, scores: bool) -> dict[str, Any]:
    """Return the same where a mask is an array, and where scores that it masks are an output."""
    import cupy

    from stof_cupy import masks
    from stof_cupy.graph import Graph
    from stof_cupy.runtime import Options, Program

    g = Graph("masked")
    mask = g.input("mask", ("seq", "seq"), "mask")
    x = g.input("x", ("batch", 1, "seq", "seq" if scores else 64), "float")
    g.output("y", g.masked(x, mask) if scores else g.attention(x, x, x, mask))
    made = Program(g, backend="cuda", options=Options(tune=tune))
    rows = masks.causal(64).tobsr()
    inputs = {"x": cupy.zeros((1, 1, 64, 64), np.float16)}
    runs = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            fake_cuda.LOG.clear()
            made.run({**inputs, "mask": rows.toarray() if array else rows})
            runs.append(list(fake_cuda.LOG))
    return {"runs": runs, "warnings": [str(each.message) for each in said]}


def recorded_ahead() -> list[str]:
    """Compile nothing ahead from now on; return a list that gets the names of what would be."""
    from stof_cupy.fusion import bench
    from stof_cupy.runtime import documents

    ahead: list[str] = []

    def noted(specs: Any, arch: str, *, later: bool = False) -> int:
        ahead.extend(spec.name for spec in specs)
        return 0

    bench.compile_ahead = documents.compile_ahead = noted  # type: ignore[assignment]
    bench.compiling = lambda *specs, **how: nullcontext(noted(*specs, **how))  # type: ignore[assignment]
    return ahead


def ragged() -> dict[str, Any]:
    """Return what lists of sequences ask for, whose lengths are others each time."""
    import cupy

    from stof_cupy import TransformerEngine, models

    ahead = recorded_ahead()
    engine = TransformerEngine(
        models.random_weights(BERT), config=BERT, backend="cuda", dtype="bfloat16", cuda_graphs=True
    )
    rng, runs, right = np.random.default_rng(0), [], []
    for _ in range(3):
        lengths = rng.multinomial(1000, np.ones(9) / 9)  # of one number of tokens, when padded
        lengths[3] = 0
        x = [cupy.asarray(np.zeros(n, np.int64)) for n in lengths]
        fake_cuda.LOG.clear()
        results = engine.run(x)
        runs.append(list(fake_cuda.LOG))
        shapes = [each.shape for each in results] == [(n, 128) for n in lengths]
        (documents,) = engine._program.packed()._masks.values()  # type: ignore[union-attr]
        ids = documents.ids.host
        counts = [int((ids == number).sum()) for number in range(9)] == lengths.tolist()
        ascend = bool((np.diff(ids[: lengths.sum()]) >= 0).all())
        padding = bool((ids[lengths.sum() :] == -1).all())
        right.append([shapes, counts, ascend, padding])
    return {"runs": runs, "warnings": [], "right": right, "ahead": [*ahead]}


def another_device() -> dict[str, Any]:
    """Return where runs of device 1 take place, and their results lie, while 0 is current."""
    import cupy

    from stof_cupy import TransformerEngine, models

    weights = models.random_weights(BERT)
    engine = TransformerEngine(
        weights, config=BERT, backend="cuda", dtype="bfloat16", device=1, cuda_graphs=True
    )
    with cupy.cuda.Device(1):
        there = cupy.asarray(np.zeros((2, 64), np.int64))
    here = cupy.asarray(np.zeros((2, 64), np.int64))
    fake_cuda.DEVICES.clear()
    results = [engine.run(there, mask="causal").device.id for _ in range(3)]
    devices = sorted(fake_cuda.DEVICES)
    back = engine.run(here).device.id
    with cupy.cuda.Device(1):
        inputs = {name: there.astype(np.int32) for name in ("ids", "token_types")}
    fake_cuda.DEVICES.clear()
    engine._program.profile(inputs, repeat=1)
    profiled = sorted(fake_cuda.DEVICES)
    return {"results": results, "devices": devices, "back": back, "profiled": profiled}


def token() -> list[list[str]]:
    """Return what a step of decoding asks for where it is not recorded."""
    import cupy

    from stof_cupy import models
    from stof_cupy.fusion import structured
    from stof_cupy.runtime import Options, Program
    from stof_cupy.runtime.bound import bind

    graph = structured(models.build(LLAMA, models.random_weights(LLAMA)).graph)
    made = Program(graph, backend="cuda", dtype="bfloat16", options=Options(record=False))
    one = cupy.zeros((2, 1), np.int32)
    inputs: dict[str, Any] = {"ids": one, "positions": one, "rows": one}
    inputs["lengths"] = cupy.zeros(2, np.int32)
    for name, node in graph.inputs.items():
        if node.dtype == "cache":
            inputs[name] = cupy.zeros((2, 2, 64, 64), as_dtype("bfloat16"))
    run = bind(made, inputs)
    fake_cuda.LOG.clear()
    run()
    return list(fake_cuda.LOG)


def lengths(config: dict[str, Any], mask: str | None) -> dict[str, list[str]]:
    """Return what is compiled ahead for a class of lengths, and launched at lengths of it."""
    import cupy

    from stof_cupy import TransformerEngine, models

    ahead = recorded_ahead()
    wide = {"num_hidden_layers": 1, "hidden_size": 768, "num_attention_heads": 12}
    wide |= {"intermediate_size": 3072, "n_layer": 1, "n_embd": 768, "n_head": 12}
    config = {**config, **{name: wide[name] for name in wide.keys() & config.keys()}}
    weights = models.random_weights(config)
    engine = TransformerEngine(weights, config=config, backend="cuda", dtype="bfloat16")
    x = cupy.asarray(np.zeros((8, 512), np.int64))
    fake_cuda.LOG.clear()
    for seq in (300, *np.random.default_rng(0).integers(257, 513, 40).tolist()):
        engine.run(x[:, :seq], mask=mask)
    launched = {name for kind, name in fake_cuda.LOG if kind == "launch"}
    return {"ahead": sorted(set(ahead)), "launched": sorted(launched)}


def folded(tune: str) -> dict[str, list[str]]:
    """Return what a decoder asks for whose norms are folded, and what is compiled ahead for it."""
    import cupy

    from stof_cupy import models
    from stof_cupy.runtime import Options, Program

    ahead = recorded_ahead()
    config = {**GPT2, "n_embd": 768, "n_head": 12, "n_layer": 3}
    graph = models.build(config, models.random_weights(config)).graph
    options = Options(tune=tune, fold_norms=True, record=False)
    made = Program(graph, backend="cuda", dtype="bfloat16", options=options)
    runs = []
    for seq in (512, 512, *np.random.default_rng(0).integers(257, 513, 20).tolist()):
        ids = cupy.asarray(np.zeros((8, seq), np.int32))
        fake_cuda.LOG.clear()
        made.run({"ids": ids, "positions": ids, "rows": ids[:, :1]})
        runs.append([name for kind, name in fake_cuda.LOG if kind == "launch"])
    return {
        "ahead": ahead,
        "again": runs[1],
        "launched": sorted({n for run in runs[1:] for n in run}),
    }


def joined(tune: str) -> dict[str, list[str]]:
    """Return as `lengths` what is launched where products and norms may be one kernel."""
    import cupy

    from stof_cupy import models
    from stof_cupy.ops import gemm_choice
    from stof_cupy.runtime import Options, Program

    config = {**BERT, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512}
    graph = models.build(config, models.random_weights(config)).graph
    gemm_choice.norm.cache_clear()
    ahead = recorded_ahead()
    made = Program(graph, backend="cuda", options=Options(tune=tune, record=False))
    names = []
    for seq in (512, *np.random.default_rng(0).integers(257, 513, 30).tolist()):
        ids = {name: cupy.zeros((64, seq), np.int32) for name in ("ids", "token_types")}
        made.run(ids)
        fake_cuda.LOG.clear()
        made.run(ids)
        names += [name for kind, name in fake_cuda.LOG if kind == "launch"]
    return {"ahead": sorted(set(ahead)), "launched": sorted(set(names))}


if __name__ == "__main__":
    os.environ["STOF_CACHE_DIR"] = sys.argv[1]
    fake_cuda.install(H100)
    found: dict[str, Any] = {name: told(*case) for name, case in CASES.items()}
    found |= {"block": program(False), "block, causal": program(True)}
    found |= {f"masked, {tune}": masked(tune, True, False) for tune in ("off", "fast")}
    found |= {f"scores, {tune}": masked(tune, False, True) for tune in ("off", "fast")}
    found |= {"ragged": ragged(), "another device": another_device()}
    found |= {"token": token()}
    found |= {f"lengths, {each}": lengths(CASES[each[0]][0], *each[1:]) for each in LENGTHS}
    found |= {f"folded, {tune}": folded(tune) for tune in ("off", "fast")}
    found |= {f"joined, {tune}": joined(tune) for tune in ("off", "fast")}
    print(json.dumps(found))
