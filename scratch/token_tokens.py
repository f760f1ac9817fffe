"""Greedy tokens of small decoders on the emulated GPU, kernels run on the CPU: with the kernel of one token and without. EAGER=1 EMULATE=run EMULATE_COMPILE=1000 PYTHONPATH=$PWD:$PWD/scratch [LEAST=4096 N=24] python scratch/emulated_gpu.py scratch/token_tokens.py [llama llama16 gemma3 gpt2]"""
import sys, time
import numpy as np
from stof_cupy import models
from stof_cupy.fusion import token
from stof_cupy.jit import launch
from stof_cupy import TransformerEngine
from tests.goldens.cases import GEMMA3, GPT2, LLAMA
import collections
from stof_cupy.ops import gemm_streamed
gemm_streamed.config_for = lambda problem, facts: None  # the emulation does not run it
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 80}
CASES = {
 "llama": {**LLAMA, **SIZES, "head_dim": 64, "num_attention_heads": 6, "num_key_value_heads": 2},
 "llama16": {**LLAMA, **SIZES, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 4, "rope_interleaved": True},
 "gemma3": {**GEMMA3, **SIZES, "head_dim": 32, "num_hidden_layers": 3},
 "gpt2": {**GPT2, "n_embd": 64, "n_layer": 2, "vocab_size": 80},
}
from stof_cupy.ops import attention_token
import os
if os.environ.get("LEAST"): attention_token._LEAST_BYTES = int(os.environ["LEAST"])
N = int(os.environ.get("N", 8))
import cupy
KEEP = []
_empty = cupy.empty
def _kept(*a, **k):
    x = _empty(*a, **k); KEEP.append(x); return x
cupy.empty = _kept
_cls = type(cupy.empty(1))
_init = _cls.__init__
def _kinit(self, *a, **k):
    _init(self, *a, **k); KEEP.append(self.host)
_cls.__init__ = _kinit
from stof_cupy.runtime import bound
if os.environ.get("EAGER"): bound._recorded = lambda call, recorder, changes: call
which = sys.argv[1:] or list(CASES)
for name in which:
    config = CASES[name]
    got = []
    for on in (False, True):
        token.TOKEN_KERNEL = on
        engine = TransformerEngine(models.random_weights(config), config=config, backend="cuda", dtype="float16")
        t = time.time()
        got.append(engine.generate([[1, 2, 3, 4], [5, 6]], max_new_tokens=N))
        print(name, on, got[-1], round(time.time() - t), "s", [n for n in launch.loaded() if "token" in n or "rotary" in n or "kv_cache" in n], flush=True)
    print("SAME" if got[0] == got[1] else "DIFFERENT")
