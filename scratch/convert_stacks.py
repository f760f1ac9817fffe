"""Once: benchmarks/results/engine_grid_h200.jsonl and engine_first_h200.jsonl as pytest-benchmark's files have them."""
import json, sys
from pathlib import Path
sys.path[:0] = [".", "benchmarks"]
import appending
from bench_paper_stacks import LARGE_FIRST
from engine_measure import WAYS
R = Path("benchmarks/results")
NOTE = ("converted from engine_grid_h200.jsonl: the host's time is a median alone, of 10 to 200 calls as many as were timed on the "
        "device; device_rounds is the fewest; cell_s is of all ways together; of the date no more than the day is known")

def stats(seconds):
    same = dict.fromkeys(("min", "max", "mean", "median", "q1", "q3", "total"), seconds)
    return {**same, "stddev": 0, "iqr": 0, "rounds": 1, "iterations": 1, "data": [seconds]}

def machine(m):
    m = dict(m); m.pop("date")
    gpu = {"name": m.pop("gpu"), "driver": m.pop("driver")}
    return {"packages": m, "gpu": gpu}

newest = {}
for text in (R / "engine_grid_h200.jsonl").read_text().splitlines():
    line = json.loads(text); newest[line["cell"]] = line
assert len(newest) == 61
commits = list(dict.fromkeys(line["commit"] for line in newest.values()))
order = ["38d5b39", "60168de", "bd0ebf6", "2195155"]
assert sorted(commits) == sorted(order), commits
runs = []
for c in order:
    line = next(l for l in newest.values() if l["commit"] == c)
    assert all(l["machine"] == line["machine"] for l in newest.values() if l["commit"] == c)
    runs.append({"machine_info": machine(line["machine"]), "commit_info": {"id": c, "dirty": False}, "datetime": line["machine"]["date"], "note": NOTE})
benchmarks = []
for cell in map(str, LARGE_FIRST):
    line = newest.pop(cell)
    assert set(line["ways"]) == set(WAYS) and line["fold"] is False
    stack, size, mask = cell.split(":")
    for way in WAYS:
        f = dict(line["ways"][way])
        params = {"stack": stack, "size": size, "mask": mask, "way": way}
        name = f"bench_stacks[{stack}-{size}-{mask}-{way}]"
        info = {"way": way, "cold_s": f.pop("cold_s"), "error": f.pop("error")}
        host = f.pop("host_ms")
        device = {f"device_{q}_ms": f.pop(f"{q}_ms") for q in ("p20", "p50", "p80")}
        info |= {**f, **device, "device_rounds": 10, "density": line["density"], "gflop": line["gflop"], "matmul_tflops": line["matmul_tflops"], "cell_s": line["seconds"]}
        if way == "ours":
            info |= {"tune": "fast", "fold": False}
        benchmarks.append({"group": None, "name": name, "fullname": f"benchmarks/bench_paper_stacks.py::{name}", "params": params,
                           "param": "-".join(params.values()), "extra_info": info, "options": {}, "stats": stats(host / 1e3), "run": order.index(line["commit"])})
assert not newest
last = {k: v for k, v in runs[-1].items() if k != "note"}
appending.write(R / "paper_stacks_h200.json", {**last, "runs": runs, "benchmarks": benchmarks, "skipped": []})
print(len(benchmarks))

path = R / "paper_start_h200.json"
content = appending.read(path)
number = len(content["runs"])
lines = [json.loads(t) for t in (R / "engine_first_h200.jsonl").read_text().splitlines()]
assert all(l["machine"] == lines[0]["machine"] for l in lines)
content["runs"].append({"machine_info": machine(lines[0]["machine"]), "commit_info": {}, "datetime": lines[0]["machine"]["date"],
    "note": "converted from engine_first_h200.jsonl, which came with commit 9a3a6f4 and does not say what was measured: a time is that of the import and the first result, as that of the process was not noted"})
for l in lines:
    for state in ("empty", "second"):
        params = {"backend": "cuda", "cell": l["cell"], "tune": l["tune"], "state": state}
        name = f"bench_first_stack[{'-'.join(params.values())}]"
        f = l[state]
        content["benchmarks"].append({"group": None, "name": name, "fullname": f"benchmarks/bench_paper_start.py::{name}", "params": params, "param": "-".join(params.values()),
            "extra_info": {"way": "ours", **f}, "options": {}, "stats": stats(round(f["import_s"] + f["result_s"], 3)), "run": number})
appending.write(path, content)
