"""Kernels that lengths of one class ask for, on the fake CUDA: python scratch/lengths.py CELL..."""
import os, sys, tempfile
os.environ["STOF_CACHE_DIR"] = tempfile.mkdtemp()
sys.path[:0] = [os.getcwd(), "benchmarks"]
from tests.runtime import fake_cuda, cuda_path
fake_cuda.install(cuda_path.H100)
import numpy as np, cupy
from dataclasses import replace
import engine_stacks as st
from stof_cupy.runtime import Options, Program
from stof_cupy.graph.cuda_recorder import CudaRecorder
for name in sys.argv[1:]:
    cell = st.Cell.parse(name); cell = replace(cell, stack=replace(cell.stack, layers=1))
    g = st.graph(cell.stack, st.weights(cell.stack))
    p = Program(g, backend="cuda", dtype="bfloat16", options=Options(record=False, tune=os.environ.get("T", "off")))
    x = st.hidden_states(cell)
    def run(seq):
        c = replace(cell, seq=seq)
        inputs = {"x": cupy.asarray(x[:, :seq]), "mask": st.pattern(c)}
        if cell.stack.rotary: inputs["positions"] = cupy.zeros((cell.batch, seq), np.int32)
        fake_cuda.LOG.clear(); p.run(inputs)
        return [n for k, n in fake_cuda.LOG if k == "launch"]
    first = set(run(cell.seq)); more = {}
    for seq in np.random.default_rng(0).integers(cell.seq // 2 + 1, cell.seq, 60).tolist():
        for n in set(run(seq)) - first: more.setdefault(n, []).append(seq)
    print(name, "first", sorted(first)); print("   more", {k: (len(v), min(v), max(v)) for k, v in more.items()}, flush=True)
