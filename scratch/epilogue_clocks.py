"""Clocks, time and issue slots of the same product with no epilogue, bias, GELU by tanh and by erf, in one tile, by ncu: 32768x3072x768, 128x192 ping-pong and others.   One GPU, 30 s.

    PYTHONPATH=$PWD python3 scratch/epilogue_clocks.py
"""
import csv, os, subprocess, sys
if __name__ == "__main__" and "--run" not in sys.argv:
    metrics = "gpu__time_duration.sum,sm__cycles_elapsed.max,sm__cycles_elapsed.avg.per_second,sm__inst_issued.avg.pct_of_peak_sustained_elapsed,sm__inst_executed_pipe_tensor_op_gmma.sum,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed,gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
    out = subprocess.run(["ncu", "--clock-control", "none", "--cache-control", "none", "--metrics", metrics, "-k", "regex:gemm|stof|run", "--csv", sys.executable, __file__, "--run"], capture_output=True, text=True)
    rows = [r for r in csv.reader(l for l in out.stdout.splitlines() if l.startswith('"'))]
    if not rows:
        print(out.stdout[-1500:], out.stderr[-500:]); sys.exit(1)
    head = rows[0]; at = {n: head.index(n) for n in ("ID", "Kernel Name", "Metric Name", "Metric Value", "Metric Unit")}
    table = {}
    for r in rows[1:]:
        table.setdefault((int(r[at["ID"]]), r[at["Kernel Name"]][:60]), {})[r[at["Metric Name"]]] = f"{r[at['Metric Value']]} {r[at['Metric Unit']]}"
    names = [l for l in out.stdout.splitlines() if l.startswith("way ")]
    for n in names: print(n)
    for (i, name), m in sorted(table.items()):
        print(i, name, " | ".join(f"{k.split('.')[0].replace('sm__', '').replace('gpu__', '')}: {v}" for k, v in m.items()))
elif __name__ == "__main__":
    import cupy
    from stof_cupy.jit import device
    from stof_cupy.jit.epilogues import EpilogueKind
    from stof_cupy.ops import gemm, gemm_choice, gemm_model, gemm_timing
    from stof_cupy.ops.gemm_args import Problem
    from stof_cupy.ops.gemm_sm90 import Layout
    facts = device.facts()
    for kind in (EpilogueKind(), EpilogueKind(bias=True), EpilogueKind(bias=True, activation="gelu_tanh"), EpilogueKind(bias=True, activation="gelu")):
        p = Problem("bfloat16", 32768, 3072, 768, kind)
        sets = gemm_timing._sets(p, Layout()); operands = gemm.operands_of(gemm_timing._epilogue(p))
        for each in gemm_model.explain(p, Layout(), facts):
            name = gemm_choice.name_of(each.choice)
            if name not in ("sm90 128x192_c1_pingpong", "sm90 128x192_c2_pingpong", "sm90 128x128_c1_pingpong", "sm90 64x256_c1_pingpong", "sm90 128x256_c1"):
                continue
            a, b, out = sets[0]
            run = gemm.prepared(each.choice, p, a, b, out, operands)
            for _ in range(2):
                run(); cupy.cuda.Device().synchronize()
            print("way", name, kind.name, flush=True)
