"""Host time to a first result and kernels asked for, on the fake CUDA: python scratch/host_first.py CELL..."""
import os, sys, time, tempfile, cProfile, pstats
os.environ["STOF_CACHE_DIR"] = os.environ.get("C") or tempfile.mkdtemp()
sys.path[:0] = [os.getcwd(), "benchmarks"]
from tests.runtime import fake_cuda, cuda_path
fake_cuda.install(cuda_path.H100)
import numpy as np, cupy
import engine_stacks as st
from stof_cupy.runtime import Options, Program
from stof_cupy.jit import ahead, launch
from stof_cupy.jit.compile import compile_cubin
for name in sys.argv[1:]:
    cell = st.Cell.parse(name)
    t = time.perf_counter(); w = st.weights(cell.stack); x = cupy.asarray(st.hidden_states(cell)); mask = st.pattern(cell)
    t0 = time.perf_counter(); g = st.graph(cell.stack, w)
    prof = cProfile.Profile() if os.environ.get("P") else None
    if prof: prof.enable()
    p = Program(g, backend="cuda", dtype="bfloat16", options=Options(record=True))
    t1 = time.perf_counter()
    inputs = {"x": x, "mask": mask}
    if cell.stack.rotary: inputs["positions"] = cupy.zeros((cell.batch, cell.seq), np.int32)
    fake_cuda.LOG.clear(); p.run(inputs); t2 = time.perf_counter()
    if prof: prof.disable(); pstats.Stats(prof).sort_stats("cumtime").print_stats(25)
    ks = [n for k, n in fake_cuda.LOG if k == "launch"]
    p.run(inputs); p.run(inputs); fake_cuda.LOG.clear()
    t3 = time.perf_counter()
    for _ in range(20): p.run(inputs)
    t4 = time.perf_counter()
    plan=p.plan(inputs)
    print(f"{name}: weights {t0-t:.2f} s, Program {t1-t0:.2f} s, first run {t2-t1:.2f} s, replay {(t4-t3)/20*1e6:.0f} us, {len(ks)} launches ({len(ks)/cell.stack.layers:.1f} a layer), {len(set(ks))} kernels; {plan}")
    print("   ", sorted(set(ks)))
