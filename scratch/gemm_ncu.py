"""What bounds the GEMM kernels: counters of a handful of them, by ncu.

    PYTHONPATH=$PWD:$PWD/benchmarks python3 scratch/gemm_ncu.py [CASE ...]          about 40 s for the five of CASES, by estimate, 10 s of that compiling

A CASE is KIND:MxNxK or KIND:MxNxK:WORDS; a kind of gemm_cells.KINDS (N: columns of B, twice the result's of swiglu), and words of the name that gemm_choice.name_of gives, e.g.
"plain:8192x8192x8192:128x256 c2" (the fastest by the model whose name has all of them, "-pingpong": that has it not); without words what the package takes itself. All of Hopper's ways may be
taken. The program starts ncu on itself (caches emptied before each pass, clocks left alone, one launch of each case after a first one) and prints one line for each: ncu's time
and clock; `products`: the least clocks that the FLOPs take of those that it took; busy shares of tensor pipe, L2, memory and issue slots over the whole launch; and of all that warps wait for, per cent: code that
is not there yet, loads from global memory, barriers (CTA's; mbarriers are loops of branches, `branch` and `sleep`), fixed latencies, wgmma ("gmma"), products' pipe, and the rest of them that is most.
$OUT/gemm_ncu.csv has every counter. Of a grid that never fills the GPU `products` says nothing.
"""
import csv, os, re, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
CASES = (
    "plain:8192x8192x8192:128x256 c2 -stream -pingpong",
    "bias_gelu:32768x3072x768:pingpong c2",
    "layer_norm:32768x768x768",
    "plain:16x2048x8192:few rows 16",
    "plain:512x768x3072",
)
SECTIONS = "SpeedOfLight ComputeWorkloadAnalysis MemoryWorkloadAnalysis SchedulerStats WarpStateStats LaunchStats".split()
METRICS = ("gpu__time_duration.sum", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "sm__cycles_elapsed.max", "sm__cycles_elapsed.avg.per_second",
           "lts__throughput.avg.pct_of_peak_sustained_elapsed", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "sm__inst_issued.avg.pct_of_peak_sustained_elapsed")
COLUMNS = {  # the first that is there
    "tensor": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", r"sm__pipe_tensor.*gmma.*cycles_active.*pct_of_peak_sustained", r"sm__(inst_executed_)?pipe_tensor.*pct_of_peak_sustained"),
    "L2": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", r"lts__t_sectors\.avg\.pct_of_peak_sustained_elapsed"),
    "DRAM": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", r"dram__(throughput|bytes).*pct_of_peak_sustained"),
    "issue": ("sm__inst_issued.avg.pct_of_peak_sustained_elapsed", r"(sm__inst_issued|smsp__issue_active|sm__issue_active).*pct_of_peak_sustained"),
}
STALL = re.compile(r"smsp__average_warps?_issue_stalled_(\w+)_per_issue_active")
STALLS = ("no_instruction", "long_scoreboard", "barrier", "branch_resolving", "sleeping", "wait", "gmma", "math_pipe_throttle")
FLOP_A_CLOCK = 4096 * 132  # of the whole GPU, float16 and bfloat16, dense


# ---------------------------------------------------------------- under ncu


def parse(case):
    """Return kind, (M, N, K) and words."""
    kind, sizes, words = (case.split(":") + [""])[:3]
    return kind, tuple(int(x) for x in sizes.split("x")), words.split()


def chosen(named, words):
    """Return the first of (name, what), the fastest first, with all words and none of those after a minus."""
    for name, what in named:
        if all((word[1:] not in name) if word.startswith("-") else (word in name) for word in words):
            return name, what
    raise SystemExit(f"no kernel with {words} among {[name for name, _ in named][:20]}")


def call_of(case):
    """Return the name of a case's kernel, and its launch."""
    import gemm_cells
    from stof_cupy.jit.device import facts
    from stof_cupy.ops import gemm_choice, gemm_model, gemm_norm, gemm_timing, gemm_ways
    from stof_cupy.ops.gemm_sm90 import Layout, Norm
    kind, shape, words = parse(case)
    problem, here = gemm_cells.problem_of(kind, shape), facts()
    if kind == "layer_norm":
        plans = [(gemm_model.predict(plan, problem, here, gemm_model.Constants()).us, gemm_choice.name_of(plan), plan) for plan in gemm_model.norm_candidates(problem, Layout(), here)]
        name, plan = chosen([(name, plan) for _, name, plan in sorted(plans, key=lambda each: each[:2])], words)
        (a, b, out), epilogue = gemm_timing._arrays(problem, Layout()), gemm_timing._epilogue(problem)
        norm = Norm(*(gemm_timing.normal((problem.n,), problem.dtype, seed) for seed in (4, 5)), 1e-5)
        return name, lambda: gemm_norm.launch(plan, problem, a, b.T, epilogue, norm, out)
    name, choice = chosen([(gemm_choice.name_of(way.choice), way.choice) for way in gemm_ways.ways(problem, Layout(), here)], words)
    return name, gemm_timing._calls(problem, Layout())(choice)


