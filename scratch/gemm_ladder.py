"""Every kernel of the Hopper GEMM on small problems, waits bounded: python3 scratch/gemm_ladder.py OUT.json [SECONDS AT MOST]; 30 s on an H100 after 25 s of compiling, by estimate.

Each case is checked against float64 and run twice, which has to give the same bits. A fault (a wait of a second is one, and says what was waited for) ends
the process that met it; the next one goes on behind it. What failed is in OUT.json by the configuration's name: gemm_bench.py leaves those out.
"""
import json, os, subprocess, sys, time
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [os.getcwd()]
WAITS = "? full empty residual statistics".split()


def cases():
    """Yield (name, what, config or few rows, (m, n, k), kind, splits, stream)."""
    from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
    from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS, Sm90Gemm
    from stof_cupy.ops.gemm_few_rows import Config

    every = EpilogueKind(scale=True, bias=True, activation="gelu_tanh", residual=True)
    gelu, gate = EpilogueKind(bias=True, activation="gelu_tanh"), EpilogueKind(bias=True, activation="silu", gated=True)
    added = EpilogueKind(bias=True, residual=True)
    for config in GEMM_SM90_CONFIGS:
        kinds = [k for k in (gelu, every, gate) if config.fault(k) is None]
        for i, kind in enumerate(kinds[:1] if config.m * config.n > 128 * 192 else kinds):
            rows, j = (16 if config.swapped else 300), config.joined
            for size, splits in (((17, 72, 200), j), ((rows, 264, 1000), 5 if config.split else j), ((3000, 1000, 328 if j == 1 else 456), 2 if config.split else j)):
                if not (config.swapped and size[0] > 1000) and not (j == 3 and size[2] < 300):
                    yield config.name, config, size, kind, splits, 0
            if config.split and i == 0:
                yield config.name, config, (rows, 3000, 1000), kind, 1, 132
    for n, tile in ((60, 64), (768, 128), (768, 192), (768, 256), (1000, 128), (2048, 256), (1728, 256), (576, 192)):
        for turns in (False, True):
            config = Sm90Gemm(128, tile, pingpong=turns, across=-(-n // tile))
            if config.fault(added) is None:
                for m, k in ((5, 72), (700, 328), (20000, 200)):
                    yield config.name, config, (m, n, k), added, 1, 0
    for rows, slices in ((1, 4), (2, 2), (4, 1), (8, 8), (16, 1), (16, 4), (16, 8), (16, 16)):
        for kind in (PLAIN, every, gate):
            for m, n, k in ((rows, 1536, 1024), (max(1, rows - 1), 576, 1541), (rows, 30, 72)):
                yield f"few rows {rows}x{slices}", Config(rows, slices), (m, n, k), kind, 1, 0


def specs():
    from stof_cupy.jit.gemm_sm90 import Sm90Gemm, gemm_sm90
    from stof_cupy.ops.gemm_args import Problem
    found = {}
    for _, config, (m, n, k), kind, *_ in cases():
        if isinstance(config, Sm90Gemm):
            found[gemm_sm90("bfloat16", replace(config, bounded=True), kind)] = None
        else:
            found[config.spec(Problem("bfloat16", m, n, k, kind))] = None
    return list(found)


def main(path, first):
    import cupy, numpy as np
    from stof_cupy.jit.gemm_sm90 import Sm90Gemm
    from stof_cupy.ops import gemm_few_rows, gemm_sm90 as ours
    from stof_cupy.ops.gemm_args import Problem
    from stof_cupy.ops.gemm_sm90 import Norm, Plan
    from stof_cupy.testing import random_array, rng
    from tests.ops.test_gemm_sm90 import Case

    pinned = cupy.cuda.alloc_pinned_memory(16)
    report = np.frombuffer(pinned, np.uint32, 4)
    report[:] = 0
    record = json.loads(path.read_text()) if path.exists() else {"bad": {}, "good": 0}
    for at, (name, config, size, kind, splits, stream) in enumerate(cases()):
        if at < first:
            continue
        path.write_text(json.dumps(record | {"at": at}))
        m, n, k = size
        what = f"{name} {size}{kind.name} {splits or ''} {stream or ''}"
        g, columns = rng(at), n * kind.halves
        pitch = -(-k // 8) * 8
        host = [random_array(g, (m, pitch), "bfloat16"), random_array(g, (columns, pitch), "bfloat16", k**-0.5)]
        bias = random_array(g, (columns,), "bfloat16") if kind.bias else None
        residual = random_array(g, (m, n), "bfloat16") if kind.residual else None
        norm = Norm(*(random_array(g, (n,), "bfloat16") for _ in "wb"), 1e-5) if getattr(config, "across", 0) else None
        if norm and m == 700:  # RMSNorm
            norm = norm._replace(bias=None)
        case = Case(Problem("bfloat16", m, n, k, kind), *(x[:, :k] for x in host), bias, residual, None, 0.75 if kind.scale else 1.0, norm)
        up = lambda x: None if x is None else cupy.asarray(x)
        a, b = (up(x)[:, :k] for x in host)
        out, got = cupy.empty((m, n), a.dtype), []
        how = dict(bias=up(bias), residual=up(residual), scale=case.scale)
        try:
            for _ in range(2):
                out.view("u2").fill(0x7FC0)
                if isinstance(config, Sm90Gemm):
                    on = None if norm is None else Norm(up(norm.weight), up(norm.bias), norm.eps)
                    ours.prepare(Plan(replace(config, bounded=True), splits, 0, stream), case.problem, a, b, out, **how, norm=on, report=pinned.ptr)()
                else:
                    gemm_few_rows.launch(config, case.problem, a, b, out, **how)
                cupy.cuda.Device().synchronize()
                got.append(out.get())
            if not np.array_equal(*(x.view("u2") for x in got)):
                raise AssertionError("two runs differ")
            rows = np.unique(np.linspace(0, m - 1, min(m, 400)).astype(int))  # the oracle is slow
            part = replace(case, a=case.a[rows], residual=None if residual is None else residual[rows], problem=replace(case.problem, m=len(rows)))
            part.compare(got[0][rows])
            record["good"] += 1
        except AssertionError as error:
            record["bad"].setdefault(name, []).append(f"{what}: {' '.join(str(error).split())[:200]}")
            print("BAD ", record["bad"][name][-1], flush=True)
        except Exception as error:  # the context is lost
            waited = f"waited for {WAITS[min(report[0], 4)]}, block {report[1]}, thread {report[2]}, parity {report[3]}" if report[0] else ""
            record["bad"].setdefault(name, []).append(f"{what}: {type(error).__name__} {str(error)[:120]} {waited}")
            print("FAULT", record["bad"][name][-1], flush=True)
            path.write_text(json.dumps(record | {"at": at}))
            os._exit(3)
    path.write_text(json.dumps(record | {"at": -1}))


if __name__ == "__main__":
    if sys.argv[1] == "--from":
        main(Path(sys.argv[3]), int(sys.argv[2]))
        sys.exit()
    path, first, start = Path(sys.argv[1]), 0, time.time()
    limit = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    for _ in range(8):
        try:
            status = subprocess.run([sys.executable, __file__, "--from", str(first), str(path)], timeout=max(5, limit - (time.time() - start))).returncode
        except subprocess.TimeoutExpired:
            status = "stopped"
        record = json.loads(path.read_text()) if path.exists() else {"at": 0, "bad": {}, "good": 0}
        if record["at"] < 0 or status == 0 or time.time() - start > limit - 5:
            break
        if status != 3:  # ended without a word
            record["bad"].setdefault("?", []).append(f"case {record['at']}: status {status}")
            path.write_text(json.dumps(record))
        first = record["at"] + 1
    print(f"ladder: {record['good']} right, wrong: {', '.join(record['bad']) or 'none'}, {time.time() - start:.0f} s, ended at {record['at']} (-1: all)")