def under_ncu(cases, path):
    """Launch each case once more than once, the last time where counters are read; write down what was launched."""
    import cupy
    names = []
    for case in cases:
        name, call = call_of(case)
        call()
        cupy.cuda.Device().synchronize()
        cupy.cuda.runtime.profilerStart()
        call()
        cupy.cuda.Device().synchronize()
        cupy.cuda.runtime.profilerStop()
        names.append(f"{case.rpartition(':')[0] if case.count(':') > 1 else case}\t{name}")
        Path(path).write_text("\n".join(names))
        del call
        cupy.get_default_memory_pool().free_all_blocks()


# ---------------------------------------------------------------- what ncu says


def number(text):
    """Return a number of ncu's, or None."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def read(text):
    """Return a dict of counters for each launch, in base units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if not lines:
        return []
    heads, units, *rows = csv.reader(lines)
    found = []
    for row in rows:
        values = dict(zip(heads, row))
        found.append({name: (values[name], unit) for name, unit in zip(heads, units)})
    return found


def value(row, *patterns):
    """Return the first counter that is named or matched, or None."""
    for pattern in patterns:
        for name, (text, _) in row.items():
            if name == pattern or (name not in patterns and re.search(pattern, name)):
                if (x := number(text)) is not None:
                    return x
    return None


def microseconds(row):
    text, unit = row.get("gpu__time_duration.sum", ("", ""))
    x = number(text)
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
    return None if x is None else x * scale.get(unit, 1e-3)


def line(case, name, row):
    """Return a line of the table."""
    kind, (m, n, k), _ = parse(case)
    us = microseconds(row)
    hertz = value(row, "sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second")
    if hertz is not None and hertz < 1e4:  # in GHz or MHz
        hertz *= 1e9 if hertz < 10 else 1e6
    clocks = value(row, "sm__cycles_elapsed.max") or (us or 0) * (hertz or 0) / 1e6
    least = 100 * 2.0 * m * n * k / FLOP_A_CLOCK / clocks if clocks else None
    shares = [least, *(value(row, *patterns) for patterns in COLUMNS.values())]
    stalls = {found.group(1): x for head, (text, _) in row.items() if (found := STALL.match(head)) and (x := number(text)) is not None}
    stalls.pop("selected", None)
    total = sum(stalls.values()) or 1.0
    parts = [100 * stalls.get(each, 0.0) / total for each in STALLS]
    other = max(((x, each) for each, x in stalls.items() if each not in STALLS), default=(0.0, "-"))
    told = lambda x, form: "?" if x is None else format(x, form)
    cells = [f"{case:27.27}", f"{name:44.44}", f"{told(us, '9.1f')}", told(hertz and hertz / 1e9, "5.2f"), *(told(x, "6.0f") for x in shares), "|", *(f"{x:6.0f}" for x in parts)]
    return " ".join(f"{x:>6}" for x in cells) + f"  {other[1]} {100 * other[0] / total:.0f}"


HEAD = " ".join(f"{x:>6}" for x in (f"{'':27}", f"{'kernel':44}", f"{'us':>9}", "  GHz", "prod.%", *(f"{x}%" for x in COLUMNS), "|", "  code", "global", " barr.", "branch", " sleep", "  wait", "  gmma", " pipes")) + "  most of the rest"


def main(cases):
    start, out = time.time(), Path(os.environ.get("OUT", "/tmp"))
    names, table = out / "gemm_ncu_names.txt", out / "gemm_ncu.csv"
    how = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--target-processes", "all", "--print-units", "base", "--csv", "--page", "raw"]
    sections = [x for section in SECTIONS for x in ("--section", section)]
    rows, said = [], ""
    for more in ([*sections, "--metrics", ",".join(METRICS)], sections, ["--set", "full"]):  # a counter that there is not ends ncu
        names.unlink(missing_ok=True)
        command = [*how, *more, sys.executable, str(Path(__file__).resolve()), "--under", str(names), *cases]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=max(20, 150 - (time.time() - start)))
        except FileNotFoundError:
            sys.exit("ncu: not found (on a machine of the kind gVisor there are no counters anyway)")
        except subprocess.TimeoutExpired as late:
            said = f"ncu: cut off; {(late.stdout or b'')[-300:]!r}"
            break
        rows = read(run.stdout)
        said = " / ".join(each for each in (run.stdout + run.stderr).splitlines() if "==ERROR==" in each or "==WARNING==" in each or "Error" in each)[:600]
        if rows:
            table.write_text(run.stdout)
            break
        print("ncu gave nothing:", said or (run.stdout + run.stderr)[-600:], flush=True)
        if "ERR_NVGPUCTRPERM" in said or "LibraryNotLoaded" in said:
            break
    launched = [each.split("\t") for each in names.read_text().splitlines()] if names.exists() else []
    print(HEAD)
    for (case, name), row in zip(launched, rows):
        print(line(case, name, row))
    if len(launched) != len(rows):
        print(f"!!! {len(launched)} cases, {len(rows)} launches: a case is more than one kernel, so lines may be of others", *[row.get("Kernel Name", ("?",))[0][:60] for row in rows], sep="\n  ")
    if said:
        print(said)
    print(f"{time.time() - start:.0f} s")
    return 0 if rows else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--under"]:
        under_ncu(sys.argv[3:], sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:] or CASES))
